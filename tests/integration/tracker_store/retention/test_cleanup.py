"""Test clean-up: unneeded rows are deleted in bounded steps, and nothing else is (W09, W10; notes 1, 9, 23)."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
import sqlalchemy as sa

from receiver_runtime.sources.receiver_settings import ReceiverSettings
from tests.support.driver_log.allocated_ranges import ranges_of_batch
from tests.support.driver_log.attempts import claim_batch, fail_batch
from tests.support.driver_log.log import (
    INTERVAL,
    NOON,
    Log,
    add,
    block,
    claim_anew,
    give_segments,
    make_log,
    new_segment,
    seal,
    wait_until_blocked,
)
from tracker_store.batches import batches
from tracker_store.batches.pipelines import apply_pipeline, apply_stream
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker
from tracker_store.blocks.blocks import (
    ORIGIN,
    AddOutcome,
    BlockHandle,
    Claim,
    OffsetLink,
    Position,
    add_blocks,
    known_keys,
    open_partition,
)
from tracker_store.blocks.dead_letters import StoredDeadLetter, add_dead_letters
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import BlocksNotRetainedError
from tracker_store.retention.cleanup import (
    CleanedUp,
    clean_up_keys,
    clean_up_offsets,
    clean_up_receiver,
    forget_segment,
    segments_to_delete,
)
from tracker_store.schema.states import BatchState, LinkKind, ReceiverState

T1, T2, T3, T4 = (NOON + n * INTERVAL for n in (1, 2, 3, 4))
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
ZERO = timedelta(0)


@pytest.fixture
def receiver_id(log: Log) -> int:
    [receiver_id] = log.receiver_ids
    return receiver_id


def clean(log: Log, receiver_id: int, *, threshold: datetime | None = None, max_rows: int = 1000) -> CleanedUp:
    return clean_up_receiver(
        log.connection, receiver_id=receiver_id, threshold=threshold or datetime.now(UTC), max_rows=max_rows
    )


def left(log: Log, receiver_id: int) -> list[int]:
    """Return the sequences that are still there, including markers below the low mark."""
    return list(
        log.connection.execute(
            sa.text("SELECT sequence FROM forebay.blocks WHERE receiver_id = :r ORDER BY 1"), {"r": receiver_id}
        ).scalars()
    )


def start(log: Log, time: datetime, attempt: int = 1, pipeline_id: int | None = None) -> None:
    claim_batch(log.connection, pipeline_id or log.pipeline_id, time, attempt, run_id=f"run{attempt}")


def fail(log: Log, time: datetime, *, attempt: int = 1, max_attempts: int = 3) -> None:
    start(log, time, attempt)
    fail_batch(
        log.connection, log.pipeline_id, time, attempt, run_id=f"run{attempt}", error="boom", max_attempts=max_attempts
    )


def complete(log: Log, time: datetime, *, attempt: int = 1, pipeline_id: int | None = None) -> None:
    """Run the batch to its end; a batch without records is already COMPLETED."""
    pipeline_id = pipeline_id or log.pipeline_id
    batch = batches.get_batch(log.connection, pipeline_id, time)
    assert batch is not None
    if batch.state is BatchState.COMPLETED:
        return
    start(log, time, attempt, pipeline_id)
    batches.complete_batch(log.connection, pipeline_id=pipeline_id, batch_time=time, attempt=attempt, outputs=[])


def finish(log: Log, *times: datetime) -> None:
    """Allocate and complete the batches of `times`."""
    for time in times:
        log.tracker.allocate_blocks_to_batch(time)
        complete(log, time)


def retain(log: Log, retention: timedelta, pipeline_id: int | None = None) -> None:
    log.connection.execute(
        sa.text("UPDATE forebay.pipelines SET retention = :retention WHERE id = :id"),
        {"retention": retention, "id": pipeline_id or log.pipeline_id},
    )


def remove_pipeline(log: Log) -> None:
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET removed_at = clock_timestamp()"))


def low_mark(log: Log, receiver_id: int) -> int:
    mark: int = log.connection.execute(
        sa.text("SELECT low_mark FROM forebay.receivers WHERE id = :r"), {"r": receiver_id}
    ).scalar_one()
    return mark


# -- what may go -------------------------------------------------------------------------------------------------------


def test_w09_a_block_goes_when_its_batch_is_completed_and_not_before(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, NOON + SECOND, NOON + 2 * SECOND, T1 + SECOND)
    assert clean(log, receiver_id).blocks == 0
    log.tracker.allocate_blocks_to_batch(T1)
    assert clean(log, receiver_id).blocks == 0
    start(log, T1)
    assert clean(log, receiver_id).blocks == 0
    batches.complete_batch(log.connection, pipeline_id=log.pipeline_id, batch_time=T1, attempt=1, outputs=[])
    assert clean(log, receiver_id) == CleanedUp(blocks=3, records=20, bytes=200, unread_records=0, more=False)
    assert left(log, receiver_id) == [1, 4]
    assert clean(log, receiver_id).blocks == 0


@pytest.mark.parametrize("state", [BatchState.ALLOCATED, BatchState.RUNNING, BatchState.FAILED])
def test_w10_an_unfinished_batch_keeps_its_blocks_and_what_came_after(
    log: Log, receiver_id: int, state: BatchState
) -> None:
    log.add_at(receiver_id, NOON + SECOND, T1 + SECOND, T2 + SECOND, T3 + SECOND)
    finish(log, T1)
    log.tracker.allocate_blocks_to_batch(T2)
    if state is BatchState.RUNNING:
        start(log, T2)
    elif state is BatchState.FAILED:
        fail(log, T2)
    finish(log, T3)
    clean(log, receiver_id)
    assert left(log, receiver_id) == [1, 3, 4, 5]
    assert len(log.tracker.get_blocks_of_batch(T2)) == 1


def test_the_slowest_of_several_pipelines_decides(log: Log, receiver_id: int) -> None:
    other = apply_pipeline(
        log.connection, name="other", declaration={}, stream_ids=[log.stream_id], interval=2 * INTERVAL
    )
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET last_batch_time = :noon"), {"noon": NOON})
    log.add_at(receiver_id, NOON + SECOND, T1 + SECOND, T2 + SECOND)
    finish(log, T1, T2)
    # The other pipeline has no cursor row yet, which counts as a cursor at 1.
    assert clean(log, receiver_id).blocks == 0
    ReceivedBlockTracker(log.connection, other).allocate_blocks_to_batch(T2)
    assert clean(log, receiver_id).blocks == 0
    complete(log, T2, pipeline_id=other)
    assert clean(log, receiver_id).blocks == 3
    assert left(log, receiver_id) == [1, 4]


def test_a_removed_pipeline_keeps_nothing(log: Log, receiver_id: int) -> None:
    apply_pipeline(log.connection, name="other", declaration={}, stream_ids=[log.stream_id], interval=INTERVAL)
    log.connection.execute(
        sa.text("UPDATE forebay.pipelines SET removed_at = clock_timestamp() WHERE name = 'other'"),
    )
    log.add_at(receiver_id, NOON + SECOND, T1 + SECOND)
    finish(log, T1)
    assert clean(log, receiver_id).blocks == 2


def test_nothing_younger_than_the_threshold_goes(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, NOON + SECOND, T1 + SECOND, T2 + SECOND)
    finish(log, T1, T2, T3)
    assert clean(log, receiver_id, threshold=T1).blocks == 0
    clean(log, receiver_id, threshold=T2)
    assert left(log, receiver_id) == [1, 3, 4]


def test_a_pipelines_retention_keeps_completed_batches(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, NOON + SECOND, T1 + SECOND, T2 + SECOND, T3 + SECOND)
    now: datetime = log.connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
    finish(log, T1, T2, T3, now)
    retain(log, now - T2 + SECOND)
    clean(log, receiver_id)
    assert left(log, receiver_id) == [1, 3, 4, 5]
    retain(log, ZERO)
    clean(log, receiver_id)
    assert left(log, receiver_id) == [1, 5]


def test_the_window_of_a_batch_that_is_late_keeps_its_blocks(log: Log, receiver_id: int) -> None:
    """Check this because a window reaches back from its batch's time, not from now: the batch may be a day late."""
    log.add_at(receiver_id, NOON + SECOND, T1 + SECOND, T2 + SECOND, T3 + SECOND)
    retain(log, 2 * INTERVAL)
    finish(log, T1, T2)
    log.tracker.allocate_blocks_to_batch(T3)
    fail(log, T3)
    clean(log, receiver_id)
    window = log.tracker.get_blocks_of_window_and_stream(T3, 2 * INTERVAL, log.stream_id)
    assert [b.sequence for b in window] == [3, 4]
    assert left(log, receiver_id) == [1, 3, 4, 5]


