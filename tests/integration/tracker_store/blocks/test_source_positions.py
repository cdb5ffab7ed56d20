"""Test sources with very many partitions: all positions in one call, the sharing receivers, and forgetting old ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import Log, block, claim_anew, give_segments, make_log
from tracker_store.blocks.blocks import ORIGIN, OffsetLink, Position, add_blocks, open_partition, raise_for_outcome
from tracker_store.blocks.source_positions import forget_partitions, peers_of, source_positions
from tracker_store.connection.errors import OffsetConflictError
from tracker_store.receivers.processes import register_process
from tracker_store.schema.states import LinkKind, ProcessKind

if TYPE_CHECKING:
    from tracker_store.blocks.blocks import Claim


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    log = make_log(connection, receivers=2)
    give_segments(connection, *log.receiver_ids)
    return log


def add(log: Log, claimed: Claim, sequence: int, *links: OffsetLink) -> None:
    [result] = add_blocks(log.connection, [replace(block(claimed, sequence), links=links)])
    raise_for_outcome(result)


def new(partition: str, end: int, source: str = "files") -> tuple[OffsetLink, OffsetLink]:
    return (
        OffsetLink(source, partition, 0, ORIGIN, 0, LinkKind.ORIGIN),
        OffsetLink(source, partition, 0, 0, end),
    )


def test_all_positions_of_a_source_are_returned_at_once(log: Log) -> None:
    claimed = claim_anew(log.connection, log.receiver_ids[0])
    # An origin may come with the block, so that a new file requires no call of its own.
    add(log, claimed, 2, *new("a", 10), *new("b", 20), *new("other", 5, source="topic"))
    add(log, claimed, 3, OffsetLink("files", "a", 0, 10, 30), OffsetLink("files", "b", 1, ORIGIN, 0, LinkKind.ORIGIN))
    open_partition(log.connection, receiver_id=log.receiver_ids[1], source="files", partition="c", start_offset=7)
    for receiver_id in log.receiver_ids:
        assert source_positions(log.connection, receiver_id=receiver_id, source="files") == {
            "a": Position(0, 30),
            "b": Position(1, 0),
            "c": Position(0, 7),
        }
    assert source_positions(log.connection, receiver_id=log.receiver_ids[0], source="none") == {}


def test_two_receivers_that_begin_a_partition_with_their_blocks_conflict(log: Log) -> None:
    first, second = (claim_anew(log.connection, receiver_id) for receiver_id in log.receiver_ids)
    add(log, first, 2, *new("a", 10))
    with pytest.raises(OffsetConflictError):
        add(log, second, 2, *new("a", 20))


def test_a_forgotten_partition_is_gone_completely_and_no_receiver_continues_from_it(log: Log) -> None:
    claimed = claim_anew(log.connection, log.receiver_ids[0])
    add(log, claimed, 2, *new("a", 10), *new("b", 10))
    add(log, claimed, 3, OffsetLink("files", "b", 0, 10, 20))
    receiver_id = claimed.receiver_id

    def forget(*partitions: str) -> int:
        return forget_partitions(log.connection, receiver_id=receiver_id, source="files", partitions=partitions)

    # Their blocks are there.
    assert forget("a", "b", "none") == 0
    log.connection.execute(sa.text("UPDATE forebay.receivers SET low_mark = 2 WHERE id = :id"), {"id": receiver_id})
    assert forget("a", "b") == 2
    assert source_positions(log.connection, receiver_id=receiver_id, source="files") == {"b": Position(0, 20)}
    with pytest.raises(OffsetConflictError):
        add(log, claimed, 4, OffsetLink("files", "a", 0, 10, 20))


def test_peers_are_the_active_receivers_of_living_processes(log: Log) -> None:
    own, other = log.receiver_ids
    assert peers_of(log.connection, receiver_id=own) == []
    processes = {
        receiver_id: register_process(
            log.connection, kind=ProcessKind.RECEIVER, name=f"r{receiver_id}", host=f"host-{receiver_id}", pid=1
        )
        for receiver_id in log.receiver_ids
    }
    for receiver_id, process_id in processes.items():
        log.connection.execute(
            sa.text("UPDATE forebay.receivers SET process_id = :p, state = 'SCHEDULED' WHERE id = :r"),
            {"p": process_id, "r": receiver_id},
        )
    assert [(peer.receiver_id, peer.host) for peer in peers_of(log.connection, receiver_id=own)] == [
        (own, f"host-{own}")
    ]
    log.connection.execute(sa.text("UPDATE forebay.receivers SET state = 'ACTIVE'"))
    assert [peer.receiver_id for peer in peers_of(log.connection, receiver_id=own)] == [own, other]
    log.connection.execute(
        sa.text("UPDATE forebay.processes SET ended_at = clock_timestamp() WHERE id = :p"), {"p": processes[other]}
    )
    assert [peer.receiver_id for peer in peers_of(log.connection, receiver_id=own)] == [own]
