"""Turn a consumer's messages into one Arrow batch, a column at a time, and note which rows come from which partition.

Knows no consumer and no driver log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from receiver_runtime.block_path.records import schema_of
from receiver_runtime.receivers.kafka.declaration import Kafka

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

SCHEMA = schema_of(Kafka.columns)
HEADERS = SCHEMA.field("headers").type
_UNREADABLE = object()
# Bytes: a batch has at most this many, unless a single record has more. An Arrow column can't have more than 2 GiB,
# and a cast to it does not report an overflow.
MOST_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Rows ``first`` up to ``end`` come from one partition, in its order."""

    topic: str
    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class BadRecord:
    """Hold a record that can't become a row: the name of one of its headers is not UTF-8. ``data`` is its value."""

    topic: str
    partition: int
    offset: int
    data: bytes

    @property
    def place(self) -> str:
        """Return the record's topic, partition and offset, for people."""
        return f"{self.topic}/{self.partition}, offset {self.offset}"


@dataclass(frozen=True, slots=True)
class Records:
    """Hold a batch and its runs, in the order of rows."""

    batch: pa.RecordBatch
    offsets: NDArray[np.int64]
    runs: Sequence[RecordRun]

    def only(self, runs: Sequence[RecordRun]) -> Records:
        """Return only the rows of these runs, which must be parts of this object's runs, in order."""
        if sum(run.end - run.first for run in runs) == self.batch.num_rows:
            return Records(self.batch, self.offsets, runs)
        slices = [self.batch.slice(run.first, run.end - run.first) for run in runs]
        offsets = np.concatenate([self.offsets[run.first : run.end] for run in runs])
        moved = []
        rows = 0
        for run in runs:
            moved.append(RecordRun(run.topic, run.partition, rows, rows + run.end - run.first))
            rows = moved[-1].end
        return Records(pa.concat_batches(slices), offsets, moved)

    def pieces(self, most: int) -> Iterator[Records]:
        """Yield pieces of at most ``most`` bytes each, in order; a larger record is a piece of its own."""
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
            RecordRun(run.topic, run.partition, max(run.first, first) - first, min(run.end, end) - first)
            for run in self.runs
            if run.first < end and run.end > first
        ]
        return Records(self.batch.slice(first, end - first), self.offsets[first:end], runs)


def records_of(messages: Sequence[Message]) -> tuple[Sequence[Records], Sequence[BadRecord]]:
    """Return the records of messages that are no errors, mostly as one batch, and those with unreadable headers.

    Call it only once for a message. Raises pyarrow's errors for what fits no column.
    """
    headers = _headers_of(messages)
    bad: list[BadRecord] = []
    if _UNREADABLE in headers:
        bad = [_bad(message) for message, of_one in zip(messages, headers, strict=True) if of_one is _UNREADABLE]
        messages = [message for message, of_one in zip(messages, headers, strict=True) if of_one is not _UNREADABLE]
        headers = [of_one for of_one in headers if of_one is not _UNREADABLE]
    keys = list(map(Message.key, messages))
    values = list(map(Message.value, messages))
    sizes = np.fromiter(map(_size, keys), np.int64, len(keys)) + np.fromiter(map(_size, values), np.int64, len(values))
    if any(headers):
        sizes += np.fromiter(map(_headers_size, headers), np.int64, len(headers))
    found: list[Records] = []
    first = 0
    for end in ends_of(sizes):
        of_batch = slice(first, end)
        found.append(_records(messages[of_batch], keys[of_batch], values[of_batch], headers[of_batch]))
        first = end
    return found, bad


def ends_of(sizes: NDArray[np.int64]) -> Sequence[int]:
    """Return where each batch ends, for records of these sizes in bytes."""
    totals = np.cumsum(sizes)
    rows = len(totals)
    if not rows or totals[-1] <= MOST_BYTES:
        return [rows] if rows else []
    ends: list[int] = []
    passed = 0
    while (first := ends[-1] if ends else 0) < rows:
        ends.append(max(first + 1, int(np.searchsorted(totals, passed + MOST_BYTES, side="right"))))
        passed = int(totals[ends[-1] - 1])
    return ends


