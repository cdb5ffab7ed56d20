"""Rows of the original's driver log that no other test is named after; docs/parity.md has them all."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from tests.support.driver_log.allocated_ranges import ranges_of_batch
from tests.support.driver_log.log import INTERVAL, NOON, Log, add, block, claim_anew, make_log, new_segment
from tests.support.driver_log.placing import schedule_receiver
from tracker_store.batches.pipelines import apply_pipeline, get_pipeline
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker
from tracker_store.blocks.blocks import AddOutcome, add_blocks, claim
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import NotAssignedError
from tracker_store.receivers.receivers import placements, receiver_events, report_event, set_receiver_state
from tracker_store.reports import status
from tracker_store.schema.states import ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from datetime import datetime

SECOND = timedelta(seconds=1)


def everything(connection: sa.Connection) -> list[tuple[object, ...]]:
    return [tuple(row) for row in connection.execute(sa.text("SELECT * FROM forebay.blocks ORDER BY 1, 2"))]


def test_t02_an_addition_that_is_refused_changes_nothing(connection: sa.Connection, log: Log) -> None:
    [receiver] = log.receiver_ids
    claimed = log.add_at(receiver, NOON + SECOND)
    before = everything(connection)
    for refused, outcome in [
        (block(claimed, 2, records=11), AddOutcome.CONFLICT),
        (block(claimed, 5), AddOutcome.GAP),
    ]:
        assert add(connection, refused).outcome is outcome
        assert everything(connection) == before
    assert [lag.waiting_blocks for lag in status.stream_lag(connection)] == [2]


def test_t02_additions_stand_in_the_order_in_which_they_were_sent(connection: sa.Connection, log: Log) -> None:
    claimed = claim_anew(connection, log.receiver_ids[0])
    for number in range(2, 30):
        assert add(connection, block(claimed, number)).outcome is AddOutcome.ADDED
    assert [row[1] for row in everything(connection)] == list(range(1, 30))
    times = connection.execute(sa.text("SELECT added_at FROM forebay.blocks ORDER BY sequence")).scalars().all()
    assert times == sorted(times)


def test_t03_k07_a_receiver_that_is_not_declared_can_neither_claim_nor_add(connection: sa.Connection) -> None:
    make_log(connection)
    with pytest.raises(NotAssignedError):
        claim(connection, receiver_id=999, seen_epoch=0, assignment=0)
    outcome = connection.execute(
        sa.text(
            "SELECT outcome FROM forebay.add_block('{999}', '{1}', '{1}', '{1}', '{1}', '{1}', '{1}', '{1}', '{1}')"
        )
    ).scalar_one()
    assert outcome == "gap"
    assert everything(connection) == []


def test_t07_a_tracker_that_comes_new_goes_on_from_the_log_alone(engine: sa.Engine) -> None:
    """Check that nothing is replayed: blocks stay allocated, the others go to the next batch time, in any tracker."""
    with connect(engine) as first:
        log = make_log(first)
        log.add_at(log.receiver_ids[0], NOON + SECOND, NOON + INTERVAL + SECOND)
        log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
        decided = log.tracker.get_blocks_of_batch(NOON + INTERVAL)
    engine.dispose()
    with connect(engine) as second:
        tracker = ReceivedBlockTracker(second, log.pipeline_id)
        assert tracker.get_blocks_of_batch(NOON + INTERVAL) == decided
        tracker.allocate_blocks_to_batch(NOON + INTERVAL)
        assert tracker.get_blocks_of_batch(NOON + INTERVAL) == decided
        assert tracker.has_unallocated_blocks()
        tracker.allocate_blocks_to_batch(NOON + 2 * INTERVAL)
        assert [b.sequence for b in tracker.get_blocks_of_batch(NOON + 2 * INTERVAL)] == [3]
        assert not tracker.has_unallocated_blocks()


def test_t08_allocation_of_100000_blocks(connection: sa.Connection, log: Log) -> None:
    """Store two numbers per receiver in a batch: the original's serializer overflowed its stack on a few thousand."""
    [receiver] = log.receiver_ids
    claimed = claim_anew(connection, receiver)
    segment = new_segment(connection, claimed, "one")

    def register(first: int, last: int) -> datetime:
        """Register these sequences as a receiver does, in groups; return a time after all of them."""
        for begin in range(first, last, 1000):
            blocks = [block(claimed, n, segment_id=segment, records=1) for n in range(begin, begin + 1000)]
            [result] = add_blocks(connection, blocks)
            assert result.outcome is AddOutcome.ADDED
        after: datetime = connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
        return after

    # The first cut lies within these blocks, so the end of its range has to be searched.
    cuts = [register(2, 80_002), register(80_002, 100_002)]
    began = time.monotonic()
    for cut in cuts:
        log.tracker.allocate_blocks_to_batch(cut)
    took = time.monotonic() - began
    first, second = (ranges_of_batch(log.tracker, cut) for cut in cuts)
    assert [(r.first, r.last, r.records) for r in first] == [(1, 80_001, 80_000)]
    assert [(r.first, r.last, r.records) for r in second] == [(80_002, 100_001, 20_000)]
    assert [len(log.tracker.get_blocks_of_batch(cut)) for cut in cuts] == [80_000, 20_000]
    assert took < 20


