"""Test what the driver log forgets, and what it never forgets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log
from tracker_store.batches import batches
from tracker_store.batches.received_block_tracker import batch_times
from tracker_store.blocks.blocks import BlockHandle
from tracker_store.blocks.dead_letters import StoredDeadLetter, add_dead_letters
from tracker_store.connection.errors import BatchHeldError, BlocksNotRetainedError, DriverLogError
from tracker_store.receivers.leadership import DeposedError, read_leadership, take_leadership
from tracker_store.receivers.processes import deregister_process, register_process
from tracker_store.receivers.receivers import report_event
from tracker_store.reports.checks import batches_count_their_ranges, ranges_are_contiguous
from tracker_store.retention.cleanup import Slice
from tracker_store.retention.history import clean_up_events, clean_up_history, pipelines_with_history
from tracker_store.schema.states import ProcessKind, ReceiverEventKind

if TYPE_CHECKING:
    from tracker_store.retention.history import Forgotten

DAY = timedelta(days=1)
YEARS = 10_000 * DAY


def made(connection: sa.Connection, count: int) -> tuple[Log, list[datetime]]:
    """Return a log with `count` batches since NOON, each with a block, allocated and not run."""
    log = make_log(connection)
    times = [NOON + n * INTERVAL for n in range(1, count + 1)]
    log.add_at(log.receiver_ids[0], *(time - timedelta(seconds=1) for time in times))
    for time in times:
        log.tracker.allocate_blocks_to_batch(time)
    return log, times


def forget(log: Log, *, keep: timedelta = DAY, max_rows: int = 100, term: int | None = None) -> Forgotten:
    return clean_up_history(log.connection, pipeline_id=log.pipeline_id, keep=keep, max_rows=max_rows, term=term)


def left(log: Log) -> list[datetime]:
    return list(log.connection.execute(sa.text("SELECT batch_time FROM forebay.batches ORDER BY batch_time")).scalars())


def test_finished_batches_are_forgotten_with_all_that_is_theirs_but_the_newest(connection: sa.Connection) -> None:
    log, times = made(connection, 4)
    for time in times:
        log.end_batch(time)
    assert forget(log, keep=YEARS).rows == 0, "none is as old as that"
    assert forget(log).rows == 3
    assert left(log) == times[3:]
    for table in ("batch_allocations", "batch_attempts"):
        assert connection.execute(sa.text(f"SELECT count(*) FROM forebay.{table}")).scalar() == 1
    assert forget(log).rows == 0


def test_a_forgotten_batch_can_not_come_again(connection: sa.Connection) -> None:
    """Check this because Dagster may have forgotten the run's key as well: the driver log still refuses it."""
    log, times = made(connection, 2)
    for time in times:
        log.end_batch(time)
    forget(log)
    with pytest.raises(DriverLogError, match="can't be allocated at this time"):
        log.tracker.allocate_blocks_to_batch(times[0])
    with pytest.raises(BatchHeldError):
        log.end_batch(times[0])
    assert batch_times(connection, log.pipeline_id).last == times[1]


def test_nothing_goes_that_is_unfinished_or_that_a_window_before_it_may_ask_for(connection: sa.Connection) -> None:
    log, times = made(connection, 5)
    for time in (*times[:3], times[4]):
        log.end_batch(time)
    connection.execute(sa.text("UPDATE forebay.pipelines SET retention = :r"), {"r": INTERVAL})
    assert forget(log).rows == 2
    assert left(log) == times[2:]