def _size(data: object) -> int:
    return 0 if data is None else len(data)  # type: ignore[arg-type]


def _headers_size(of_one: Any) -> int:  # noqa: ANN401  of the client
    return sum(len(key) + _size(value) for key, value in of_one or ())


def _records(
    messages: Sequence[Message], keys: Sequence[object], values: Sequence[object], headers: Sequence[object]
) -> Records:
    rows = len(messages)
    topics = [str(topic) for topic in map(Message.topic, messages)]
    partitions = np.fromiter(map(Message.partition, messages), np.int32, rows)
    offsets = np.fromiter(map(Message.offset, messages), np.int64, rows)
    times = np.fromiter((time for _, time in map(Message.timestamp, messages)), np.int64, rows)
    names = list(dict.fromkeys(topics))
    codes = np.zeros(rows, np.int32)
    if len(names) > 1:
        numbers = {name: number for number, name in enumerate(names)}
        codes = np.fromiter(map(numbers.__getitem__, topics), np.int32, rows)
    return make_records(
        keys=pa.array(keys, pa.binary()),
        values=pa.array(values, pa.binary()),
        names=names,
        codes=codes,
        partitions=partitions,
        offsets=offsets,
        times=times,
        headers=headers_column(headers),
    )


def make_records(
    *,
    keys: pa.Array,
    values: pa.Array,
    names: Sequence[str],
    codes: NDArray[np.int32],
    partitions: NDArray[np.int32],
    offsets: NDArray[np.int64],
    times: NDArray[np.int64],
    headers: pa.Array,
) -> Records:
    """Make records of columns. ``codes`` are indexes into the topics' ``names``; a negative time means none."""
    timestamps = pa.array(times, mask=times < 0).cast(SCHEMA.field("timestamp").type)
    batch = pa.RecordBatch.from_arrays(
        [
            keys,
            values,
            pa.array(names, pa.string()).take(pa.array(codes)),
            pa.array(partitions),
            pa.array(offsets),
            timestamps,
            headers,
        ],
        schema=SCHEMA,
    )
    return Records(batch, offsets, _runs(names, codes, partitions))


def _runs(names: Sequence[str], codes: NDArray[np.int32], partitions: NDArray[np.int32]) -> list[RecordRun]:
    if not len(codes):
        return []
    changes = np.flatnonzero((np.diff(partitions) != 0) | (np.diff(codes) != 0)) + 1
    ends = [*changes.tolist(), len(codes)]
    firsts = [0, *ends[:-1]]
    return [
        RecordRun(names[codes[first]], int(partitions[first]), first, end)
        for first, end in zip(firsts, ends, strict=True)
    ]


def _headers_of(messages: Sequence[Message]) -> list[object]:
    """Return each message's headers. Asks each message once: after a bad name, a second answer must not be used."""
    found: list[object] = []
    left = iter(messages)
    while True:
        try:
            found.extend(map(Message.headers, left))
        except (SystemError, UnicodeError):
            # The answers before it are in the list already; the iteration continues after the bad message.
            found.append(_UNREADABLE)
        else:
            return found


def _bad(message: Message) -> BadRecord:
    value = message.value()
    data = value if isinstance(value, bytes) else b""
    return BadRecord(str(message.topic()), int(message.partition() or 0), int(message.offset() or 0), data)


def headers_column(headers: Sequence[object]) -> pa.Array:
    """Return the column of headers; null for a record without headers."""
    if not any(headers):
        return pa.nulls(len(headers), HEADERS)
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
        [pa.array(keys, pa.string()), pa.array(values, pa.binary())], fields=list(HEADERS.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), items, type=HEADERS)
