r"""Parses JSON, CSV or log lines into columns; keeps what can't be parsed in `_corrupt`, never drops or guesses it.

Owns the one rule for all: a record that doesn't fit the schema has its text in `_corrupt`; one that does has null
there. What Spark's readers pass over or change is corrupt: what follows a JSON value, half of a surrogate pair, digits
that a decimal has no room for, text behind a closing quote. Blank records, which Spark's own modes treat differently by
format, are corrupt too. Loads Spark only when called.
"""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

#: The column that holds the text of a record that couldn't be parsed.
CORRUPT = "_corrupt"

# Of JSON's escapes, in this order: a backslash, a pair of surrogates. What is left of surrogates then is half of one.
_PAIRS = r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = r"\\u[dD][89a-fA-F]"
_DIGITS = 38  # the most that a decimal of Spark's has
# Numbers as everyone writes them: Java also takes "1d" and "0x1p3".
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(NaN|Inf|Infinity)$"
# Stands for a field with nothing in it, which is null; a pair of quotes is an empty text.
_NOTHING = "\x01nothing\x01"
# Spark's options for CSV as RFC 4180 has it.
_CSV = {"escape": '"', "emptyValue": "", "nullValue": _NOTHING}
_INFINITY = "Infinity"


class ParsingError(ValueError):
    """Records can't be parsed as asked: a schema or column is wrong."""


def from_json_records(
    records: DataFrame, schema: str, *, column: str = "value", options: Mapping[str, str] | None = None
) -> DataFrame:
    """Parse the records of `column`, one JSON object each, into the columns of `schema` and `_corrupt`.

    Args:
        records: such as a batch of lines.
        schema: Spark's DDL: ``"id BIGINT, name STRING"``.
        column: the text, or its bytes in UTF-8, such as the ``body`` of ``Http``.
        options: Spark's for JSON, such as ``{"timestampFormat": "…"}``.

    Other columns of `records` are kept, except those that the schema names too, in whatever case. Raises ParsingError.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    asked = {"allowSingleQuotes": "false", **(options or {})}
    is_relaxed = any(name.startswith("allow") for name in options or ())
    return _parsed(records, schema, column, asked, F.from_json, lambda text: _json_faults(text, is_relaxed=is_relaxed))


def from_csv_records(
    records: DataFrame, schema: str, *, column: str = "value", options: Mapping[str, str] | None = None
) -> DataFrame:
    """Parse one line of CSV each, the same way: too few or too many fields are corrupt too. Options such as ``sep``.

    Quotes are written as RFC 4180 has them: a field in quotes may have separators, line ends and, doubled, quotes. A
    field with nothing in it is null, and a pair of quotes is an empty text. A line end in quotes needs records that
    have it: of ``FileLines`` each line is a record.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    asked = {**_CSV, **(options or {})}
    has_own_quotes = "quote" in asked or asked["escape"] != _CSV["escape"]
    separator = asked.get("sep", asked.get("delimiter", ","))
    return _parsed(
        records,
        schema,
        column,
        asked,
        F.from_csv,
        lambda text: [] if has_own_quotes else [~text.rlike(_csv_line(separator))],
        # A line end would be part of the last field.
        csv=lambda text: F.regexp_replace(text, r"\r?\n?\z", ""),
    )


