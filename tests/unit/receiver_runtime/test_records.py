from __future__ import annotations

import pyarrow as pa
import pytest

from receiver_runtime.records import RecordTypeError, check_record, conform, schema_of, to_batch

ONE = schema_of((("value", "string"),))
TWO = schema_of((("key", "binary"), ("count", "int64")))


def test_columns_become_a_schema() -> None:
    assert pa.schema([("key", pa.binary()), ("count", pa.int64())]) == TWO


def test_one_column_takes_bare_values() -> None:
    assert check_record("abc", ONE) > 3
    assert check_record(None, ONE) > 0
    assert to_batch(["a", None], ONE).to_pydict() == {"value": ["a", None]}


def test_several_columns_take_mappings_and_tuples() -> None:
    records = [{"key": b"k", "count": 1}, (b"l", 2), {"key": b"m"}]
    for record in records:
        check_record(record, TWO)
    assert to_batch(records, TWO).to_pydict() == {"key": [b"k", b"l", b"m"], "count": [1, 2, None]}
    assert to_batch([], TWO).num_rows == 0


@pytest.mark.parametrize("record", [1, "x", (b"k",), {"kee": b"k"}, [b"k", 1], {"key": b"k", "count": "many"}])
def test_what_does_not_fit_is_refused(record: object) -> None:
    with pytest.raises(RecordTypeError):
        check_record(record, TWO)
    with pytest.raises(RecordTypeError):
        to_batch([record], TWO)


def test_the_message_names_column_value_and_type() -> None:
    with pytest.raises(RecordTypeError, match=r"column 'value' is string, found 17 \(int\)"):
        check_record(17, ONE)


def test_a_batch_must_have_names_and_types_of_the_schema() -> None:
    same = pa.record_batch([pa.array(["a"])], schema=pa.schema([pa.field("value", pa.string(), nullable=False)]))
    assert conform(same, ONE).schema == ONE
    with pytest.raises(RecordTypeError, match="value: int64, the receiver declares value: string"):
        conform(pa.record_batch([pa.array([1])], names=["value"]), ONE)