def test_k07_a_receiver_that_stops_keeps_why_and_one_that_is_unknown_is_no_one(connection: sa.Connection) -> None:
    log = make_log(connection)
    [receiver] = log.receiver_ids
    schedule_receiver(connection, term=0, receiver_id=receiver, agent_id=1, why="a test")
    [placed] = placements(connection)
    assert set_receiver_state(
        connection, receiver_id=receiver, state=ReceiverState.ACTIVE, assignment=placed.assignment
    )
    report_event(connection, receiver_id=receiver, epoch=1, kind=ReceiverEventKind.ERROR, message="the source hung up")
    report_event(connection, receiver_id=receiver, epoch=1, kind=ReceiverEventKind.STOPPED, message="deregistered")
    assert set_receiver_state(
        connection,
        receiver_id=receiver,
        state=ReceiverState.FAILED,
        assignment=placed.assignment,
        reason="the source hung up",
    )
    [seen] = status.receiver_status(connection)
    assert (seen.state, seen.reason) == ("FAILED", "the source hung up")
    assert [kind for kind, _, _ in receiver_events(connection, receiver)][-2:] == ["ERROR", "STOPPED"]
    assert not set_receiver_state(connection, receiver_id=999, state=ReceiverState.INACTIVE, assignment=0)
    assert len(status.receiver_status(connection)) == 1


def test_k08_an_error_is_reported_with_its_own_time_and_changes_no_state(connection: sa.Connection, log: Log) -> None:
    """Check what the original got wrong: it kept the time of the first error for all that followed."""
    [receiver] = log.receiver_ids
    query = sa.text("SELECT state, last_error, last_error_at FROM forebay.receiver_status")
    before = connection.execute(query).one()
    times = []
    for message in ("first", "second"):
        report_event(connection, receiver_id=receiver, epoch=1, kind=ReceiverEventKind.ERROR, message=message)
        now = connection.execute(query).one()
        assert (now.state, now.last_error) == (before.state, message)
        times.append(now.last_error_at)
    assert times[0] < times[1]


def test_k09_an_addition_needs_the_claim_of_its_sender(connection: sa.Connection, log: Log) -> None:
    """Check what the original did not: it checked neither sender nor registration."""
    [receiver] = log.receiver_ids
    claimed = claim_anew(connection, receiver)
    assert add(connection, block(claimed, 2, epoch=claimed.epoch - 1)).outcome is AddOutcome.FENCED
    assert add(connection, block(claimed, 2, epoch=claimed.epoch + 1)).outcome is AddOutcome.GAP
    assert add(connection, block(claimed, 2)).outcome is AddOutcome.ADDED


def test_m05_a_batch_has_one_report_per_receiver_and_no_negative_count(connection: sa.Connection, log: Log) -> None:
    [receiver] = log.receiver_ids
    log.add_at(receiver, NOON + SECOND)
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    again = (
        "INSERT INTO forebay.batch_allocations SELECT pipeline_id, batch_time, receiver_id, int8range(50, 60), 1, 1 "
        "FROM forebay.batch_allocations"
    )
    with pytest.raises(IntegrityError, match="batch_allocations_pkey"):
        connection.execute(sa.text(again))
    with pytest.raises(IntegrityError, match="blocks_counts"):
        connection.execute(sa.text("UPDATE forebay.blocks SET records = -1 WHERE sequence = 2"))


def test_m06_a_batch_counts_what_its_receivers_report_and_an_empty_one_reads_nothing(
    connection: sa.Connection,
) -> None:
    log = make_log(connection, receivers=3)
    one, two, _idle = log.receiver_ids
    log.add_at(one, NOON + SECOND, records=3)
    log.add_at(two, NOON + SECOND, NOON + 2 * SECOND, records=5)
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    log.tracker.allocate_blocks_to_batch(NOON + 2 * INTERVAL)
    empty, full = status.batch_stats(connection)
    assert (full.records, full.state) == (13, "ALLOCATED")
    assert (empty.records, empty.state) == (0, "COMPLETED")
    assert log.tracker.get_blocks_of_batch(NOON + 2 * INTERVAL) == []
    assert len(ranges_of_batch(log.tracker, NOON + INTERVAL)) == 2


