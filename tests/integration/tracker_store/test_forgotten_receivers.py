"""Test that removed receivers are forgotten in the end, and never before nothing of them can be needed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from tests.support.driver_log.attempts import claim_batch
from tests.support.driver_log.log import INTERVAL, NOON, Log, add, block, claim_anew, make_log, seal
from tests.support.postgres.counted_statements import buffers
from tracker_store.batches import batches
from tracker_store.batches.pipelines import apply_stream
from tracker_store.blocks.blocks import AddOutcome, BlockHandle, Claim, add_blocks, open_partition
from tracker_store.blocks.dead_letters import StoredDeadLetter, add_dead_letters
from tracker_store.blocks.source_positions import forget_partitions, source_positions
from tracker_store.connection.errors import NotAssignedError
from tracker_store.receivers.leadership import DeposedError
from tracker_store.receivers.processes import register_process
from tracker_store.receivers.receivers import placements
from tracker_store.retention.cleanup import clean_up_receiver, forget_segment, segments_to_delete
from tracker_store.retention.history import clean_up_history, forget_receivers
from tracker_store.schema.states import ProcessKind

KEEP = timedelta(days=14)
T1 = NOON + INTERVAL


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    return make_log(connection, receivers=2)


def removed(log: Log, *, age: timedelta = KEEP + timedelta(days=1)) -> tuple[int, Claim]:
    """Let the second receiver add two blocks, remove it from the declaration as if that was `age` ago; return it."""
    [_, receiver_id] = log.receiver_ids
    claimed = log.add_at(receiver_id, NOON, NOON)
    apply_stream(log.connection, name="lines", declaration={"source": {}, "settings": {}}, receivers=1)
    log.connection.execute(
        sa.text("UPDATE forebay.receivers SET removed_at = clock_timestamp() - :age WHERE id = :id"),
        {"age": age, "id": receiver_id},
    )
    return receiver_id, claimed


def exists(log: Log, receiver_id: int) -> bool:
    found: bool = log.connection.execute(
        sa.text("SELECT EXISTS (SELECT FROM forebay.receivers WHERE id = :id)"), {"id": receiver_id}
    ).scalar_one()
    return found


def forget(log: Log) -> tuple[int, int]:
    done = forget_receivers(log.connection, keep=KEEP, max_rows=100)
    return done.closed, done.forgotten


def close_long_ago(log: Log, receiver_id: int) -> None:
    """Close the receiver's sequence as if that was longer ago than history goes."""
    assert forget(log) == (1, 0)
    log.connection.execute(
        sa.text("""
            UPDATE forebay.blocks b
            SET added_at = clock_timestamp() - :age
            FROM forebay.receivers r
            WHERE r.id = :id AND b.receiver_id = r.id AND b.epoch = r.closed_epoch
        """),
        {"age": 2 * KEEP, "id": receiver_id},
    )


def process_all(log: Log) -> None:
    """Give all blocks to a batch that completes, and make it as old as history goes."""
    log.tracker.allocate_blocks_to_batch(T1)
    claim_batch(log.connection, log.pipeline_id, T1, run_id="r")
    batches.complete_batch(log.connection, pipeline_id=log.pipeline_id, batch_time=T1, attempt=1, outputs=[])
    log.tracker.allocate_blocks_to_batch(T1 + INTERVAL)


def clean_up(log: Log, receiver_id: int) -> None:
    """Clean up the receiver's blocks, its files, its pipeline's history, and what was recorded about that."""
    clean_up_receiver(log.connection, receiver_id=receiver_id, threshold=datetime.now(UTC), max_rows=1000)
    log.connection.execute(sa.text("UPDATE forebay.log_segments SET sealed_at = clock_timestamp() - interval '1 day'"))
    for segment in segments_to_delete(
        log.connection, receiver_id=receiver_id, restore_window=timedelta(hours=1), limit=100
    ):
        forget_segment(log.connection, segment_id=segment.segment_id)
    clean_up_history(log.connection, pipeline_id=log.pipeline_id, keep=timedelta(0), max_rows=1000)
    log.connection.execute(sa.text("UPDATE forebay.cleanup_events SET at = at - interval '60 days'"))