def test_the_window_of_the_next_batch_is_kept_however_long_the_pipeline_is_down(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, NOON + SECOND, T1 + SECOND, T2 + SECOND)
    retain(log, 2 * INTERVAL)
    finish(log, T1, T2)
    clean(log, receiver_id)
    finish(log, T3)
    window = log.tracker.get_blocks_of_window_and_stream(T3, 2 * INTERVAL, log.stream_id)
    assert [b.sequence for b in window] == [3, 4]


def test_a_stream_that_left_its_pipeline_keeps_the_blocks_of_unfinished_batches(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, NOON + SECOND, T1 + SECOND)
    log.tracker.allocate_blocks_to_batch(T1)
    other = apply_stream(log.connection, name="other", declaration={"source": {}, "settings": {}}, receivers=1)
    log.connection.execute(
        sa.text("UPDATE forebay.pipelines SET stream_ids = CAST(:streams AS bigint[])"), {"streams": [other]}
    )
    log.connection.execute(sa.text("UPDATE forebay.streams SET retention = interval '0'"))
    clean(log, receiver_id)
    assert [b.sequence for b in log.tracker.get_blocks_of_batch(T1)] == [2]
    complete(log, T1)
    # No pipeline reads the stream now: unread blocks are counted.
    assert clean(log, receiver_id).blocks == 2
    assert left(log, receiver_id) == [1, 3]


def test_what_a_quarantined_batch_released_goes_within_the_bound_of_a_call(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, *(NOON + number * SECOND for number in range(3)), T1 + SECOND, T2 + SECOND)
    log.tracker.allocate_blocks_to_batch(T1)
    fail(log, T1, max_attempts=1)
    finish(log, T2)
    assert clean(log, receiver_id).blocks == 5
    assert left(log, receiver_id) == [1, 2, 3, 4, 6]
    batches.discard_batch(log.connection, pipeline_id=log.pipeline_id, batch_time=T1)
    # The marker, which stays, is one of the four. They were counted when the low mark passed them.
    for rows in ([1, 2, 3, 4, 6], [1, 3, 4, 6], [1, 4, 6], [1, 6]):
        call = clean(log, receiver_id, max_rows=1)
        assert (call.blocks, call.more) == (0, True), "only the next call knows whether a full one was the last"
        assert left(log, receiver_id) == rows
    assert not clean(log, receiver_id, max_rows=1).more


