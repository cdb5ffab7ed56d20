"""Test `forebay db check`: each promise is broken by hand, and its check names what it found."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import INTERVAL, NOON, Log, add, block, claim_anew, make_log
from tracker_store.batches.batches import claim_attempt, complete_batch, fail_attempt
from tracker_store.batches.outputs import commit_output
from tracker_store.batches.pipelines import apply_pipeline
from tracker_store.blocks.blocks import NewBlock, OffsetLink, open_partition
from tracker_store.blocks.segments import open_segment
from tracker_store.install import migrate
from tracker_store.reports import checks
from tracker_store.retention.cleanup import clean_up_receiver

if TYPE_CHECKING:
    from collections.abc import Callable

SECOND = timedelta(seconds=1)
OUTPUTS = {
    "outputs": {"counts": {"inputs": ["lines"]}, "hourly": {"inputs": [{"window": "lines", "slide_ms": 3600000}]}}
}


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    """Return a log with two receivers of two epochs, three batches, clean-up and a source partition.

    The batches are completed, running and quarantined.
    """
    log = make_log(connection, receivers=2)
    apply_pipeline(connection, name="words", declaration=OUTPUTS, stream_ids=[log.stream_id], interval=INTERVAL)
    for receiver in log.receiver_ids:
        for start in (NOON, NOON + INTERVAL, NOON + 2 * INTERVAL):
            log.add_at(receiver, start + SECOND, start + 2 * SECOND)
    for number in (1, 2, 3):
        log.tracker.allocate_blocks_to_batch(NOON + number * INTERVAL)
    at: dict[str, Any] = {"pipeline_id": log.pipeline_id, "batch_time": NOON + INTERVAL}
    claim_attempt(connection, **at, attempt=1, run_id="run-1", process_id=1)
    commit_output(connection, **at, attempt=1, output="counts", location="somewhere", rows=1)
    complete_batch(connection, **at, attempt=1, outputs=["counts"])
    at["batch_time"] = NOON + 2 * INTERVAL
    claim_attempt(connection, **at, attempt=1, run_id="run-2", process_id=1)
    at["batch_time"] = NOON + 3 * INTERVAL
    claim_attempt(connection, **at, attempt=1, run_id="run-3", process_id=1)
    fail_attempt(connection, **at, attempt=1, run_id="run-3", error="a test", max_attempts=1, pauses=[timedelta(0)])
    one, two = log.receiver_ids
    clean_up_receiver(connection, receiver_id=one, threshold=NOON + 2 * INTERVAL, max_rows=100)
    claimed = claim_anew(connection, two)
    segment = open_segment(connection, receiver_id=two, epoch=claimed.epoch, path="two", source_rule="sent_again")
    open_partition(connection, receiver_id=two, source="orders", partition="0", start_offset=0)
    for number in range(3):
        plain = block(claimed, claimed.sequence + 1 + number, segment_id=segment)
        links = (OffsetLink("orders", "0", 0, number * 10, number * 10 + 10),)
        add(
            connection,
            NewBlock(
                plain.receiver_id,
                plain.epoch,
                plain.sequence,
                plain.records,
                plain.bytes,
                plain.handle,
                links=links,
            ),
        )
    return log


def broken(connection: sa.Connection) -> dict[str, checks.CheckResult]:
    results = checks.check_data(connection) + checks.check_schema(connection)
    return {result.check: result for result in results if not result.passed}


def test_a_log_in_normal_use_is_intact(connection: sa.Connection, log: Log) -> None:
    assert broken(connection) == {}
    assert connection.execute(sa.text("SELECT low_mark FROM forebay.receivers WHERE id = 1")).scalar_one() > 0


def test_an_empty_log_is_intact(connection: sa.Connection) -> None:
    assert broken(connection) == {}


# For each case: the change to the log, the check that must see it, and what it must name.
BREAKS = {
    "a block is gone": (
        "DELETE FROM forebay.blocks WHERE receiver_id = 2 AND sequence = 5",
        "chains_are_gapless",
        "receiver 2: 5..5 is missing",
    ),
    "the newest row is gone": (
        (
            "DELETE FROM forebay.blocks WHERE receiver_id = 1 AND sequence > (SELECT low_mark FROM forebay.receivers "
            "WHERE id = 1)"
        ),
        "chains_are_gapless",
        "receiver 1: nothing is left above its low mark",
    ),
    "the low mark is ahead": (
        "UPDATE forebay.receivers SET low_mark = low_mark - 1 WHERE id = 1",
        "chains_are_gapless",
        "receiver 1: 3..3 is missing",
    ),
    "a count was changed": (
        "UPDATE forebay.blocks SET records = 11 WHERE receiver_id = 2 AND sequence = 3",
        "running_totals_add_up",
        "receiver 2, sequence 3",
    ),
    "a first block has more than itself": (
        "UPDATE forebay.blocks SET total_records = 7 WHERE receiver_id = 2 AND sequence = 1",
        "running_totals_add_up",
        "receiver 2, sequence 1",
    ),
    "time went back": (
        "UPDATE forebay.blocks SET added_at = added_at - interval '1 h' WHERE receiver_id = 2 AND sequence = 6",
        "running_totals_add_up",
        "receiver 2, sequence 6",
    ),
    "a zombie's block": (
        "UPDATE forebay.blocks SET epoch = 1 WHERE receiver_id = 2 AND sequence = 6",
        "epochs_begin_with_a_marker",
        "receiver 2, sequence 6: a block of epoch 1 follows epoch",
    ),
    "an epoch without a marker": (
        "UPDATE forebay.blocks SET epoch = epoch + 1000000 WHERE receiver_id = 2 AND sequence >= 9",
        "epochs_begin_with_a_marker",
        "receiver 2, sequence 9: a block of epoch",
    ),
    "an epoch that is older than the last": (
        "UPDATE forebay.blocks SET epoch = 5 WHERE receiver_id = 2 AND sequence = 4",
        "epochs_begin_with_a_marker",
        "receiver 2, sequence 4: a marker of epoch 5 follows epoch",
    ),
    "a lost position": (
        "DELETE FROM forebay.block_offsets WHERE from_offset = 10",
        "source_positions_are_chained",
        "orders/0, generation 0: a block link from 20 follows one to 10",
    ),
    "a generation without an origin": (
        "UPDATE forebay.block_offsets SET generation = 1 WHERE from_offset = 20",
        "source_positions_are_chained",
        "orders/0, generation 1: a block link from 20 follows one to 20 of generation 0",
    ),
    "a position without its block": (
        "UPDATE forebay.block_offsets SET sequence = 999 WHERE from_offset = 20",
        "source_positions_are_chained",
        "the link from 20 belongs to block 999 of receiver 2",
    ),
    "a range is gone": (
        (
            "DELETE FROM forebay.batch_allocations WHERE receiver_id = 2 "
            "AND batch_time = (SELECT min(batch_time) + interval '10 s' FROM forebay.batches)"
        ),
        "ranges_are_contiguous",
        "words, receiver 2: the range of batch",
    ),
    "a cursor moved back": (
        "UPDATE forebay.cursors SET next_sequence = 5 WHERE receiver_id = 2",
        "ranges_are_contiguous",
        "words, receiver 2: the cursor is at 5, the newest range ended at 9",
    ),
    "a cursor ahead of the log": (
        "UPDATE forebay.cursors SET next_sequence = 500 WHERE receiver_id = 1",
        "ranges_are_contiguous",
        "words, receiver 1: the cursor is at 500, the newest block is 9",
    ),
    "a batch counts wrongly": (
        "UPDATE forebay.batches SET records = records + 1 WHERE state = 'RUNNING'",
        "batches_count_their_ranges",
        "it counts 41 records",
    ),
    "a range counts wrongly": (
        "UPDATE forebay.batch_allocations SET records = 19 WHERE receiver_id = 2",
        "batches_count_their_ranges",
        "of receiver 2 counts 19 records, its blocks 20",
    ),
    "a range of no batch": (
        "UPDATE forebay.batch_allocations SET batch_time = batch_time - interval '1 s' WHERE receiver_id = 2",
        "batches_count_their_ranges",
        "which is no batch",
    ),
    "clean-up took what a batch needs": (
        "UPDATE forebay.receivers SET low_mark = 6 WHERE id = 1",
        "unfinished_batches_have_their_blocks",
        "(RUNNING): the range [4,7) of receiver 1 is cleaned up to 6",
    ),
    "a quarantined batch lost a block": (
        "DELETE FROM forebay.blocks WHERE receiver_id = 2 AND sequence = 8",
        "unfinished_batches_have_their_blocks",
        "(QUARANTINED): it has 40 records, of which 30 are kept",
    ),
    "a segment is not known": (
        "DELETE FROM forebay.log_segments WHERE path = 'two'",
        "blocks_have_their_segment",
        "receiver 2: 3 blocks from sequence 11 on lie in segment",
    ),
    "a segment is about to be deleted": (
        "UPDATE forebay.log_segments SET state = 'DELETING', length = 1 WHERE path = 'two'",
        "blocks_have_their_segment",
        "which is DELETING",
    ),
    "an attempt runs for nobody": (
        "UPDATE forebay.batches SET state = 'ALLOCATED' WHERE state = 'RUNNING'",
        "attempts_agree_with_their_batch",
        "is ALLOCATED; its attempt 1 is RUNNING",
    ),
    "completed without an attempt that succeeded": (
        "UPDATE forebay.batch_attempts SET state = 'FAILED' WHERE state = 'SUCCEEDED'",
        "attempts_agree_with_their_batch",
        "is COMPLETED; its attempt 1 is FAILED",
    ),
    "an output is not committed": (
        "DELETE FROM forebay.output_commits",
        "outputs_are_committed_once",
        "counts has no commit",
    ),
    "a commit by no attempt": (
        "UPDATE forebay.output_commits SET attempt = 7",
        "outputs_are_committed_once",
        "the commit of counts names attempt 7",
    ),
    "another revision": (
        "UPDATE forebay.alembic_version SET version_num = '0000'",
        "revision_is_the_newest",
        "revision 0000, expected",
    ),
    "a column of somebody's": (
        "ALTER TABLE forebay.cursors ADD COLUMN mine int",
        "tables_are_as_declared",
        "mine",
    ),
    "a function was changed": (
        (
            "CREATE OR REPLACE FUNCTION forebay.clean_up_offsets(stream bigint, max_rows bigint) RETURNS bigint "
            "LANGUAGE plpgsql SECURITY DEFINER SET search_path = forebay, pg_temp SET enable_seqscan = off "
            "AS $$ BEGIN RETURN 0; END $$"
        ),
        "functions_are_the_files",
        "clean_up_offsets: its body is not the file's",
    ),
    "a function runs as its caller": (
        "ALTER FUNCTION forebay.claim SECURITY INVOKER",
        "functions_are_the_files",
        "claim: its SECURITY DEFINER is not the file's",
    ),
    "a function's path is open": (
        "ALTER FUNCTION forebay.add_block RESET search_path",
        "functions_are_the_files",
        "add_block: its list of settings is not the file's",
    ),
    "a function of somebody's": (
        "CREATE FUNCTION forebay.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "functions_are_the_files",
        "mine: no file of ours",
    ),
    "a trigger is gone": (
        "DROP TRIGGER batch_changes ON forebay.batches",
        "changes_are_told",
        "batches.batch_changes: not in the database, or disabled",
    ),
    "a trigger is disabled": (
        "ALTER TABLE forebay.receivers DISABLE TRIGGER receiver_changes",
        "changes_are_told",
        "receivers.receiver_changes: not in the database, or disabled",
    ),
    "sums are not kept": (
        "DROP TRIGGER segments_go ON forebay.log_segments",
        "totals_are_kept",
        "log_segments.segments_go: not in the database, or disabled",
    ),
    "overlaps are not refused": (
        "ALTER TABLE forebay.batch_allocations DISABLE TRIGGER ranges_come",
        "ranges_are_checked",
        "batch_allocations.ranges_come: not in the database, or disabled",
    ),
    "a function is gone": (
        "DROP FUNCTION forebay.heartbeat",
        "functions_are_the_files",
        "heartbeat: not in the database",
    ),
}


@pytest.mark.parametrize("case", BREAKS)
def test_each_broken_promise_is_named(connection: sa.Connection, log: Log, case: str) -> None:
    statement, check, named = BREAKS[case]
    changed = connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
    assert changed.rowcount != 0
    result: checks.CheckResult = getattr(checks, check)(connection)
    assert not result.passed
    assert result.violations >= len(result.offenders) > 0
    assert any(named in offender for offender in result.offenders), result.offenders


def test_every_check_is_broken_by_a_test() -> None:
    names = {check.__name__ for check in checks.DATA_CHECKS + checks.SCHEMA_CHECKS}
    assert names == {check for _, check, _ in BREAKS.values()}


def test_a_check_of_one_pipeline_looks_at_its_streams_alone(connection: sa.Connection, log: Log) -> None:
    other = make_log(connection, pipeline="others", stream="elsewhere")
    for receiver in (log.receiver_ids[1], other.receiver_ids[-1]):
        if receiver not in log.receiver_ids:
            other.add_at(receiver, NOON + SECOND, NOON + 2 * SECOND)
        connection.execute(
            sa.text("DELETE FROM forebay.blocks WHERE receiver_id = :r AND sequence = 2"), {"r": receiver}
        )
    assert checks.chains_are_gapless(connection).violations == 2
    assert checks.chains_are_gapless(connection, log.pipeline_id).violations == 1
    assert checks.chains_are_gapless(connection, other.pipeline_id).violations == 1


def test_a_check_of_an_output_looks_at_that_output_alone(connection: sa.Connection, log: Log) -> None:
    connection.exec_driver_sql("DELETE FROM forebay.output_commits")
    assert checks.outputs_are_committed_once(connection, log.pipeline_id, "counts").violations == 1
    assert checks.outputs_are_committed_once(connection, log.pipeline_id, "hourly").passed


def test_the_first_few_are_named_and_all_are_counted(connection: sa.Connection, log: Log) -> None:
    connection.exec_driver_sql(
        "UPDATE forebay.blocks SET records = records + 1 WHERE receiver_id = 2 AND segment_id IS NOT NULL"
    )
    result = checks.running_totals_add_up(connection)
    assert result.violations > checks.OFFENDERS_NAMED == len(result.offenders)


def test_clean_up_of_unread_blocks_is_a_counted_loss_and_not_a_gap(connection: sa.Connection, log: Log) -> None:
    """Check after a pipeline left the stream, the stream's retention deleted blocks, and the pipeline came back."""
    two = log.receiver_ids[1]
    connection.execute(sa.text("UPDATE forebay.pipelines SET stream_ids = '{}'"))
    connection.execute(sa.text("UPDATE forebay.streams SET retention = interval '0'"))
    connection.execute(sa.text("UPDATE forebay.batches SET state = 'COMPLETED', completed_at = now()"))
    connection.execute(sa.text("DELETE FROM forebay.batch_attempts"))
    connection.execute(sa.text("UPDATE forebay.batches SET attempt = 0"))
    connection.execute(sa.text("DELETE FROM forebay.output_commits"))
    far = NOON + timedelta(days=36500)
    gone = clean_up_receiver(connection, receiver_id=two, threshold=far, max_rows=100)
    assert gone.unread_records > 0
    connection.execute(sa.text("UPDATE forebay.pipelines SET stream_ids = ARRAY[:s]"), {"s": log.stream_id})
    now = connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
    log.tracker.allocate_blocks_to_batch(now)
    assert checks.ranges_are_contiguous(connection).offenders == ()


def test_drift_is_compared_whatever_the_search_path(connection: sa.Connection) -> None:
    connection.exec_driver_sql("SET search_path = forebay")
    assert checks.tables_are_as_declared(connection).passed


def test_an_older_schema_is_named(connection: sa.Connection, database_url: str) -> None:
    connection.commit()
    migrate.downgrade(database_url, "base")
    [offender] = checks.revision_is_the_newest(connection).offenders
    assert offender.startswith("revision none, expected")
    check: Callable[[sa.Connection], checks.CheckResult] = checks.functions_are_the_files
    assert not check(connection).passed
