from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from receiver_runtime.block_path.records import RecordTypeError, conform, keep_record, schema_of, to_batch

if TYPE_CHECKING:
    from collections.abc import Callable

ONE = schema_of((("value", "string"),))
TWO = schema_of((("key", "binary"), ("count", "int64")))


def test_columns_become_a_schema() -> None:
    assert pa.schema([("key", pa.binary()), ("count", pa.int64())]) == TWO


def test_one_column_takes_bare_values() -> None:
    assert keep_record("abc", ONE) == ("abc", 7)
    assert keep_record("äöü", ONE) == ("äöü", 10)
    assert keep_record(None, ONE) == (None, 16)
    assert to_batch(["a", None], ONE).to_pydict() == {"value": ["a", None]}


def test_several_columns_take_mappings_and_tuples() -> None:
    records = [{"key": b"k", "count": 1}, (b"l", 2), {"key": b"m"}]
    for record in records:
        keep_record(record, TWO)
    assert to_batch(records, TWO).to_pydict() == {"key": [b"k", b"l", b"m"], "count": [1, 2, None]}
    assert to_batch([], TWO).num_rows == 0


@pytest.mark.parametrize("record", [1, "x", (b"k",), {"kee": b"k"}, [b"k", 1], {"key": b"k", "count": "many"}])
def test_what_does_not_fit_is_refused(record: object) -> None:
    with pytest.raises(RecordTypeError):
        keep_record(record, TWO)
    with pytest.raises(RecordTypeError):
        to_batch([record], TWO)


def test_the_message_names_column_value_and_type() -> None:
    with pytest.raises(RecordTypeError, match=r"column 'value' is string, found 17 \(int\)"):
        keep_record(17, ONE)


def test_a_batch_must_have_names_and_types_of_the_schema() -> None:
    same = pa.record_batch([pa.array(["a"])], schema=pa.schema([pa.field("value", pa.string(), nullable=False)]))
    assert conform(same, ONE).schema == ONE
    with pytest.raises(RecordTypeError, match="value: int64, the receiver declares value: string"):
        conform(pa.record_batch([pa.array([1])], names=["value"]), ONE)


@pytest.mark.parametrize(
    ("alias", "value", "change", "least"),
    [
        ("binary", bytearray(b"x" * 1000), lambda value: value.__setitem__(0, 0), 1000),
        ("binary", memoryview(bytearray(b"x" * 1000)), lambda value: value.__setitem__(0, 0), 1000),
    ],
)
def test_later_changes_by_the_caller_do_not_affect_a_kept_record(
    alias: str, value: object, change: Callable[[object], None], least: int
) -> None:
    schema = schema_of((("value", alias),))
    kept, nbytes = keep_record(value, schema)
    before = to_batch([kept], schema)
    change(value)
    assert to_batch([kept], schema).equals(before)
    assert least <= nbytes <= least + 16


def test_lists_and_mappings_are_copied_too() -> None:
    schema = pa.schema([("tags", pa.list_(pa.string())), ("n", pa.int64())])
    tags = ["a", "b"]
    record: dict[str, object] = {"tags": tags, "n": 1}
    kept, _ = keep_record(record, schema)
    tags.append("c")
    record["n"] = 2
    assert to_batch([kept, (["d"], 3)], schema).to_pylist() == [{"tags": ["a", "b"], "n": 1}, {"tags": ["d"], "n": 3}]