def test_a_quarantined_batch_does_not_block_clean_up_and_keeps_its_blocks(log: Log, receiver_id: int) -> None:
    claimed = log.add_at(receiver_id, NOON + SECOND, T1 + SECOND, T2 + SECOND)
    log.tracker.allocate_blocks_to_batch(T1)
    whole = log.tracker.get_blocks_of_batch(T1)
    fail(log, T1, max_attempts=1)
    finish(log, T2)
    assert log.tracker.get_blocks_of_batch(T1) == whole
    assert clean(log, receiver_id).blocks == 3
    assert left(log, receiver_id) == [1, 2, 4]
    assert log.tracker.get_blocks_of_batch(T1) == whole
    assert log.tracker.get_blocks_of_batch_and_stream(T1, log.stream_id) == whole
    assert log.tracker.get_blocks_of_batch(T2) == []
    # A reader gets all of the batch or none: a part would be taken for the whole.
    assert log.tracker.whole_blocks_of_batch_and_stream(T1, log.stream_id) == whole
    with pytest.raises(BlocksNotRetainedError, match="of its 10 records"):
        log.tracker.whole_blocks_of_batch_and_stream(T2, log.stream_id)
    # Its file is not deleted either, although every block of it has left the receiver's chain.
    seal(log.connection, whole[0].handle.segment_id)
    next_epoch = log.add_at(receiver_id, T2 + 2 * SECOND, T3 + SECOND)
    finish(log, T3, T4)
    clean(log, receiver_id)
    assert left(log, receiver_id) == [1, 2, 5, 7]
    assert claimed.epoch < next_epoch.epoch
    assert segments_to_delete(log.connection, receiver_id=receiver_id, restore_window=ZERO, limit=10) == []
    # Discarded, its rows and its file go.
    batches.discard_batch(log.connection, pipeline_id=log.pipeline_id, batch_time=T1)
    clean(log, receiver_id)
    assert left(log, receiver_id) == [1, 5, 7]
    deletable = segments_to_delete(log.connection, receiver_id=receiver_id, restore_window=ZERO, limit=10)
    assert [segment.segment_id for segment in deletable] == [whole[0].handle.segment_id]
    rows = log.connection.execute(sa.text("SELECT count(*) FROM forebay.kept_ranges")).scalar_one()
    counted = log.connection.execute(sa.text("SELECT coalesce(sum(kept_blocks), 0) FROM forebay.log_segments"))
    assert rows + counted.scalar_one() == 0


# -- what always stays -------------------------------------------------------------------------------------------------


def test_the_newest_row_and_the_markers_stay_and_carry_the_chain_on(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, NOON + SECOND, NOON + 2 * SECOND)
    claimed = log.add_at(receiver_id, NOON + 3 * SECOND, NOON + 4 * SECOND)
    finish(log, T1)
    assert clean(log, receiver_id) == CleanedUp(blocks=5, records=30, bytes=300, unread_records=0, more=False)
    assert (left(log, receiver_id), low_mark(log, receiver_id)) == ([1, 4, 6], 5)
    assert add(log.connection, block(claimed, 7)).outcome is AddOutcome.ADDED
    successor = claim_anew(log.connection, receiver_id)
    assert (successor.sequence, successor.epoch > claimed.epoch) == (8, True)
    total = log.connection.execute(sa.text("SELECT max(total_records) FROM forebay.blocks")).scalar_one()
    assert total == 50


def test_a_receiver_without_blocks_has_nothing_to_clean(log: Log, receiver_id: int) -> None:
    nothing = CleanedUp(0, 0, 0, 0, more=False)
    assert clean(log, receiver_id) == nothing
    claim_anew(log.connection, receiver_id)
    finish(log, T1)
    assert clean(log, receiver_id) == nothing


def test_a_backend_that_stalled_for_long_is_fenced_by_the_marker(log: Log, receiver_id: int) -> None:
    zombie = log.add_at(receiver_id, NOON + SECOND)
    log.add_at(receiver_id, NOON + 2 * SECOND, NOON + 3 * SECOND)
    finish(log, T1)
    clean(log, receiver_id)
    assert left(log, receiver_id) == [1, 3, 5]
    # Its predecessor is cleaned up, and its number belongs to the successor's marker, which stays.
    assert add(log.connection, block(zombie, 3)).outcome is AddOutcome.FENCED
    assert left(log, receiver_id) == [1, 3, 5]


@pytest.mark.parametrize("taken_over", [False, True], ids=["own epoch", "after a take-over"])
def test_w02_a_retry_is_recognised_after_its_blocks_were_cleaned_up(
    log: Log, receiver_id: int, *, taken_over: bool
) -> None:
    """Check after a lost answer when the blocks were run and cleaned up before the retry."""
    claimed = claim_anew(log.connection, receiver_id)
    opened = open_partition(log.connection, receiver_id=receiver_id, source="orders", partition="0", start_offset=0)
    group = [
        replace(
            block(claimed, sequence),
            links=(OffsetLink("orders", "0", opened.generation, 10 * sequence - 20, 10 * sequence - 10),),
        )
        for sequence in (2, 3)
    ]
    assert add(log.connection, *group).outcome is AddOutcome.ADDED
    if taken_over:
        claim_anew(log.connection, receiver_id)
        claim_anew(log.connection, receiver_id)
    log.connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :at"), {"at": NOON + SECOND})
    finish(log, T1)
    clean(log, receiver_id)
    assert left(log, receiver_id) == ([1, 4, 5] if taken_over else [1, 3])
    assert add(log.connection, *group).outcome is AddOutcome.ALREADY_ADDED
    # Blocks that an older owner never added are not recognised.
    never = [block(claimed, 4), block(claimed, 5)] if taken_over else [block(claimed, 3, offset=7)]
    assert add(log.connection, *never).outcome is (AddOutcome.FENCED if taken_over else AddOutcome.CONFLICT)


@pytest.mark.parametrize("count", [1, 2])
def test_w02_a_retry_fills_no_number_that_clean_up_has_freed(log: Log, receiver_id: int, count: int) -> None:
    """Check this because the epoch's marker is there and its block is cleaned up:

    "predecessor there, number free" proves nothing.
    """
    claimed = claim_anew(log.connection, receiver_id)
    group = [block(claimed, 2 + n) for n in range(count)]
    assert add(log.connection, *group).outcome is AddOutcome.ADDED
    claim_anew(log.connection, receiver_id)
    log.connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :at"), {"at": NOON + SECOND})
    finish(log, T1)
    clean(log, receiver_id)
    assert left(log, receiver_id) == [1, count + 2]
    assert add(log.connection, *group).outcome is AddOutcome.ALREADY_ADDED
    assert left(log, receiver_id) == [1, count + 2]


