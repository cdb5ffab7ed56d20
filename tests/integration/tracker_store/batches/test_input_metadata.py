"""Test what a batch read from its sources: ranges of positions, recorded before clean-up deletes the links (O03)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tests.support.driver_log.log import INTERVAL, NOON, Log, add, block, claim_anew, make_log
from tracker_store.batches import batches
from tracker_store.batches.input_metadata import InputRange, input_metadata, record_input_metadata
from tracker_store.batches.outputs import commit_output
from tracker_store.blocks.blocks import ORIGIN, AddOutcome, Claim, OffsetLink, open_partition
from tracker_store.retention.cleanup import clean_up_offsets, clean_up_receiver
from tracker_store.retention.history import clean_up_history
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    from datetime import datetime

SECOND = timedelta(seconds=1)
T1, T2, T3 = (NOON + n * INTERVAL for n in (1, 2, 3))


class Source:
    """Add blocks of one receiver with links, at chosen times."""

    def __init__(self, log: Log, receiver_id: int) -> None:
        self._log = log
        self._claim: Claim = claim_anew(log.connection, receiver_id)
        self._next = self._claim.sequence + 1
        self._set_time(self._claim.sequence, NOON)

    def add(self, at: datetime, *links: OffsetLink) -> None:
        """Add a block with these links; partitions are opened where their first link begins."""
        for link in links:
            if link.kind is LinkKind.BLOCK and link.generation == 0:
                open_partition(
                    self._log.connection,
                    receiver_id=self._claim.receiver_id,
                    source=link.source,
                    partition=link.partition,
                    start_offset=link.from_offset,
                )
        made = replace(block(self._claim, self._next), links=links)
        assert add(self._log.connection, made).outcome is AddOutcome.ADDED
        self._set_time(self._next, at)
        self._next += 1

    def _set_time(self, sequence: int, at: datetime) -> None:
        self._log.connection.execute(
            sa.text("UPDATE forebay.blocks SET added_at = :at WHERE receiver_id = :r AND sequence = :s"),
            {"at": at, "r": self._claim.receiver_id, "s": sequence},
        )


def link(partition: str, from_offset: int, to_offset: int, **more: Any) -> OffsetLink:  # noqa: ANN401
    return OffsetLink("orders", partition, more.pop("generation", 0), from_offset, to_offset, **more)


def read(log: Log, time: datetime, **more: int) -> list[tuple[str, int, int, int, int]]:
    """Return the ranges of a batch as (partition, generation, from, to, lost)."""
    found = input_metadata(log.connection, log.pipeline_id, time, **more)
    assert found.known
    return [(r.partition, r.generation, r.from_offset, r.to_offset, r.lost) for r in found.ranges]


def attempt(log: Log, time: datetime) -> None:
    """Run a batch: as a run does, record what it read, and complete it."""
    at: dict[str, Any] = {"pipeline_id": log.pipeline_id, "batch_time": time, "attempt": 1}
    batches.claim_attempt(log.connection, **at, run_id="r", process_id=1)
    record_input_metadata(log.connection, log.pipeline_id, time)
    commit_output(log.connection, **at, output="counts", location="", rows=1)
    batches.complete_batch(log.connection, **at, outputs=["counts"])


def test_o03_a_batch_has_the_ranges_of_its_partitions_and_the_next_begins_where_it_ended(
    connection: sa.Connection,
) -> None:
    log = make_log(connection, receivers=2)
    one, two = (Source(log, receiver_id) for receiver_id in log.receiver_ids)
    one.add(NOON + SECOND, link("0", 100, 110), link("1", 5, 6))
    one.add(NOON + 2 * SECOND, link("0", 110, 130))
    two.add(NOON + 3 * SECOND, OffsetLink("logs", "h/a.log@17-9", 0, 0, 4096))
    # The partition moves to the other receiver in a rebalance.
    two.add(NOON + 4 * SECOND, link("0", 130, 131))
    one.add(T1 + SECOND, link("1", 6, 9), link("10", 0, 1))
    for time in (T1, T2):
        log.tracker.allocate_blocks_to_batch(time)
    first = [
        InputRange("lines", "logs", "h/a.log@17-9", 0, 0, 4096, 0),
        InputRange("lines", "orders", "0", 0, 100, 131, 0),
        InputRange("lines", "orders", "1", 0, 5, 6, 0),
    ]
    assert input_metadata(connection, log.pipeline_id, T1).ranges == first
    for time in (T1, T2):
        attempt(log, time)
    # The same from what was recorded.
    found = input_metadata(connection, log.pipeline_id, T1)
    assert (found.ranges, found.total, found.no_positions, found.known) == (first, 3, [], True)
    assert read(log, T2) == [("1", 0, 6, 9, 0), ("10", 0, 0, 1, 0)]
    bounded = input_metadata(connection, log.pipeline_id, T1, limit=2)
    assert (bounded.ranges, bounded.total) == (first[:2], 3)
    rows = connection.execute(
        sa.text("SELECT * FROM forebay.batch_input_metadata WHERE source = 'orders' ORDER BY batch_time, partition")
    ).mappings()
    assert [(row["pipeline"], row["stream"], row["partition"], row["positions"]) for row in rows] == [
        ("words", "lines", "0", 31),
        ("words", "lines", "1", 1),
        ("words", "lines", "1", 3),
        ("words", "lines", "10", 1),
    ]


def test_what_was_lost_a_gap_and_a_new_generation_stay_visible(connection: sa.Connection) -> None:
    log = make_log(connection, receivers=2)
    one, two = (Source(log, receiver_id) for receiver_id in log.receiver_ids)
    one.add(
        NOON + SECOND,
        link("0", 0, 10),
        link("0", 10, 25, kind=LinkKind.LOST),
        link("0", 25, 30),
        # Facts about the source, which are no positions.
        link("topic id of 0", ORIGIN, 12345, kind=LinkKind.ORIGIN),
        link("1", 7, 8),
    )
    # In the other receiver's range, which the limit cuts off: this batch has a gap.
    two.add(NOON + 2 * SECOND, link("0", 30, 40))
    two.add(NOON + 3 * SECOND, link("0", 40, 50))
    one.add(NOON + 4 * SECOND, link("0", 50, 60))
    one.add(
        NOON + 5 * SECOND,
        link("1", ORIGIN, 0, generation=1, kind=LinkKind.ORIGIN),
        link("1", 0, 3, generation=1),
    )
    connection.execute(
        sa.text("UPDATE forebay.blocks SET added_at = :at WHERE receiver_id = :r AND sequence > 2"),
        {"at": T1 + SECOND, "r": log.receiver_ids[1]},
    )
    log.tracker.allocate_blocks_to_batch(T1)
    expected = [("0", 0, 0, 40, 15), ("0", 0, 50, 60, 0), ("1", 0, 7, 8, 0), ("1", 1, 0, 3, 0)]
    assert read(log, T1) == expected
    attempt(log, T1)
    assert read(log, T1) == expected


def test_it_stays_after_clean_up_and_goes_with_the_batch(connection: sa.Connection, log: Log) -> None:
    source = Source(log, log.receiver_ids[0])
    for number, time in enumerate((NOON, T1, T2)):
        source.add(time + SECOND, link("0", 10 * number, 10 * number + 10))
        source.add(time + 2 * SECOND)
    for time in (T1, T2, T3):
        log.tracker.allocate_blocks_to_batch(time)
    # The second batch ran before Forebay recorded positions.
    for time in (T1, T2, T3):
        attempt(log, time)
    connection.execute(
        sa.text("DELETE FROM forebay.batch_inputs WHERE batch_time = :t"),
        {"t": T2},
    )
    connection.execute(sa.text("UPDATE forebay.batches SET inputs = NULL WHERE batch_time = :t"), {"t": T2})
    now = connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
    clean_up_receiver(connection, receiver_id=log.receiver_ids[0], threshold=now, max_rows=100)
    assert clean_up_offsets(connection, stream_id=log.stream_id, max_rows=100) > 0
    assert read(log, T1) == [("0", 0, 0, 10, 0)]
    assert read(log, T3) == [("0", 0, 20, 30, 0)]
    unknown = input_metadata(connection, log.pipeline_id, T2)
    assert (unknown.ranges, unknown.total, unknown.known) == ((), 0, False)
    # A replay can't record what is gone.
    assert record_input_metadata(connection, log.pipeline_id, T2) is None
    assert not input_metadata(connection, log.pipeline_id, T2).known
    clean_up_history(connection, pipeline_id=log.pipeline_id, keep=timedelta(0), max_rows=100)
    left = connection.execute(sa.text("SELECT batch_time FROM forebay.batch_inputs")).scalars()
    assert list(left) == connection.execute(sa.text("SELECT batch_time FROM forebay.batches")).scalars().all()


def test_a_stream_without_positions_is_named(connection: sa.Connection, log: Log) -> None:
    log.add_at(log.receiver_ids[0], NOON + SECOND)
    log.tracker.allocate_blocks_to_batch(T1)
    log.tracker.allocate_blocks_to_batch(T2)
    for recorded in (False, True):
        if recorded:
            assert record_input_metadata(connection, log.pipeline_id, T1) == 0
        found = input_metadata(connection, log.pipeline_id, T1)
        assert (found.ranges, found.no_positions, found.known) == ([], ["lines"], True)
    assert input_metadata(connection, log.pipeline_id, T2).no_positions == [], "a batch without records read nothing"
    assert not input_metadata(connection, log.pipeline_id, T3).known, "there is no such batch"
    assert record_input_metadata(connection, log.pipeline_id, T3) is None


def test_it_is_recorded_once(connection: sa.Connection, log: Log) -> None:
    source = Source(log, log.receiver_ids[0])
    source.add(NOON + SECOND, link("0", 0, 10))
    log.tracker.allocate_blocks_to_batch(T1)
    assert [record_input_metadata(connection, log.pipeline_id, T1) for _ in range(2)] == [1, 1]
    assert read(log, T1) == [("0", 0, 0, 10, 0)]


def test_it_costs_the_batchs_own_links_however_many_there_are(connection: sa.Connection, log: Log) -> None:
    [receiver] = log.receiver_ids
    source = Source(log, receiver)
    for number in range(3):
        source.add(NOON + SECOND, link("0", number, number + 1))
    log.tracker.allocate_blocks_to_batch(T1)
    # Files that were read long ago, and a long chain.
    connection.execute(
        sa.text(
            "INSERT INTO forebay.block_offsets SELECT :s, 'files', n::text, 0, 0, 9, 'block', :r, 1000000 + n "
            "FROM generate_series(1, 20000) AS n UNION ALL "
            "SELECT :s, 'orders', '7', 0, n, n + 1, 'block', :r, 2000000 + n FROM generate_series(0, 20000) AS n"
        ),
        {"s": log.stream_id, "r": receiver},
    )
    connection.execute(sa.text("ANALYZE forebay.block_offsets"))
    connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
    statement = sa.text("SELECT seq_scan, idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'block_offsets'")
    before = connection.execute(statement).one()
    assert record_input_metadata(connection, log.pipeline_id, T1) == 1
    connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
    after = connection.execute(statement).one()
    assert after.seq_scan == before.seq_scan
    assert after.idx_tup_fetch - before.idx_tup_fetch < 20
