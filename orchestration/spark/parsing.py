r"""Parses JSON, CSV or log lines into columns; keeps what can't be parsed in `_corrupt`, never drops or guesses it.

Owns the one rule for all: a record that doesn't fit the schema has its text in `_corrupt`; one that does has null
there. Spark's readers pass over or change some of what they read. So each value is compared with its own text
(`faithful_values`), which JSON gives after its tokens are marked (`json_tokens`), and CSV without types. Blank
records, which Spark's own modes treat differently by format, are corrupt too. Loads Spark only when called.
"""

from __future__ import annotations

import re
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, NamedTuple

from orchestration.spark.faithful_values import (
    is_comparable,
    is_faithful,
    is_guessed,
    marked,
    unsupported,
    with_texts,
    within,
)
from orchestration.spark.json_tokens import STRING, has_single_names, read_texts, with_marks
from tracker_store.close_names import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

#: The column that holds the text of a record that couldn't be parsed.
CORRUPT = "_corrupt"

# JSON's escapes, in this order: a backslash, a pair of surrogates. What is left of surrogates then is half of one.
_PAIRS = r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = r"\\u[dD][89a-fA-F]"
# Stands for a field with nothing in it, which is null; a pair of quotes is an empty text.
_NOTHING = "\x01nothing\x01"
# Spark's options for CSV as RFC 4180 has it.
_CSV = {"quote": '"', "escape": '"', "emptyValue": "", "nullValue": _NOTHING}
_PATTERNS = frozenset({"dateformat", "timestampformat", "timestampntzformat"})
_NO_QUOTE = frozenset({"", "\0"})
# What Spark reads in a separator as one character.
_ESCAPED = {r"\t": "\t", r"\r": "\r", r"\b": "\b", r"\f": "\f", r"\"": '"', r"\'": "'", r"\\": "\\", r"\u0000": "\0"}
# Options that Spark reads and does not list.
_UNLISTED = ("maxNestingDepth", "maxNumLen", "maxStringLen")
# Spark takes these by default. No JSON has them.
_STRICT = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}


class _Reading(NamedTuple):
    """Hold a record with its types, its values as texts, which `marked` marks, and whether it has any other fault."""

    record: Column
    texts: Column
    fault: Column
    marked: Callable[[Column], Column] = lambda texts: texts