# -- bounds and counts -------------------------------------------------------------------------------------------------


def test_each_step_is_bounded_and_reports_whether_there_is_more(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, *(NOON + n * timedelta(milliseconds=10) for n in range(25)))
    finish(log, T1)
    steps = [clean(log, receiver_id, max_rows=10) for _ in range(4)]
    assert [(step.blocks, step.more) for step in steps] == [(10, True), (10, True), (5, False), (0, False)]
    assert [step.records for step in steps] == [90, 100, 50, 0]
    events = log.connection.execute(
        sa.text("SELECT lower(sequences), upper(sequences), blocks, records FROM forebay.cleanup_events ORDER BY id")
    ).all()
    assert [tuple(event) for event in events] == [(1, 11, 10, 90), (11, 21, 10, 100), (21, 26, 5, 50)]


def test_a_stream_without_readers_keeps_its_blocks_for_its_retention(log: Log, receiver_id: int) -> None:
    remove_pipeline(log)
    now = datetime.now(UTC)
    log.add_at(receiver_id, now - timedelta(days=8), now - timedelta(days=7, hours=1), now - timedelta(days=6), now)
    assert clean(log, receiver_id) == CleanedUp(blocks=3, records=20, bytes=200, unread_records=20, more=False)
    assert left(log, receiver_id) == [1, 4, 5]


def test_a_streams_own_retention_yields_to_an_older_threshold(log: Log, receiver_id: int) -> None:
    remove_pipeline(log)
    now = datetime.now(UTC)
    log.add_at(receiver_id, now - timedelta(days=30), now - timedelta(days=20), now - timedelta(days=10), now)
    clean(log, receiver_id, threshold=now - timedelta(days=15))
    assert left(log, receiver_id) == [1, 4, 5]


def test_only_blocks_that_no_pipeline_had_read_count_as_unread(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, NOON + SECOND, NOON + 2 * SECOND, T1 + SECOND, T1 + 2 * SECOND, T1 + 3 * SECOND)
    log.tracker.allocate_blocks_to_batch(T1)
    remove_pipeline(log)
    steps = [clean(log, receiver_id, max_rows=2) for _ in range(3)]
    assert [(step.blocks, step.records, step.unread_records) for step in steps] == [
        (2, 10, 0),
        (2, 20, 10),
        (1, 10, 10),
    ]
    assert left(log, receiver_id) == [1, 6]


# -- after it, and beside it -------------------------------------------------------------------------------------------


def test_allocation_continues_after_clean_up_deleted_the_cursors_predecessor(log: Log, receiver_id: int) -> None:
    """Check this because the rows before a range's first may be gone: the counts are based on the first row itself."""
    claimed = log.add_at(receiver_id, NOON + SECOND, NOON + 2 * SECOND, T1 + SECOND)
    finish(log, T1)
    clean(log, receiver_id)
    log.tracker.allocate_blocks_to_batch(T2)
    [second] = ranges_of_batch(log.tracker, T2)
    assert (second.first, second.last, second.records, second.bytes) == (4, 4, 10, 100)
    complete(log, T2)
    clean(log, receiver_id)
    # The cursor is past the newest row that is left, which is not a block of the next batch.
    add(log.connection, block(claimed, 5), block(claimed, 6, records=1))
    log.connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :at WHERE sequence > 4"), {"at": T2 + SECOND})
    log.tracker.allocate_blocks_to_batch(T3)
    [third] = ranges_of_batch(log.tracker, T3)
    assert (third.first, third.last, third.records, third.bytes) == (5, 6, 11, 110)


def test_a_pipeline_applied_after_a_clean_up_begins_with_the_retained_blocks(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, NOON + SECOND, NOON + 2 * SECOND, T1 + SECOND, T1 + 2 * SECOND)
    finish(log, T1)
    clean(log, receiver_id)
    other = apply_pipeline(log.connection, name="other", declaration={}, stream_ids=[log.stream_id], interval=INTERVAL)
    log.connection.execute(
        sa.text("UPDATE forebay.pipelines SET last_batch_time = :noon WHERE id = :id"), {"noon": NOON, "id": other}
    )
    tracker = ReceivedBlockTracker(log.connection, other)
    tracker.allocate_blocks_to_batch(T2, max_records=10)
    [allocated] = ranges_of_batch(tracker, T2)
    assert (allocated.first, allocated.last, allocated.records) == (4, 4, 10)


def test_clean_up_waits_for_a_pipeline_that_is_being_attached(engine: sa.Engine, log: Log, receiver_id: int) -> None:
    """Check the lock order.

    Attaching locks the low mark FOR SHARE; clean-up locks it first and looks in its next statement.
    """
    log.add_at(receiver_id, NOON + SECOND, T1 + SECOND)
    finish(log, T1)
    raw = engine.raw_connection()
    driver = raw.driver_connection
    assert driver is not None
    driver.autocommit = False
    with driver.cursor() as cursor, ThreadPoolExecutor(1) as pool, connect(engine) as connection:
        cursor.execute("SELECT low_mark FROM forebay.receivers WHERE id = %s FOR SHARE", (receiver_id,))
        waiting = pool.submit(
            clean_up_receiver, connection, receiver_id=receiver_id, threshold=datetime.now(UTC), max_rows=100
        )
        wait_until_blocked(log.connection)
        cursor.execute(
            "INSERT INTO forebay.pipelines (name, declaration, stream_ids, batch_interval, last_batch_time) "
            "VALUES ('late', '{}', %s, interval '1 s', clock_timestamp())",
            ([log.stream_id],),
        )
        driver.commit()
        assert waiting.result(10).blocks == 0
    raw.close()
    assert left(log, receiver_id) == [1, 2, 3]


