"""Check which columns of a table of others take a result's values: only those that keep them as they are."""

from __future__ import annotations

import re

import pytest

from orchestration.declarations.sink import SinkError
from orchestration.sinks.postgres.postgres_columns import Column, TableColumn, fitted

CATEGORIES = {"character varying(5)": "S", "character(5)": "S", "name": "S", "mood": "E", "inet": "I", "bit(3)": "V"}


def column(name: str, kind: str) -> TableColumn:
    return TableColumn(name, kind, kind, CATEGORIES.get(kind, "U"), filled=False, generated=False)


def fits(result: str, table: str) -> bool:
    there = [column("a", table), column("_batch_time", "timestamp with time zone")]
    try:
        [found] = fitted([Column("a", result)], there, name="t", where="output")
    except SinkError as error:
        assert f"column a is {table} in the table and {result} in the result" in str(error)  # noqa: PT017
        return False
    assert (found.name, found.type) == ("a", table)
    # Any type but these could alter a text.
    assert found.compared == (result == "text" and table not in ("text", "character varying", "json"))
    return True


@pytest.mark.parametrize(
    ("result", "tables"),
    [
        ("boolean", ["boolean"]),
        ("smallint", ["smallint", "integer", "bigint", "numeric", "numeric(5,0)", "real", "double precision"]),
        ("integer", ["smallint", "integer", "bigint", "numeric", "numeric(12,2)", "double precision"]),
        ("bigint", ["smallint", "integer", "bigint", "numeric", "numeric(20,0)"]),
        ("real", ["real", "double precision", "numeric"]),
        ("double precision", ["double precision", "numeric"]),
        ("numeric(10,2)", ["numeric(10,2)", "numeric(5,3)", "numeric", "double precision"]),
        ("numeric(6,2)", ["numeric(6,2)", "numeric", "real", "double precision"]),
        ("numeric(38,0)", ["numeric(38,0)", "numeric", "bigint", "integer", "smallint"]),
        ("date", ["date", "timestamp without time zone"]),
        ("timestamp with time zone", ["timestamp with time zone"]),
        ("timestamp without time zone", ["timestamp without time zone"]),
        ("bytea", ["bytea"]),
        ("jsonb", ["jsonb", "json"]),
        ("text", ["text", "character varying", "json", "uuid", *CATEGORIES]),
    ],
)
def test_a_type_fits_that_keeps_each_value_or_refuses_it(result: str, tables: list[str]) -> None:
    assert [table for table in tables if not fits(result, table)] == []


@pytest.mark.parametrize(
    ("result", "tables"),
    [
        (
            "text",
            ["integer", "numeric", "boolean", "date", "interval", "money", "jsonb", "bytea", "text[]", "tsvector"],
        ),
        ("integer", ["real", "numeric(5,-2)", "boolean", "money", "oid"]),
        ("bigint", ["double precision", "real"]),
        ("double precision", ["real", "integer", "numeric(10,2)", "money"]),
        ("real", ["numeric(10,2)", "integer"]),
        ("numeric(10,2)", ["numeric(10,1)", "numeric(12,0)", "bigint", "real"]),
        ("numeric(16,2)", ["double precision"]),
        ("date", ["timestamp with time zone", "text[]"]),
        (
            "timestamp with time zone",
            ["timestamp(3) with time zone", "timestamp without time zone", "date", "time without time zone"],
        ),
        ("timestamp without time zone", ["timestamp with time zone", "timestamp(0) without time zone", "date"]),
    ],
)
def test_a_type_that_would_change_a_value_silently_is_refused(result: str, tables: list[str]) -> None:
    assert [table for table in tables if fits(result, table)] == []


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("numeric(5,2)", "frame.withColumn('a', frame['a'].cast('decimal(5,2)'))"),
        ("timestamp with time zone", "frame.withColumn('a', frame['a'].cast('timestamp'))"),
        ("jsonb", "parse it by from_json(...)"),
        ("timestamp(0) without time zone", "let the table's column be text"),
    ],
)
def test_a_misfit_says_what_to_write(table: str, said: str) -> None:
    with pytest.raises(SinkError, match=re.escape(said)):
        fitted([Column("a", "text")], [column("a", table)], name="t", where="output")
