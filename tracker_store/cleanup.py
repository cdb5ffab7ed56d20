"""Delete rows that can no longer be asked for, then the files that no row names.

Order: event and rows in one transaction (``functions/clean_up_receiver.sql``), then a segment's row is marked, then its
file is deleted, then its row. A crash between any two of these leaves something that the next run finds; a file that is
already gone is a success. The leader passes its `term`, and a statement has an effect only in that term; other callers
pass none. Nothing here deletes a file: the cleaner does, between `segments_to_delete` and `forget_segment`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.engine import named_failures
from tracker_store.leadership import LED, DeposedError

if TYPE_CHECKING:
    from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """The rows that one call deleted. No pipeline had read the `unread_records`; `more`: call again."""

    blocks: int
    records: int
    bytes: int
    unread_records: int
    more: bool


@dataclass(frozen=True, slots=True)
class CleanableReceiver:
    """A receiver whose blocks may be cleaned up; removed receivers are included."""

    receiver_id: int
    stream_id: int


@dataclass(frozen=True, slots=True)
class DeletableSegment:
    """A segment whose file may be deleted; `path` is relative to the block store's root."""

    segment_id: int
    path: str


def cleanable_receivers(connection: sa.Connection) -> list[CleanableReceiver]:
    """Return every receiver, also of removed streams: their blocks are cleaned up like others. No locks."""
    with named_failures():
        rows = connection.execute(sa.text("SELECT id, stream_id FROM forebay.receivers ORDER BY id")).all()
    return [CleanableReceiver(row.id, row.stream_id) for row in rows]


def clean_up_receiver(
    connection: sa.Connection, *, receiver_id: int, threshold: datetime, max_rows: int, term: int | None = None
) -> CleanedUp:
    """Delete at most `max_rows` of a receiver's blocks that are older than `threshold` and no longer needed.

    Locks: leadership FOR SHARE, the receiver's row FOR UPDATE, then the deleted blocks. Raises DeposedError.
    """
    with named_failures():
        row = connection.execute(
            sa.text(f"""
                {LED}
                SELECT (cleaned.up).*
                FROM (
                    SELECT forebay.clean_up_receiver(:receiver, :threshold, :max_rows) AS up
                    FROM led
                    OFFSET 0
                ) AS cleaned
            """),  # noqa: S608  a constant
            {"receiver": receiver_id, "threshold": threshold, "max_rows": max_rows, "term": term},
        ).one_or_none()
    if row is None:
        raise DeposedError(f"term {term}")
    return CleanedUp(row.blocks, row.records, row.bytes, row.unread_records, row.more)


def clean_up_offsets(connection: sa.Connection, *, stream_id: int, max_rows: int, term: int | None = None) -> int:
    """Delete at most `max_rows` links whose blocks are gone; returns how many.

    Locks: leadership FOR SHARE, those links. Raises DeposedError.
    """
    with named_failures():
        gone: int | None = connection.execute(
            sa.text(f"""
                {LED}
                SELECT forebay.clean_up_offsets(:stream, :max_rows)
                FROM led
            """),  # noqa: S608  a constant
            {"stream": stream_id, "max_rows": max_rows, "term": term},
        ).scalar_one_or_none()
    if gone is None:
        raise DeposedError(f"term {term}")
    return gone


def clean_up_keys(
    connection: sa.Connection, *, stream_id: int, window: timedelta, max_rows: int, term: int | None = None
) -> int:
    """Delete at most `max_rows` idempotency keys older than `window`; returns how many (0 in another's term).

    The stream's own window, the setting `key_window` in seconds, takes precedence over `window`.

    Locks: leadership FOR SHARE, those keys.
    """
    with named_failures():
        return connection.execute(
            sa.text(f"""
                {LED}
                DELETE FROM forebay.record_keys
                WHERE (stream_id, key) IN (
                    SELECT stream_id, key
                    FROM forebay.record_keys
                    WHERE stream_id = :stream
                      AND added_at < clock_timestamp() - coalesce((
                          SELECT make_interval(secs => (s.declaration #>> '{{settings,key_window}}')::float8)
                          FROM forebay.streams s
                          WHERE s.id = :stream
                      ), CAST(:window AS interval))
                    ORDER BY added_at LIMIT :max_rows
                ) AND EXISTS (SELECT FROM led)
            """),  # noqa: S608  a constant
            {"stream": stream_id, "window": window, "max_rows": max_rows, "term": term},
        ).rowcount


