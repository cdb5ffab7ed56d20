"""Test what becomes of rows whose record is null, and of small batches."""

from __future__ import annotations

import pyarrow as pa
import pytest

from forebay.records import Avro, Registry
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.records.json_records import Json

SOURCE = pa.schema([("value", pa.string()), ("offset", pa.int64())])


def batch(*values: str | None, first: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.string()), pa.array(range(first, first + len(values)), pa.int64())], schema=SOURCE
    )


@pytest.mark.parametrize(
    "ddl", ["item STRING, pieces BIGINT NOT NULL", "item MAP<STRING, INT>, pieces BIGINT NOT NULL"]
)
def test_a_null_is_a_row_of_nulls_also_where_members_are_required(ddl: str) -> None:
    rows = TypedRows(Json(ddl), SOURCE, "value")
    checked = rows.check(batch('{"pieces": 1}', None, "{", None, "{}"))
    assert checked.batch.column("pieces").to_pylist() == [1, None, None]
    assert checked.batch.column("_offset").to_pylist() == [0, 1, 3]
    assert [letter.data for letter in checked.letters] == [b"{", b"{}"]


def test_small_batches_are_read_together_and_keep_their_order() -> None:
    rows = TypedRows(Json("pieces BIGINT"), SOURCE, "value")
    batches = [
        batch(*(f'{{"pieces": {row}}}' for row in range(first, first + 100)), first=first)
        for first in range(0, 40_000, 100)
    ]
    together = list(rows.together(batches))
    assert len(together) == 3
    assert [row for one in together for row in rows.check(one).batch.column("pieces").to_pylist()] == list(
        range(40_000)
    )


def test_large_batches_are_read_apart() -> None:
    rows = TypedRows(Json("pieces BIGINT"), SOURCE, "value")
    large = [batch("x" * 3 * 1024 * 1024, first=number) for number in range(3)]
    assert list(rows.together(large)) == large
    assert list(rows.together([])) == []


def test_rows_without_any_column_are_kept_aside() -> None:
    records = Avro(registry=Registry("http://127.0.0.1:1"), keep=[])
    rows = TypedRows(records, SOURCE, "value")
    rows.grow(list, lambda _: None)
    checked = rows.check(batch(None, None))
    assert checked.batch.num_rows == 0
    assert [(letter.reason.label, letter.data) for letter in checked.letters] == [("does_not_fit", b"")] * 2