def test_a_pipeline_that_a_clean_up_did_not_see_begins_after_it(engine: sa.Engine, log: Log, receiver_id: int) -> None:
    """Check the reverse order, with rows deleted and not committed yet.

    Otherwise a first batch could get blocks that are about to be deleted.
    """
    log.add_at(receiver_id, NOON + SECOND, T1 + SECOND)
    finish(log, T1)
    raw = engine.raw_connection()
    driver = raw.driver_connection
    assert driver is not None
    driver.autocommit = False
    with driver.cursor() as cursor, ThreadPoolExecutor(1) as pool, connect(engine) as connection:
        cursor.execute("SELECT blocks FROM forebay.clean_up_receiver(%s, clock_timestamp(), 100)", (receiver_id,))
        assert cursor.fetchall() == [(2,)]
        waiting = pool.submit(
            apply_pipeline, connection, name="late", declaration={}, stream_ids=[log.stream_id], interval=INTERVAL
        )
        wait_until_blocked(log.connection)
        driver.commit()
        other = waiting.result(10)
    raw.close()
    log.connection.execute(
        sa.text("UPDATE forebay.pipelines SET last_batch_time = :noon WHERE id = :id"), {"noon": NOON, "id": other}
    )
    tracker = ReceivedBlockTracker(log.connection, other)
    tracker.allocate_blocks_to_batch(T2)
    [allocated] = ranges_of_batch(tracker, T2)
    assert (allocated.first, allocated.last, allocated.records) == (3, 3, 10)


def test_w09_additions_allocation_and_two_clean_ups_at_once_lose_nothing(engine: sa.Engine, log: Log) -> None:
    """Check that every added block comes out of exactly one batch, and is read before that batch is completed."""
    [receiver_id] = log.receiver_ids
    log.connection.execute(
        sa.text("UPDATE forebay.pipelines SET batch_interval = interval '1 ms', last_batch_time = clock_timestamp()")
    )
    added = threading.Event()
    cleaned = threading.Event()
    done = threading.Event()
    count = 400

    def receive() -> None:
        with connect(engine) as connection:
            claimed = claim_anew(connection, receiver_id)
            segment_id = new_segment(connection, claimed, "p")
            for first in range(2, count + 2, 4):
                group = [block(claimed, n, segment_id=segment_id, records=1) for n in range(first, first + 4)]
                assert add(connection, *group).outcome is AddOutcome.ADDED
                if first > count / 2:
                    # Otherwise everything may be added and run before a cleaner gets its turn.
                    assert cleaned.wait(60)
        added.set()

    def clean_until_done() -> int:
        gone = 0
        with connect(engine) as connection:
            while not done.is_set():
                gone += clean_up_receiver(
                    connection, receiver_id=receiver_id, threshold=datetime.now(UTC), max_rows=50
                ).blocks
                if gone:
                    cleaned.set()
        return gone

    def run() -> list[int]:
        sequences: list[int] = []
        with connect(engine) as connection:
            mine = replace(log, connection=connection)
            while True:
                last = added.is_set()
                now: datetime = connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
                mine.tracker.allocate_blocks_to_batch(now)
                sequences += [b.sequence for b in mine.tracker.get_blocks_of_batch(now)]
                complete(mine, now)
                if last:
                    return sequences

    with ThreadPoolExecutor(4) as pool:
        receiving, running = pool.submit(receive), pool.submit(run)
        cleaning = [pool.submit(clean_until_done) for _ in range(2)]
        try:
            receiving.result(60)
            assert running.result(60) == list(range(2, count + 2))
        finally:
            added.set()
            done.set()
        assert sum(future.result(60) for future in cleaning) > 0
    clean(log, receiver_id)
    assert left(log, receiver_id) == [1, count + 1]
    events = log.connection.execute(
        sa.text("SELECT lower(sequences), upper(sequences) FROM forebay.cleanup_events ORDER BY 1")
    ).all()
    assert all(before[1] == after[0] for before, after in pairwise(events))
    assert (events[0][0], events[-1][1]) == (1, count + 1)


# -- links and keys ----------------------------------------------------------------------------------------------------


def link_chain(log: Log, claimed: Claim, partition: str, blocks: int) -> None:
    """Add this number of blocks with one link each, from the partition's position on."""
    at = open_partition(
        log.connection, receiver_id=claimed.receiver_id, source="orders", partition=partition, start_offset=0
    )
    newest = max(left(log, claimed.receiver_id))
    added = [
        replace(
            block(claimed, newest + n),
            links=(OffsetLink("orders", partition, at.generation, at.offset + n - 1, at.offset + n),),
        )
        for n in range(1, blocks + 1)
    ]
    give_segments(log.connection, claimed.receiver_id)
    [result] = add_blocks(log.connection, added)
    assert result.outcome is AddOutcome.ADDED
    log.connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :at"), {"at": NOON + SECOND})


def links_left(log: Log, partition: str) -> list[int]:
    return list(
        log.connection.execute(
            sa.text(
                "SELECT from_offset FROM forebay.block_offsets WHERE partition = :partition "
                "ORDER BY generation, from_offset"
            ),
            {"partition": partition},
        ).scalars()
    )


def test_links_are_deleted_with_their_blocks_except_a_partitions_newest(log: Log, receiver_id: int) -> None:
    claimed = claim_anew(log.connection, receiver_id)
    link_chain(log, claimed, "0", 5)
    link_chain(log, claimed, "1", 3)
    # The origins have no block: they would be kept only as the newest link.
    assert clean_up_offsets(log.connection, stream_id=log.stream_id, max_rows=100) == 2
    finish(log, T1)
    assert clean(log, receiver_id, max_rows=4).blocks == 4
    assert clean_up_offsets(log.connection, stream_id=log.stream_id, max_rows=100) == 3
    assert (links_left(log, "0"), links_left(log, "1")) == ([3, 4], [0, 1, 2])
    clean(log, receiver_id)
    assert clean_up_offsets(log.connection, stream_id=log.stream_id, max_rows=100) == 3
    assert (links_left(log, "0"), links_left(log, "1")) == ([4], [2])
    for partition, offset in (("0", 5), ("1", 3)):
        assert open_partition(
            log.connection, receiver_id=receiver_id, source="orders", partition=partition, start_offset=99
        ) == Position(0, offset)


