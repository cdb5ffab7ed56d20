"""Delete rows that can no longer be asked for, then the files that no row names.

Order: event and rows in one transaction (``functions/clean_up/clean_up_receiver.sql``), then a segment's row is marked,
then its file is deleted, then its row. A crash between any two of these leaves something that the next run finds; a
file that is already gone is a success. The leader passes its `term`, and a statement has an effect only in that term;
other callers pass none. Nothing here deletes a file: the cleaner does, between `segments_to_delete` and
`forget_segment`.

`receivers_to_clean_up` and `streams_to_clean_up` look for what there is to take, so that a round asks nothing about a
receiver or stream that has nothing. They decide nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.receivers.leadership import LED, DeposedError

if TYPE_CHECKING:
    from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """Count the rows that one call deleted. No pipeline had read the `unread_records`; `more`: call again."""

    blocks: int
    records: int
    bytes: int
    unread_records: int
    more: bool


@dataclass(frozen=True, slots=True)
class Slice:
    """One of `slices` equal parts, by id, in which a look returns each receiver, stream or pipeline, whatever it has.

    A caller that takes each part in turn asks about each of them again after `slices` looks.
    """

    number: int
    slices: int


@dataclass(frozen=True, slots=True)
class ReceiversToCleanUp:
    """List the receivers of one look that have blocks, or segments, to delete now; removed receivers are included.

    `last_id`: continue after it; None: there are no more.
    """

    last_id: int | None
    of_blocks: list[int]
    of_segments: list[int]


@dataclass(frozen=True, slots=True)
class StreamsToCleanUp:
    """List the streams of one look that have links or keys to delete now; removed streams are included.

    `last_id`: continue after it; None: there are no more.
    """

    last_id: int | None
    stream_ids: list[int]


@dataclass(frozen=True, slots=True)
class DeletableSegment:
    """Name a segment whose file may be deleted; `path` is relative to the block store's root."""

    segment_id: int
    path: str


def receivers_to_clean_up(
    connection: sa.Connection,
    *,
    threshold: datetime,
    restore_window: timedelta,
    max_receivers: int,
    max_segments: int,
    part: Slice,
    after_id: int = 0,
) -> ReceiversToCleanUp:
    """Look for what `clean_up_receiver` and `segments_to_delete` would take of the next `max_receivers` receivers.

    May return a receiver that has nothing. A segment behind a receiver's first `max_segments`, if those are held, is
    found only when the receiver is in the `part`. No locks.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT last_id, of_blocks, of_segments
                FROM forebay.receivers_to_clean_up(
                    :threshold, :restore_window, :after, :max_receivers, :max_segments, :slices, :slice
                )
            """),
            {
                "threshold": threshold,
                "restore_window": restore_window,
                "after": after_id,
                "max_receivers": max_receivers,
                "max_segments": max_segments,
                "slices": part.slices,
                "slice": part.number,
            },
        ).one()
    return ReceiversToCleanUp(row.last_id, row.of_blocks, row.of_segments)


def streams_to_clean_up(
    connection: sa.Connection, *, window: timedelta, max_streams: int, part: Slice, after_id: int = 0
) -> StreamsToCleanUp:
    """Look for what `clean_up_offsets` and `clean_up_keys` would take of the next `max_streams` streams.

    `window` is that of `clean_up_keys`. No locks.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT last_id, stream_ids
                FROM forebay.streams_to_clean_up(:window, :after, :max_streams, :slices, :slice)
            """),
            {
                "window": window,
                "after": after_id,
                "max_streams": max_streams,
                "slices": part.slices,
                "slice": part.number,
            },
        ).one()
    return StreamsToCleanUp(row.last_id, row.stream_ids)


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
    """Delete at most `max_rows` expired idempotency keys of a stream; returns how many (0 in another's term).

    A key expires after the stream's own window, the setting `key_window`, or `window` if the declaration has none. Keys
    that may be needed after an outage stay longer (``functions/clean_up/clean_up_keys.sql``).

    Locks: leadership FOR SHARE, those keys.
    """
    with named_failures():
        gone: int | None = connection.execute(
            sa.text(f"""
                {LED}
                SELECT forebay.clean_up_keys(:stream, :window, :max_rows)
                FROM led
            """),  # noqa: S608  a constant
            {"stream": stream_id, "window": window, "max_rows": max_rows, "term": term},
        ).scalar_one_or_none()
    return gone or 0


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
    to the id `after` are left out. Cost: the segments before that of the first remaining block, and the markers between
    the low mark and that block, by an index.
    """
    with named_failures():
        rows = connection.execute(
            sa.text(f"""
                {LED}
                , mark AS MATERIALIZED (
                    SELECT r.low_mark,
                        (
                            -- Row by row, past the markers. One look-up that filters out the markers may be planned as
                            -- a bitmap, which reads all blocks that wait.
                            WITH RECURSIVE walk AS (
                                (
                                    SELECT b.sequence, b.segment_id
                                    FROM forebay.blocks b
                                    WHERE b.receiver_id = r.id AND b.sequence > r.low_mark
                                    ORDER BY b.sequence LIMIT 1
                                )
                                UNION ALL
                                SELECT n.sequence, n.segment_id
                                FROM walk w
                                CROSS JOIN LATERAL (
                                    SELECT b.sequence, b.segment_id
                                    FROM forebay.blocks b
                                    WHERE b.receiver_id = r.id AND b.sequence > w.sequence
                                    ORDER BY b.sequence LIMIT 1
                                ) AS n
                                WHERE w.segment_id IS NULL
                            )
                            SELECT w.segment_id FROM walk w WHERE w.segment_id IS NOT NULL LIMIT 1
                        ) AS segment_id,
                        (
                            SELECT b.epoch
                            FROM forebay.blocks b
                            WHERE b.receiver_id = r.id
                            ORDER BY b.sequence DESC LIMIT 1
                        ) AS epoch
                    FROM forebay.receivers r
                    WHERE r.id = :receiver
                ), found AS MATERIALIZED (
                    (
                        SELECT g.id
                        FROM forebay.log_segments g
                        WHERE g.receiver_id = :receiver AND g.id > :after AND g.state = 'DELETING'
                        ORDER BY g.id LIMIT :limit
                    )
                    UNION ALL
                    (
                        SELECT g.id
                        FROM mark m
                        JOIN forebay.log_segments g ON g.receiver_id = :receiver
                          AND g.id > :after
                          AND g.id < coalesce(m.segment_id, 9223372036854775807)
                        WHERE g.state = 'SEALED'
                          AND g.sealed_at < clock_timestamp() - CAST(:window AS interval)
                          AND (m.segment_id IS NOT NULL OR g.epoch < m.epoch)
                          AND (g.salvaged_sequence IS NULL OR g.salvaged_sequence <= m.low_mark)
                          AND g.kept_blocks = 0
                          -- OFFSET 0: a probe for each segment that is left, never a join with a whole table.
                          AND NOT EXISTS (SELECT 1 FROM forebay.dead_letters d WHERE d.segment_id = g.id OFFSET 0)
                        ORDER BY g.id LIMIT :limit
                    )
                )
                UPDATE forebay.log_segments
                SET state = 'DELETING'
                WHERE id IN (
                    SELECT g.id
                    FROM forebay.log_segments g
                    WHERE g.id = ANY (ARRAY(SELECT f.id FROM found f))
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