def from_json_records(
    records: DataFrame, schema: str, *, column: str = "value", options: Mapping[str, str] | None = None
) -> DataFrame:
    """Parse the records of `column`, one JSON object each, into the columns of `schema` and `_corrupt`.

    Args:
        records: such as a batch of lines.
        schema: Spark's DDL: ``"id BIGINT, name STRING"``.
        column: the text, or its bytes in UTF-8, such as the ``body`` of ``Http``.
        options: Spark's for JSON, such as ``{"timestampFormat": "…"}``.

    Other columns of `records` are kept, except those that the schema names too, in whatever case. Raises ValueError.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    _check_options(records, options, "json")
    asked = _asked(options, _STRICT)

    def read(text: Column, fields: StructType, ddl: str) -> _Reading:
        is_halved = text.contains("\\u") & F.regexp_replace(text, _PAIRS, "").rlike(_HALF)
        marks = with_marks(text, asked)
        fault = is_halved | ~has_single_names(text, marks, asked)
        return _Reading(F.from_json(text, ddl, asked), read_texts(marks, fields, asked), fault)

    return _parsed(records, schema, column, asked, read, may_nest=True)


def from_csv_records(
    records: DataFrame, schema: str, *, column: str = "value", options: Mapping[str, str] | None = None
) -> DataFrame:
    """Parse one line of CSV each, the same way: too few or too many fields are corrupt too. Options such as ``sep``.

    Quotes are written as RFC 4180 has them: a field in quotes may have separators, line ends and, doubled, quotes. A
    field with nothing in it is null, and a pair of quotes is an empty text. A line end in quotes needs records that
    have it: of ``FileLines`` each line is a record.
    """
    _check_options(records, options, "csv")
    given = {name.lower(): value for name, value in (options or {}).items()}
    quote = given.get("quote", '"')
    escape = given.get("escape", quote or '"')
    # Spark makes a row of nulls from a comment, also if it is set to NUL.
    comment = given.get("comment", "").strip("\0")
    without = {name: value for name, value in (options or {}).items() if name.lower() != "comment"}
    asked = _asked(without, {**_CSV, "escape": escape})
    separator, nul = given.get("sep", given.get("delimiter", ",")), _nul_in_quotes(quote, escape)

    def read(text: Column, fields: StructType, ddl: str) -> _Reading:
        line = _csv_line(separator, quote, escape, len(fields))
        fault = ~text.rlike(line) | text.rlike(nul)
        fault = fault | text.startswith(comment) if comment else fault
        return _csv_reading(_without_line_end(text), fields, ddl, asked, fault)

    return _parsed(records, schema, column, asked, read)


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

    _check_options(records, options, "csv")
    numbers, plain = _groups(pattern)
    _check_depth(pattern)
    fields = _fields(schema)
    if unknown := [name for name in fields.names if name not in numbers]:
        raise ValueError(f"the pattern has no group {unknown[0]!r}: its groups are {', '.join(numbers) or 'unnamed'}")

    whole = rf"(?s)\A(?:{plain})\r?\n?\z"
    _check_by_java(records, pattern, whole)
    # The line is made here, so its form is not the caller's.
    asked = _asked(options, _CSV, always={"sep": ",", "quote": '"', "escape": '"', "comment": "\0"})

    def field(text: Column, one: StructField) -> Column:
        group = F.regexp_extract(text, whole, numbers[one.name])
        quoted = F.concat(F.lit('"'), F.replace(group, F.lit('"'), F.lit('""')), F.lit('"'))
        return quoted if one.dataType.typeName() == "string" else F.when(group == "", "").otherwise(quoted)

    def read(text: Column, fields: StructType, ddl: str) -> _Reading:
        line = F.concat_ws(",", *(field(text, one) for one in fields))
        return _csv_reading(line, fields, ddl, asked, ~text.rlike(whole) | line.rlike(_nul_in_quotes('"', '"')))

    return _parsed(records, schema, column, asked, read)


def _groups(pattern: str) -> tuple[dict[str, int], str]:
    """Return the numbers of a pattern's groups by name, and the pattern without names: Java's have no `_`."""
    python = re.sub(r"(?<!\\)\(\?<(?=[A-Za-z_])", "(?P<", pattern)
    try:
        numbers = dict(re.compile(python).groupindex)
    except re.error as error:
        raise ValueError(f"pattern {pattern!r}: {error}") from error
    plain = re.sub(r"\(\?P=(\w+)\)", lambda found: rf"\{numbers[found[1]]}", python)
    return numbers, re.sub(r"\(\?P<\w+>", "(", plain)


def _check_depth(pattern: str) -> None:
    """Raise ValueError for a pattern by which a long record would end the stack of Java, and with it the batch.

    Java goes deeper with each turn of a repeated group, unless all turns have one length or none is given back.
    """
    bare = re.sub(r"(?s)\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "a", pattern)
    of_one_length = r"\((?:\?:|\?P?<\w+>)?[^()|*+?{]*\)"
    if re.search(r"\)(?:[*+]|\{\d*,\})(?!\+)", re.sub(of_one_length, "a", bare)):
        raise ValueError(
            f"pattern {pattern!r}: a long record would end the stack of Java, by which Spark matches, in its repeated "
            "group: write ')*+' for ')*', and ')++' for ')+'"
        )


def _check_by_java(records: DataFrame, pattern: str, whole: str) -> None:
    """Raise ValueError for a pattern that Java does not take, or in which it sees other groups than Python.

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
        raise ValueError(
            f"pattern {pattern!r}: Java, by which Spark matches, does not take it ({said}): write '[' within a class "
            "as '\\['"
        ) from None
    if groups != re.compile(whole.replace(r"\z", r"\Z")).groups:
        raise ValueError(
            f"pattern {pattern!r}: Java, by which Spark matches, sees {groups} groups in it: write '[', '(' and '&&' "
            "within a class with a backslash each"
        )