def test_links_go_in_bounded_steps(log: Log, receiver_id: int) -> None:
    claimed = claim_anew(log.connection, receiver_id)
    for partition in ("0", "1", "2"):
        link_chain(log, claimed, partition, 6)
    finish(log, T1)
    clean(log, receiver_id)
    steps = [clean_up_offsets(log.connection, stream_id=log.stream_id, max_rows=7) for _ in range(4)]
    assert steps == [7, 7, 4, 0]
    assert [links_left(log, partition) for partition in ("0", "1", "2")] == [[5], [5], [5]]


def test_an_earlier_generation_is_deleted_with_its_blocks(log: Log, receiver_id: int) -> None:
    claimed = claim_anew(log.connection, receiver_id)
    link_chain(log, claimed, "0", 2)
    reset = (
        OffsetLink("orders", "0", 1, ORIGIN, 0, LinkKind.ORIGIN),
        OffsetLink("orders", "0", 1, 0, 7),
    )
    assert add(log.connection, replace(block(claimed, 4), links=reset)).outcome is AddOutcome.ADDED
    log.connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :at"), {"at": NOON + SECOND})
    finish(log, T1)
    claim_anew(log.connection, receiver_id)
    clean(log, receiver_id)
    # The links and the first origin; then the origin that has become the oldest.
    assert [clean_up_offsets(log.connection, stream_id=log.stream_id, max_rows=100) for _ in range(3)] == [3, 1, 0]
    assert links_left(log, "0") == [0]
    assert open_partition(
        log.connection, receiver_id=receiver_id, source="orders", partition="0", start_offset=99
    ) == Position(1, 7)


def test_a_lagging_receiver_keeps_its_own_links_and_no_others(connection: sa.Connection) -> None:
    """Check after a rebalance, when the links of one partition belong to several receivers."""
    log = make_log(connection, receivers=2)
    slow, fast = (claim_anew(connection, receiver_id) for receiver_id in log.receiver_ids)
    link_chain(log, slow, "0", 2)
    link_chain(log, fast, "0", 4)
    connection.execute(
        sa.text("UPDATE forebay.blocks SET added_at = :at WHERE receiver_id = :r"),
        {"at": T2 + SECOND, "r": slow.receiver_id},
    )
    finish(log, T1)
    for receiver_id in log.receiver_ids:
        clean(log, receiver_id)
    clean_up_offsets(connection, stream_id=log.stream_id, max_rows=100)
    assert links_left(log, "0") == [0, 1, 5]


def test_keys_are_forgotten_after_their_window_in_bounded_steps(log: Log, receiver_id: int) -> None:
    claimed = claim_anew(log.connection, receiver_id)
    for sequence in range(2, 8):
        add(log.connection, replace(block(claimed, sequence), keys=(f"key {sequence}",)))
    log.connection.execute(
        sa.text("UPDATE forebay.record_keys SET added_at = clock_timestamp() - interval '1 day' WHERE sequence < 6")
    )
    hour = timedelta(hours=1)
    steps = [
        clean_up_keys(log.connection, stream_id=log.stream_id, window=hour, max_rows=3),
        clean_up_keys(log.connection, stream_id=log.stream_id + 1, window=hour, max_rows=3),
        clean_up_keys(log.connection, stream_id=log.stream_id, window=hour, max_rows=3),
    ]
    assert steps == [3, 0, 1]
    known = replace(block(claimed, 8), keys=("key 6",))
    assert add(log.connection, known).outcome is AddOutcome.DUPLICATE_KEYS
    assert add(log.connection, replace(known, keys=("key 5",))).outcome is AddOutcome.ADDED


def test_a_stream_has_its_own_window(log: Log, receiver_id: int) -> None:
    become(log, receiver_id, ReceiverState.ACTIVE, 5 * DAY)
    store_keys(log, receiver_id, {"key 2": 3 * HOUR, "key 3": 0.75 * HOUR, "key 4": SECOND})
    declaration = {"settings": ReceiverSettings(key_window="2h").model_dump(mode="json")}
    log.connection.execute(
        sa.text("UPDATE forebay.streams SET declaration = CAST(:declaration AS jsonb)"),
        {"declaration": json.dumps(declaration)},
    )
    assert clean_up_keys(log.connection, stream_id=log.stream_id, window=timedelta(0), max_rows=10) == 1
    keys = ["key 2", "key 3", "key 4"]
    assert known_keys(log.connection, receiver_id=receiver_id, keys=keys) == {"key 3", "key 4"}
    other = make_log(log.connection, pipeline="other", stream="other")
    [elsewhere] = set(other.receiver_ids) - set(log.receiver_ids)
    assert known_keys(log.connection, receiver_id=elsewhere, keys=keys) == set()


# A sender that was not acknowledged sends again when it can: keys stay while that may still happen.

#: The key that shows that the stream stores keys, in each test that is not about streams that store none.
RECEIVING = {"3 hours": 3 * HOUR}
NOT_ACTIVE = [state for state in ReceiverState if state is not ReceiverState.ACTIVE]


def become(log: Log, receiver_id: int, state: ReceiverState, ago: timedelta) -> None:
    """Let the receiver have entered this state as long ago as this."""
    log.connection.execute(
        sa.text("UPDATE forebay.receivers SET state = :state, since = clock_timestamp() - :ago WHERE id = :id"),
        {"state": state, "ago": ago, "id": receiver_id},
    )