def test_a_quarantined_batch_stays_blocks_nothing_and_is_no_gap_for_a_check(connection: sa.Connection) -> None:
    log, times = made(connection, 5)
    for number, time in enumerate(times):
        log.end_batch(time, fails=number == 1)
    assert forget(log).rows == 3
    assert left(log) == [times[1], times[4]]
    assert ranges_are_contiguous(connection).violations == 0
    assert batches_count_their_ranges(connection).violations == 0
    # After what is forgotten, a gap is reported as usual.
    for time in (NOON + 6 * INTERVAL, NOON + 7 * INTERVAL):
        log.add_at(log.receiver_ids[0], time - timedelta(seconds=1))
        log.tracker.allocate_blocks_to_batch(time)
    connection.execute(
        sa.text("DELETE FROM forebay.batch_allocations WHERE batch_time = :t"), {"t": NOON + 6 * INTERVAL}
    )
    assert ranges_are_contiguous(connection).violations == 1


def test_a_batch_is_kept_until_its_replay_has_ended(connection: sa.Connection) -> None:
    log, times = made(connection, 3)
    for time in times:
        log.end_batch(time)
    connection.execute(
        sa.text(
            "INSERT INTO forebay.batch_attempts (pipeline_id, batch_time, attempt, kind, state, run_id) "
            "VALUES (:p, :t, 2, 'replay', 'RUNNING', 'r')"
        ),
        {"p": log.pipeline_id, "t": times[0]},
    )
    assert forget(log).rows == 1
    assert left(log) == [times[0], times[2]]
    connection.execute(sa.text("UPDATE forebay.batch_attempts SET state = 'FAILED', ended_at = clock_timestamp()"))
    assert forget(log).rows == 1


def replay(log: Log, time: datetime, *, reach: timedelta) -> int:
    return batches.claim_replay(
        log.connection,
        pipeline_id=log.pipeline_id,
        batch_time=time,
        run_id="replay",
        process_id=register_process(log.connection, kind=ProcessKind.BATCH_RUN, name="r", host="h", pid=1),
        reach=reach,
    )


def test_the_window_of_a_running_replay_is_kept_until_the_replay_has_ended(connection: sa.Connection) -> None:
    """Check this because otherwise the replay would read a shorter window, and replace a whole result with a part."""
    log, times = made(connection, 5)
    for time in times:
        log.end_batch(time)
    replay(log, times[3], reach=2 * INTERVAL)
    assert forget(log).rows == 2
    assert left(log) == times[2:]
    connection.execute(sa.text("UPDATE forebay.batch_attempts SET state = 'FAILED', ended_at = clock_timestamp()"))
    assert forget(log).rows == 2
    assert left(log) == times[4:]


def test_the_window_of_a_quarantined_batch_is_kept_with_it(connection: sa.Connection) -> None:
    """Check this because its blocks are kept, and only the ranges of earlier batches show which are in the window."""
    log, times = made(connection, 6)
    connection.execute(sa.text("UPDATE forebay.pipelines SET retention = :r"), {"r": 2 * INTERVAL})
    for number, time in enumerate(times):
        log.end_batch(time, fails=number == 2)
    connection.execute(sa.text("UPDATE forebay.pipelines SET last_batch_time = :t"), {"t": times[5] + 10 * INTERVAL})
    assert forget(log).rows == 4
    assert left(log) == [times[1], times[2]]
    assert ranges_are_contiguous(connection).violations == 0
    assert batches_count_their_ranges(connection).violations == 0
    replay(log, times[2], reach=2 * INTERVAL)
    window = log.tracker.get_blocks_of_window_and_stream(times[2], 2 * INTERVAL, log.stream_id)
    assert [found.sequence for found in window] == [3, 4]
    connection.execute(sa.text("UPDATE forebay.batch_attempts SET state = 'FAILED', ended_at = clock_timestamp()"))
    connection.execute(sa.text("UPDATE forebay.batches SET state = 'DISCARDED' WHERE state = 'QUARANTINED'"))
    found = forget(log, max_rows=1)
    assert (found.rows, found.more, left(log)) == (1, True, [times[2]])