def _check_options(records: DataFrame, options: Mapping[str, str] | None, form: str) -> None:
    """Raise ValueError for an option or a value that Spark does not have for the format.

    It would pass over the option, fail each batch by the value, or call every record corrupt.
    """
    jvm = getattr(records.sparkSession, "_jvm", None)
    if jvm is None or not options:
        # Spark Connect: its server has the list.
        return
    of_form = getattr(jvm.org.apache.spark.sql.catalyst, form)
    listed = getattr(of_form, f"{form.upper()}Options").getAllOptions().mkString(" ").split(" ")
    known = {name.lower(): name for name in [*listed, *_UNLISTED]}
    for name in options:
        if name.lower() not in known:
            hint = did_you_mean(name, known.values())
            raise ValueError(f"options: Spark has no {name!r} for {form.upper()}{f': {hint}' if hint else ''}")
    if _fault(records, options, form) is not None:
        for name, value in options.items():
            if (said := _fault(records, {name: value}, form)) is not None:
                raise ValueError(f"options: Spark takes no {name}={value!r} for {form.upper()}: {said}")


def _fault(records: DataFrame, options: Mapping[str, str], form: str) -> str | None:
    """Return what Spark says against options, which it reads where a constant is parsed; None: nothing."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    parse = F.from_json if form == "json" else F.from_csv
    # A wrong pattern fails no parser: each time would be none.
    patterns = [value for name, value in options.items() if name.lower() in _PATTERNS]
    probes = [F.try_to_timestamp(F.lit(""), F.lit(pattern)) for pattern in patterns]
    try:
        probes.append(parse(F.lit("{}"), "t TIMESTAMP, d DATE", _asked(options, {})))
        plan = records.sparkSession.range(1).select(probes)
        plan._jdf.queryExecution().optimizedPlan()  # noqa: SLF001  it evaluates constants, without a job
    except Py4JJavaError as error:
        return str(error.java_exception.getMessage())
    except PySparkException as error:
        return " ".join(str(error).partition(" SQLSTATE")[0].split())
    return None


def _asked(
    options: Mapping[str, str] | None, defaults: Mapping[str, str], *, always: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return Spark's options: the caller's, defaults where it gives none, and those that are not the caller's."""
    ours = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, **(always or {})}
    fixed = {name.lower() for name in ours}
    given = {name: value for name, value in (options or {}).items() if name.lower() not in fixed}
    names = {name.lower() for name in given}
    return {**{name: value for name, value in defaults.items() if name.lower() not in names}, **given, **ours}


