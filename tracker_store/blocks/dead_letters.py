"""Write and find `dead_letters`: records that could not be processed. Each is kept, or counted as dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.blocks.blocks import BlockHandle
from tracker_store.connection.engine import named_failures

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """Dead letters stored in one frame of a segment: a group of `letters` records, or one part of a large record.

    `bytes` is their size as stored. `dropped` records of the same reason were counted and not stored: their senders had
    used up their budgets. `dropped_bytes` is the size of those, and of what was not kept of too large records.
    """

    reason: str
    part: int
    bytes: int
    handle: BlockHandle
    letters: int = 1
    dropped: int = 0
    dropped_bytes: int = 0


def add_dead_letters(
    connection: sa.Connection, letters: Sequence[StoredDeadLetter], *, receiver_id: int, epoch: int
) -> int:
    """Record those of `letters` that have no row yet, in order; returns how many. Locks: the new rows.

    Calling it again with the same handles (the answer was lost) changes nothing.
    """
    with named_failures():
        return connection.execute(
            sa.text("""
                INSERT INTO forebay.dead_letters (
                    receiver_id, epoch, reason, part, bytes, segment_id, "offset", length, crc32c,
                    letters, dropped, dropped_bytes
                )
                SELECT :receiver, :epoch, l.*
                FROM unnest(
                    CAST(:reasons AS text[]), CAST(:parts AS integer[]), CAST(:bytes AS bigint[]),
                    CAST(:segments AS bigint[]), CAST(:offsets AS bigint[]), CAST(:lengths AS bigint[]),
                    CAST(:checksums AS bigint[]), CAST(:letters AS bigint[]), CAST(:dropped AS bigint[]),
                    CAST(:dropped_bytes AS bigint[])
                ) AS l
                ON CONFLICT (segment_id, "offset") DO NOTHING
            """),
            {
                "receiver": receiver_id,
                "epoch": epoch,
                "reasons": [letter.reason for letter in letters],
                "parts": [letter.part for letter in letters],
                "bytes": [letter.bytes for letter in letters],
                "segments": [letter.handle.segment_id for letter in letters],
                "offsets": [letter.handle.offset for letter in letters],
                "lengths": [letter.handle.length for letter in letters],
                "checksums": [letter.handle.crc32c for letter in letters],
                "letters": [letter.letters for letter in letters],
                "dropped": [letter.dropped for letter in letters],
                "dropped_bytes": [letter.dropped_bytes for letter in letters],
            },
        ).rowcount


def find_dead_letter(connection: sa.Connection, dead_letter_id: int) -> tuple[str, BlockHandle] | None:
    """Return the path of a dead letter's segment and its handle there; None: there is no such row. No locks."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT g.path, d.segment_id, d."offset", d.length, d.crc32c
                FROM forebay.dead_letters d
                JOIN forebay.log_segments g ON g.id = d.segment_id
                WHERE d.id = :id
            """),
            {"id": dead_letter_id},
        ).one_or_none()
    return None if row is None else (row.path, BlockHandle(row.segment_id, row.offset, row.length, row.crc32c))


@dataclass(frozen=True, slots=True)
class DeadLetterSums:
    """Sum up the rows of a receiver and a reason; `dropped` records were counted and not kept.

    `removed`: a declaration no longer has the receiver.
    """

    stream: str
    ordinal: int
    removed: bool
    reason: str
    rows: int
    letters: int
    bytes: int
    dropped: int
    dropped_bytes: int
    first_at: datetime
    newest_at: datetime
    newest_id: int


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """Hold a row of dead letters: a group of `letters` records, or one part of a large record.

    `replayed_at`: when it was sent again, or written to a file for that, and `replayed_to` where to. `replay_wanted`:
    its receiver parses it again at its next start. `left_records`: numbers, from 1, of those that did not fit then.
    """

    id: int
    receiver_id: int
    stream: str
    ordinal: int
    reason: str
    part: int
    letters: int
    bytes: int
    dropped: int
    dropped_bytes: int
    epoch: int
    added_at: datetime
    replayed_at: datetime | None
    replayed_to: str
    replay_wanted: bool = False
    left_records: Sequence[int] | None = None

    @property
    def waiting_records(self) -> Sequence[int]:
        """Return the numbers, from 1, of the records that its receiver has not put into a block."""
        return range(1, self.letters + 1) if self.left_records is None else self.left_records


_ROWS = """
    FROM forebay.dead_letters d
    JOIN forebay.receivers r ON r.id = d.receiver_id
    JOIN forebay.streams s ON s.id = r.stream_id
    WHERE (CAST(:stream AS text) IS NULL OR s.name = :stream)
      AND (CAST(:ordinal AS integer) IS NULL OR r.ordinal = :ordinal)
      AND (CAST(:reason AS text) IS NULL OR d.reason = :reason)
