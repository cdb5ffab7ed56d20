from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message
from hypothesis import given
from hypothesis import strategies as st

from receiver_runtime.receivers.kafka import records as kafka_records
from receiver_runtime.receivers.kafka.records import RecordRun, records_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def message(topic: str, partition: int, offset: int, value: bytes | None = b"v") -> Message:
    return Message(
        topic=topic, partition=partition, offset=offset, value=value, timestamp=(TIMESTAMP_CREATE_TIME, 1000 + offset)
    )


def test_every_column() -> None:
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", None)]
    [found], _ = records_of(
        [
            Message(
                topic="t",
                partition=3,
                offset=7,
                key=b"k",
                value=b"v",
                headers=headers,
                timestamp=(TIMESTAMP_CREATE_TIME, 1500),
            ),
            Message(topic="t", partition=3, offset=8, timestamp=(TIMESTAMP_NOT_AVAILABLE, -1)),
        ]
    )
    assert found.batch.to_pylist() == [
        {
            "key": b"k",
            "value": b"v",
            "topic": "t",
            "partition": 3,
            "offset": 7,
            "timestamp": datetime.fromtimestamp(1.5, UTC),
            "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        },
        {
            "key": None,
            "value": None,
            "topic": "t",
            "partition": 3,
            "offset": 8,
            "timestamp": None,
            "headers": None,
        },
    ]


def test_a_batch_holds_at_most_what_a_column_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_records, "MOST_BYTES", 10)
    named = Message(topic="t", partition=0, offset=3, value=b"12345", headers=[("name", b"12")])
    messages = [message("t", 0, offset, b"1234") for offset in range(3)]
    found, _ = records_of([*messages, named, message("t", 0, 4, b"x" * 50), message("t", 0, 5, None)])
    assert [one.batch["offset"].to_pylist() for one in found] == [[0, 1], [2], [3], [4], [5]]
    assert found[2].runs == [RecordRun("t", 0, 0, 1)]
    assert found[2].batch["headers"].to_pylist() == [[{"key": "name", "value": b"12"}]]
    assert records_of([]) == ([], [])


def test_each_run_is_of_one_partition() -> None:
    [found], _ = records_of([message("a", 0, 5), message("a", 0, 9), message("a", 1, 0), message("b", 1, 0)])
    assert found.runs == [RecordRun("a", 0, 0, 2), RecordRun("a", 1, 2, 3), RecordRun("b", 1, 3, 4)]
    kept = found.only([RecordRun("a", 0, 1, 2), RecordRun("b", 1, 3, 4)])
    assert [(row["topic"], row["offset"]) for row in kept.batch.to_pylist()] == [("a", 9), ("b", 0)]
    assert (kept.offsets.tolist(), kept.runs) == ([9, 0], [RecordRun("a", 0, 0, 1), RecordRun("b", 1, 1, 2)])
    assert found.only(found.runs).batch is found.batch


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=30), partitions=st.integers(1, 3), most=st.integers(1, 600)
)
def test_pieces_are_everything_in_order_and_each_fits_or_is_one_record(
    sizes: Sequence[int], partitions: int, most: int
) -> None:
    [found], _ = records_of(
        [message("t", row * partitions // len(sizes), row, b"x" * size) for row, size in enumerate(sizes)]
    )
    pieces = list(found.pieces(most))
    assert [offset for piece in pieces for offset in piece.offsets] == list(range(len(sizes)))
    for piece in pieces:
        assert piece.batch.num_rows == 1 or piece.batch.nbytes <= most
        rows = piece.batch.to_pylist()
        assert [row["offset"] for row in rows] == list(piece.offsets)
        ends = [0, *(run.end for run in piece.runs)]
        assert [run.first for run in piece.runs] == ends[:-1]
        assert ends[-1] == len(rows)
        for run in piece.runs:
            assert {row["partition"] for row in rows[run.first : run.end]} == {run.partition}