def _csv_reading(line: Column, fields: StructType, ddl: str, options: dict[str, str], fault: Column) -> _Reading:
    """Read a line of CSV twice, if it has no fault: with its types, and as texts.

    The bounds of Spark's reader end a batch, so they are not used: what has a fault is not read, and a field longer
    than the caller's bound is a fault.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    bounds = {"maxcolumns": str(len(fields) + 1), "maxcharspercolumn": "-1"}
    longest = next((value for name, value in options.items() if name.lower() == "maxcharspercolumn"), "-1")
    options = {name: value for name, value in options.items() if name.lower() not in bounds} | bounds
    # Spark's reader takes a byte-order mark away from each line.
    fault |= line.startswith("\ufeff")
    line = F.when(~fault, line)
    texts = F.from_csv(line, ", ".join(f"{_quoted(one.name)} STRING" for one in fields), options)
    fault |= line.contains(_NOTHING)
    if int(longest) > 0:
        lengths = F.array(*(F.length(texts.getField(one.name)) for one in fields))
        fault |= F.coalesce(F.array_max(lengths), F.lit(0)) > int(longest)

    def all_marked(texts: Column) -> Column:
        return F.struct(*(marked(one.dataType, texts.getField(one.name)).alias(STRING + one.name) for one in fields))

    return _Reading(F.from_csv(line, ddl, options), texts, fault, all_marked)


def _nul_in_quotes(quote: str, escape: str) -> str:
    """Return the pattern of a line whose last field is in quotes and has a NUL, which Spark's reader leaves out.

    Without quotes a NUL is the reader's quote.
    """
    if quote in _NO_QUOTE:
        return r"\x00"
    around, before = re.escape(quote), re.escape(escape)
    return rf"(?s)\x00(?:{before}{around}|[^{around}])*+{around}\r?\n?\z"


def _csv_line(separator: str, quote: str, escape: str, fields: int) -> str:
    """Return the pattern of a line of `fields` fields that every reader of CSV cuts at the same places.

    Quotes may stand behind the first character of a field that has none around it, as RFC 4180 says. An escape of its
    own stands only before a quote, because readers differ in what they make of any other one.
    """
    separator = re.sub(r"\\(?:u0000|.)", lambda found: _ESCAPED.get(found[0], found[0]), separator)
    sep, around, before = re.escape(separator), re.escape(quote), re.escape(escape)
    if quote in _NO_QUOTE:
        field = rf"(?:(?!{sep})[^\r\n])*+"
    elif escape == quote:
        within = rf"[^{around}]*+(?:{around}{around}[^{around}]*+)*+"
        field = rf"(?:{around}{within}{around}|(?!{around}|{sep})[^\r\n](?:(?!{sep})[^\r\n])*+|)"
    else:
        within = rf"[^{around}{before}]*+(?:{before}{around}[^{around}{before}]*+)*+"
        field = rf"(?:{around}{within}{around}|(?!{around}|{sep})(?:(?!{sep})[^\r\n{before}])*+)"
    return rf"(?s)^{field}(?:{sep}{field}){{{fields - 1}}}+\r?\n?\z"


def _without_line_end(text: Column) -> Column:
    """Return a line of CSV without its end, which would be part of the last field."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    return F.regexp_replace(text, r"\r?\n?\z", "")


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
    read: Callable[[Column, StructType, str], _Reading],
    *,
    may_nest: bool = False,
) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    if column not in records.columns:
        raise ValueError(f"there is no column {column!r} to parse: there are {', '.join(records.columns)}")
    if CORRUPT in records.columns:
        raise ValueError(f"the records have a column {CORRUPT} already: parse the well_formed() ones of them")
    fields = _fields(schema)
    if CORRUPT in map(str.lower, fields.names):
        raise ValueError(f"the column {CORRUPT} is added to the schema, and can't be in it: {schema!r}")
    if (kind := unsupported(fields)) is not None:
        raise ValueError(f"schema {schema!r}: a {kind.simpleString()} is not parsed: write STRING, and cast it")
    _check_inside(fields, "", folds=records.sparkSession.conf.get("spark.sql.caseSensitive") != "true")
    if not may_nest and (nested := next((one for one in fields if within(one.dataType)), None)) is not None:
        raise ValueError(
            f"column {nested.name} is a {nested.dataType.simpleString()}, which neither CSV nor a pattern has: write "
            "STRING, and take it apart by from_json or split"
        )
    if is_guessed(zone := next((value for name, value in options.items() if name.lower() == "timezone"), "")):
        raise ValueError(f"timeZone: {zone} has several meanings: write a region, as 'Asia/Kolkata', or an offset")
    if not is_comparable(options):
        raise ValueError(
            "timestampFormat: a zone by name (V, v, z) can't be compared: use an offset (XXX, Z), or for a zone that "
            "is always the same its name in quotes ('UTC') and the option timeZone"
        )
    parsed_names = {name.lower() for name in (*fields.names, column)}
    kept = [name for name in records.columns if name.lower() not in parsed_names]
    as_text, is_text = _text(records, column)
    reading = read(as_text, fields, f"{schema}, {CORRUPT} STRING")
    read_once = records.select(
        as_text.alias("text"),
        reading.record.alias("record"),
        reading.texts.alias("texts"),
        (is_text & ~reading.fault).alias("is_whole"),
        F.struct(*(_column(name) for name in kept)).alias("kept"),
    )
    # A step of its own: else what reads the texts would stand in the plan once for each column.
    read_once = read_once.withColumn("texts", reading.marked(F.col("texts")))
    text, record, texts = (F.col(name) for name in ("text", "record", "texts"))
    # From a blank record Spark makes no row for JSON, and a row of nulls for CSV.
    good = [
        F.trim(text, F.lit(" \r\n")) != "",
        record.isNotNull() & record.getField(CORRUPT).isNull(),
        F.col("is_whole"),
    ]
    good.append(is_faithful(fields, record, texts, options))
    is_good = reduce(and_, (F.coalesce(one, F.lit(False)) for one in good))  # noqa: FBT003  SQL's literal
    as_sent = F.when(is_good, with_texts(fields, record, texts))
    checked = read_once.select(text, as_sent.alias("as_sent"), is_good.alias("is_good"), F.col("kept"))
    return checked.select(
        *(F.col("as_sent").getField(name).alias(name) for name in fields.names),
        *(F.col("kept").getField(name).alias(name) for name in kept),
        F.when(~F.col("is_good"), F.coalesce(text, F.lit(""))).alias(CORRUPT),
    )


