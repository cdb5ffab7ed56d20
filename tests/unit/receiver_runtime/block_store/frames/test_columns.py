"""Check columns as text and as Arrow types: every type converts both ways, and batches of two versions fit together."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver_runtime.block_store.frames.columns import (
    FINGERPRINT_KEY,
    ColumnsError,
    arrow_schema,
    arrow_type,
    columns_of,
    fingerprint_of,
    fitted,
    stamped,
    union,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SIMPLE = st.sampled_from(
    [
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
        *(pa.float32(), pa.float64(), pa.date32(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
        *(pa.timestamp("us"), pa.timestamp("ns", tz="Europe/Berlin"), pa.timestamp("ms", tz="UTC")),
        *(pa.decimal128(38, 0), pa.decimal128(10, 2)),
    ]
)
NAMES = st.text("abcdefXYZ_ 019", min_size=1, max_size=6).map(str.strip).filter(bool)
TYPES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.tuples(inner, inner).map(lambda pair: pa.map_(*pair)),
        st.lists(st.tuples(NAMES, inner), min_size=1, max_size=3, unique_by=lambda field: field[0].lower()).map(
            pa.struct
        ),
    ),
    max_leaves=5,
)


@given(TYPES)
def test_every_type_that_can_be_stored_is_parsed_from_its_own_text(kind: pa.DataType) -> None:
    assert arrow_type(str(kind)) == kind


@given(st.lists(st.tuples(NAMES, TYPES), min_size=1, max_size=4, unique_by=lambda column: column[0].lower()))
def test_columns_and_schemas_convert_both_ways(fields: list[tuple[str, pa.DataType]]) -> None:
    schema = pa.schema(fields)
    assert arrow_schema(columns_of(schema)) == schema


@pytest.mark.parametrize("kind", [pa.uint64(), pa.time64("us"), pa.null(), pa.duration("s"), pa.list_(pa.uint64())])
def test_a_type_unknown_to_spark_is_refused_with_the_columns_name(kind: pa.DataType) -> None:
    with pytest.raises(ColumnsError, match=r"column 'x': .*can't be read by Spark|column 'x': there is no type"):
        columns_of(pa.schema([("x", kind)]))


def test_an_unknown_type_is_refused_with_a_list_of_the_known_ones() -> None:
    with pytest.raises(ColumnsError, match=r"there is no type 'text' for a column: use one of .*int64.*string"):
        arrow_type("text")


@pytest.mark.parametrize("names", [["a", "a"], ["price", "Price"]])
def test_two_columns_with_one_name_in_spark_are_refused(names: list[str]) -> None:
    with pytest.raises(ColumnsError, match=f"the columns '{names[0]}' and '{names[1]}' have one name in Spark"):
        columns_of(pa.schema([(name, pa.int64()) for name in names]))


@pytest.mark.parametrize("names", [["a", "a"], ["price", "Price"]])
def test_two_fields_with_one_name_in_spark_are_refused(names: list[str]) -> None:
    struct = pa.struct([(name, pa.int64()) for name in names])
    for kind in (struct, pa.list_(struct), pa.map_(pa.string(), pa.struct([("x", struct)]))):
        with pytest.raises(ColumnsError, match=f"column 'c': the fields '{names[0]}' and '{names[1]}' have one name"):
            columns_of(pa.schema([("c", kind)]))


@pytest.mark.parametrize("outer", [pa.list_, lambda kind: pa.struct([("a", kind)]), partial(pa.map_, pa.string())])
def test_as_many_types_in_one_another_as_arrow_stores(outer: Callable[[pa.DataType], pa.DataType]) -> None:
    kind, most = pa.int64(), 30 if pa.types.is_map(outer(pa.int64())) else 60
    for _ in range(most):
        kind = outer(kind)
    schema = pa.schema([("c", kind)])
    assert columns_of(schema) == (("c", str(kind)),)
    with pa.ipc.new_stream(pa.BufferOutputStream(), schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([{"c": None}], schema=schema))
    with pytest.raises(ColumnsError, match="column 'c': there are more than 60 types in one another"):
        columns_of(pa.schema([("c", outer(kind))]))


def test_a_text_of_hundreds_of_types_in_one_another_is_refused_before_it_is_read_whole() -> None:
    """Attack: each level goes through the text of all below it, so that 400 levels took a decoder 12 s."""
    with pytest.raises(ColumnsError, match="more than 60 types in one another"):
        arrow_type("list<item: " * 400 + "int64" + ">" * 400)


def test_the_fingerprint_covers_names_and_types_in_order_and_is_stored_in_the_schema() -> None:
    one = pa.schema([("a", pa.int64()), ("b", pa.string())])
    same = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())], metadata={"made": "today"})
    assert fingerprint_of(columns_of(one)) == fingerprint_of(columns_of(same))
    assert fingerprint_of(columns_of(one)) != fingerprint_of(columns_of(one)[::-1])
    assert fingerprint_of(columns_of(one)) != fingerprint_of([("a", "int32"), ("b", "string")])
    assert stamped(same).metadata == {b"made": b"today", FINGERPRINT_KEY: fingerprint_of(columns_of(one)).encode()}


def test_the_union_has_every_column_once_in_order_of_appearance() -> None:
    assert union([("a", "int64"), ("b", "string")], [("c", "double"), ("b", "string")]) == (
        ("a", "int64"),
        ("b", "string"),
        ("c", "double"),
    )
    assert union() == ()


def test_batches_of_any_version_are_fitted_by_name_with_nulls() -> None:
    wanted = pa.schema([("a", pa.int64()), ("b", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    fit = fitted(wanted)
    older = pa.record_batch([pa.array(["x"]), pa.array([1], pa.uint32())], names=["b", "a"])
    assert fit(older).schema == wanted
    assert fit(older).to_pylist() == [{"a": 1, "b": "x", "at": None}]
    # Nanoseconds, which Spark can't hold, are truncated to microseconds.
    finer = pa.record_batch([pa.array([1_001], pa.timestamp("ns", tz="UTC"))], names=["at"])
    assert fit(finer).column(2).cast(pa.int64()).to_pylist() == [1]
    # A batch that fits is not copied, whatever its metadata says.
    fitting = pa.RecordBatch.from_pylist([{"a": 1}], schema=wanted.with_metadata({"made": "today"}))
    assert fit(fitting) is fitting
