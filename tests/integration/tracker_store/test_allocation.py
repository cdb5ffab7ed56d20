"""Test allocation: once per batch time, cut at *t* however late it is made (T04, T05, J05; notes 7, 8)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.driver_log.allocated_ranges import ranges_of_batch
from tests.support.driver_log.log import (
    INTERVAL,
    NOON,
    Log,
    add,
    block,
    claim_anew,
    make_log,
    oldest_unfinished_batch,
    wait_until_blocked,
)
from tracker_store.batches.batches import get_batch
from tracker_store.batches.pipelines import apply_pipeline
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker, batch_times
from tracker_store.blocks.blocks import AddOutcome
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import DriverLogError
from tracker_store.schema.states import BatchState

T1, T2, T3 = (NOON + n * INTERVAL for n in (1, 2, 3))
SECOND = timedelta(seconds=1)


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    return make_log(connection, receivers=2)


def ranges(log: Log, time: datetime) -> list[tuple[int, int, int, int]]:
    return [(r.receiver_id, r.first, r.last, r.records) for r in ranges_of_batch(log.tracker, time)]


def test_a_late_allocation_gives_each_interval_its_own_blocks(log: Log) -> None:
    """Check after Dagster was down: the due batches come out as if it had been up, because the cut is by t."""
    receiver = log.receiver_ids[0]
    log.add_at(receiver, NOON + SECOND, NOON + 9 * SECOND, T1 + SECOND, T2 - SECOND, T2 + SECOND)
    for time in (T1, T2, T3):
        log.tracker.allocate_blocks_to_batch(time)
    assert ranges(log, T1) == [(receiver, 1, 3, 20)]
    assert ranges(log, T2) == [(receiver, 4, 5, 20)]
    assert ranges(log, T3) == [(receiver, 6, 6, 10)]


def test_a_block_exactly_at_the_boundary_belongs_to_the_next_batch(log: Log) -> None:
    log.add_at(log.receiver_ids[0], T1)
    log.tracker.allocate_blocks_to_batch(T1)
    log.tracker.allocate_blocks_to_batch(T2)
    assert ranges(log, T1) == []
    assert ranges(log, T2) == [(log.receiver_ids[0], 1, 2, 10)]


def test_t04_asked_again_it_returns_what_was_decided(log: Log) -> None:
    receiver = log.receiver_ids[0]
    log.add_at(receiver, NOON + SECOND)
    log.tracker.allocate_blocks_to_batch(T1)
    decided = ranges(log, T1)
    log.add_at(receiver, NOON + 2 * SECOND)
    log.tracker.allocate_blocks_to_batch(T1)
    assert ranges(log, T1) == decided == [(receiver, 1, 2, 10)]


def test_t04_a_time_that_has_passed_undecided_is_refused(log: Log) -> None:
    log.tracker.allocate_blocks_to_batch(T2)
    with pytest.raises(DriverLogError, match="not after the last"):
        log.tracker.allocate_blocks_to_batch(T1)


def test_a_future_time_is_refused(log: Log) -> None:
    with pytest.raises(DriverLogError, match="has not come"):
        log.tracker.allocate_blocks_to_batch(datetime.now(UTC) + timedelta(hours=1))


def test_an_interval_without_records_is_completed_and_launches_nothing(log: Log) -> None:
    log.tracker.allocate_blocks_to_batch(T1)
    batch = get_batch(log.connection, log.pipeline_id, T1)
    assert batch is not None
    assert (batch.state, batch.records) == (BatchState.COMPLETED, 0)
    assert oldest_unfinished_batch(log.connection, log.pipeline_id) is None


def test_a_range_of_markers_only_is_an_empty_interval(log: Log) -> None:
    receiver = log.receiver_ids[0]
    claimed = log.add_at(receiver, NOON + SECOND)
    log.tracker.allocate_blocks_to_batch(T1)
    log.connection.execute(
        sa.text(
            "INSERT INTO forebay.blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, "
            "total_bytes) VALUES (:r, 3, :e, :at, 0, 0, 10, 100)"
        ),
        {"r": receiver, "e": claimed.epoch + 1, "at": T1 + SECOND},
    )
    log.tracker.allocate_blocks_to_batch(T2)
    batch = get_batch(log.connection, log.pipeline_id, T2)
    assert batch is not None
    assert (batch.state, batch.records, batch.blocks) == (BatchState.COMPLETED, 0, 1)


def test_t05_blocks_of_a_batch_leave_markers_out_and_name_their_files(log: Log) -> None:
    claimed = log.add_at(log.receiver_ids[1], NOON + SECOND, NOON + 2 * SECOND)
    log.tracker.allocate_blocks_to_batch(T1)
    blocks = log.tracker.get_blocks_of_batch(T1)
    assert [(b.receiver_id, b.sequence, b.records) for b in blocks] == [
        (claimed.receiver_id, 2, 10),
        (claimed.receiver_id, 3, 10),
    ]
    assert {b.path for b in blocks} == {f"{claimed.receiver_id}/{claimed.epoch}"}
    assert log.tracker.get_blocks_of_batch_and_stream(T1, log.stream_id) == blocks
    assert log.tracker.get_blocks_of_batch_and_stream(T1, log.stream_id + 1) == []


def test_t05_has_unallocated_blocks(log: Log) -> None:
    assert not log.tracker.has_unallocated_blocks()
    log.add_at(log.receiver_ids[0], NOON + SECOND)
    assert log.tracker.has_unallocated_blocks()
    log.tracker.allocate_blocks_to_batch(T1)
    assert not log.tracker.has_unallocated_blocks()


def test_two_pipelines_read_one_stream_each_by_its_own_cursors(log: Log) -> None:
    receiver = log.receiver_ids[0]
    log.add_at(receiver, NOON + SECOND, T1 + SECOND)
    other = apply_pipeline(
        log.connection, name="other", declaration={}, stream_ids=[log.stream_id], interval=2 * INTERVAL
    )
    log.connection.execute(
        sa.text("UPDATE forebay.pipelines SET last_batch_time = :noon WHERE id = :id"), {"noon": NOON, "id": other}
    )
    log.tracker.allocate_blocks_to_batch(T1)
    ReceivedBlockTracker(log.connection, other).allocate_blocks_to_batch(T2)
    assert ranges(log, T1) == [(receiver, 1, 2, 10)]
    [whole] = ranges_of_batch(ReceivedBlockTracker(log.connection, other), T2)
    assert (whole.first, whole.last, whole.records) == (1, 3, 20)


def test_a_double_allocation_by_a_bug_is_refused(log: Log) -> None:
    insert = sa.text(
        "INSERT INTO forebay.batch_allocations (pipeline_id, batch_time, receiver_id, sequences, records, bytes) "
        "VALUES (1, :t, 1, int8range(:a, :b, '[]'), 0, 0)"
    )
    log.connection.execute(insert, {"t": T1, "a": 1, "b": 5})
    log.connection.execute(insert, {"t": T2, "a": 6, "b": 7})
    with pytest.raises(sa.exc.IntegrityError, match="batch_allocations_no_overlap"):
        log.connection.execute(insert, {"t": T3, "a": 7, "b": 9})


def test_two_sensors_at_once_allocate_once(engine: sa.Engine, log: Log) -> None:
    log.add_at(log.receiver_ids[0], *(NOON + n * timedelta(milliseconds=10) for n in range(50)))
    failures: list[BaseException] = []
    together = threading.Barrier(4)

    def tick() -> None:
        try:
            with connect(engine) as connection:
                together.wait(10)
                ReceivedBlockTracker(connection, log.pipeline_id).allocate_blocks_to_batch(T1)
        except BaseException as error:  # noqa: BLE001  shown below
            failures.append(error)

    threads = [threading.Thread(target=tick) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failures == []
    assert ranges(log, T1) == [(log.receiver_ids[0], 1, 51, 500)]


def test_j05_a_block_added_while_its_cut_is_being_made_is_not_from_the_future(engine: sa.Engine, log: Log) -> None:
    """Check a block that the call sees although it is newer than the clock as the call read it.

    It looks as if the clock had been set back.
    """
    receiver = log.receiver_ids[0]
    time: datetime = log.connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
    with connect(engine) as deciding, ThreadPoolExecutor(1) as pool, connect(engine) as other:
        # Hold the call after its look at the clock and before the statement that looks for blocks.
        other.execute(sa.text("BEGIN"))
        other.execute(sa.text("LOCK TABLE forebay.batch_allocations IN ACCESS EXCLUSIVE MODE"))
        decided = pool.submit(ReceivedBlockTracker(deciding, log.pipeline_id).allocate_blocks_to_batch, time)
        wait_until_blocked(log.connection)
        claimed = claim_anew(log.connection, receiver)
        assert add(log.connection, block(claimed, 2)).outcome is AddOutcome.ADDED
        other.execute(sa.text("ROLLBACK"))
        decided.result(30)
    assert ranges(log, time) == []
    now: datetime = log.connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
    log.tracker.allocate_blocks_to_batch(now)
    assert ranges(log, now) == [(receiver, 1, 2, 10)]


def test_boundaries_are_multiples_of_the_interval(log: Log) -> None:
    before = datetime.now(UTC)
    times = batch_times(log.connection, log.pipeline_id)
    assert (times.last, times.next_due) == (NOON, T1)
    assert times.newest.timestamp() % INTERVAL.total_seconds() == 0
    assert timedelta(0) <= times.now - times.newest < INTERVAL
    assert before <= times.now <= datetime.now(UTC)


@given(
    offsets=st.lists(st.integers(0, 60_000), min_size=1, max_size=40).map(sorted),
    skipped=st.sets(st.integers(1, 5)),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
def test_every_block_is_in_exactly_one_batch_whichever_boundaries_are_merged(
    engine: sa.Engine, offsets: list[int], skipped: set[int]
) -> None:
    """Check against a plain model: a block goes to the first boundary that was taken after it was added."""
    with connect(engine) as connection:
        connection.execute(
            sa.text(
                "TRUNCATE forebay.streams, forebay.pipelines, forebay.receivers, forebay.blocks, "
                "forebay.batches, forebay.batch_allocations, forebay.cursors, forebay.log_segments"
            )
        )
        log = make_log(connection)
        times = [NOON + timedelta(milliseconds=offset) for offset in offsets]
        log.add_at(log.receiver_ids[0], *times)
        boundaries = [NOON + n * INTERVAL for n in range(1, 8) if n not in skipped]
        for boundary in boundaries:
            log.tracker.allocate_blocks_to_batch(boundary)
        for before, boundary in zip([NOON - SECOND, *boundaries], boundaries, strict=False):
            expected = [n for n, time in enumerate(times, start=2) if before <= time < boundary]
            assert [b.sequence for b in log.tracker.get_blocks_of_batch(boundary)] == expected


def test_the_last_batch_in_which_an_output_was_due_is_the_same_for_a_replay(log: Log) -> None:
    """Check the states: one that never ran for want of records does not count, one without this output's result does.

    A join of windows has each pair once by it, also if the output came later and its first batches are run again.
    """
    slide = 2 * INTERVAL
    even = NOON if (NOON - datetime(1970, 1, 1, tzinfo=UTC)) % slide == timedelta(0) else NOON + INTERVAL
    times = [even + number * INTERVAL for number in range(1, 9)]
    for time, state, attempt in zip(
        times,
        ["COMPLETED", "COMPLETED", "COMPLETED", "QUARANTINED", "COMPLETED", "COMPLETED", "FAILED", "RUNNING"],
        [1, 1, 1, 3, 1, 0, 1, 1],
        strict=True,
    ):
        log.connection.execute(
            sa.text(
                "INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, attempt, records, bytes, "
                "blocks, completed_at) VALUES (:pipeline, :time, :time, :state, :attempt, 1, 1, 1, "
                "CASE :state WHEN 'COMPLETED' THEN now() END)"
            ),
            {"pipeline": log.tracker._pipeline_id, "time": time, "state": state, "attempt": attempt},
        )

    def last(number: int, slide: timedelta | None = slide) -> int | None:
        found = log.tracker.last_batch_of_output(times[number - 1], "pairs", slide=slide)
        return None if found is None else times.index(found) + 1

    before = [last(number) for number in range(1, 9)]
    assert before == [None, None, 2, 2, 4, 4, 4, 4]
    assert [last(number, None) for number in range(1, 9)] == [None, 1, 2, 3, 4, 5, 5, 7]
    for number in (2, 4):
        log.connection.execute(
            sa.text(
                "INSERT INTO forebay.output_commits (pipeline_id, output, batch_time, attempt, location) "
                "VALUES (:pipeline, 'pairs', :time, 9, 'x')"
            ),
            {"pipeline": log.tracker._pipeline_id, "time": times[number - 1]},
        )
    assert [last(number) for number in range(1, 9)] == before
