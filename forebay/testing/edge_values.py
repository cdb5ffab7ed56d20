"""List values, types and names of columns that targets lose, change or refuse. Holds data alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NINES = "9" * 38
#: A column's type, and its values as Spark's SQL writes them; each column has a null too.
VALUES: Mapping[str, Sequence[str]] = {
    "BOOLEAN": ["true", "false"],
    "TINYINT": ["-128Y", "127Y"],
    "SMALLINT": ["-32768S", "32767S"],
    "INT": ["-2147483648", "2147483647"],
    "BIGINT": ["-9223372036854775808L", "9223372036854775807L"],
    "FLOAT": [f"CAST('{one}' AS FLOAT)" for one in ("NaN", "Infinity", "-Infinity", "-0.0", "1.4E-45", "3.4028235E38")],
    "DOUBLE": [
        f"CAST('{one}' AS DOUBLE)"
        for one in ("NaN", "Infinity", "-Infinity", "-0.0", "4.9E-324", "1.7976931348623157E308", "0.1")
    ],
    "DECIMAL(38, 0)": [f"{_NINES}BD", f"-{_NINES}BD", "0BD"],
    "DECIMAL(38, 38)": [f"0.{_NINES}BD", f"-0.{_NINES}BD", "0.00000000000000000000000000000000000001BD"],
    "DECIMAL(10, 2)": ["99999999.99BD", "-0.01BD", "1.50BD"],
    "STRING": [
        *("''", "' '", "'NULL'", "'\\\\N'", "'\"'", "','", "'a\\tb\\nc\\rd'", "'ü😀'", "'\\uFEFFx'", "'\\uFFFF'"),
        *("'\\u0001\\u007F'", "repeat('x', 1000000)"),
    ],
    "BINARY": ["X''", "X'00FF5C'", "CAST('\\\\x41' AS BINARY)"],
    "DATE": [f"DATE'{one}'" for one in ("0001-01-01", "1582-10-04", "1582-10-15", "1969-12-31", "9999-12-31")],
    "TIMESTAMP": [
        f"TIMESTAMP'{one}'"
        for one in (
            *("0001-01-01 00:00:00Z", "1582-10-10 00:00:00Z", "1883-11-18 12:03:57Z", "1969-12-31 23:59:59.999999Z"),
            *("1899-12-31 23:59:59.999999+00:19:32", "2026-03-29 01:30:00Z", "9999-12-31 23:59:59.999999Z"),
        )
    ],
    "TIMESTAMP_NTZ": [
        f"TIMESTAMP_NTZ'{one}'"
        for one in (
            *("0001-01-01 00:00:00", "1582-10-10 00:00:00", "1969-12-31 23:59:59.999999", "2026-03-29 02:30:00"),
            "9999-12-31 23:59:59.999999",
        )
    ],
    "ARRAY<INT>": ["array()", "array(1, null, 3)"],
    "ARRAY<STRING>": ["array('', null, 'a\"b', '{}')"],
    "ARRAY<ARRAY<DOUBLE>>": ["array(array(), null, array(1.5D))"],
    "MAP<STRING, INT>": ["map()", "map('', 1, 'a\"b', null)"],
    "STRUCT<a: INT, b: STRING>": ["named_struct('a', CAST(NULL AS INT), 'b', '')", "named_struct('a', 1, 'b', 'x')"],
    "STRUCT<a: STRUCT<b: ARRAY<INT>>>": [
        f"named_struct('a', {one})"
        for one in ("NULL", *(f"named_struct('b', {two})" for two in ("NULL", "array()", "array(NULL)")))
    ],
    "MAP<INT, MAP<DATE, ARRAY<BINARY>>>": ["map(1, NULL, 2, map(), 3, map(DATE'1582-10-04', array(X'00', NULL, X'')))"],
    "ARRAY<STRUCT<at: DATE, of: MAP<STRING, DECIMAL(5, 1)>>>": [
        "array(named_struct('at', DATE'2026-01-02', 'of', map('k', 1.5BD)), null)"
    ],
}
#: Columns of types that most targets lack: nulls of Spark's own types, and nulls without a type.
ODD_COLUMNS = (
    *(
        f"array(CAST(NULL AS {kind}))"
        for kind in ("INTERVAL DAY TO SECOND", "INTERVAL YEAR TO MONTH", "VARIANT", "STRUCT<>")
    ),
    *("make_interval(1)", "NULL", "array(NULL)", "map()"),
)
#: Columns with a text in them, at several depths.
TEXTS = ("{}", "array({})", "named_struct('a', {})", "map({}, 1)", "array(map('k', named_struct('a', {})))")
#: Texts that a target may refuse, and at how many of these depths they are tried. The casts keep what is no UTF-8: a
#: byte of Latin-1, and a lone surrogate.
ODD_TEXTS = {"'a\\u0000'": len(TEXTS), "CAST(X'4772FC6E' AS STRING)": len(TEXTS), "CAST(X'EDA080' AS STRING)": 1}
#: Names that a statement, a path, a format or a reader may take for something else.
NAMES = (
    *("%", "cpu %", "%s", "%(target)s", "{names}", 'a"b', "a'b", "`a`", "a.b", "a b", "a,b;c", "a=b", "a/b", "\\"),
    *("date", "Date", "hour", "batch_time", "_batch_time", "_BATCH_TIME", "ctid", "xmin", "select", "value"),
    *("a" * 63, "a" * 64, "é" * 31, "é" * 32, " ", "", "\0", "a\nb", "ä", "A", "a", "\U0001f600", "\u202e"),
    *("_a", "/", ".", "..", "e\u0301", "element", "key", "list"),
)
#: Columns of one result that a target may take for one.
NAMES_TOGETHER = (("date", "hour"), ("a", "A"), ("a", "a"), ("ä", "Ä"), ("\u00e9", "e\u0301"))
#: Fields of one struct, which are names within a column.
NAMES_WITHIN = (
    *(("",), ("\0",), ("a", "A"), ("a", "a"), ("a b", "a;c"), ("date", "hour", "_batch_time", "ctid")),
    ("%s", "a.b", 'a"b', "a/b", "a" * 64, "\U0001f600"),
)
#: Dates in days and times in microseconds since 1970 that Spark has and Python lacks: before the year 1, after 9999.
FAR_DAYS = (-(2**31), -719_163, 2_932_897, 2**31 - 1)
FAR_MICROSECONDS = (-(2**63), -62_135_596_800_000_001, 253_402_300_800_000_000, 2**63 - 1)
