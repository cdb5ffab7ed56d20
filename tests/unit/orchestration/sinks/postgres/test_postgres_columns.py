"""Check which columns of a table of others take a result's values: only those that keep them as they are."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from orchestration.declarations.sink import SinkError
from orchestration.sinks.postgres.postgres_columns import Column, Fit, Table, TableColumn, fitted

if TYPE_CHECKING:
    from orchestration.sinks.column_changes import ColumnPolicy

CATEGORIES = {"character varying(5)": "S", "character(5)": "S", "name": "S", "mood": "E", "inet": "I", "bit(3)": "V"}


def column(name: str, kind: str) -> TableColumn:
    return TableColumn(name, kind, kind, CATEGORIES.get(kind, "U"), filled=False, generated=False)


def fits(result: str, table: str) -> bool:
    there = [column("a", table), column("_batch_time", "timestamp with time zone")]
    try:
        [found] = fitted([Column("a", result)], Table("s", "t", there), None, "output").columns
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
        fitted([Column("a", "text")], Table("s", "t", [column("a", table)]), None, "output")


TIME = column("_batch_time", "timestamp with time zone")


def made(*columns: TableColumn, **facts: Any) -> Table:  # noqa: ANN401
    return Table("s", "t", [*columns, TIME], made_here=True, **facts)


@pytest.mark.parametrize(
    ("there", "result", "rewrites"),
    [
        *(("smallint", "integer", True), ("smallint", "bigint", True), ("integer", "bigint", True)),
        *(("real", "double precision", True), ("numeric(9,2)", "numeric(12,2)", False)),
    ],
)
def test_a_column_is_widened_in_a_table_that_may_be_changed(there: str, result: str, rewrites: bool) -> None:
    wide, statement = [Column("a", result)], f'ALTER TABLE "s"."t" ALTER COLUMN "a" TYPE {result}'
    fit = fitted(wide, made(column("a", there)), None, "output")
    assert (fit.columns, fit.statements, fit.rewrites) == (wide, (statement,), rewrites)
    # A column that can't be widened keeps what fits into it, or is refused by the statement.
    kept = made(column("a", there), uses={"a": "view v"}), made(column("a", there), login="guest")
    for table in (*kept, *([made(column("a", there), rewrites=False)] if rewrites else [])):
        if there == "real":
            with pytest.raises(SinkError, match=f"{re.escape(statement)}.*({'view v' if table.uses else 'Change'})"):
                fitted(wide, table, None, "output")
        else:
            assert fitted(wide, table, None, "output") == Fit([Column("a", there)])


def test_a_column_is_added_to_a_table_that_the_sink_made_or_if_it_is_said() -> None:
    result = [Column("a", "text"), Column('b"', "jsonb")]
    statement = 'ALTER TABLE "s"."t" ADD COLUMN "b""" jsonb'
    others = Table("s", "t", [column("a", "text"), TIME])
    allowed: list[tuple[Table, ColumnPolicy | None]] = [(made(column("a", "text")), None), (others, "add")]
    for table, policy in allowed:
        assert fitted(result, table, policy, "output").statements == (statement,)
    refused: list[tuple[Table, ColumnPolicy | None]] = [(made(column("a", "text")), "refuse"), (others, None)]
    for table, policy in refused:
        with pytest.raises(SinkError, match=f"no column b\" .jsonb.: {re.escape(statement)}.*or say columns='add'"):
            fitted(result, table, policy, "output")
    with pytest.raises(SinkError, match=f"{re.escape(statement)}.*; the login guest does not own the table"):
        fitted(result, made(column("a", "text"), login="guest"), "add", "output")


def test_a_merged_row_loses_what_the_result_lacks_only_if_the_columns_are_the_sinks() -> None:
    more = [column("a", "text"), column("b", "text"), replace(column("c", "text"), filled=True)]
    assert fitted([Column("a", "text")], made(*more), None, "output").cleared == ("b",)
    assert fitted([Column("a", "text")], made(*more), "refuse", "output").cleared == ()


def test_a_column_that_takes_no_value_or_needs_one_is_named() -> None:
    taken = replace(column("a", "text"), generated=True, filled=True), replace(column("b", "text"), required=True)
    with pytest.raises(SinkError) as refused:
        fitted([Column("a", "text")], made(*taken), None, "output")
    assert "the table generates its column a, so that it takes no value" in str(refused.value)
    statement = 'ALTER TABLE "s"."t" ALTER COLUMN "b" DROP NOT NULL'
    assert f"the result has no column b (text), which must not be null: add it, or {statement}" in str(refused.value)