def test_a_batch_with_a_possibly_forgotten_window_is_not_replayed(connection: sa.Connection) -> None:
    """Check a batch whose own blocks are there, or that never had any.

    Only the window would be too short, and no reader would notice.
    """
    log, times = made(connection, 3)
    for number in (4, 5):
        log.tracker.allocate_blocks_to_batch(NOON + number * INTERVAL, run_empty=True)
    for time in (*times, NOON + 4 * INTERVAL, NOON + 5 * INTERVAL):
        log.end_batch(time)
    connection.execute(sa.text("UPDATE forebay.pipelines SET retention = :r"), {"r": INTERVAL})
    assert forget(log).rows == 3
    with pytest.raises(BlocksNotRetainedError, match="is forgotten"):
        replay(log, NOON + 4 * INTERVAL, reach=2 * INTERVAL)
    assert replay(log, NOON + 5 * INTERVAL, reach=2 * INTERVAL) == 2
    assert replay(log, NOON + 4 * INTERVAL, reach=timedelta(0)) == 2


def test_a_batch_discarded_later_is_forgotten_after_all(connection: sa.Connection) -> None:
    log, times = made(connection, 3)
    for number, time in enumerate(times):
        log.end_batch(time, fails=number == 0)
    assert forget(log).rows == 1
    connection.execute(sa.text("UPDATE forebay.batches SET state = 'DISCARDED' WHERE state = 'QUARANTINED'"))
    assert forget(log).rows == 1
    assert left(log) == times[2:]


def test_a_call_is_bounded_and_reports_that_there_is_more(connection: sa.Connection) -> None:
    log, times = made(connection, 4)
    for time in times:
        log.end_batch(time)
    found = forget(log, max_rows=2)
    assert (found.rows, found.more) == (2, True)
    found = forget(log, max_rows=2)
    assert (found.rows, found.more) == (1, False)


def test_a_removed_pipeline_is_forgotten_completely(connection: sa.Connection) -> None:
    log, times = made(connection, 2)
    log.end_batch(times[0])
    log.end_batch(times[1])
    connection.execute(sa.text("UPDATE forebay.pipelines SET removed_at = clock_timestamp()"))
    assert forget(log).rows == 0
    connection.execute(sa.text("UPDATE forebay.pipelines SET removed_at = clock_timestamp() - interval '2 d'"))
    assert pipelines_with_history(connection, keep=DAY, part=Slice(-1, 2)) == [log.pipeline_id]
    assert forget(log).rows == 2
    assert pipelines_with_history(connection, keep=DAY, part=Slice(-1, 2)) == []


def test_events_are_forgotten_except_a_receivers_newest_of_each_kind(connection: sa.Connection, log: Log) -> None:
    receiver = log.receiver_ids[0]
    for kind in (ReceiverEventKind.STARTED, ReceiverEventKind.ERROR, ReceiverEventKind.ERROR):
        report_event(connection, receiver_id=receiver, epoch=1, kind=kind, message="m")
    for unread in (0, 5):
        connection.execute(
            sa.text(
                "INSERT INTO forebay.cleanup_events (receiver_id, sequences, blocks, records, bytes, unread_records) "
                "VALUES (:r, '[1,2)', 1, 5, 5, :unread)"
            ),
            {"r": receiver, "unread": unread},
        )
    letter = StoredDeadLetter("r", 0, 1, BlockHandle(1, 0, 1, 1))
    add_dead_letters(connection, [letter], receiver_id=receiver, epoch=1)
    letter_process = register_process(connection, kind=ProcessKind.BATCH_RUN, name="r", host="h", pid=1)
    alive = register_process(connection, kind=ProcessKind.RECEIVER, name="r", host="h", pid=2)
    deregister_process(connection, letter_process)
    assert clean_up_events(connection, keep=DAY, max_rows=100).rows == 0
    for table, column in (
        ("receiver_events", "at"),
        ("cleanup_events", "at"),
        ("dead_letters", "added_at"),
        ("processes", "ended_at"),
    ):
        connection.execute(sa.text(f"UPDATE forebay.{table} SET {column} = {column} - interval '2 d'"))
    # The older error, the clean-up of read blocks, the dead letter, the run's process.
    assert clean_up_events(connection, keep=DAY, max_rows=100).rows == 4
    kinds = connection.execute(sa.text("SELECT kind FROM forebay.receiver_events ORDER BY id")).scalars()
    assert list(kinds) == ["STARTED", "ERROR"]
    assert connection.execute(sa.text("SELECT unread_records FROM forebay.cleanup_events")).scalars().all() == [5]
    processes = connection.execute(sa.text("SELECT id FROM forebay.processes ORDER BY id")).scalars()
    assert list(processes) == [alive]


