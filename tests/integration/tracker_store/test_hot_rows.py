"""Test that what is updated all the time is updated in place (HOT): no index grows with heartbeats and batches."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from tests.support.driver_log.filled_receivers import fill
from tests.support.driver_log.log import NOON, make_log, seal
from tracker_store.blocks.segments import open_segment
from tracker_store.receivers.processes import heartbeat, register_process
from tracker_store.retention.cleanup import clean_up_receiver
from tracker_store.schema.states import ProcessKind

ROWS = 150
ROUNDS = 8
SECOND = timedelta(seconds=1)


def share_of_hot_updates(connection: sa.Connection, table: str) -> float:
    """Return which part of a table's updates left its indexes alone; there must have been many."""
    connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
    updated, hot = connection.execute(
        sa.text("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = :table"), {"table": table}
    ).one()
    assert updated >= ROUNDS - 1, updated
    return float(hot / updated)


def test_heartbeats_are_updates_in_place(connection: sa.Connection) -> None:
    processes = [
        register_process(connection, kind=ProcessKind.RECEIVER, name=f"lines/{n}", host="h", pid=n) for n in range(ROWS)
    ]
    for _ in range(ROUNDS):
        for process in processes:
            heartbeat(connection, process_id=process, receiver_ids=[1], queued={1: 5})
    assert share_of_hot_updates(connection, "processes") >= 0.9


def test_allocation_and_clean_up_are_updates_in_place(connection: sa.Connection) -> None:
    log = make_log(connection, receivers=ROWS)
    fill(connection, blocks=ROUNDS + 2)
    for number in range(ROUNDS):
        log.tracker.allocate_blocks_to_batch(NOON + (number + 1) * SECOND + SECOND / 2)
    assert share_of_hot_updates(connection, "cursors") >= 0.9
    assert share_of_hot_updates(connection, "pipelines") >= 0.9
    connection.execute(
        sa.text("UPDATE forebay.batches SET state = 'COMPLETED', completed_at = clock_timestamp() WHERE records > 0")
    )
    for _ in range(ROUNDS - 2):
        for receiver in log.receiver_ids:
            clean_up_receiver(connection, receiver_id=receiver, threshold=NOON + 100 * SECOND, max_rows=1)
    assert connection.execute(sa.text("SELECT min(low_mark) FROM forebay.receivers")).scalar_one() == ROUNDS - 2
    assert share_of_hot_updates(connection, "receivers") >= 0.9


def test_sums_of_storage_are_updated_in_place(connection: sa.Connection) -> None:
    for number in range(ROUNDS):
        for receiver in range(1, ROWS + 1):
            segment = open_segment(
                connection, receiver_id=receiver, epoch=1, path=f"{receiver}/{number}", source_rule="not_sent_again"
            )
            seal(connection, segment, 100)
    sums = connection.execute(sa.text("SELECT sealed_segments, segment_bytes FROM forebay.storage_totals")).all()
    assert {tuple(row) for row in sums} == {(ROUNDS, ROUNDS * 100)}
    assert share_of_hot_updates(connection, "storage_totals") >= 0.9
