"""Read the driver log in bounded pages to compare it with the block store; only `forget_empty_segment` writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.blocks.blocks import BlockHandle
from tracker_store.connection.engine import named_failures
from tracker_store.schema.states import SegmentState

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = 5_000


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """Hold a segment as the driver log has it; `length` is None while it is open."""

    segment_id: int
    receiver_id: int
    path: str
    state: SegmentState
    length: int | None


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """Locate a block whose bytes must be there: registered, or kept for a quarantined batch."""

    receiver_id: int
    sequence: int
    path: str
    handle: BlockHandle


def segments(connection: sa.Connection) -> Iterator[SegmentRow]:
    """Yield every segment, page by page. No locks."""
    after = 0
    while True:
        with named_failures():
            rows = connection.execute(
                sa.text("""
                    SELECT id, receiver_id, path, state, length
                    FROM forebay.log_segments
                    WHERE id > :after
                    ORDER BY id LIMIT :page
                """),
                {"after": after, "page": PAGE},
            ).all()
        if not rows:
            return
        for row in rows:
            yield SegmentRow(row.id, row.receiver_id, row.path, SegmentState(row.state), row.length)
        after = rows[-1].id


@dataclass(frozen=True, slots=True)
class FoundSegment:
    """Hold a segment found by its path. `salvaged_to` and `salvaged_sequence` are 0 if nothing was salvaged from it."""

    segment_id: int
    receiver_id: int
    state: SegmentState
    salvaged_to: int
    salvaged_sequence: int


def find_segment(connection: sa.Connection, path: str) -> FoundSegment | None:
    """Return the row of a segment. No locks."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT id, receiver_id, state, coalesce(salvaged_to, 0) AS salvaged_to,
                    coalesce(salvaged_sequence, 0) AS salvaged_sequence
                FROM forebay.log_segments
                WHERE path = :path
            """),
            {"path": path},
        ).one_or_none()
    if row is None:
        return None
    return FoundSegment(row.id, row.receiver_id, SegmentState(row.state), row.salvaged_to, row.salvaged_sequence)


def offsets_of_rows(
    connection: sa.Connection, segment: FoundSegment, *, first_sequence: int, last_sequence: int
) -> set[int]:
    """Return the offsets in a segment of the blocks that rows name. No locks.

    The sequences are those of the segment's own blocks; blocks salvaged from it have later ones, which no index finds.
    """
    with named_failures():
        return set(
            connection.execute(
                sa.text("""
                    SELECT b."offset"
                    FROM forebay.blocks b
                    WHERE b.receiver_id = :receiver
                      AND b.segment_id = :id
                      AND b.sequence BETWEEN :first AND greatest(:last, :salvaged)
                """),
                {
                    "receiver": segment.receiver_id,
                    "id": segment.segment_id,
                    "first": first_sequence,
                    "last": last_sequence,
                    "salvaged": segment.salvaged_sequence,
                },
            ).scalars()
        )


def segment_paths_known(connection: sa.Connection, paths: list[str]) -> set[str]:
    """Return those of `paths` that a row names. No locks."""
    with named_failures():
        found = connection.execute(
            sa.text("SELECT path FROM forebay.log_segments WHERE path = ANY (CAST(:paths AS text[]))"),
            {"paths": paths},
        ).scalars()
        return set(found)


def stored_blocks(connection: sa.Connection) -> Iterator[StoredBlock]:
    """Yield every block that must be readable, once, by receiver and sequence; page by page. No locks."""
    after = (0, 0)
    while True:
        with named_failures():
            rows = connection.execute(
                sa.text("""
                    SELECT b.receiver_id, b.sequence, g.path, b.segment_id, b."offset", b.length, b.crc32c
                    FROM forebay.blocks b
                    JOIN forebay.log_segments g ON g.id = b.segment_id
                    WHERE (b.receiver_id, b.sequence) > (:receiver, :sequence)
                    ORDER BY b.receiver_id, b.sequence LIMIT :page
                """),
                {"receiver": after[0], "sequence": after[1], "page": PAGE},
            ).all()
        if not rows:
            return
        for row in rows:
            handle = BlockHandle(row.segment_id, row.offset, row.length, row.crc32c)
            yield StoredBlock(row.receiver_id, row.sequence, row.path, handle)
        after = (rows[-1].receiver_id, rows[-1].sequence)


def find_stored_block(connection: sa.Connection, *, stream: str, ordinal: int, sequence: int) -> StoredBlock | None:
    """Return a block by its receiver and sequence, even if it is only kept for a quarantined batch. No locks."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT e.receiver_id, e.sequence, g.path, e.segment_id, e."offset", e.length, e.crc32c
                FROM forebay.blocks e
                JOIN forebay.receivers r ON r.id = e.receiver_id
                JOIN forebay.streams s ON s.id = r.stream_id
                JOIN forebay.log_segments g ON g.id = e.segment_id
                WHERE s.name = :stream AND s.removed_at IS NULL AND r.ordinal = :ordinal AND e.sequence = :sequence
            """),
            {"stream": stream, "ordinal": ordinal, "sequence": sequence},
        ).one_or_none()
    if row is None:
        return None
    return StoredBlock(
        row.receiver_id, row.sequence, row.path, BlockHandle(row.segment_id, row.offset, row.length, row.crc32c)
    )


def count_stored_blocks(connection: sa.Connection) -> int:
    """Return about how many blocks `stored_blocks` will yield. No locks; O(receivers, and segments kept)."""
    with named_failures():
        count: int = connection.execute(
            sa.text("""
                SELECT coalesce(sum(newest.sequence - r.low_mark), 0)::bigint
                    + (
                        SELECT coalesce(sum(g.kept_blocks), 0)::bigint
                        FROM forebay.log_segments g
                        WHERE g.kept_blocks > 0
                    )
                FROM forebay.receivers r
                CROSS JOIN LATERAL (
                    SELECT b.sequence
                    FROM forebay.blocks b
                    WHERE b.receiver_id = r.id
                    ORDER BY b.sequence DESC LIMIT 1
                ) AS newest
            """)
        ).scalar_one()
    return count


def forget_empty_segment(connection: sa.Connection, segment_id: int) -> bool:
    """Delete a sealed segment's row if its file is missing and no block or dead letter needs it. Locks: the row."""
    with named_failures():
        gone = connection.execute(
            sa.text("""
                DELETE FROM forebay.log_segments g
                WHERE g.id = :id
                  AND g.state <> 'OPEN'
                  AND NOT EXISTS (
                      SELECT 1
                      FROM forebay.blocks b
                      WHERE b.receiver_id = g.receiver_id AND b.segment_id = g.id
                  )
                  AND NOT EXISTS (SELECT 1 FROM forebay.dead_letters d WHERE d.segment_id = g.id)
                RETURNING g.id
            """),
            {"id": segment_id},
        ).scalar()
    return gone is not None
