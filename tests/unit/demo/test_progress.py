"""Check what the demo concludes from what it sees: the end, what is stuck, and the figures."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from forebay.demo.progress import (
    BatchFacts,
    ProgressSnapshot,
    Watch,
    is_finished,
    is_short,
    what_is_stuck,
    what_it_does,
)

ROWS = 1_000
START = datetime(2025, 1, 1, 12, 0, tzinfo=UTC)


def batch(number: int, state: str, records: int, **facts: object) -> BatchFacts:
    made = BatchFacts(time=START + timedelta(seconds=10 * number), state=state, records=records)
    return replace(made, **facts)  # type: ignore[arg-type]


def look(at: float = 0.0, **facts: object) -> ProgressSnapshot:
    return replace(ProgressSnapshot(at=at, expected=ROWS), **facts)  # type: ignore[arg-type]


DONE = look(
    replay_state="served",
    replayed=ROWS,
    receiver_state="ACTIVE",
    received=ROWS,
    blocks=9,
    batches=(batch(1, "COMPLETED", 400), batch(2, "COMPLETED", 600)),
)


def test_finished_needs_every_record_in_a_completed_batch() -> None:
    assert is_finished(DONE)
    assert not is_finished(replace(DONE, replay_state="serving"))
    assert not is_finished(replace(DONE, batches=DONE.batches[:1]))
    assert not is_finished(replace(DONE, batches=(DONE.batches[0], batch(2, "RUNNING", 600))))
    assert not is_finished(replace(DONE, batches=(*DONE.batches, batch(3, "ALLOCATED", 1))))


def test_an_empty_waiting_batch_does_not_delay_the_end() -> None:
    assert is_finished(replace(DONE, batches=(*DONE.batches, batch(3, "ALLOCATED", 0))))


def test_lag_counts_records_outside_completed_batches() -> None:
    assert replace(DONE, batches=(batch(1, "COMPLETED", 400), batch(2, "FAILED", 600))).lag == 600
    assert DONE.lag == 0


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "waiting for the receiver (it is not placed yet)"),
        (
            {"receiver_state": "FAILED", "receiver_reason": "connection refused"},
            "it is FAILED: connection refused",
        ),
        ({"receiver_state": "ACTIVE"}, "waits for the first records"),
        ({"received": 5}, "the first batch waits for the end of its interval"),
        ({"received": 5, "batches": (batch(1, "ALLOCATED", 5),)}, "Dagster starts the run"),
        ({"received": 5, "batches": (batch(1, "RUNNING", 5),)}, "Spark works on the batch"),
        (
            {"received": 5, "batches": (batch(1, "FAILED", 5, error="out of memory"),)},
            "will be tried again: out of memory",
        ),
        ({"received": 5, "batches": (batch(1, "QUARANTINED", 5),)}, "used up its attempts"),
        ({"received": 5, "batches": (batch(1, "COMPLETED", 5),)}, "the next batch waits"),
        ({"received": ROWS, "batches": (batch(1, "COMPLETED", 5),)}, "the next batch is to be allocated"),
    ],
)
def test_the_current_step_is_described(facts: dict[str, object], words: str) -> None:
    assert words in what_it_does(replace(look(), **facts))  # type: ignore[arg-type]


def test_the_end_is_named() -> None:
    assert what_it_does(DONE) == "all records are in completed batches"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"replay_state": "waiting", "replayed": 7}, "has sent 7 of 1,000 lines (waiting)"),
        ({"received": 10, "receiver_state": "FAILED"}, "registered 10 of 1,000 records (FAILED)"),
        ({"batches": (batch(1, "RUNNING", 1_000, attempts=2),)}, "is RUNNING after 2 attempts"),
        ({"batches": (batch(1, "COMPLETED", 400),)}, "600 received records wait for a batch"),
    ],
)
def test_the_stuck_part_is_named(change: dict[str, object], words: str) -> None:
    assert words in what_is_stuck(replace(DONE, **change))  # type: ignore[arg-type]


def test_nothing_read_is_named() -> None:
    assert "never be read" in what_is_stuck(None)


def test_too_few_records_end_the_demo_only_when_no_more_arrive() -> None:
    short = replace(DONE, received=900, batches=(batch(1, "COMPLETED", 900),))
    assert is_short(short)
    watch = Watch(settle_seconds=30)
    assert not watch.see(replace(short, at=100))
    assert not watch.see(replace(short, at=129))
    grown = replace(short, received=950, batches=(batch(1, "COMPLETED", 950),))
    assert not watch.see(replace(grown, at=131)), "the wait begins again with every new record"
    assert not watch.see(replace(grown, at=160))
    assert watch.see(replace(grown, at=161.5))


def test_a_quarantined_batch_ends_the_demo_at_once() -> None:
    assert Watch().see(look(received=5, batches=(batch(1, "QUARANTINED", 5),)))


def test_timings_are_measured_from_the_looks() -> None:
    watch = Watch()
    first = batch(1, "COMPLETED", 400, scheduling_delay=1.0, processing_time=3.0)
    second = batch(2, "COMPLETED", 600, scheduling_delay=2.0, processing_time=5.0)
    empty = batch(3, "COMPLETED", 0, scheduling_delay=99.0, processing_time=99.0)
    watch.see(look(at=10))
    watch.see(look(at=20, received=100, replayed=200, replay_seconds=1.0))
    watch.see(look(at=25, received=600, batches=(first,)))
    watch.see(look(at=26, received=1_000, batches=(first,)))
    assert watch.see(replace(DONE, at=40, replay_seconds=8.0, batches=(first, second, empty)))
    timings = watch.timings()
    assert timings.first_batch_completed == 25
    assert timings.finished == 40
    assert timings.records_per_second == pytest.approx(1_000 / 8)
    assert timings.batches == 2
    assert timings.median_scheduling_delay == 1.5
    assert timings.median_processing_time == 4.0


def test_without_looks_there_are_no_figures() -> None:
    timings = Watch().timings()
    assert timings.records_per_second is None
    assert timings.first_batch_completed is None
    assert timings.median_processing_time is None
