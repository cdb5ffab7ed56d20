"""Read the newest blocks of a stream as they are registered, for people who look. It takes no locks and writes nothing.

It is no reader in the sense of `readers`: nothing keeps a block for it, so a block may be cleaned up before it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.blocks.blocks import BlockHandle
from tracker_store.connection.engine import named_failures

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class NewestBlock:
    """Hold a block, or a marker (path and handle are None), as it was registered."""

    receiver_id: int
    ordinal: int
    sequence: int
    added_at: datetime
    records: int
    path: str | None
    handle: BlockHandle | None


def newest_sequences(connection: sa.Connection, stream_id: int, ordinal: int | None = None) -> dict[int, int]:
    """Return the newest sequence of each receiver of a stream, or of one of them; 0 before the first. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT r.id, coalesce(newest.sequence, 0) AS sequence
                FROM forebay.receivers r
                LEFT JOIN LATERAL (
                    SELECT b.sequence
                    FROM forebay.blocks b
                    WHERE b.receiver_id = r.id
                    ORDER BY b.sequence DESC LIMIT 1
                ) AS newest ON true
                WHERE r.stream_id = :stream
                  AND r.removed_at IS NULL
                  AND (CAST(:ordinal AS integer) IS NULL OR r.ordinal = :ordinal)
            """),
            {"stream": stream_id, "ordinal": ordinal},
        ).all()
    return {row.id: row.sequence for row in rows}


def blocks_after(
    connection: sa.Connection, positions: Mapping[int, int], *, each: int, limit: int, newest: bool = False
) -> list[NewestBlock]:
    """Return blocks past the position of each receiver, at most `each` of one and `limit` in all, oldest first.

    `newest`: where there are more, the newest ones, else the oldest. Those of one receiver come in order. No locks.
    """
    order = "DESC" if newest else "ASC"
    with named_failures():
        rows = connection.execute(
            sa.text(f"""
                SELECT *
                FROM (
                    SELECT b.receiver_id, r.ordinal, b.sequence, b.added_at, b.records, g.path, b.segment_id,
                        b."offset", b.length, b.crc32c
                    FROM unnest(CAST(:receivers AS bigint[]), CAST(:sequences AS bigint[])) AS p (receiver_id, sequence)
                    JOIN forebay.receivers r ON r.id = p.receiver_id
                    CROSS JOIN LATERAL (
                        SELECT o.*
                        FROM forebay.blocks o
                        WHERE o.receiver_id = p.receiver_id AND o.sequence > p.sequence
                        ORDER BY o.sequence {order} LIMIT :each
                    ) AS b
                    LEFT JOIN forebay.log_segments g ON g.id = b.segment_id
                    ORDER BY b.added_at {order}, b.receiver_id {order}, b.sequence {order} LIMIT :limit
                ) AS found
                ORDER BY added_at, receiver_id, sequence
            """),  # noqa: S608  one of two constants
            {"receivers": list(positions), "sequences": list(positions.values()), "each": each, "limit": limit},
        ).all()
    return [
        NewestBlock(
            row.receiver_id,
            row.ordinal,
            row.sequence,
            row.added_at,
            row.records,
            row.path,
            None if row.path is None else BlockHandle(row.segment_id, row.offset, row.length, row.crc32c),
        )
        for row in rows
    ]
