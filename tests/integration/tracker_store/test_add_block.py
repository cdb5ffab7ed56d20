"""Test `add_block` and `claim` on a real server: every outcome, their order, and real races (W02, W21).

docs/explanation/driver-log.md explains the order.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import (
    GIVEN_SEGMENTS,
    Log,
    add,
    block,
    claim_anew,
    give_segments,
    make_log,
    wait_until_blocked,
)
from tests.support.polling import eventually
from tracker_store.blocks.blocks import AddOutcome, Claim, add_blocks, claim, raise_for_outcome
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import (
    ClaimLostError,
    DriverLogError,
    EmptyBlockError,
    NotAssignedError,
    OutcomeUnknownError,
    ReceiverFencedError,
    SequenceGapError,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tracker_store.blocks.blocks import AddResult


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    log = make_log(connection, receivers=2)
    give_segments(connection, *log.receiver_ids)
    return log


@pytest.fixture
def claimed(log: Log) -> Claim:
    return claim_anew(log.connection, log.receiver_ids[0])


def rows(log: Log, receiver_id: int) -> list[tuple[int, int, int, int]]:
    return [
        tuple(row)
        for row in log.connection.execute(
            sa.text(
                "SELECT sequence, records, total_records, total_bytes FROM forebay.blocks "
                "WHERE receiver_id = :r ORDER BY sequence"
            ),
            {"r": receiver_id},
        )
    ]


def test_a_claim_is_a_marker_row_in_the_receivers_own_sequence(log: Log, claimed: Claim) -> None:
    assert claimed.sequence == 1
    assert rows(log, claimed.receiver_id) == [(1, 0, 0, 0)]


def test_totals_run_through_blocks_and_markers(log: Log, claimed: Claim) -> None:
    add(log.connection, block(claimed, 2, records=10))
    add(log.connection, block(claimed, 3, records=5), block(claimed, 4, records=1))
    claim_anew(log.connection, claimed.receiver_id)
    assert rows(log, claimed.receiver_id) == [
        (1, 0, 0, 0),
        (2, 10, 10, 100),
        (3, 5, 15, 150),
        (4, 1, 16, 160),
        (5, 0, 16, 160),
    ]


def test_w02_a_retry_after_a_lost_answer_is_recognised_and_not_added_twice(log: Log, claimed: Claim) -> None:
    group = [block(claimed, 2), block(claimed, 3)]
    assert add(log.connection, *group).outcome is AddOutcome.ADDED
    assert add(log.connection, *group).outcome is AddOutcome.ALREADY_ADDED
    assert len(rows(log, claimed.receiver_id)) == 3


@pytest.mark.parametrize("records", [0, -1])
def test_h05_a_block_without_records_is_refused_by_name_and_nothing_of_the_call_is_added(
    log: Log, claimed: Claim, records: int
) -> None:
    empty = replace(block(claimed, 3, segment_id=7), records=records)
    other = claim_anew(log.connection, log.receiver_ids[1])
    for sent in ([replace(empty, sequence=2)], [block(claimed, 2), empty], [block(other, 2), block(claimed, 2), empty]):
        with pytest.raises(EmptyBlockError, match=f"of receiver {claimed.receiver_id}, in segment 7, has {records} "):
            add_blocks(log.connection, sent)
    assert rows(log, claimed.receiver_id) == [(1, 0, 0, 0)]
    assert rows(log, other.receiver_id) == [(1, 0, 0, 0)]
    assert add(log.connection, block(claimed, 2)).outcome is AddOutcome.ADDED


def in_sql(function: str, claimed: Claim, *records: int) -> str:
    """Return a call of `add_block` or `add_one_block` with blocks of this many records, in the given segment."""
    segment_id = GIVEN_SEGMENTS + claimed.receiver_id
    sequences = range(2, 2 + len(records))
    rows = [
        (claimed.receiver_id, claimed.epoch, n, r, 64, segment_id, 64 * n, 64, n)
        for n, r in zip(sequences, records, strict=True)
    ]
    if function == "add_one_block":
        [arguments] = rows
        return f"SELECT * FROM forebay.add_one_block{arguments}"
    return f"SELECT * FROM forebay.add_block({', '.join(f'ARRAY{list(column)}' for column in zip(*rows, strict=True))})"


@pytest.mark.parametrize(
    ("function", "records"),
    [("add_one_block", (0,)), ("add_block", (0,)), ("add_block", (5, 0)), ("add_block", (-1, 5))],
)
def test_h05_the_database_itself_refuses_a_block_without_records(
    log: Log, claimed: Claim, function: str, records: tuple[int, ...]
) -> None:
    """Check what a process of another version, or a bug, would send."""
    segment_id = GIVEN_SEGMENTS + claimed.receiver_id
    block_named = f"of receiver {claimed.receiver_id}, in segment {segment_id}"
    said = rf"{block_named}, has (0|-1) records\nHINT:  A block holds at least one "
    with pytest.raises(sa.exc.DBAPIError, match=said):
        log.connection.exec_driver_sql(in_sql(function, claimed, *records))
    assert rows(log, claimed.receiver_id) == [(1, 0, 0, 0)]
    # The call is right except for the records.
    log.connection.exec_driver_sql(in_sql(function, claimed, *[3 for _ in records]))
    assert len(rows(log, claimed.receiver_id)) == 1 + len(records)


def test_w21_a_replaced_process_is_fenced_whatever_it_still_holds(log: Log, claimed: Claim) -> None:
    add(log.connection, block(claimed, 2))
    successor = claim_anew(log.connection, claimed.receiver_id)
    result = add(log.connection, block(claimed, 3))
    assert result.outcome is AddOutcome.FENCED
    with pytest.raises(ReceiverFencedError, match=str(successor.epoch)):
        raise_for_outcome(result)
    assert add(log.connection, block(claimed, 4)).outcome is AddOutcome.FENCED


def test_a_block_committed_before_a_take_over_is_already_added_and_not_fenced(log: Log, claimed: Claim) -> None:
    add(log.connection, block(claimed, 2))
    claim_anew(log.connection, claimed.receiver_id)
    assert add(log.connection, block(claimed, 2)).outcome is AddOutcome.ALREADY_ADDED


def test_another_block_under_a_taken_number_is_a_conflict(log: Log, claimed: Claim) -> None:
    add(log.connection, block(claimed, 2))
    result = add(log.connection, block(claimed, 2, offset=7))
    assert result.outcome is AddOutcome.CONFLICT
    with pytest.raises(DriverLogError, match="a different block of this very epoch"):
        raise_for_outcome(result)


def test_a_regrouped_retry_is_refused_whole(log: Log, claimed: Claim) -> None:
    add(log.connection, block(claimed, 2), block(claimed, 3))
    before = rows(log, claimed.receiver_id)
    result = add(log.connection, block(claimed, 3), block(claimed, 4, records=99))
    assert result.outcome is AddOutcome.CONFLICT
    assert rows(log, claimed.receiver_id) == before


def test_a_missing_predecessor_is_a_gap(log: Log, claimed: Claim) -> None:
    result = add(log.connection, block(claimed, 3))
    assert result.outcome is AddOutcome.GAP
    with pytest.raises(SequenceGapError):
        raise_for_outcome(result)


def test_one_receivers_refusal_does_not_delay_another(log: Log, claimed: Claim) -> None:
    other = claim_anew(log.connection, log.receiver_ids[1])
    claim_anew(log.connection, claimed.receiver_id)
    results = add_blocks(log.connection, [block(claimed, 2), block(other, 2), block(other, 3)])
    assert [result.outcome for result in results] == [AddOutcome.FENCED, AddOutcome.ADDED]
    assert len(rows(log, other.receiver_id)) == 3


def test_every_answer_steers(log: Log, claimed: Claim) -> None:
    log.connection.execute(
        sa.text("UPDATE forebay.receivers SET rate_limit = 500, desired_state = 'paused', assignment = 7")
    )
    response = add(log.connection, block(claimed, 2)).response
    assert (response.rate_limit, response.desired_state, response.assignment) == (500.0, "paused", 7)


def test_blocks_without_a_run_of_sequences_are_refused_at_once(log: Log, claimed: Claim) -> None:
    with pytest.raises(sa.exc.DataError, match="not one run"):
        add_blocks(log.connection, [block(claimed, 2), block(claimed, 4)])
    assert len(rows(log, claimed.receiver_id)) == 1


def test_a_claim_needs_the_present_assignment(log: Log, claimed: Claim) -> None:
    with pytest.raises(NotAssignedError, match=r"assignment 0.*started for 3"):
        claim_anew(log.connection, claimed.receiver_id, assignment=3)


def test_a_claim_by_a_stale_view_is_lost(log: Log, claimed: Claim) -> None:
    with pytest.raises(ClaimLostError, match=str(claimed.epoch)):
        claim(log.connection, receiver_id=claimed.receiver_id, seen_epoch=0, assignment=0)


def test_epochs_rise_even_when_the_clock_steps_back(log: Log, claimed: Claim) -> None:
    far = claimed.epoch + 10**12
    log.connection.execute(sa.text("UPDATE forebay.blocks SET epoch = :e"), {"e": far})
    assert claim_anew(log.connection, claimed.receiver_id).epoch == far + 1


def test_added_at_never_goes_back(log: Log, claimed: Claim) -> None:
    log.connection.execute(sa.text("UPDATE forebay.blocks SET added_at = '2999-01-01'"))
    add(log.connection, block(claimed, 2), block(claimed, 3))
    years = log.connection.execute(
        sa.text("SELECT DISTINCT extract(year FROM added_at AT TIME ZONE 'UTC') FROM forebay.blocks")
    ).scalars()
    assert [int(year) for year in years] == [2999]


def test_an_add_that_waited_for_its_predecessor_is_added_or_sent_again(
    engine: sa.Engine, log: Log, claimed: Claim
) -> None:
    """Check this because the INSERT's snapshot is older than the predecessor's commit: neither a gap nor fenced."""
    raw = engine.raw_connection()
    raw.driver_connection.autocommit = False  # type: ignore[union-attr]
    cursor = raw.cursor()
    cursor.execute(
        "INSERT INTO forebay.blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, "
        'total_bytes, segment_id, "offset", length, crc32c) '
        "VALUES (%s, 2, %s, clock_timestamp(), 10, 100, 10, 100, %s, 200, 100, 1002)",
        (claimed.receiver_id, claimed.epoch, GIVEN_SEGMENTS + claimed.receiver_id),
    )
    outcomes: list[AddOutcome] = []

    def retry_the_same_block() -> None:
        with connect(engine) as connection:
            outcomes.append(add(connection, block(claimed, 2)).outcome)

    waiting = threading.Thread(target=retry_the_same_block)
    waiting.start()
    wait_until_blocked(log.connection)
    raw.commit()
    waiting.join(30)
    raw.close()
    # The call waited for the other transaction's key, and determined the outcome with a later snapshot.
    assert outcomes == [AddOutcome.ALREADY_ADDED]


def test_two_processes_that_both_believe_they_own_a_receiver(engine: sa.Engine, log: Log) -> None:
    """Check that every acknowledged block is in once, without gaps, in the acknowledging process's epoch."""
    receiver_id = log.receiver_ids[0]
    acknowledged: list[tuple[int, int]] = []
    guard = threading.Lock()
    # Each process takes the receiver over after the other has added some blocks, and adds blocks until it is fenced.
    turns = [threading.Event() for _ in range(6)]
    turns[0].set()

    def own(number: int) -> None:
        assert turns[number].wait(60)
        with connect(engine) as connection:
            mine = claim_anew(connection, receiver_id)
            sequence = mine.sequence + 1
            while True:
                result = add(connection, block(mine, sequence))
                if result.outcome is AddOutcome.FENCED:
                    return
                assert result.outcome in (AddOutcome.ADDED, AddOutcome.ALREADY_ADDED), result
                with guard:
                    acknowledged.append((mine.epoch, sequence))
                if sequence == mine.sequence + 30:
                    if number + 1 < len(turns):
                        turns[number + 1].set()
                    else:
                        return
                sequence += 1

    threads = [threading.Thread(target=own, args=(number,)) for number in range(len(turns))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    stored = log.connection.execute(
        sa.text("SELECT sequence, epoch, records, total_records FROM forebay.blocks WHERE receiver_id = :r ORDER BY 1"),
        {"r": receiver_id},
    ).all()
    assert [row.sequence for row in stored] == list(range(1, len(stored) + 1))
    assert sorted(acknowledged) == sorted((row.epoch, row.sequence) for row in stored if row.records)
    assert [row.epoch for row in stored] == sorted(row.epoch for row in stored)
    assert stored[-1].total_records == sum(row.records for row in stored)


def test_a_lost_answer_is_named_unknown(engine: sa.Engine, log: Log, claimed: Claim) -> None:
    with connect(engine) as doomed:
        pid = doomed.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        log.connection.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        with pytest.raises(OutcomeUnknownError):
            add_blocks(doomed, [block(claimed, 2)])
    assert add(log.connection, block(claimed, 2)).outcome in (AddOutcome.ADDED, AddOutcome.ALREADY_ADDED)


def test_already_added_waits_for_a_synchronous_standby_as_added_does(
    engine: sa.Engine, log: Log, claimed: Claim
) -> None:
    blocks = [block(claimed, 2)]
    add(log.connection, *blocks)
    deadline = time.monotonic() + 30
    # The named standby never connects: a call that waits for it waits until the setting is reset.
    set_standby = "ALTER SYSTEM SET synchronous_standby_names = 'nobody'"
    with connect(engine) as sender, ThreadPoolExecutor(1) as pool:
        # The tests' server has synchronous_commit off by default.
        sender.execute(sa.text("SET synchronous_commit = on"))
        sender_pid = sender.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        try:
            log.connection.execute(sa.text(set_standby))
            log.connection.execute(sa.text("SELECT pg_reload_conf()"))
            eventually(lambda: _setting(log, "synchronous_standby_names") == "nobody", "the setting to be read")
            again = pool.submit(add, sender, *blocks)
            # The checkpointer notes whether there is a standby to wait for; it reloads the settings at its own pace.
            while not _comes_to_wait(log, sender_pid, again):
                again = pool.submit(add, sender, *blocks)
                assert time.monotonic() < deadline, "no addition waits for the standby"
            assert not again.done()
        finally:
            log.connection.execute(sa.text("ALTER SYSTEM RESET synchronous_standby_names"))
            log.connection.execute(sa.text("SELECT pg_reload_conf()"))
        assert again.result(30).outcome is AddOutcome.ALREADY_ADDED


def _comes_to_wait(log: Log, pid: int, addition: Future[AddResult]) -> bool:
    """Return whether the addition waits for the standby; False if it has ended."""
    eventually(lambda: addition.done() or _waits_for(log, pid) == "SyncRep", "an end, or a wait for the standby")
    return not addition.done()


def _setting(log: Log, name: str) -> str:
    value: str = log.connection.execute(sa.text("SELECT current_setting(:name)"), {"name": name}).scalar_one()
    return value


def _waits_for(log: Log, pid: int) -> str | None:
    value: str | None = log.connection.execute(
        sa.text("SELECT wait_event FROM pg_stat_activity WHERE pid = :pid"), {"pid": pid}
    ).scalar()
    return value


def test_a_plan_made_on_a_near_empty_table_does_not_scan_the_grown_one(
    engine: sa.Engine, log: Log, claimed: Claim
) -> None:
    log.connection.execute(sa.text("ALTER TABLE forebay.blocks SET (autovacuum_enabled = false)"))
    log.connection.execute(sa.text("VACUUM ANALYZE forebay.blocks"))
    with connect(engine) as sender:
        # More calls than a session makes before it keeps a plan.
        for sequence in range(2, 10):
            assert add(sender, block(claimed, sequence)).outcome is AddOutcome.ADDED
        before = _scans(log, sender)
        for sequence in range(10, 20):
            assert add(sender, block(claimed, sequence)).outcome is AddOutcome.ADDED
        assert _scans(log, sender) == before
        plain = sender.execute(sa.text("SELECT current_setting('enable_seqscan')")).scalar_one()
        assert plain == "off"


def test_a_plan_made_for_a_few_rows_of_a_receiver_reads_no_more_when_there_are_many(
    engine: sa.Engine, log: Log, claimed: Claim
) -> None:
    with connect(engine) as sender:
        # As after some runs of autovacuum, when a bitmap and a sort look cheaper than the first row of an index.
        sender.execute(sa.text("SET enable_indexscan = off"))
        for sequence in range(2, 10):
            assert add(sender, block(claimed, sequence)).outcome is AddOutcome.ADDED
        read = []
        for sequences in (range(10, 20), range(20, 200), range(200, 210)):
            before = _read_entries(log, sender)
            for sequence in sequences:
                assert add(sender, block(claimed, sequence)).outcome is AddOutcome.ADDED
            read.append(_read_entries(log, sender) - before)
        assert read[2] == read[0]


def _scans(log: Log, sender: sa.Connection) -> int:
    """Return the number of sequential scans of blocks so far."""
    return _counted(log, sender, "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'blocks'")


def _read_entries(log: Log, sender: sa.Connection) -> int:
    """Return the number of entries of the indexes of blocks that were read so far."""
    return _counted(log, sender, "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'blocks'")


def _counted(log: Log, sender: sa.Connection, statement: str) -> int:
    """Return what a statement on the statistics says, those of both sessions included."""
    for connection in (sender, log.connection):
        connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
        connection.execute(sa.text("SELECT 1"))
    counted: int = log.connection.execute(sa.text(statement)).scalar_one()
    return counted
