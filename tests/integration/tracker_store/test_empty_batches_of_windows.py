"""Test which batches without records run because of a window: those at which its content has changed, and no other."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log
from tracker_store.batches.batches import get_batch
from tracker_store.batches.pipelines import apply_stream
from tracker_store.receivers.receivers import placements
from tracker_store.retention.cleanup import clean_up_receiver
from tracker_store.schema.declarations import PipelineDeclaration, WindowDeclaration
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

SECOND = timedelta(seconds=1)


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    """Give a pipeline on the stream `lines`, with a receiver, and on `others`, with another."""
    log = make_log(connection)
    other = apply_stream(connection, name="others", declaration={"source": {}, "settings": {}}, receivers=1)
    connection.execute(sa.text("UPDATE forebay.pipelines SET stream_ids = :ids"), {"ids": [log.stream_id, other]})
    return Log(connection, log.stream_id, log.pipeline_id, [row.receiver_id for row in placements(connection)])


def window(length: int, slide: int | None = None, stream: str = "lines") -> WindowDeclaration:
    return WindowDeclaration(stream, length * INTERVAL, None if slide is None else slide * INTERVAL)


def receive(log: Log, *numbers: int, stream: str = "lines") -> None:
    """Add a block of `stream` to each of the batches with these numbers, the first of which is 1."""
    for placement in placements(log.connection):
        if placement.stream_name == stream:
            log.add_at(placement.receiver_id, *(NOON + number * INTERVAL - SECOND for number in numbers))


def decide(log: Log, number: int, *windows: WindowDeclaration, oldest: int | None = None) -> bool:
    """Allocate a batch, and run it to its end if it runs; return whether it does."""
    time = NOON + number * INTERVAL
    log.tracker.allocate_blocks_to_batch(
        time, oldest_time=None if oldest is None else NOON + oldest * INTERVAL, windows=windows
    )
    batch = get_batch(log.connection, log.pipeline_id, time)
    assert batch is not None
    if batch.state is BatchState.ALLOCATED:
        log.end_batch(time)
        return True
    return False


def decided(log: Log, last: int, *windows: WindowDeclaration) -> list[int]:
    """Allocate the batches 1 to `last`; return the numbers of those that run."""
    return [number for number in range(1, last + 1) if decide(log, number, *windows)]


@pytest.mark.parametrize(
    ("windows", "runs"),
    [
        # It leaves the window of 3 at batch 4: that batch replaces the output by an empty one, and no later one runs.
        ((window(3),), [1, 4]),
        ((window(1),), [1, 2]),
        ((window(3), window(5)), [1, 4, 6]),
        # Due at 2, 4, 6 …: 2 is the first that has it, 6 the first without it.
        ((window(4, slide=2),), [1, 2, 6]),
        # A window that is shorter than its slide: due at 3, 6 …, and the record is in none of them.
        ((window(1, slide=3),), [1]),
        ((), [1]),
        ((window(3, stream="others"),), [1]),
    ],
)
def test_an_empty_batch_runs_when_the_only_record_comes_into_a_window_or_leaves_it(
    log: Log, windows: Sequence[WindowDeclaration], runs: list[int]
) -> None:
    receive(log, 1)
    assert decided(log, 9, *windows) == runs


def test_a_window_that_loses_a_part_of_its_records_runs_for_each_part(log: Log) -> None:
    receive(log, 1, 2)
    assert decided(log, 8, window(3)) == [1, 2, 4, 5]


def test_records_of_another_stream_are_no_change(log: Log) -> None:
    receive(log, 1, 3, stream="others")
    assert decided(log, 8, window(2)) == [1, 3], "these have records"


@pytest.mark.parametrize("state", [BatchState.QUARANTINED, BatchState.DISCARDED])
def test_the_batch_after_one_that_has_no_result_runs(log: Log, state: BatchState) -> None:
    receive(log, 1)
    assert decided(log, 3, window(2)) == [1, 3], "batch 3 is the first without the record"
    log.connection.execute(
        sa.text("UPDATE forebay.batches SET state = :state, completed_at = NULL WHERE batch_time = :time"),
        {"state": state, "time": NOON + 3 * INTERVAL},
    )
    assert [number for number in range(4, 9) if decide(log, number, window(2))] == [4], "its result lacks the record"


def test_a_merged_batch_that_skips_a_due_time_is_made_up_for_at_the_next(log: Log) -> None:
    windows = window(4, slide=4)
    receive(log, 3)
    assert decided(log, 5, windows) == [3, 4]
    # Batch 8 was due, and would have had none of the records that batch 4 has.
    assert not decide(log, 13, windows, oldest=6)
    assert [number for number in range(14, 25) if decide(log, number, windows)] == [16]


def test_the_decision_is_the_same_whenever_it_is_made_and_whatever_was_cleaned_up(log: Log) -> None:
    """Check random histories against a model; batches are finished, and all that may go is cleaned up in between."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    done = 0
    for _ in range(6):
        length, slide = chance.randint(1, 5), chance.choice([None, 1, 2, 3])
        log.connection.execute(
            sa.text("UPDATE forebay.pipelines SET retention = :kept"), {"kept": (length + (slide or 0)) * INTERVAL}
        )
        # Long enough apart that no window sees the history before.
        start = done + 12
        full = [number for number in range(start, start + 14) if chance.random() < 0.3]
        if full:
            receive(log, *full)
        for number in range(done + 1, start):
            decide(log, number, window(length, slide))
        found = []
        for number in range(start, start + 24):
            if chance.random() < 0.5:
                clean_up(log)
            if decide(log, number, window(length, slide)):
                found.append(number)
        assert found == expected(full, range(start, start + 24), length, slide), f"{seed=} {length=} {slide=} {full=}"
        done = start + 23


