"""Check the rate of each partition: never exceeded, reached under load, and nothing left out or out of order."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka")

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from receiver_runtime.receivers.kafka.partition_rates import PartitionRates
from receiver_runtime.receivers.kafka.records import HEADERS, Records, make_records
from tests.unit.receiver_runtime.support import ManualClock

SIZE = 100  # bytes of each value
MUCH = 10**9


def records(*parts: tuple[int, int, int]) -> Records:
    """Return records of one topic: of each (partition, first offset, rows), in this order."""
    partitions = np.concatenate([np.full(rows, partition, np.int32) for partition, _, rows in parts])
    offsets = np.concatenate([np.arange(first, first + rows) for _, first, rows in parts])
    rows = len(offsets)
    return make_records(
        keys=pa.nulls(rows, pa.binary()),
        values=pa.array([b"%d" % offset + b"x" * SIZE for offset in offsets], pa.binary()),
        names=["t"],
        codes=np.zeros(rows, np.int32),
        partitions=partitions,
        offsets=offsets,
        times=np.full(rows, 1000),
        headers=pa.nulls(rows, HEADERS),
    )


def offsets_of(found: Records | None) -> dict[int, list[int]]:
    """Return the offsets of each partition, after checking that columns and runs say the same."""
    result: dict[int, list[int]] = {}
    if found is None:
        return result
    assert found.batch["offset"].to_pylist() == found.offsets.tolist()
    assert [run.first for run in found.runs] == [0, *(run.end for run in found.runs)][:-1]
    assert found.runs[-1].end == found.batch.num_rows
    for run in found.runs:
        assert set(found.batch["partition"].to_pylist()[run.first : run.end]) == {run.partition}
        result.setdefault(run.partition, []).extend(found.offsets[run.first : run.end].tolist())
    return result


class Reading:
    """Partitions that always have more records, and a reader that takes from each what comes next."""

    def __init__(self, rate: float, *, most_bytes: int = MUCH, every: float = 0.0) -> None:
        self.clock = ManualClock()
        self.rates = PartitionRates(rate, most_bytes=most_bytes, every=every, clock=self.clock)
        self.most_bytes = most_bytes
        self.next: dict[int, int] = {}
        self.passed: dict[int, list[tuple[float, int]]] = {}

    def fetch(self, *rows: tuple[int, int]) -> None:
        """Fetch rows of partitions, as (partition, rows); a partition that is late is not fetched."""
        wanted = [(partition, count) for partition, count in rows if count and ("t", partition) not in self.rates.late]
        if not wanted:
            return
        parts = []
        first = dict(self.next)
        for partition, count in wanted:
            parts.append((partition, first.get(partition, 0), count))
            first[partition] = first.get(partition, 0) + count
        found, late = self.rates.divide(records(*parts))
        self.take(found)
        assert set(late) <= set(self.rates.late)

    def go_on(self) -> list[int]:
        self.take(self.rates.release())
        return [partition for _, partition in self.rates.returning()]

    def take(self, found: Records | None) -> None:
        for partition, offsets in offsets_of(found).items():
            first = self.next.get(partition, 0)
            assert offsets == list(range(first, first + len(offsets))), "left out, repeated or out of order"
            self.next[partition] = first + len(offsets)
            self.passed.setdefault(partition, []).append((self.clock.monotonic(), len(offsets)))
        waiting = [waiting for waiting in self.rates._late.values() if waiting is not None]
        assert sum(one.batch.nbytes for one in waiting) == self.rates._bytes <= self.most_bytes


@given(
    rate=st.floats(0.3, 2000),
    most_bytes=st.sampled_from([0, 5_000, MUCH]),
    steps=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300)), max_size=5),
            st.floats(0, 1.5),
            st.sampled_from([None, None, None, 0, 1, 2]),
        ),
        min_size=1,
        max_size=30,
    ),
)
def test_any_window_lets_through_at_most_the_rate_and_a_second_and_nothing_is_left_out(
    rate: float, most_bytes: int, steps: list[tuple[list[tuple[int, int]], float, int | None]]
) -> None:
    reading = Reading(rate, most_bytes=most_bytes)
    for rows, pause, forgotten in steps:
        reading.fetch(*rows)
        reading.clock.advance(pause)
        reading.go_on()
        if forgotten is not None:
            # It is revoked, and comes back: what waits is dropped and read again.
            reading.rates.forget(("t", forgotten))
    for passed in reading.passed.values():
        for first in range(len(passed)):
            for last in range(first, len(passed)):
                seconds = passed[last][0] - passed[first][0]
                total = sum(rows for _, rows in passed[first : last + 1])
                assert total <= rate * (seconds + 1) + 1 + 1e-6


@pytest.mark.parametrize("rate", [0.5, 7, 1000])
@pytest.mark.parametrize("most_bytes", [0, MUCH])
@pytest.mark.parametrize("every", [0.05, 0.2, 30.0])
def test_a_busy_partition_reaches_its_rate(rate: float, most_bytes: int, every: float) -> None:
    reading = Reading(rate, most_bytes=most_bytes, every=every)
    seconds = 60
    began = reading.clock.monotonic()
    while reading.clock.monotonic() < began + seconds:
        reading.fetch((0, 500))
        reading.clock.advance(min(0.2, reading.rates.pause))
        reading.go_on()
    assert 0.97 * rate * seconds - 1 <= reading.next[0] <= rate * (seconds + 1) + 1


def test_a_busy_partition_slows_down_no_other() -> None:
    reading = Reading(100)
    for _ in range(20 * 30):
        reading.fetch((0, 1000), (1, 2))
        reading.clock.advance(0.05)
        reading.go_on()
    assert reading.next[0] <= 100 * 31
    assert reading.next[1] == 20 * 30 * 2


def test_without_a_rate_everything_passes() -> None:
    reading = Reading(0)
    reading.fetch((0, 100), (1, 5), (0, 7))
    assert reading.next == {0: 107, 1: 5}
    assert reading.go_on() == []


def test_what_is_fetched_of_a_late_partition_passes_before_it_is_fetched_again() -> None:
    reading = Reading(10)
    reading.fetch((0, 4))
    # Only the permits of a tenth of a second are there at first.
    assert reading.next == {0: 1}
    assert list(reading.rates.late) == [("t", 0)]
    reading.clock.advance(0.25)
    assert reading.go_on() == []
    assert reading.next == {0: 3}
    reading.clock.advance(0.1)
    assert reading.go_on() == []
    assert reading.next == {0: 4}
    reading.clock.advance(0.5)
    assert reading.go_on() == [0]
    assert not reading.rates.late


def test_as_many_records_wait_as_there_is_room_for() -> None:
    reading = Reading(10, most_bytes=1000)
    reading.fetch((0, 50), (1, 1))
    assert 500 < reading.rates._bytes <= 1000
    assert 1 < reading.rates.waits_until(("t", 0)) < 20
    assert reading.rates.waits_until(("t", 1)) == 0
    reading.rates.forget(("t", 0))
    assert (reading.rates._bytes, reading.rates.waits_until(("t", 0))) == (0, 0)


def test_what_waits_does_not_keep_the_fetched_batch_in_memory() -> None:
    reading = Reading(1, most_bytes=1000)
    reading.fetch((0, 100_000))
    waiting = reading.rates._late["t", 0]
    assert waiting is not None
    assert 0 < waiting.batch.get_total_buffer_size() < 5000


def test_what_waits_is_released_in_pieces_that_are_not_tiny() -> None:
    reading = Reading(1000, every=0.2)
    reading.fetch((0, 5000))
    for _ in range(1000):
        reading.clock.advance(0.001)
        reading.go_on()
    assert 4 <= len(reading.passed[0]) - 1 <= 6
    assert reading.next[0] == pytest.approx(1000, abs=250)


def test_a_partition_that_comes_back_has_not_more_permits() -> None:
    reading = Reading(10)
    for _ in range(100):
        reading.fetch((0, 50))
        reading.rates.forget(("t", 0))
    assert reading.next == {0: 1}
