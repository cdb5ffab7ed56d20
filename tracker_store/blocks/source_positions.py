"""Read and forget positions of sources with very many partitions, such as files: all at once, and by which peers.

``blocks`` has what every source with positions needs: ``open_partition``, and the links that are added with a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.blocks.blocks import Position
from tracker_store.connection.engine import named_failures

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Peer:
    """Identify an ACTIVE receiver of a stream, and its process; the process lives while ``heartbeat`` changes."""

    receiver_id: int
    process_id: int
    host: str
    heartbeat: int


def source_positions(connection: sa.Connection, *, receiver_id: int, source: str) -> dict[str, Position]:
    """Return the position of each partition of a source, by the partition's name. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("SELECT partition, generation, to_offset FROM forebay.source_positions(:receiver, :source)"),
            {"receiver": receiver_id, "source": source},
        ).all()
    return {row.partition: Position(row.generation, row.to_offset) for row in rows}


def peers_of(connection: sa.Connection, *, receiver_id: int) -> list[Peer]:
    """Return the ACTIVE receivers of a receiver's stream that have a process, and itself if it has one. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT r.id, p.id AS process_id, p.host, p.heartbeat
                FROM forebay.receivers me
                JOIN forebay.receivers r ON r.stream_id = me.stream_id
                JOIN forebay.processes p ON p.id = r.process_id
                WHERE me.id = :receiver
                  AND (r.id = me.id OR (r.removed_at IS NULL AND r.state = 'ACTIVE' AND p.ended_at IS NULL))
                ORDER BY r.id
            """),
            {"receiver": receiver_id},
        ).all()
    return [Peer(row.id, row.process_id, row.host, row.heartbeat) for row in rows]


def forget_partitions(connection: sa.Connection, *, receiver_id: int, source: str, partitions: Sequence[str]) -> int:
    """Delete all links of partitions that are over, except those whose blocks are still there; returns how many.

    Locks: the deleted links.
    """
    with named_failures():
        gone: int = connection.execute(
            sa.text("SELECT forebay.forget_partitions(:receiver, :source, :partitions)"),
            {"receiver": receiver_id, "source": source, "partitions": list(partitions)},
        ).scalar_one()
    return gone
