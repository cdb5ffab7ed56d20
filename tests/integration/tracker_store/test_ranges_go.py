"""Test that a range is never doubled, and goes with its blocks (issue 18, notes 1 and 23)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import INTERVAL, NOON, Log, wait_until_blocked
from tracker_store.batches import batches
from tracker_store.batches.input_metadata import input_metadata
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import BlocksNotRetainedError
from tracker_store.receivers.processes import register_process
from tracker_store.reports.checks import check_data
from tracker_store.retention.cleanup import clean_up_receiver
from tracker_store.schema.states import ProcessKind

T1, T2, T3, T4 = (NOON + n * INTERVAL for n in (1, 2, 3, 4))
SECOND = timedelta(seconds=1)
INSERT = sa.text(
    "INSERT INTO forebay.batch_allocations (pipeline_id, batch_time, receiver_id, sequences, records, bytes) "
    "VALUES (1, :t, 1, int8range(:a, :b), 0, 0)"
)


def run(log: Log, time: datetime, *, fails: bool = False) -> None:
    """Allocate and end the batch of `time`."""
    log.tracker.allocate_blocks_to_batch(time)
    log.end_batch(time, fails=fails)


def run_three(log: Log) -> None:
    """Run a batch of one block at each of T1, T2 and T3."""
    log.add_at(log.receiver_ids[0], *(time - SECOND for time in (T1, T2, T3)))
    for time in (T1, T2, T3):
        run(log, time)


def clean(log: Log, *, max_rows: int = 1000) -> None:
    clean_up_receiver(log.connection, receiver_id=log.receiver_ids[0], threshold=datetime.now(UTC), max_rows=max_rows)


def left(log: Log) -> list[datetime]:
    """Return the batch times of the ranges that are there."""
    return list(
        log.connection.execute(
            sa.text("SELECT batch_time FROM forebay.batch_allocations ORDER BY batch_time")
        ).scalars()
    )


def replay(log: Log, time: datetime, reach: timedelta = timedelta(0)) -> int:
    process_id = register_process(log.connection, kind=ProcessKind.BATCH_RUN, name="replay", host="h", pid=1)
    return batches.claim_replay(
        log.connection,
        pipeline_id=log.pipeline_id,
        batch_time=time,
        run_id="replay",
        process_id=process_id,
        reach=reach,
    )


# -- never twice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "after"), [(5, 6), (2, 6), (9, 12), (1, 20), (5, 10), (1, 6), (28, 29)], ids=str)
def test_a_range_that_overlaps_is_refused_wherever_it_begins(log: Log, first: int, after: int) -> None:
    for at, (begin, end) in {T1: (5, 10), T2: (10, 12), T3: (20, 30)}.items():
        log.connection.execute(INSERT, {"t": at, "a": begin, "b": end})
    with pytest.raises(sa.exc.IntegrityError, match="batch_allocations_no_overlap"):
        log.connection.execute(INSERT, {"t": T4, "a": first, "b": after})
    log.connection.execute(INSERT, {"t": T4, "a": 30, "b": 40})
    with pytest.raises(sa.exc.IntegrityError, match="batch_allocations_no_overlap"):
        log.connection.execute(
            sa.text("UPDATE forebay.batch_allocations SET sequences = int8range(29, 40) WHERE batch_time = :t"),
            {"t": T4},
        )


def test_a_range_that_is_out_of_order_is_refused(log: Log) -> None:
    log.connection.execute(INSERT, {"t": T1, "a": 5, "b": 10})
    log.connection.execute(INSERT, {"t": T3, "a": 20, "b": 30})
    for at, first, after in ((T4, 12, 20), (T2, 30, 40), (T2, 1, 5), (T2, 15, 21), (T2, 9, 12)):
        with pytest.raises(sa.exc.IntegrityError, match="batch_allocations_no_overlap"):
            log.connection.execute(INSERT, {"t": at, "a": first, "b": after})
    log.connection.execute(INSERT, {"t": T2, "a": 10, "b": 20})
    assert left(log) == [T1, T2, T3]


def test_a_range_is_compared_with_the_receivers_last_one_also_if_the_last_batch_has_none(log: Log) -> None:
    log.connection.execute(INSERT, {"t": T1, "a": 5, "b": 10})
    log.connection.execute(sa.text("INSERT INTO forebay.batch_allocations VALUES (1, :t, 2, '[1,2)', 0, 0)"), {"t": T2})
    with pytest.raises(sa.exc.IntegrityError, match="batch_allocations_no_overlap"):
        log.connection.execute(INSERT, {"t": T3, "a": 9, "b": 12})
    log.connection.execute(INSERT, {"t": T3, "a": 10, "b": 12})


def test_one_statement_with_two_ranges_that_overlap_is_refused(log: Log) -> None:
    with pytest.raises(sa.exc.IntegrityError, match="batch_allocations_no_overlap"):
        log.connection.execute(
            sa.text(
                "INSERT INTO forebay.batch_allocations "
                "VALUES (1, :t, 1, int8range(1, 5), 0, 0), (1, :u, 1, int8range(4, 6), 0, 0)"
            ),
            {"t": T1, "u": T2},
        )
    assert left(log) == []


def test_another_pipeline_and_another_receiver_have_ranges_of_their_own(log: Log) -> None:
    log.connection.execute(INSERT, {"t": T1, "a": 1, "b": 5})
    for pipeline, receiver in ((2, 1), (1, 2)):
        log.connection.execute(
            sa.text("INSERT INTO forebay.batch_allocations VALUES (:p, :t, :r, int8range(2, 4), 0, 0)"),
            {"p": pipeline, "t": T1, "r": receiver},
        )
    assert len(left(log)) == 3


def test_what_another_session_has_not_committed_yet_is_waited_for(engine: sa.Engine, log: Log) -> None:
    inserted = threading.Event()

    def insert_later() -> None:
        with connect(engine) as other:
            inserted.set()
            other.execute(INSERT, {"t": T2, "a": 3, "b": 8})

    with ThreadPoolExecutor(1) as pool, connect(engine) as first:
        first.execute(sa.text("BEGIN"))
        first.execute(INSERT, {"t": T1, "a": 1, "b": 5})
        second = pool.submit(insert_later)
        assert inserted.wait(10)
        wait_until_blocked(log.connection)
        first.execute(sa.text("COMMIT"))
        with pytest.raises(sa.exc.IntegrityError, match="batch_allocations_no_overlap"):
            second.result(30)
    assert left(log) == [T1]


# -- gone with its blocks ----------------------------------------------------------------------------------------------


def test_a_range_goes_with_the_last_of_its_blocks(log: Log) -> None:
    run_three(log)
    clean(log, max_rows=1)
    assert left(log) == [T1, T2, T3], "the first of the range's rows is the epoch's marker: its block is still there"
    clean(log)
    # The newest block of a receiver stays, and with it its range.
    assert left(log) == [T3]
    assert [result for result in check_data(log.connection) if not result.passed] == []
    # All of the batch or nothing: not even an empty read.
    with pytest.raises(BlocksNotRetainedError, match="of its 10 records, 10"):
        log.tracker.whole_blocks_of_batch_and_stream(T1, log.stream_id)
    for time, reach in ((T1, timedelta(0)), (T3, 3 * INTERVAL)):
        with pytest.raises(BlocksNotRetainedError, match="of its 10 records, 10 were cleaned up"):
            replay(log, time, reach)
    assert replay(log, T3) == 2
    # The batch itself is history, and says what it had.
    batch = batches.get_batch(log.connection, log.pipeline_id, T1)
    assert batch is not None
    assert (batch.records, input_metadata(log.connection, log.pipeline_id, T1).known) == (10, False)


def test_the_ranges_of_the_last_hour_stay_for_rates_and_pages(log: Log) -> None:
    [receiver] = log.receiver_ids
    now: datetime = log.connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
    second = datetime.fromtimestamp(now.timestamp() // 10 * 10 - 60, UTC)
    log.add_at(receiver, T1 - SECOND, second - SECOND)
    run(log, T1)
    run(log, second)
    log.add_at(receiver, second + SECOND)
    clean(log)
    assert left(log) == [second]
    # While it is there, it says whose blocks are gone.
    with pytest.raises(
        BlocksNotRetainedError,
        match=r"of the blocks \d+ to \d+ of receiver lines/1, 10 records were cleaned up at 20\d\d-\d\d-\d\d \d\d:",
    ):
        replay(log, second)
    assert [result for result in check_data(log.connection) if not result.passed] == []


def test_a_quarantined_batch_keeps_its_ranges_until_it_is_discarded(log: Log) -> None:
    [receiver] = log.receiver_ids
    log.add_at(receiver, *(time - SECOND for time in (T1, T2, T3, T4)))
    run(log, T1)
    run(log, T2, fails=True)
    run(log, T3)
    clean(log)
    assert left(log) == [T2]
    assert [result for result in check_data(log.connection) if not result.passed] == []
    assert len(log.tracker.whole_blocks_of_batch_and_stream(T2, log.stream_id)) == 1
    batches.discard_batch(log.connection, pipeline_id=log.pipeline_id, batch_time=T2)
    run(log, T4)
    log.add_at(receiver, T4 + SECOND)
    clean(log)
    assert left(log) == []
    assert [result for result in check_data(log.connection) if not result.passed] == []


def test_a_removed_receivers_ranges_stay_with_their_batches(log: Log) -> None:
    run_three(log)
    log.connection.execute(sa.text("UPDATE forebay.receivers SET removed_at = clock_timestamp()"))
    clean(log)
    assert left(log) == [T1, T2, T3]