def seal_all(log: Log) -> None:
    rows = log.connection.execute(sa.text("SELECT id FROM forebay.log_segments WHERE state = 'OPEN'"))
    for segment_id in rows.scalars().all():
        seal(log.connection, segment_id)


def test_a_removed_receiver_is_forgotten_when_nothing_of_it_is_left(log: Log) -> None:
    receiver_id, _ = removed(log)
    seal_all(log)
    process_all(log)
    close_long_ago(log, receiver_id)
    clean_up(log, receiver_id)
    assert forget(log) == (0, 1)
    assert not exists(log, receiver_id)
    for table in ("blocks", "cursors", "log_segments", "receiver_events", "cleanup_events"):
        of_it = log.connection.execute(
            sa.text(f"SELECT count(*) FROM forebay.{table} WHERE receiver_id = :id"), {"id": receiver_id}
        )
        assert of_it.scalar_one() == 0, table
    # The stream goes on, and a receiver that is declared again is a new one.
    apply_stream(log.connection, name="lines", declaration={"source": {}, "settings": {}}, receivers=2)
    [first, second] = placements(log.connection)
    assert first.receiver_id == log.receiver_ids[0]
    assert (second.ordinal, second.receiver_id > receiver_id) == (2, True)


def test_an_origin_that_nothing_follows_outlives_the_receiver_that_wrote_it(log: Log) -> None:
    """Check a mark of a source, which is an origin that no link ever follows."""
    mark = {"source": "mark of g", "partition": "1/7"}
    receiver_id, _ = removed(log)
    open_partition(log.connection, receiver_id=receiver_id, start_offset=0, **mark)
    seal_all(log)
    process_all(log)
    close_long_ago(log, receiver_id)
    clean_up(log, receiver_id)
    [heir, _] = log.receiver_ids
    gone = sa.text("UPDATE forebay.receivers SET removed_at = :at WHERE id = :id")
    log.connection.execute(gone, {"id": heir, "at": datetime.now(UTC)})
    assert forget(log) == (0, 0), "there is no receiver to keep it"
    assert exists(log, receiver_id)
    log.connection.execute(gone, {"id": heir, "at": None})
    assert forget(log) == (0, 1)
    assert not exists(log, receiver_id)
    assert list(source_positions(log.connection, receiver_id=heir, source="mark of g")) == ["1/7"]
    # It can be forgotten as ever.
    assert forget_partitions(log.connection, receiver_id=heir, source="mark of g", partitions=["1/7"]) == 1


def test_a_block_that_no_batch_has_is_never_lost(log: Log) -> None:
    receiver_id, _ = removed(log)
    seal_all(log)
    close_long_ago(log, receiver_id)
    clean_up(log, receiver_id)
    assert forget(log) == (0, 0)
    assert exists(log, receiver_id)
    log.tracker.allocate_blocks_to_batch(T1)
    assert len(log.tracker.get_blocks_of_batch(T1)) == 2


def test_the_newest_block_is_cleaned_up_once_the_sequence_is_closed(log: Log) -> None:
    receiver_id, _ = removed(log)
    process_all(log)
    clean_up(log, receiver_id)
    blocks = sa.text("SELECT count(*) FROM forebay.blocks WHERE receiver_id = :id AND segment_id IS NOT NULL")
    assert log.connection.execute(blocks, {"id": receiver_id}).scalar_one() == 1
    assert forget(log) == (1, 0)
    log.tracker.allocate_blocks_to_batch(T1 + 2 * INTERVAL)
    clean_up(log, receiver_id)
    assert log.connection.execute(blocks, {"id": receiver_id}).scalar_one() == 0