def expected(full: Collection[int], numbers: range, length: int, slide: int | None) -> list[int]:
    """Return the batches that run: those with records, and those whose window has other ones than when it was due."""

    def content(number: int) -> set[int]:
        return set(full) & set(range(number - length + 1, number + 1))

    def changed(number: int) -> bool:
        return number % (slide or 1) == 0 and content(number) != content(number - (slide or 1))

    return [number for number in numbers if number in full or changed(number)]


def test_where_too_much_was_cleaned_up_an_empty_batch_runs_rather_than_not(log: Log) -> None:
    """Check a retention that is too short for the window: the ranges of what left the window may be gone."""
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET retention = :kept"), {"kept": INTERVAL})
    receive(log, 1, 2)
    receive(log, 4, stream="others")
    runs = []
    for number in range(1, 10):
        if decide(log, number, window(3, slide=3)):
            runs.append(number)
        clean_up(log)
    assert set(expected([1, 2], range(1, 10), 3, 3)) <= set(runs)


def clean_up(log: Log) -> None:
    for receiver_id in log.receiver_ids:
        clean_up_receiver(log.connection, receiver_id=receiver_id, threshold=NOON + timedelta(days=1), max_rows=1_000)


@pytest.mark.parametrize(
    ("chosen", "runs_all", "deciding"),
    [(None, False, (window(6, slide=2),)), (True, True, ()), (False, False, ())],
)
def test_windows_decide_unless_the_declaration_does(
    chosen: bool | None,
    runs_all: bool,
    deciding: tuple[WindowDeclaration, ...],
) -> None:
    declared = PipelineDeclaration.of(
        {
            "settings": {"run_empty_batches": chosen},
            "outputs": {
                "plain": {"inputs": ["lines"], "sink": {}},
                "late": {"inputs": [{"window": "lines", "length_ms": 60_000, "slide_ms": 20_000}], "sink": {}},
                "too": {"inputs": [{"window": "lines", "length_ms": 60_000, "slide_ms": 20_000}], "sink": {}},
            },
        }
    )
    assert (declared.runs_empty_batches, declared.deciding_windows) == (runs_all, deciding)
