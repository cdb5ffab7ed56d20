"""Parses records of JSON or CSV into columns; keeps what can't be parsed in `_corrupt`, never drops or guesses it.

Owns the one rule for both: a record that doesn't fit the schema has its text in `_corrupt`; one that does has null
there. Spark's own modes treat blank records differently by format; here they are corrupt. Loads Spark only when
called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame

#: The column that holds the text of a record that couldn't be parsed.
CORRUPT = "_corrupt"


class ParsingError(ValueError):
    """Records can't be parsed as asked: a schema or column is wrong."""


def from_json_records(
    records: DataFrame, schema: str, *, column: str = "value", options: Mapping[str, str] | None = None
) -> DataFrame:
    """Parse the records of `column`, one JSON object each, into the columns of `schema` and `_corrupt`.

    Args:
        records: such as a batch of lines.
        schema: Spark's DDL: ``"id BIGINT, name STRING"``.
        column: the text.
        options: Spark's for JSON, such as ``{"timestampFormat": "…"}``.

    Other columns of `records` are left out. Raises ParsingError.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    # Spark reads one value and ignores what follows it.
    return _parsed(records, schema, column, options, F.from_json, ends=r"\}\s*$")


def from_csv_records(
    records: DataFrame, schema: str, *, column: str = "value", options: Mapping[str, str] | None = None
) -> DataFrame:
    """Parse one line of CSV each, the same way: too few or too many fields are corrupt too. Options such as ``sep``."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    return _parsed(records, schema, column, options, F.from_csv)


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
    options: Mapping[str, str] | None,
    parse: Callable[[Column, str, dict[str, str]], Column],
    *,
    ends: str = "",
) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    if column not in records.columns:
        raise ParsingError(f"there is no column {column!r} to parse: there are {', '.join(records.columns)}")
    fields = _fields(schema)
    if CORRUPT in fields:
        raise ParsingError(f"the column {CORRUPT} is added to the schema, and can't be in it: {schema!r}")
    asked = {**(options or {}), "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    parsed = records.select(
        F.col(column).alias("text"), parse(F.col(column), f"{schema}, {CORRUPT} STRING", asked).alias("record")
    )
    # From a blank record Spark makes no row for JSON, and a row of nulls for CSV.
    blank = F.col("record").isNull() | (F.trim("text") == "")
    aside = F.when(blank | ~F.col("text").rlike(ends), F.coalesce("text", F.lit(""))).otherwise(
        F.col(f"record.{CORRUPT}")
    )
    return parsed.select(*(F.col("record").getField(name).alias(name) for name in fields), aside.alias(CORRUPT))


def _fields(schema: str) -> list[str]:
    from pyspark.sql.types import StructType  # noqa: PLC0415  the light parts load no Spark

    try:
        found = StructType.fromDDL(schema)
    except Exception as error:
        raise ParsingError(f"schema {schema!r}: write Spark's DDL, as 'id BIGINT, name STRING' ({error})") from error
    if not isinstance(found, StructType):
        raise ParsingError(f"schema {schema!r}: name the columns, as 'id BIGINT, name STRING'")
    return list(found.names)