def store_keys(log: Log, receiver_id: int, ages: dict[str, timedelta]) -> None:
    """Let the receiver have stored keys as long ago as this."""
    claimed = claim_anew(log.connection, receiver_id)
    for sequence, (key, age) in enumerate(ages.items(), start=claimed.sequence + 1):
        assert add(log.connection, replace(block(claimed, sequence), keys=(key,))).outcome is AddOutcome.ADDED
        log.connection.execute(
            sa.text("UPDATE forebay.record_keys SET added_at = clock_timestamp() - :age WHERE key = :key"),
            {"age": age, "key": key},
        )


def keys_left(log: Log, window: timedelta = DAY) -> set[str]:
    """Clean up keys until nothing is left to take, one in each step; return the stream's other keys."""
    while clean_up_keys(log.connection, stream_id=log.stream_id, window=window, max_rows=1):
        pass
    found = log.connection.execute(
        sa.text("SELECT key FROM forebay.record_keys WHERE stream_id = :id"), {"id": log.stream_id}
    )
    return set(found.scalars())


@pytest.fixture
def pair(connection: sa.Connection) -> Log:
    """Return a log whose stream has two receivers that have been ACTIVE for long."""
    log = make_log(connection, receivers=2)
    for receiver_id in log.receiver_ids:
        become(log, receiver_id, ReceiverState.ACTIVE, 30 * DAY)
    return log


def test_keys_expire_after_the_window_while_every_receiver_is_active(pair: Log) -> None:
    store_keys(pair, pair.receiver_ids[0], {"25 hours": 25 * HOUR, "23 hours": 23 * HOUR, **RECEIVING})
    assert keys_left(pair) == {"23 hours", *RECEIVING}


@pytest.mark.parametrize("state", NOT_ACTIVE)
def test_keys_that_were_stored_before_a_receiver_was_lost_stay_while_it_is_not_active(
    pair: Log, state: ReceiverState
) -> None:
    lost, other = pair.receiver_ids
    store_keys(pair, lost, {"3 days": 3 * DAY, "49 hours": 49 * HOUR})
    # A process that does not know yet that it has lost the receiver may store a block.
    store_keys(pair, other, {"47 hours": 47 * HOUR})
    # Keys that the other receiver stores in the meantime expire as usual: a lost receiver makes nothing grow.
    store_keys(pair, other, {"45 hours": 45 * HOUR, "25 hours": 25 * HOUR, **RECEIVING})
    become(pair, lost, state, 48 * HOUR)
    assert keys_left(pair) == {"3 days", "49 hours", "47 hours", *RECEIVING}


@pytest.mark.parametrize(("hours", "stays"), [(0.1, True), (1.9, True), (2.1, False)])
def test_keys_stay_for_two_hours_after_a_receivers_return(pair: Log, hours: float, stays: bool) -> None:
    returned, other = pair.receiver_ids
    store_keys(pair, returned, {"3 days": 3 * DAY})
    store_keys(pair, other, {"25 hours": 25 * HOUR, **RECEIVING})
    become(pair, returned, ReceiverState.ACTIVE, hours * HOUR)
    assert keys_left(pair) == {*RECEIVING, *(["3 days", "25 hours"] if stays else [])}


@pytest.mark.parametrize(
    ("window", "longest"),
    [(DAY, 7 * DAY), (2 * DAY, 7 * DAY), (6 * HOUR, 42 * HOUR), (7 * DAY, 7 * DAY), (30 * DAY, 30 * DAY)],
)
@pytest.mark.parametrize("state", [ReceiverState.FAILED, ReceiverState.ACTIVE])
def test_keys_go_in_the_end_even_if_a_receiver_fails_again_and_again(
    pair: Log, state: ReceiverState, window: timedelta, longest: timedelta
) -> None:
    broken, other = pair.receiver_ids
    store_keys(pair, other, {"old": longest + HOUR, "not as old": longest - HOUR, **RECEIVING})
    become(pair, broken, state, 60 * SECOND)
    assert keys_left(pair, window) == {"not as old", *RECEIVING}


def test_a_removed_receiver_keeps_no_keys(pair: Log) -> None:
    store_keys(pair, pair.receiver_ids[1], {"25 hours": 25 * HOUR, **RECEIVING})
    apply_stream(pair.connection, name="lines", declaration={"source": {}, "settings": {}}, receivers=1)
    states = pair.connection.execute(sa.text("SELECT state FROM forebay.receivers ORDER BY id")).scalars().all()
    assert states == ["ACTIVE", "INACTIVE"]
    assert keys_left(pair) == set(RECEIVING)


def test_a_receiver_of_another_stream_keeps_no_keys(pair: Log) -> None:
    store_keys(pair, pair.receiver_ids[0], {"25 hours": 25 * HOUR, **RECEIVING})
    make_log(pair.connection, pipeline="other", stream="other")
    assert keys_left(pair) == set(RECEIVING)


@pytest.mark.parametrize(
    ("newer", "stays"),
    [
        # The host, the broker or the network is not there: the rows say ACTIVE, and nothing comes.
        ({}, True),
        ({"12 hours": 12 * HOUR, "5 hours": 5 * HOUR}, True),
        # It has come back: what was not acknowledged may come again.
        ({"1 hour": HOUR, "1 second": SECOND}, True),
        ({"3 hours": 3 * HOUR, "1 second": SECOND}, False),
        # The window passes for a quiet stream too, some hours after each of its records.
        ({"3 hours": 3 * HOUR}, False),
    ],
)
def test_keys_stay_while_their_stream_stores_none(pair: Log, newer: dict[str, timedelta], stays: bool) -> None:
    store_keys(pair, pair.receiver_ids[0], {"8 days": 8 * DAY, "25 hours": 25 * HOUR, **newer})
    assert keys_left(pair) == {*newer, *(["25 hours"] if stays else [])}


