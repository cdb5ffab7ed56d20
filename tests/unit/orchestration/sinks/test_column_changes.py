"""Check what becomes of a table's columns for a result that has others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import SinkError
from orchestration.sinks.column_changes import (
    ArrowDialect,
    ColumnChanges,
    ColumnPolicy,
    Widening,
    arrow_changes,
    changed_schema,
    checked_policy,
    declared_policy,
    policy_for,
    written_schema,
)

if TYPE_CHECKING:
    from collections.abc import Callable

DIALECT = ArrowDialect("s.t", "cat.s.t", frozenset(Widening))
TIME = pa.field("_batch_time", pa.timestamp("us", "UTC"))
TABLE = pa.schema([("word", pa.string()), ("n", pa.int32()), TIME])


def changes(
    result: pa.Schema,
    table: pa.Schema = TABLE,
    *,
    policy: ColumnPolicy = "add",
    dialect: ArrowDialect = DIALECT,
    filled: frozenset[str] = frozenset(),
) -> ColumnChanges:
    return arrow_changes(result, table, dialect, policy=policy, where="counts", filled=filled)


def refusal(
    result: pa.Schema, table: pa.Schema = TABLE, *, policy: ColumnPolicy = "add", dialect: ArrowDialect = DIALECT
) -> str:
    with pytest.raises(SinkError) as refused:
        changes(result, table, policy=policy, dialect=dialect)
    return str(refused.value)


def test_a_new_column_is_added_behind_the_others_and_takes_null() -> None:
    more = pa.schema([pa.field("more", pa.string(), nullable=False), *TABLE])
    found = changes(more)
    assert found == ColumnChanges(added=("more",))
    assert found.shown() == "adds more"
    assert changed_schema(more, TABLE, found) == pa.schema([*TABLE, ("more", pa.string())])


@pytest.mark.parametrize("name", ["large_a", "a_view", "a not null", "a: int64, list<b"])
def test_fields_of_a_struct_are_compared_by_their_whole_names(name: str) -> None:
    table = pa.schema([("s", pa.struct({name: pa.int64(), "z": pa.int64()})), TIME])
    said = refusal(pa.schema([("s", pa.struct({"a": pa.int64(), "z": pa.int64()})), TIME]), table)
    assert f"the result has no s.{name} (int64)" in said


@pytest.mark.parametrize("other", [pa.large_list, pa.list_view, pa.large_list_view])
def test_a_list_of_another_layout_is_the_same(other: Callable[[pa.Field], pa.DataType]) -> None:
    there = pa.list_(pa.field("element", pa.large_string(), nullable=False))
    table, result = (pa.schema([("l", one), TIME]) for one in (there, other(pa.field("l", pa.string_view()))))
    assert changes(result, table) == ColumnChanges()


def test_a_column_that_must_not_be_added_is_named_with_its_statement() -> None:
    said = refusal(pa.schema([("a b", pa.decimal128(9, 2)), *TABLE]), policy="refuse")
    assert said == (
        "counts does not fit the table s.t: the table has no column a b (decimal128(9, 2)): ALTER TABLE cat.s.t ADD "
        "COLUMNS (`a b` decimal(9,2)). Change the result, or the table; or say columns='add'"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.int8(), pa.int16()),
        (pa.int32(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.decimal128(9, 2), pa.decimal128(38, 2)),
    ],
)
def test_a_wider_type_is_taken_if_the_format_can_and_a_narrower_one_is_written_as_the_tables(
    before: pa.DataType, after: pa.DataType
) -> None:
    narrow, wide = pa.schema([("n", before), TIME]), pa.schema([("n", after), TIME])
    found = changes(wide, narrow)
    assert found == ColumnChanges(widened=("n",))
    assert found.shown() == "widens n"
    assert changed_schema(wide, narrow, found) == wide
    statement = "ALTER TABLE cat.s.t ALTER COLUMN n TYPE "
    refused = refusal(wide, narrow, policy="refuse")
    assert f"column n is {before} in the table and {after} in the result: {statement}" in refused
    assert refused.endswith("say columns='add'")
    without = refusal(wide, narrow, dialect=ArrowDialect("s.t", "cat.s.t"))
    assert statement in without
    assert "columns='add'" not in without
    # As a batch of older code, or a replay of it.
    assert not changes(narrow, wide, policy="refuse")
    assert written_schema(narrow, wide) == wide


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.int64(), pa.float64()),
        (pa.decimal128(9, 2), pa.decimal128(12, 4)),
        (pa.string(), pa.int64()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    ],
)
def test_a_type_that_would_alter_values_is_refused_both_ways(before: pa.DataType, after: pa.DataType) -> None:
    for there, result in ((before, after), (after, before)):
        said = refusal(pa.schema([("n", result), TIME]), pa.schema([("n", there), TIME]))
        assert f"column n is {there} in the table and {result} in the result: cast it to " in said


def test_types_that_differ_in_their_layout_alone_fit() -> None:
    table = pa.schema([("a", pa.large_list(pa.field("item", pa.string_view(), nullable=False))), TIME])
    assert not changes(pa.schema([("a", pa.list_(pa.field("element", pa.large_string()))), TIME]), table)
    # As Parquet gives back a map in a list.
    item = pa.field("element", pa.int64())
    table = pa.schema([("a", pa.list_(pa.map_(pa.string(), item))), TIME])
    assert not changes(pa.schema([("a", pa.list_(pa.map_(pa.string(), pa.int64()))), TIME]), table)


def test_a_field_whose_name_is_like_a_layouts_is_another_field() -> None:
    given = pa.schema([("s", pa.struct([("large_a", pa.int64())])), TIME])
    assert "the table has no s.large_a" in refusal(given, pa.schema([("s", pa.struct([("a", pa.int64())])), TIME]))


def test_a_map_and_a_list_that_parquet_gives_back_fit() -> None:
    """Check names within a type, too: its reader calls what is in a map as the column."""
    inner = pa.map_(pa.string(), pa.list_(pa.struct([("large_a", pa.string())])))
    result = pa.schema([("m", inner), ("k", pa.list_(inner)), TIME])
    sink = pa.BufferOutputStream()
    parquet.write_table(result.empty_table(), sink)
    read = parquet.read_schema(pa.BufferReader(sink.getvalue()))
    assert str(read.field("m").type) != str(inner), "nothing to compare"
    assert changes(result, read) == ColumnChanges()
    other = pa.schema([("m", pa.map_(pa.string(), pa.list_(pa.struct([("a", pa.string())])))), *list(result)[1:]])
    assert "the table has no m.value.element.a" in refusal(other, read)


def test_a_difference_within_a_column_is_named_by_its_path() -> None:
    inner = pa.struct([("x", pa.int32()), ("y", pa.string())])
    other = pa.struct([("x", pa.int64()), ("z", pa.string())])
    table = pa.schema([("a", pa.list_(inner)), TIME])
    said = refusal(pa.schema([("a", pa.list_(other)), TIME]), table)
    assert "column a.element.x is int32 in the table and int64 in the result: ALTER TABLE cat.s.t ALTER COLUMN " in said
    assert "the table has no a.element.z (string): ALTER TABLE cat.s.t ADD COLUMNS (a.element.z string)" in said
    assert "the result has no a.element.y (string)" in said
    turned = pa.schema([("a", pa.list_(pa.struct([*reversed(list(inner))]))), TIME])
    assert "column a.element is struct<" in refusal(turned, table), "their order"


def test_a_missing_column_is_null_or_filled_or_refused() -> None:
    table = pa.schema([*TABLE, pa.field("id", pa.int64(), nullable=False)])
    for policy in ("add", "refuse"):
        assert changes(pa.schema([("word", pa.string()), TIME]), policy=policy).missing == ("n",)
        said = refusal(TABLE, table, policy=policy)
        assert "the result has no column id (int64), which must not be null: add it, or ALTER TABLE cat.s.t" in said
        assert changes(TABLE, table, policy=policy, filled=frozenset({"id"})).missing == ("id",)


def test_a_name_that_differs_in_case_alone_is_no_new_column_to_readers_that_fold_it() -> None:
    result = pa.schema([("Word", pa.string()), ("n", pa.int32()), TIME])
    assert "column Word is word in the table, which differs in case alone: rename it by .alias('word')" in refusal(
        result
    )
    exact = ArrowDialect("s.t", "cat.s.t", folds_case=False)
    assert changes(result, dialect=exact) == ColumnChanges(added=("Word",), missing=("word",))


def test_the_batch_time_is_never_added_or_changed() -> None:
    assert "the table has no column _batch_time (timestamp[us, tz=UTC]), which says a row's batch" in refusal(
        TABLE, pa.schema([("word", pa.string()), ("n", pa.int32())])
    )
    assert "column _batch_time is timestamp[us] in the table" in refusal(
        TABLE, pa.schema([("word", pa.string()), ("n", pa.int32()), ("_batch_time", pa.timestamp("us"))])
    )


def test_the_choice_is_checked_and_declared_only_if_it_is_made() -> None:
    assert [policy_for(None, is_own=own) for own in (True, False)] == ["add", "refuse"]
    assert policy_for("refuse", is_own=True) == "refuse"
    assert declared_policy(checked_policy(None, "X")) == {}
    assert declared_policy(checked_policy("add", "X")) == {"columns": "add"}
    with pytest.raises(DeclarationError, match="X: columns='drop' must be one of add, refuse"):
        checked_policy("drop", "X")  # type: ignore[arg-type]


# Types of which each is wider than the one before, and others that are like none.
LADDERS = [
    [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    [pa.float32(), pa.float64()],
    [pa.decimal128(9, 2), pa.decimal128(20, 2)],
    [pa.string(), pa.decimal128(20, 4), pa.list_(pa.int32()), pa.map_(pa.string(), pa.int8())],
    [pa.struct([("x", pa.int32())]), pa.struct([("x", pa.int64())]), pa.struct([("y", pa.int64())])],
]
PAIRS = st.sampled_from(LADDERS).flatmap(lambda ladder: st.tuples(*[st.none() | st.sampled_from(ladder)] * 2))
COLUMNS = st.dictionaries(st.sampled_from(["a", "A", "b c", "d.e", "f`", "ß"]), PAIRS, min_size=1, max_size=3)


@given(COLUMNS, st.sets(st.sampled_from(list(Widening)), min_size=1), st.booleans())
def test_a_result_either_fits_after_the_changes_or_each_misfit_is_named(
    columns: dict[str, tuple[pa.DataType | None, pa.DataType | None]], can: set[Widening], folds: bool
) -> None:
    given_columns = {name: pair[0] for name, pair in columns.items() if pair[0] is not None}
    there = {name: pair[1] for name, pair in columns.items() if pair[1] is not None}
    result, table = (pa.schema([*of.items(), TIME]) for of in (given_columns, there))
    dialect = ArrowDialect("s.t", "cat.s.t", frozenset(can), folds_case=folds)
    try:
        found = changes(result, table, dialect=dialect)
    except SinkError as error:
        said = str(error)
        differ = [name for name in given_columns if name in there and given_columns[name] != there[name]]
        twins = [name for name in given_columns if folds and name.swapcase() in there and name not in there]
        assert [name for name in (*differ, *twins) if f"column {name} " in said or f"column {name}." in said] or (
            any(f"no {name}." in said for name in differ)
        )
        with pytest.raises(SinkError):
            changes(result, table, policy="refuse", dialect=dialect)
        return
    after = changed_schema(result, table, found)
    assert [name for name in after.names if name not in found.added] == table.names
    assert {*after.names} == {*table.names, *result.names}
    # A second batch that would add the same columns finds them; one of older code, and its replay, still fit.
    again = changes(result, after, policy="refuse", dialect=dialect)
    assert (again.added, again.widened, again.missing) == ((), (), found.missing)
    assert not changes(table, after, policy="refuse", dialect=dialect)
    # Values are written with the type of the column, which holds them all.
    rows = pa.table({name: pa.nulls(1, type_) for name, type_ in zip(result.names, result.types, strict=True)})
    rows.cast(written_schema(result, after))
    if found:
        refused = refusal(result, table, policy="refuse", dialect=dialect)
        for name in (*found.added, *found.widened):
            assert f"column {name} " in refused
            assert str(given_columns[name]) in refused
