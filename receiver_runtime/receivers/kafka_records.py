"""From a consumer's messages to one Arrow batch, and which rows of it are whose partition's, in what order.

Knows no consumer and no driver log; a column at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.records import schema_of
from receiver_runtime.sources.kafka import Kafka

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from confluent_kafka import Message

SCHEMA = schema_of(Kafka.columns)
_HEADERS = SCHEMA.field("headers").type
_HEADER = _HEADERS.value_type


@dataclass(frozen=True, slots=True)
class Run:
    """Rows ``first`` up to ``end`` come from one partition, in its order."""

    topic: str
    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Records:
    """A batch and its runs, in the order of rows."""

    batch: pa.RecordBatch
    offsets: Sequence[int]
    runs: Sequence[Run]

    def only(self, runs: Sequence[Run]) -> Records:
        """The rows of these runs, parts of ours in order, and no others."""
        if sum(run.end - run.first for run in runs) == self.batch.num_rows:
            return Records(self.batch, self.offsets, runs)
        slices = [self.batch.slice(run.first, run.end - run.first) for run in runs]
        offsets: list[int] = []
        moved = []
        for run in runs:
            moved.append(Run(run.topic, run.partition, len(offsets), len(offsets) + run.end - run.first))
            offsets.extend(self.offsets[run.first : run.end])
        return Records(pa.concat_batches(slices), offsets, moved)

    def pieces(self, most: int) -> Iterator[Records]:
        """As pieces of at most ``most`` bytes each, in order; a record that alone is larger has its own."""
        rows = self.batch.num_rows
        if not rows:
            return
        if rows == 1 or self.batch.nbytes <= most:
            yield self
            return
        middle = rows // 2
        yield from self._between(0, middle).pieces(most)
        yield from self._between(middle, rows).pieces(most)

    def _between(self, first: int, end: int) -> Records:
        runs = [
            Run(run.topic, run.partition, max(run.first, first) - first, min(run.end, end) - first)
            for run in self.runs
            if run.first < end and run.end > first
        ]
        return Records(self.batch.slice(first, end - first), self.offsets[first:end], runs)


def records_of(messages: Sequence[Message]) -> Records:
    """Of messages that are no errors. Raises pyarrow's errors for what fits no column."""
    topics = [message.topic() for message in messages]
    partitions = [message.partition() for message in messages]
    offsets: list[int] = [message.offset() for message in messages]  # type: ignore[misc]
    times = [message.timestamp()[1] for message in messages]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([message.key() for message in messages], pa.binary()),
            pa.array([message.value() for message in messages], pa.binary()),
            pa.array(topics, pa.string()),
            pa.array(partitions, pa.int32()),
            pa.array(offsets, pa.int64()),
            # A record without a time has a negative one.
            pa.array([time if time >= 0 else None for time in times], SCHEMA.field("timestamp").type),
            _headers([message.headers() for message in messages]),
        ],
        schema=SCHEMA,
    )
    return Records(batch, offsets, _runs(topics, partitions))


def _runs(topics: Sequence[str | None], partitions: Sequence[int | None]) -> list[Run]:
    runs: list[Run] = []
    first = 0
    for row in range(1, len(topics) + 1):
        if row == len(topics) or partitions[row] != partitions[first] or topics[row] != topics[first]:
            runs.append(Run(str(topics[first]), int(partitions[first] or 0), first, row))
            first = row
    return runs


def _headers(headers: Sequence[object]) -> pa.Array:
    """Null where a record has none."""
    if not any(headers):
        return pa.nulls(len(headers), _HEADERS)
    starts: list[int | None] = []
    keys: list[str] = []
    values: list[bytes | None] = []
    for of_one in headers:
        if not of_one:
            starts.append(None)
            continue
        starts.append(len(keys))
        for key, value in of_one:  # type: ignore[attr-defined]
            keys.append(key)
            values.append(value.encode() if isinstance(value, str) else value)
    starts.append(len(keys))
    items = pa.StructArray.from_arrays(
        [pa.array(keys, pa.string()), pa.array(values, pa.binary())], fields=list(_HEADER)
    )
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), items, type=_HEADERS)
