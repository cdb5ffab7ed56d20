"""Limit each partition to a number of records per second (spark.streaming.kafka.maxRatePerPartition).

Owns each partition's permits, and the fetched records that wait for theirs. A partition is *late* from the moment at
which its permits are used up. It is not fetched then, and the others are, so that a busy partition slows down no other.
What waits is only a cache: it may be dropped at any time, because it is read again from the partition's position.

Knows no consumer, no position and no driver log, and must never decide where a partition is read from. Only the
reader's thread uses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from receiver_runtime.receivers.kafka.records import RecordRun, Records
from receiver_runtime.watching.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from receiver_runtime.receivers.kafka.partition_key import Key


_BURST_SECONDS = 1.0  # unused permits of this time may be used at once
# Unused permits of a partition that was not seen before: few, so that a receiver that restarts again and again does not
# exceed the rate.
_FIRST_SECONDS = 0.1
# A late partition of which nothing waits is fetched again when it has the permits of this time. Fetched sooner, most of
# what comes would be dropped and fetched again, if there is no room for it to wait.
_RETURN_SECONDS = 0.5
_LEAST_PAUSE = 0.01  # seconds


@dataclass(slots=True)
class _Permits:
    left: float
    at: float


class PartitionRates:
    """Limit the rate of each partition; see the module. In any t seconds at most ``rate * (t + 1) + 1`` records pass.

    Args:
        rate: records per second of each partition; 0 means unlimited.
        most_bytes: how many bytes of records may wait, of all partitions together.
        every: seconds between two releases of records that wait, so that they make no tiny blocks; at most half the
            time for which unused permits are kept.
    """

    def __init__(self, rate: float, *, most_bytes: int, every: float, clock: Clock | None = None) -> None:
        self._rate = rate
        self._most_bytes = most_bytes
        self._every = min(every, _BURST_SECONDS / 2)
        self._clock = clock or Clock()
        self._permits: dict[Key, _Permits] = {}
        # The late partitions, each with its records that wait, if there are any.
        self._late: dict[Key, Records | None] = {}
        self._bytes = 0
        self._release_at = 0.0

    @property
    def late(self) -> Collection[Key]:
        """Return the partitions that are not to be fetched now."""
        return self._late.keys()

    @property
    def pause(self) -> float:
        """Return after how many seconds, at the latest, to ask for a release again."""
        return max(self._every, _LEAST_PAUSE) if self._late else math.inf

    @property
    def waiting(self) -> int:
        """Return how many records wait."""
        return sum(waiting.batch.num_rows for waiting in self._late.values() if waiting is not None)

    def waits_until(self, key: Key) -> int:
        """Return the offset after the last record that waits of a partition; 0 if none waits."""
        waiting = self._late.get(key)
        return 0 if waiting is None else int(waiting.offsets[-1]) + 1

    def divide(self, found: Records) -> tuple[Records | None, Sequence[Key]]:
        """Return the records that may pass now, and the partitions that are late from now on.

        ``found`` has the records that come next in each of its partitions, of which none is late.
        """
        if not self._rate:
            return found, ()
        passing: list[RecordRun] = []
        late: dict[Key, RecordRun] = {}
        for run in found.runs:
            key = (run.topic, run.partition)
            if key in late:
                continue
            rows = run.end - run.first
            most = self._take(key, rows)
            if most:
                passing.append(RecordRun(*key, run.first, run.first + most))
            if most < rows:
                late[key] = RecordRun(*key, run.first + most, run.end)
        for key, rest in late.items():
            self._late[key] = self._kept(found, rest)
        return (found.only(passing) if passing else None), list(late)

    def release(self) -> Records | None:
        """Return waiting records that may pass now, of all late partitions together; None if there are none."""
        now = self._clock.monotonic()
        if not self._bytes or now < self._release_at:
            return None
        self._release_at = now + self._every
        released: list[Records] = []
        for key, waiting in list(self._late.items()):
            if waiting is None:
                continue
            rows = waiting.batch.num_rows
            most = self._take(key, rows)
            if not most:
                continue
            released.append(_rows(waiting, 0, most))
            rest = self._late[key] = _rows(waiting, most, rows) if most < rows else None
            self._bytes += (0 if rest is None else rest.batch.nbytes) - waiting.batch.nbytes
        return _joined(released) if released else None

    def returning(self) -> list[Key]:
        """Return the partitions that are late no longer: fetch them again, from the position after what has passed."""
        wanted = max(1.0, self._rate * _RETURN_SECONDS)
        found = [key for key, waiting in self._late.items() if waiting is None and self._left(key) >= wanted]
        for key in found:
            del self._late[key]
        return found

    def forget(self, key: Key) -> None:
        """Drop what waits of a partition: it is read by another receiver, or from another position."""
        waiting = self._late.pop(key, None)
        if waiting is not None:
            self._bytes -= waiting.batch.nbytes

    @property
    def _capacity(self) -> float:
        # One permit more, so that a low rate loses nothing of the next permit while one waits to be used.
        return 1.0 + self._rate * _BURST_SECONDS

    def _left(self, key: Key) -> float:
        now = self._clock.monotonic()
        permits = self._permits.get(key)
        if permits is None:
            permits = self._permits[key] = _Permits(max(1.0, self._rate * _FIRST_SECONDS), now)
        permits.left = min(self._capacity, permits.left + (now - permits.at) * self._rate)
        permits.at = now
        return permits.left

    def _take(self, key: Key, wanted: int) -> int:
        """Take as many permits as there are, up to ``wanted``; return how many."""
        taken = min(wanted, int(self._left(key)))
        self._permits[key].left -= taken
        return taken

    def _kept(self, found: Records, rest: RecordRun) -> Records | None:
        """Keep the first rows of a run that have room to wait; the others are dropped."""
        run = found.batch.slice(rest.first, rest.end - rest.first)
        room = self._most_bytes - self._bytes
        rows = run.num_rows if run.nbytes <= room else int(run.num_rows * max(0, room) / run.nbytes)
        if not rows:
            return None
        kept = _rows(found, rest.first, rest.first + rows)
        self._bytes += kept.batch.nbytes
        return kept


def _rows(records: Records, first: int, end: int) -> Records:
    """Return a copy of rows that are all of one partition: a slice would keep the whole batch in memory."""
    [run] = [run for run in records.runs if run.first <= first and end <= run.end]
    batch = records.batch.take(pa.array(np.arange(first, end)))
    return Records(batch, records.offsets[first:end].copy(), [RecordRun(run.topic, run.partition, 0, end - first)])


def _joined(parts: Sequence[Records]) -> Records:
    if len(parts) == 1:
        return parts[0]
    runs: list[RecordRun] = []
    rows = 0
    for part in parts:
        runs += [RecordRun(run.topic, run.partition, rows + run.first, rows + run.end) for run in part.runs]
        rows += part.batch.num_rows
    return Records(
        pa.concat_batches([part.batch for part in parts]), np.concatenate([part.offsets for part in parts]), runs
    )
