"""Check which columns of a table of others take a result's values: only those that keep them as they are."""

from __future__ import annotations

import pytest

from orchestration.declarations.sink import SinkError
from orchestration.sinks.postgres.postgres_columns import Column, TableColumn, fitted

TIME = TableColumn("_batch_time", "timestamp with time zone", "timestamp with time zone", filled=False, generated=False)


def fits(result: str, table: str) -> bool:
    there = [TableColumn("a", table, table, filled=False, generated=False), TIME]
    try:
        return fitted([Column("a", result)], there, name="t", where="output") == [Column("a", table)]
    except SinkError as error:
        assert f"column a is {table} in the table and {result} in the result" in str(error)  # noqa: PT017
        return False


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
        ("text", ["text", "uuid", "integer", "character varying(5)"]),
    ],
)
def test_a_type_fits_that_keeps_each_value_or_refuses_it(result: str, tables: list[str]) -> None:
    assert [table for table in tables if not fits(result, table)] == []


@pytest.mark.parametrize(
    ("result", "tables"),
    [
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
