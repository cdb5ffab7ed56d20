"""Write and find `dead_letters`: records that could not be processed. Each is kept, or counted as dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.blocks import BlockHandle
from tracker_store.engine import named_failures

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """Dead letters stored in one frame of a segment: a group of `letters` records, or one part of a large record.

    `bytes` is their size as received. `dropped` records of the same reason, with `dropped_bytes`, were counted and not
    stored: their senders had used up their budgets.
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