def from_regex_records(
    records: DataFrame,
    pattern: str,
    schema: str,
    *,
    column: str = "value",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Parse lines such as those of a web server's log: each column of `schema` is the group of its name in `pattern`.

    The pattern matches a whole record, or the record is corrupt; so is one with a group that is not of its column's
    type. It is Java's, with groups as Python and Java write them: ``(?P<status>[0-9]+)``, ``(?<status>[0-9]+)``. A
    group that matched nothing is an empty text in a STRING, and null in every other column. `options` are Spark's for
    CSV: ``{"nullValue": "-", "timestampFormat": "dd/MMM/yyyy:HH:mm:ss Z"}``. Else as `from_json_records`.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    numbers, plain = _groups(pattern)
    fields = _fields(schema)
    if unknown := [name for name in fields.names if name not in numbers]:
        raise ParsingError(f"the pattern has no group {unknown[0]!r}: its groups are {', '.join(numbers) or 'unnamed'}")

    def csv(text: Column) -> Column:
        def field(name: str, *, is_string: bool) -> Column:
            group = F.regexp_extract(text, whole, numbers[name])
            quoted = F.concat(F.lit('"'), F.replace(group, F.lit('"'), F.lit('""')), F.lit('"'))
            return quoted if is_string else F.when(group == "", "").otherwise(quoted)

        return F.concat_ws(",", *(field(one.name, is_string=one.dataType.typeName() == "string") for one in fields))

    whole = rf"(?s)\A(?:{plain})\r?\n?\z"
    _check_by_java(records, pattern, whole)
    asked = {**_CSV, **(options or {})}
    return _parsed(records, schema, column, asked, F.from_csv, lambda text: [~text.rlike(whole)], csv=csv)


def _groups(pattern: str) -> tuple[dict[str, int], str]:
    """Return the numbers of a pattern's groups by name, and the pattern without names: Java's have no `_`."""
    python = re.sub(r"(?<!\\)\(\?<(?=[A-Za-z_])", "(?P<", pattern)
    try:
        numbers = dict(re.compile(python).groupindex)
    except re.error as error:
        raise ParsingError(f"pattern {pattern!r}: {error}") from error
    plain = re.sub(r"\(\?P=(\w+)\)", lambda found: rf"\{numbers[found[1]]}", python)
    return numbers, re.sub(r"\(\?P<\w+>", "(", plain)


def _check_by_java(records: DataFrame, pattern: str, whole: str) -> None:
    """Raise ParsingError for a pattern that Java does not take, or in which it sees other groups than Python.

    Java reads ``[`` within a class as another class, and ``&&`` as an intersection. Each batch would fail by the first,
    and every record be corrupt by the others.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415  the light parts load no Spark

    jvm = getattr(records.sparkSession, "_jvm", None)
    if jvm is None:
        # Spark Connect: its server has the Java.
        return
    try:
        groups = jvm.java.util.regex.Pattern.compile(whole).matcher("").groupCount()
    except PySparkException as error:
        said = str(error).partition("\n")[0]
        raise ParsingError(
            f"pattern {pattern!r}: Java, by which Spark matches, does not take it ({said}): write '[' within a class "
            "as '\\['"
        ) from None
    if groups != re.compile(whole.replace(r"\z", r"\Z")).groups:
        raise ParsingError(
            f"pattern {pattern!r}: Java, by which Spark matches, sees {groups} groups in it: write '[', '(' and '&&' "
            "within a class with a backslash each"
        )


def _json_faults(text: Column, *, is_relaxed: bool) -> list[Column]:
    """Return the conditions under which Spark's reader would pass over some of a text, or change it."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    is_halved = text.contains("\\u") & F.regexp_replace(text, _PAIRS, "").rlike(_HALF)
    if is_relaxed:
        # The check below reads strict JSON.
        return [is_halved, ~text.rlike(r"\}\s*$")]
    # Spark reads one value and ignores what follows it. In an array, before an element that no text can have in itself,
    # it is alone only if that one is the second.
    mark = F.md5(text)
    alone = F.get_json_object(F.concat(F.lit("["), text, F.lit(',"'), mark, F.lit('"]')), "$[1]") == mark
    return [is_halved, ~F.coalesce(alone, F.lit(False))]  # noqa: FBT003  SQL's literal


def _csv_line(separator: str) -> str:
    """Return the pattern of a line by RFC 4180, and of fields with quotes behind their first characters."""
    sep = re.escape(separator)
    field = rf'(?:"[^"]*+(?:""[^"]*+)*+"|(?!"|{sep})[^\r\n](?:(?!{sep})[^\r\n])*+|)'
    return rf"(?s)^{field}(?:{sep}{field})*+\r?\n?\z"


def well_formed(parsed: DataFrame) -> DataFrame:
    """Return the records that could be parsed, without `_corrupt`."""
    return parsed.where(f"`{CORRUPT}` IS NULL").drop(CORRUPT)


def corrupt(parsed: DataFrame) -> DataFrame:
    """Return the text of the corrupt records as a column `value`: for a separate output, whose rows count them."""
    return parsed.where(f"`{CORRUPT}` IS NOT NULL").selectExpr(f"`{CORRUPT}` AS value")


def _parsed(
    records: DataFrame,
    schema: str,
    column: str,
    options: Mapping[str, str],
    parse: Callable[[Column, str, dict[str, str]], Column],
    faults: Callable[[Column], list[Column]],
    *,
    csv: Callable[[Column], Column] | None = None,
) -> DataFrame:
    """Parse a text, or the line of CSV that `csv` makes of it."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    if column not in records.columns:
        raise ParsingError(f"there is no column {column!r} to parse: there are {', '.join(records.columns)}")
    if CORRUPT in records.columns:
        raise ParsingError(f"the records have a column {CORRUPT} already: parse the well_formed() ones of them")
    fields = _fields(schema)
    if CORRUPT in fields.names:
        raise ParsingError(f"the column {CORRUPT} is added to the schema, and can't be in it: {schema!r}")
    asked = {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    parsed_names = {name.lower() for name in (*fields.names, column)}
    kept = [name for name in records.columns if name.lower() not in parsed_names]
    as_text, is_text = _text(records, column)
    value = as_text if csv is None else csv(as_text)
    columns = [as_text.alias("text"), parse(value, f"{schema}, {CORRUPT} STRING", asked).alias("record")]
    columns += [is_text.alias("is_text"), F.struct(*(_column(name) for name in kept)).alias("kept")]
    text, record, wide, texts = (F.col(name) for name in ("text", "record", "wide", "texts"))
    # From a blank record Spark makes no row for JSON, and a row of nulls for CSV.
    bad = [record.isNull(), F.trim("text") == "", record.getField(CORRUPT).isNotNull(), *faults(text)]
    bad.append(~F.col("is_text"))
    decimals = [field.name for field in fields if field.dataType.typeName() == "decimal"]
    floats = [field.name for field in fields if field.dataType.typeName() in ("double", "float")]
    widened = _widened(fields)
    if widened != fields:
        # Spark rounds to a decimal's scale.
        columns.append(parse(value, _ddl(widened), asked).alias("wide"))
        changed = [one for one, before in zip(widened, fields, strict=True) if one != before]
        bad += [record.getField(one.name).cast(one.dataType) != wide.getField(one.name) for one in changed]
    if decimals or (csv is not None and floats):
        columns.append(parse(value, ", ".join(f"`{name}` STRING" for name in fields.names), asked).alias("texts"))
        if csv is not None:
            bad += [~texts.getField(name).rlike(_NUMBER) for name in (*floats, *decimals)]
        # What is smaller than the widest decimal's last digit.
        bad += [(record.getField(name) == 0) & texts.getField(name).rlike(r"^[^eE]*[1-9]") for name in decimals]
    strings = [field.name for field in fields if field.dataType.typeName() == "string"]
    # Of a number that is too large within an object, a text has the word.
    bad += [record.getField(name).contains(_INFINITY) & ~text.contains(_INFINITY) for name in strings]
    is_bad = reduce(or_, [F.coalesce(one, F.lit(False)) for one in bad])  # noqa: FBT003  SQL's literal
    aside = F.when(is_bad, F.coalesce("text", F.lit("")))
    parsed = records.select(*columns)
    return parsed.select(
        *(record.getField(name).alias(name) for name in fields.names),
        *(F.col("kept").getField(name).alias(name) for name in kept),
        aside.alias(CORRUPT),
    )


def _text(records: DataFrame, column: str) -> tuple[Column, Column]:
    """Return a column's text, and whether it has one: bytes that are not UTF-8 are shown in hexadecimal.

    Raises ParsingError for a column that is neither text nor bytes.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    found, kind = _column(column), records.schema[column].dataType.typeName()
    if kind in ("string", "char", "varchar"):
        return found, F.lit(True)  # noqa: FBT003  SQL's literal
    if kind != "binary":
        raise ParsingError(f"the column {column!r} is a {kind}, and text or its bytes are parsed: cast it to a string")
    text = found.cast("string")
    is_text = F.coalesce(F.is_valid_utf8(text), F.lit(True))  # noqa: FBT003  as above
    return F.when(is_text, text).otherwise(F.concat(F.lit("\\x"), F.lower(F.hex(found)))), is_text


def _column(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    return F.col("`" + name.replace("`", "``") + "`")


def _widened(fields: StructType) -> StructType:
    """Return the fields with as much room behind the point of each decimal as there is."""
    from pyspark.sql.types import DecimalType, StructField, StructType  # noqa: PLC0415  as above

    def wide(kind: DataType) -> DataType:
        if isinstance(kind, DecimalType):
            return DecimalType(_DIGITS, _DIGITS - (kind.precision - kind.scale))
        if isinstance(kind, StructType):
            return StructType([StructField(one.name, wide(one.dataType)) for one in kind])
        return kind

    return StructType([StructField(one.name, wide(one.dataType)) for one in fields])


def _ddl(fields: StructType) -> str:
    return ", ".join(f"`{field.name.replace('`', '``')}` {field.dataType.simpleString()}" for field in fields)


def _fields(schema: str) -> StructType:
    from pyspark.sql.types import StructType  # noqa: PLC0415  the light parts load no Spark

    try:
        found = StructType.fromDDL(schema)
    except Exception as error:
        raise ParsingError(f"schema {schema!r}: write Spark's DDL, as 'id BIGINT, name STRING' ({error})") from error
    if not isinstance(found, StructType):
        raise ParsingError(f"schema {schema!r}: name the columns, as 'id BIGINT, name STRING'")
    return found