def segments_to_delete(
    connection: sa.Connection,
    *,
    receiver_id: int,
    restore_window: timedelta,
    limit: int,
    after: int = 0,
    term: int | None = None,
) -> list[DeletableSegment]:
    """Mark and return sealed segments of a receiver that no row needs any more; none in another's term.

    Locks: leadership FOR SHARE, their rows.

    A receiver's segments are in the order of their ids, and so are its blocks: all segments before that of the first
    remaining block are done with, unless a kept block or a dead letter lies in them. Where only markers remain (the
    receiver was restarted and is idle), all segments of older epochs are done with. Salvage breaks that order: a
    segment of a process that was paused may be salvaged after younger ones, so the newest block that came from it is
    looked up by its sequence. `restore_window` keeps files for a database that is restored from an older backup, which
    would know their blocks again. Segments that an earlier call marked before a crash are returned again. Segments up
    to the id `after` are left out.
    """
    with named_failures():
        rows = connection.execute(
            sa.text(f"""
                {LED}
                UPDATE forebay.log_segments
                SET state = 'DELETING'
                WHERE id IN (
                    SELECT g.id
                    FROM forebay.log_segments g
                    WHERE g.receiver_id = :receiver
                      AND g.id > :after
                      AND (
                          g.state = 'DELETING'
                          OR g.state = 'SEALED'
                            AND g.sealed_at < clock_timestamp() - CAST(:window AS interval)
                            AND CASE
                                WHEN EXISTS (
                                    SELECT 1
                                    FROM forebay.blocks b
                                    WHERE b.receiver_id = :receiver AND b.segment_id IS NOT NULL
                                ) THEN g.id < (
                                    SELECT b.segment_id
                                    FROM forebay.blocks b
                                    WHERE b.receiver_id = :receiver AND b.segment_id IS NOT NULL
                                    ORDER BY b.sequence LIMIT 1
                                )
                                ELSE g.epoch < (
                                    SELECT b.epoch
                                    FROM forebay.blocks b
                                    WHERE b.receiver_id = :receiver
                                    ORDER BY b.sequence DESC LIMIT 1
                                )
                            END
                            AND (
                                g.salvaged_sequence IS NULL
                                OR g.salvaged_sequence <= (
                                    SELECT r.low_mark
                                    FROM forebay.receivers r
                                    WHERE r.id = :receiver
                                )
                            )
                            AND NOT EXISTS (SELECT 1 FROM forebay.kept_blocks k WHERE k.segment_id = g.id)
                            AND NOT EXISTS (SELECT 1 FROM forebay.dead_letters d WHERE d.segment_id = g.id)
                      )
                    ORDER BY g.id LIMIT :limit FOR UPDATE SKIP LOCKED
                ) AND EXISTS (SELECT FROM led)
                RETURNING id, path
            """),  # noqa: S608  a constant
            {"receiver": receiver_id, "window": restore_window, "limit": limit, "after": after, "term": term},
        ).all()
    return [DeletableSegment(row.id, row.path) for row in sorted(rows)]


def forget_segment(connection: sa.Connection, *, segment_id: int, term: int | None = None) -> None:
    """Delete the row of a segment whose file is gone. Locks: leadership FOR SHARE, the row."""
    with named_failures():
        connection.execute(
            sa.text(f"""
                {LED}
                DELETE FROM forebay.log_segments
                WHERE id = :id AND state = 'DELETING' AND EXISTS (SELECT FROM led)
            """),  # noqa: S608  a constant
            {"id": segment_id, "term": term},
        )