def _check_inside(kind: DataType, of: str, *, folds: bool) -> None:
    """Raise ValueError for a column, by its path, that Spark takes for another one, or that JSON can't have.

    `folds`: names that differ in case alone are one.
    """
    from pyspark.sql.types import MapType, StringType, StructType  # noqa: PLC0415  the light parts load no Spark

    if isinstance(kind, MapType) and not isinstance(kind.keyType, StringType):
        raise ValueError(  # noqa: TRY004  the schema is a text
            f"column {of} has a map with keys of the type {kind.keyType.simpleString()}, and JSON's are texts: write "
            "MAP<STRING, …>, and cast them by transform_keys"
        )
    if not isinstance(kind, StructType):
        for one in within(kind):
            _check_inside(one, of, folds=folds)
        return
    seen: set[str] = set()
    for field in kind:
        path, name = f"{of}.{field.name}".lstrip("."), field.name.lower() if folds else field.name
        if name in seen:
            raise ValueError(
                f"column {path} is there twice, or differs from another in case alone: leave one out, or have Spark "
                "tell them apart by spark.sql.caseSensitive"
            )
        seen.add(name)
        _check_inside(field.dataType, path, folds=folds)


def _text(records: DataFrame, column: str) -> tuple[Column, Column]:
    """Return a column's text, and whether it has one: bytes that are not UTF-8 are shown in hexadecimal.

    Raises ValueError for a column that is neither text nor bytes.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    found, kind = _column(column), records.schema[column].dataType.typeName()
    if kind in ("string", "char", "varchar"):
        return found, F.lit(True)  # noqa: FBT003  SQL's literal
    if kind != "binary":
        raise ValueError(f"the column {column!r} is a {kind}, and text or its bytes are parsed: cast it to a string")
    text = found.cast("string")
    is_text = F.coalesce(F.is_valid_utf8(text), F.lit(True))  # noqa: FBT003  as above
    return F.when(is_text, text).otherwise(F.concat(F.lit("\\x"), F.lower(F.hex(found)))), is_text


def _column(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    return F.col(_quoted(name))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _fields(schema: str) -> StructType:
    from pyspark.sql.types import StructType  # noqa: PLC0415  the light parts load no Spark

    try:
        found = StructType.fromDDL(schema)
    except Exception as error:
        raise ValueError(f"schema {schema!r}: write Spark's DDL, as 'id BIGINT, name STRING' ({error})") from error
    if not isinstance(found, StructType):
        raise ValueError(f"schema {schema!r}: name the columns, as 'id BIGINT, name STRING'")  # noqa: TRY004  as above
    return found