def test_processes_that_ended_long_ago_are_forgotten_unless_they_are_still_needed(
    connection: sa.Connection,
    log: Log,
) -> None:

    def ended(kind: ProcessKind, name: str) -> int:
        process_id = register_process(connection, kind=kind, name=name, host="h", pid=1)
        deregister_process(connection, process_id)
        return process_id

    gone = [ended(ProcessKind.AGENT, "gone"), ended(ProcessKind.BATCH_DRIVER, "driver")]
    gone.append(ended(ProcessKind.AGENT, "drained"))
    drained = ended(ProcessKind.AGENT, "drained")
    for process_id in (gone[-1], drained):
        connection.execute(sa.text("UPDATE forebay.processes SET draining = true WHERE id = :p"), {"p": process_id})
    placed = ended(ProcessKind.AGENT, "placed")
    connection.execute(sa.text("UPDATE forebay.receivers SET agent_id = :p"), {"p": placed})
    asked_about = ended(ProcessKind.BATCH_DRIVER, "asked about")
    connection.execute(
        sa.text(
            "INSERT INTO forebay.run_queue (run_id, location, process_id, claimed_at) "
            "VALUES ('r', 'l', :p, clock_timestamp())"
        ),
        {"p": asked_about},
    )
    alive = register_process(connection, kind=ProcessKind.AGENT, name="alive", host="h", pid=1)
    assert clean_up_events(connection, keep=DAY, max_rows=100).rows == 0
    connection.execute(sa.text("UPDATE forebay.processes SET ended_at = ended_at - interval '2 d'"))
    assert clean_up_events(connection, keep=DAY, max_rows=100).rows == len(gone)
    left = connection.execute(sa.text("SELECT id FROM forebay.processes ORDER BY id")).scalars()
    assert list(left) == [drained, placed, asked_about, alive]
    assert log.receiver_ids


def test_what_readers_do_not_see_yet_is_not_forgotten(connection: sa.Connection) -> None:
    log, times = made(connection, 4)
    for time in times:
        log.end_batch(time)
    connection.execute(
        sa.text(
            "INSERT INTO forebay.output_commits (pipeline_id, output, batch_time, attempt, location, to_publish) "
            "VALUES (:p, 'counts', :t, 1, '/x', true)"
        ),
        {"p": log.pipeline_id, "t": times[1]},
    )
    assert forget(log).rows == 2
    assert left(log) == [times[1], times[3]]
    connection.execute(sa.text("UPDATE forebay.output_commits SET to_publish = false"))
    assert forget(log).rows == 1
    assert left(log) == [times[3]]


def test_a_deposed_leader_forgets_nothing(connection: sa.Connection) -> None:
    log, times = made(connection, 2)
    for time in times:
        log.end_batch(time)
    old = take_leadership(connection, seen=read_leadership(connection), holder="a")
    take_leadership(connection, seen=read_leadership(connection), holder="b")
    with pytest.raises(DeposedError):
        forget(log, term=old)
    with pytest.raises(DeposedError):
        clean_up_events(connection, keep=DAY, max_rows=1, term=old)
    assert len(left(log)) == 2
    assert datetime.now(UTC) > times[1]
