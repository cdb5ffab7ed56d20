"""Check the records of rows, and the rows that can't be records, without Spark and without a broker."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_contrib.kafka.records import OVERHEAD, RecordColumns, unpacked
from forebay_contrib.kafka.staged_records import staged_records
from orchestration.declarations.sink import SinkError
from orchestration.sinks.refused_rows import RefusedRowsError
from tests.integration.orchestration.frame_without_spark import words

WHOLE = RecordColumns(None, "json", None, None, 1_000_000)
_HEADERS = pa.map_(pa.string(), pa.binary())


def records(columns: RecordColumns, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    answers = list(columns.blocks(iter([batch])))
    found = [record for one in answers for record in unpacked(one["block"][0].as_py()).to_pylist()]
    assert sum(one["records"][0].as_py() for one in answers) == len(found)
    return found


def rows(batch: pa.RecordBatch) -> list[Any]:
    return [json.loads(record["value"]) for record in records(WHOLE, batch)]


def test_a_row_is_an_object_of_its_values() -> None:
    batch = pa.record_batch(
        {
            "n": pa.array([1, None], pa.int64()),
            "x": pa.array([float("nan"), -0.5]),
            "ok": pa.array([True, None]),
            'te"xt%s': pa.array(["ü\0\n", None]),
            "raw": pa.array([b"\x00\xff", None]),
            "money": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "day": pa.array([date(2026, 1, 2), None]),
            "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 6, UTC), None], pa.timestamp("us", "Europe/Berlin")),
            "of": pa.array([[("k", [Decimal("0.1")])], None], pa.map_(pa.string(), pa.list_(pa.decimal128(5, 1)))),
            "in": pa.array([{"a": None, "b": b"\x01"}, None]),
        }
    )
    first = {"n": 1, "x": "NaN", "ok": True, 'te"xt%s': "ü\0\n", "raw": "00ff", "money": "1.50", "day": "2026-01-02"}
    first |= {"at": "2026-01-02 03:04:05.000006Z", "of": {"k": ["0.1"]}, "in": {"a": None, "b": "01"}}
    assert rows(batch) == [first, dict.fromkeys(first) | {"x": -0.5}]


@given(st.lists(st.tuples(st.text() | st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))))
def test_any_values_are_read_back(values: list[tuple[str | None, int, float]]) -> None:
    types = (pa.string(), pa.int64(), pa.float64())
    arrays = [pa.array([row[at] for row in values], type_) for at, type_ in enumerate(types)]
    found = rows(pa.record_batch(arrays, names=["a", "b", "c"]))
    infinite = {float("inf"): "Infinity", float("-inf"): "-Infinity"}
    assert [tuple(row.values()) for row in found] == [(a, b, infinite.get(c, c)) for a, b, c in values]


def test_columns_are_the_parts_of_a_record() -> None:
    batch = pa.record_batch(
        {
            "to": ["one", "two"],
            "id": ["k", None],
            "body": pa.array([b"\xff", None]),
            "more": pa.array([[("a", b"1"), ("b", None)], None], _HEADERS),
        }
    )
    assert records(RecordColumns("id", "body", "more", "to", 1_000_000), batch) == [
        {
            "topic": "one",
            "key": b"k",
            "value": b"\xff",
            "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        },
        {"topic": "two", "key": None, "value": None, "headers": None},
    ]
    [answer] = RecordColumns("id", "body", "more", "to", 1_000_000).blocks(iter([batch]))
    assert sorted(answer["topics"][0].as_py()) == ["one", "two"]
    as_json = records(replace(WHOLE, key="id", headers="more", topic="to"), batch.drop_columns(["body"]))
    assert [json.loads(one["value"]) for one in as_json] == [{"id": "k"}, {"id": None}]


def test_large_rows_are_in_blocks_of_their_own() -> None:
    batch = pa.record_batch({"a": ["x" * 3_000_000] * 3})
    answers = list(replace(WHOLE, most_bytes=4_000_000).blocks(iter([batch, batch.slice(0, 0)])))
    assert [one["records"][0].as_py() for one in answers] == [1, 1, 1]


def test_a_result_is_staged_and_its_records_are_counted() -> None:
    columns = replace(WHOLE, topic="word")
    with staged_records(words(("one", 1), ("two", 2), ("two", 3)), columns, "counts") as staged:
        assert (staged.count, staged.topics) == (3, ["one", "two"])
        sent = [record for some in staged for record in some.to_pylist()]
    assert sorted((one["topic"], one["value"]) for one in sent) == [
        *(("one", b'{"n": 1}'), ("two", b'{"n": 2}')),
        ("two", b'{"n": 3}'),
    ]
    with staged_records(words(), columns, "counts") as staged:
        assert (staged.count, staged.topics, list(staged)) == (0, [], [])


def test_a_result_that_changes_while_it_is_sent_is_refused() -> None:
    with staged_records(words(("one", 1)), WHOLE, "output 'counts'") as staged:
        staged.count = 2
        with pytest.raises(SinkError, match="output 'counts' had 2 rows, and 1 when they were sent"):
            list(staged)


def bad_text(text: bytes) -> pa.Array:
    return pa.array([b"ok", text], pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("columns", "batch", "says"),
    [
        (WHOLE, {"word": bad_text(b"Gr\xfcn")}, r"column word is 'Gr\\\\xfcn', which is not UTF-8"),
        (replace(WHOLE, topic="to"), {"to": ["a", None]}, "column to is None, which is no topic's name"),
        (replace(WHOLE, topic="to"), {"to": ["a", "b c"]}, "column to is 'b c'"),
        (
            WHOLE,
            {"of": pa.array([[(1.0, 1)], [(float("nan"), 1), (float("nan"), 2)]], pa.map_(pa.float64(), pa.int64()))},
            "column of: its key 'NaN' is there twice",
        ),
        (replace(WHOLE, value="a", most_bytes=OVERHEAD + 3), {"a": ["abc", "abcd"]}, "has 4 bytes, and may have 3"),
        (replace(WHOLE, key="k", needs_key=True), {"k": ["a", None]}, "column k is null.* needs a key"),
        (
            RecordColumns("k", "a", "h", None, OVERHEAD + 10),
            {"k": ["abc", "abc"], "a": ["abc", "abc"], "h": pa.array([[("a", b"123")], [("a", b"1234")]], _HEADERS)},
            "has 11 bytes, and may have 10",
        ),
    ],
    ids=["text", "no topic", "topic", "keys", "size", "no key", "size with headers"],
)
def test_a_row_that_can_not_be_a_record_is_named(columns: RecordColumns, batch: dict[str, Any], says: str) -> None:
    made = pa.record_batch(batch)
    with pytest.raises(RefusedRowsError, match=rf"^1 row.*{says}"):
        list(columns.blocks(iter([made])))
    assert len(records(columns, made.slice(0, 1))) == 1