def test_a_removed_streams_keys_wait_for_nothing(pair: Log) -> None:
    store_keys(pair, pair.receiver_ids[0], {"25 hours": 25 * HOUR, "23 hours": 23 * HOUR})
    become(pair, pair.receiver_ids[0], ReceiverState.INACTIVE, HOUR)
    pair.connection.execute(sa.text("UPDATE forebay.streams SET removed_at = clock_timestamp()"))
    assert keys_left(pair) == {"23 hours"}


# -- files -------------------------------------------------------------------------------------------------------------


def deletable(log: Log, receiver_id: int, *, restore_window: timedelta = ZERO, limit: int = 10) -> list[str]:
    found = segments_to_delete(log.connection, receiver_id=receiver_id, restore_window=restore_window, limit=limit)
    return [segment.path for segment in found]


def segments_of(log: Log, claimed: Claim, count: int, *, sealed: bool = True) -> list[int]:
    """Make this number of segments with two blocks each, registered, and added before T1."""
    newest = max(left(log, claimed.receiver_id))
    ids = []
    for number in range(count):
        segment_id = new_segment(log.connection, claimed, f"{claimed.epoch}-{number}")
        for sequence in (newest + 1 + 2 * number, newest + 2 + 2 * number):
            add(log.connection, block(claimed, sequence, segment_id=segment_id))
        if sealed:
            seal(log.connection, segment_id)
        ids.append(segment_id)
    log.connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :at"), {"at": NOON + SECOND})
    return ids


def test_a_file_is_deleted_when_none_of_its_blocks_is_left(log: Log, receiver_id: int) -> None:
    claimed = claim_anew(log.connection, receiver_id)
    segments_of(log, claimed, 3)
    assert deletable(log, receiver_id) == []
    finish(log, T1)
    clean(log, receiver_id, max_rows=4)
    # Blocks 2, 3 and 4 are gone, block 5 is not: the second segment is still needed.
    assert deletable(log, receiver_id) == [f"{claimed.epoch}-0"]
    clean(log, receiver_id)
    assert deletable(log, receiver_id, restore_window=timedelta(hours=1)) == [f"{claimed.epoch}-0"]
    assert deletable(log, receiver_id) == [f"{claimed.epoch}-0", f"{claimed.epoch}-1"]


def test_segments_marked_before_a_crash_are_returned_again_until_they_are_forgotten(log: Log, receiver_id: int) -> None:
    claimed = claim_anew(log.connection, receiver_id)
    first, _, last = segments_of(log, claimed, 3)
    finish(log, T1)
    clean(log, receiver_id)
    marked = [f"{claimed.epoch}-0", f"{claimed.epoch}-1"]
    assert deletable(log, receiver_id, limit=1) == marked[:1]
    assert deletable(log, receiver_id) == deletable(log, receiver_id) == marked
    forget_segment(log.connection, segment_id=first)
    forget_segment(log.connection, segment_id=first)
    assert deletable(log, receiver_id) == marked[1:]
    # A segment that is not marked is not forgotten.
    forget_segment(log.connection, segment_id=last)
    assert (
        log.connection.execute(
            sa.text("SELECT state FROM forebay.log_segments WHERE id = :id"), {"id": last}
        ).scalar_one()
        == "SEALED"
    )


def test_an_unsealed_segment_is_never_deleted(log: Log, receiver_id: int) -> None:
    """Check this because it may hold blocks that were stored and not registered: the next epoch salvages them."""
    segments_of(log, claim_anew(log.connection, receiver_id), 2, sealed=False)
    finish(log, T1)
    claim_anew(log.connection, receiver_id)
    clean(log, receiver_id)
    assert left(log, receiver_id) == [1, 6]
    assert deletable(log, receiver_id) == []


def test_w09_a_receiver_that_was_restarted_and_is_idle_holds_no_files_back(log: Log, receiver_id: int) -> None:
    """Check a receiver whose newest row is a marker: no block of any segment is left."""
    claimed = claim_anew(log.connection, receiver_id)
    segments_of(log, claimed, 2)
    finish(log, T1)
    successor = claim_anew(log.connection, receiver_id)
    clean(log, receiver_id)
    # Its own first segment holds blocks that are stored and wait for registration.
    own = new_segment(log.connection, successor, "its own")
    seal(log.connection, own)
    assert left(log, receiver_id) == [1, 6]
    assert deletable(log, receiver_id) == [f"{claimed.epoch}-0", f"{claimed.epoch}-1"]


def test_kept_dead_letters_in_their_own_segment_delay_no_clean_up_of_blocks(log: Log, receiver_id: int) -> None:
    claimed = claim_anew(log.connection, receiver_id)
    letters = new_segment(log.connection, claimed, f"receiver-{receiver_id}/{claimed.epoch}-d000001.segment")
    seal(log.connection, letters)
    segments_of(log, claimed, 3)
    group = StoredDeadLetter("invalid_encoding", 0, 9, BlockHandle(letters, 0, 90, 1), letters=3, dropped=2)
    add_dead_letters(log.connection, [group], receiver_id=receiver_id, epoch=claimed.epoch)
    finish(log, T1)
    clean(log, receiver_id)
    assert deletable(log, receiver_id) == [f"{claimed.epoch}-0", f"{claimed.epoch}-1"]
    log.connection.execute(sa.text("DELETE FROM forebay.dead_letters"))
    assert f"receiver-{receiver_id}/{claimed.epoch}-d000001.segment" in deletable(log, receiver_id)


def test_a_dead_letter_keeps_its_file(log: Log, receiver_id: int) -> None:
    claimed = claim_anew(log.connection, receiver_id)
    first, _, _ = segments_of(log, claimed, 3)
    add_dead_letters(
        log.connection,
        [StoredDeadLetter("too large", 0, 1, BlockHandle(first, 9_000, 1, 1))],
        receiver_id=receiver_id,
        epoch=claimed.epoch,
    )
    finish(log, T1)
    clean(log, receiver_id)
    assert deletable(log, receiver_id) == [f"{claimed.epoch}-1"]