"""


def sum_dead_letters(
    connection: sa.Connection, *, stream: str | None = None, ordinal: int | None = None, reason: str | None = None
) -> list[DeadLetterSums]:
    """Return sums by receiver and reason, of all or of those that are named. No locks; reads every row that counts."""
    with named_failures():
        rows = connection.execute(
            sa.text(f"""
                SELECT s.name AS stream, r.ordinal, r.removed_at IS NOT NULL AS removed, d.reason,
                    count(*) AS rows, sum(d.letters)::bigint AS letters, sum(d.bytes)::bigint AS bytes,
                    sum(d.dropped)::bigint AS dropped, sum(d.dropped_bytes)::bigint AS dropped_bytes,
                    min(d.added_at) AS first_at, max(d.added_at) AS newest_at, max(d.id) AS newest_id
                {_ROWS}
                GROUP BY s.name, r.ordinal, r.id, d.reason
                ORDER BY s.name, r.ordinal, r.id, d.reason
            """),
            {"stream": stream, "ordinal": ordinal, "reason": reason},
        ).all()
    return [DeadLetterSums(**row._mapping) for row in rows]  # noqa: SLF001  SQLAlchemy's public name


def newest_dead_letters(
    connection: sa.Connection,
    *,
    limit: int,
    stream: str | None = None,
    ordinal: int | None = None,
    reason: str | None = None,
) -> list[DeadLetterRow]:
    """Return the newest rows, oldest first, of all or of those that are named. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text(f"""
                SELECT d.id, d.receiver_id, s.name AS stream, r.ordinal, d.reason, d.part, d.letters, d.bytes,
                    d.dropped, d.dropped_bytes, d.epoch, d.added_at, d.replayed_at, d.replayed_to,
                    d.replay_wanted, d.left_records
                {_ROWS}
                ORDER BY d.id DESC LIMIT :limit
            """),
            {"stream": stream, "ordinal": ordinal, "reason": reason, "limit": limit},
        ).all()
    return [DeadLetterRow(**row._mapping) for row in reversed(rows)]  # noqa: SLF001  as above


def read_dead_letter_row(connection: sa.Connection, dead_letter_id: int) -> DeadLetterRow | None:
    """Return one row, or None. No locks."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT d.id, d.receiver_id, s.name AS stream, r.ordinal, d.reason, d.part, d.letters, d.bytes,
                    d.dropped, d.dropped_bytes, d.epoch, d.added_at, d.replayed_at, d.replayed_to,
                    d.replay_wanted, d.left_records
                FROM forebay.dead_letters d
                JOIN forebay.receivers r ON r.id = d.receiver_id
                JOIN forebay.streams s ON s.id = r.stream_id
                WHERE d.id = :id
            """),
            {"id": dead_letter_id},
        ).one_or_none()
    return None if row is None else DeadLetterRow(**row._mapping)  # noqa: SLF001  as above


def mark_replayed(connection: sa.Connection, dead_letter_id: int, *, to: str, again: bool) -> datetime | None:
    """Record that a row is sent again, before it is; return when, or None if it was before and is not to be `again`.

    A row that its receiver is to parse again gives None too: both would store its records. Locks: the row. Of two
    callers, one gets None.
    """
    with named_failures():
        marked: datetime | None = connection.execute(
            sa.text("""
                UPDATE forebay.dead_letters
                SET replayed_at = clock_timestamp(), replayed_to = :to
                WHERE id = :id AND (replayed_at IS NULL OR CAST(:again AS boolean)) AND NOT replay_wanted
                RETURNING replayed_at
            """),
            {"id": dead_letter_id, "to": to, "again": again},
        ).scalar()
    return marked


def restore_replayed(connection: sa.Connection, row: DeadLetterRow, *, marked: datetime) -> None:
    """Take the mark of `marked` back, because nothing was sent: the row is again as `row` was read. Locks: the row."""
    with named_failures():
        connection.execute(
            sa.text("""
                UPDATE forebay.dead_letters
                SET replayed_at = :before, replayed_to = :before_to
                WHERE id = :id AND replayed_at = :marked
            """),
            {"id": row.id, "before": row.replayed_at, "before_to": row.replayed_to, "marked": marked},
        )


def want_replay(connection: sa.Connection, dead_letter_id: int, *, again: bool) -> bool:
    """Ask the row's receiver to parse it again at its next start; return False if it was replayed, and not `again`.

    Locks: the row.
    """
    with named_failures():
        return bool(
            connection.execute(
                sa.text("""
                    UPDATE forebay.dead_letters SET replay_wanted = true
                    WHERE id = :id AND (replayed_at IS NULL OR CAST(:again AS boolean))
                """),
                {"id": dead_letter_id, "again": again},
            ).rowcount
        )


@dataclass(frozen=True, slots=True)
class WantedLetters:
    """Hold a row that its receiver is to parse again: where it is, and which of its records (from 1)."""

    id: int
    path: str
    handle: BlockHandle
    records: Sequence[int] | None


def wanted_letters(connection: sa.Connection, receiver_id: int) -> list[WantedLetters]:
    """Return the rows that a receiver is to parse again, in order. No locks; by the index of these rows."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT d.id, g.path, d.segment_id, d."offset", d.length, d.crc32c, d.left_records
                FROM forebay.dead_letters d
                JOIN forebay.log_segments g ON g.id = d.segment_id
                WHERE d.receiver_id = :receiver AND d.replay_wanted
                ORDER BY d.id
            """),
            {"receiver": receiver_id},
        ).all()
    return [
        WantedLetters(
            row.id, row.path, BlockHandle(row.segment_id, row.offset, row.length, row.crc32c), row.left_records
        )
        for row in rows
    ]


def end_letter_replay(connection: sa.Connection, dead_letter_id: int, *, left: Sequence[int] | None, to: str) -> bool:
    """Record which records of a row (from 1; None: all) its receiver left; return False if that was done before.

    Locks: the row.
    """
    with named_failures():
        ended: bool = connection.execute(
            sa.text("SELECT forebay.end_letter_replay(:id, CAST(:left AS bigint[]), :to)"),
            {"id": dead_letter_id, "left": None if left is None else list(left), "to": to},
        ).scalar_one()
    return ended