def test_w06_an_allocation_that_fails_takes_no_block(connection: sa.Connection, log: Log) -> None:
    """Check what the original got wrong: it emptied the queues first, and then failed to record the allocation."""
    [receiver] = log.receiver_ids
    log.add_at(receiver, NOON + SECOND, NOON + 2 * SECOND)
    # The remains of an imaginary bug: the constraint refuses the ranges after all else was computed.
    connection.execute(
        sa.text("INSERT INTO forebay.batch_allocations VALUES (:p, :t, :r, int8range(3, 4), 1, 1)"),
        {"p": log.pipeline_id, "t": NOON - INTERVAL, "r": receiver},
    )
    with pytest.raises(IntegrityError, match="batch_allocations_no_overlap"):
        log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    assert log.tracker.has_unallocated_blocks()
    assert get_pipeline(connection, "words").last_batch_time == NOON
    assert connection.execute(sa.text("SELECT count(*) FROM forebay.cursors")).scalar_one() == 0
    connection.execute(sa.text("DELETE FROM forebay.batch_allocations"))
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    assert [b.sequence for b in log.tracker.get_blocks_of_batch(NOON + INTERVAL)] == [2, 3]


def test_w07_what_is_added_while_a_batch_is_allocated_goes_to_the_next(engine: sa.Engine, log: Log) -> None:
    """Check what the original got wrong: it cleared the whole queue, with the blocks that had arrived meanwhile."""
    [receiver] = log.receiver_ids
    claimed = log.add_at(receiver, NOON + SECOND)
    with connect(engine) as adder:
        transacting = adder.execution_options(isolation_level="READ COMMITTED")
        with transacting.begin():
            assert add(transacting, block(claimed, 3)).outcome is AddOutcome.ADDED
            # Not committed, although its time is before the cut.
            transacting.execute(
                sa.text("UPDATE forebay.blocks SET added_at = :t WHERE sequence = 3"), {"t": NOON + 2 * SECOND}
            )
            log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    assert [b.sequence for b in log.tracker.get_blocks_of_batch(NOON + INTERVAL)] == [2]
    log.tracker.allocate_blocks_to_batch(NOON + 2 * INTERVAL)
    assert [b.sequence for b in log.tracker.get_blocks_of_batch(NOON + 2 * INTERVAL)] == [3]
    assert not log.tracker.has_unallocated_blocks()


def test_w14_a_changed_declaration_goes_on_where_the_old_one_was(connection: sa.Connection, log: Log) -> None:
    """Check what the original could not do: its checkpoint contained the program, and no changed code could load it."""
    [receiver] = log.receiver_ids
    log.add_at(receiver, NOON + SECOND, NOON + INTERVAL + SECOND)
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    changed = apply_pipeline(
        connection,
        name="words",
        declaration={"max_attempts": 9, "streams": ["lines"], "outputs": {"renamed": {}}},
        stream_ids=[log.stream_id],
        interval=timedelta(seconds=30),
    )
    assert changed == log.pipeline_id
    log.tracker.allocate_blocks_to_batch(NOON + 3 * INTERVAL)
    assert [b.sequence for b in log.tracker.get_blocks_of_batch(NOON + 3 * INTERVAL)] == [3]
    assert [b.sequence for b in log.tracker.get_blocks_of_batch(NOON + INTERVAL)] == [2]


def test_no_function_on_the_path_of_a_block_may_scan(connection: sa.Connection) -> None:
    """Guard against plans that were made while the table was nearly empty: one scanned the table for hours."""
    rows = connection.execute(
        sa.text(
            "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'forebay'::regnamespace "
            "AND prosrc ~* '(from|join|into) (blocks|block_offsets)\\M'"
        )
    )
    settings: dict[str, list[str]] = {row.proname: row.proconfig for row in rows}
    assert {"add_block", "claim", "allocate_blocks_to_batch", "clean_up_receiver", "open_partition"} <= settings.keys()
    # It copies a quarantined batch's blocks, by its ranges, only once in the batch's life.
    del settings["end_attempt"]
    # Its session sets it: test_add_block.py::test_a_plan_made_on_a_near_empty_table_does_not_scan_the_grown_one.
    del settings["add_one_block"]
    assert [name for name, given in settings.items() if "enable_seqscan=off" not in given] == []


def test_a_pipeline_that_is_removed_and_applied_again_is_a_new_one(connection: sa.Connection, log: Log) -> None:
    """Check that it reads from the earliest block on, under its old name, and that its old ranges do not count."""
    [receiver] = log.receiver_ids
    log.add_at(receiver, NOON + SECOND, NOON + 2 * SECOND)
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    connection.execute(sa.text("UPDATE forebay.pipelines SET removed_at = now()"))
    again = make_log(connection)
    assert again.pipeline_id != log.pipeline_id
    again.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    assert [b.sequence for b in again.tracker.get_blocks_of_batch(NOON + INTERVAL)] == [2, 3]