@pytest.mark.parametrize("after", ["closed", "forgotten"])
def test_a_late_process_is_fenced_and_its_claim_refused(log: Log, after: str) -> None:
    receiver_id, claimed = removed(log)
    late = block(claimed, claimed.sequence + 3)
    seal_all(log)
    process_all(log)
    if after == "closed":
        assert forget(log) == (1, 0)
    else:
        close_long_ago(log, receiver_id)
        clean_up(log, receiver_id)
        assert forget(log) == (0, 1)
    assert add(log.connection, late).outcome is AddOutcome.FENCED
    [result] = add_blocks(log.connection, [late, replace(late, sequence=late.sequence + 1)])
    assert result.outcome is AddOutcome.FENCED
    with pytest.raises(NotAssignedError):
        claim_anew(log.connection, receiver_id, assignment=0)
    left = sa.text("SELECT count(*) FROM forebay.blocks WHERE receiver_id = :id AND sequence >= :s AND records > 0")
    assert log.connection.execute(left, {"id": receiver_id, "s": late.sequence}).scalar_one() == 0


def test_a_receiver_that_is_declared_again_goes_on_with_its_sequence(log: Log) -> None:
    receiver_id, claimed = removed(log)
    assert forget(log) == (1, 0)
    apply_stream(log.connection, name="lines", declaration={"source": {}, "settings": {}}, receivers=2)
    [_, again] = placements(log.connection)
    assert again.receiver_id == receiver_id
    new = claim_anew(log.connection, receiver_id, assignment=again.assignment)
    assert new.sequence == claimed.sequence + 4, "two blocks, then the marker that closed it"
    assert add(log.connection, block(new, new.sequence + 1)).outcome is AddOutcome.ADDED
    assert forget(log) == (0, 0)
    assert exists(log, receiver_id)


@pytest.mark.parametrize("what", ["recently removed", "recently closed", "live process", "dead letter", "history"])
def test_what_may_still_be_needed_keeps_it(log: Log, what: str) -> None:
    receiver_id, _ = removed(log)
    seal_all(log)
    process_all(log)
    close_long_ago(log, receiver_id)
    if what == "history":
        clean_up_receiver(log.connection, receiver_id=receiver_id, threshold=datetime.now(UTC), max_rows=1000)
    else:
        clean_up(log, receiver_id)
    if what == "recently removed":
        log.connection.execute(sa.text("UPDATE forebay.receivers SET removed_at = now() - interval '13 days'"))
    elif what == "recently closed":
        log.connection.execute(sa.text("UPDATE forebay.blocks SET added_at = now() - interval '13 days'"))
    elif what == "live process":
        process = register_process(log.connection, kind=ProcessKind.RECEIVER, name="r", host="h", pid=1)
        log.connection.execute(sa.text("UPDATE forebay.receivers SET process_id = :p"), {"p": process})
    elif what == "dead letter":
        letter = StoredDeadLetter("no record", 0, 1, BlockHandle(1, 0, 1, 1))
        add_dead_letters(log.connection, [letter], receiver_id=receiver_id, epoch=1)
    assert forget(log) == (0, 0)
    assert exists(log, receiver_id)


def test_a_receiver_whose_process_may_still_drain_is_not_closed(log: Log) -> None:
    _, claimed = removed(log, age=timedelta(minutes=59))
    assert forget(log) == (0, 0)
    assert add(log.connection, block(claimed, claimed.sequence + 3)).outcome is AddOutcome.ADDED


def test_a_deposed_leader_forgets_nothing(log: Log) -> None:
    removed(log)
    with pytest.raises(DeposedError):
        forget_receivers(log.connection, keep=KEEP, max_rows=100, term=7)


def test_it_reads_the_removed_receivers_alone(log: Log) -> None:
    query = "SELECT forebay.forget_receivers(NULL, interval '14 days', 0, 100)"
    buffers(log.connection, query)  # what the session reads of the catalogue once
    few = buffers(log.connection, query)
    log.connection.execute(
        sa.text("""
            INSERT INTO forebay.receivers (stream_id, ordinal)
            SELECT :stream, n
            FROM generate_series(10, 5000) AS n
        """),
        {"stream": log.stream_id},
    )
    log.connection.exec_driver_sql("ANALYZE forebay.receivers")
    buffers(log.connection, query)  # what making another plan reads
    # 5,000 rows are more than 100 pages.
    assert buffers(log.connection, query) <= few + 20
