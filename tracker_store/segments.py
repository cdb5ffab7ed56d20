"""Statements on `log_segments`: a segment's row comes before its file, so a sweep never meets an unknown file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.engine import named_failures

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A segment that was never sealed; `path` is relative to the block store's root."""

    segment_id: int
    receiver_id: int
    epoch: int
    path: str
    source_rule: str


def open_segment(connection: sa.Connection, *, receiver_id: int, epoch: int, path: str, source_rule: str) -> int:
    """Insert the row of a segment that is about to be made; returns its id. Locks: the new row.

    Asked again for the same path (the answer was lost), it returns the row that is there.
    """
    with named_failures():
        segment_id: int = connection.execute(
            sa.text(
                "INSERT INTO forebay.log_segments (receiver_id, epoch, path, source_rule) "
                "VALUES (:receiver, :epoch, :path, :source_rule) "
                "ON CONFLICT (path) DO UPDATE SET path = excluded.path RETURNING id"
            ),
            {"receiver": receiver_id, "epoch": epoch, "path": path, "source_rule": source_rule},
        ).scalar_one()
    return segment_id


def seal_segment(connection: sa.Connection, *, segment_id: int, length: int) -> None:
    """Record that a segment is `length` bytes long for good. Locks: its row. Repeating it changes nothing."""
    with named_failures():
        connection.execute(
            sa.text(
                "UPDATE forebay.log_segments SET state = 'SEALED', length = :length, sealed_at = clock_timestamp() "
                "WHERE id = :id AND state = 'OPEN'"
            ),
            {"id": segment_id, "length": length},
        )


def open_segments_before(connection: sa.Connection, *, receiver_id: int, epoch: int) -> Sequence[OpenSegment]:
    """The receiver's unsealed segments of epochs before `epoch`, oldest first. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text(
                "SELECT id, receiver_id, epoch, path, source_rule FROM forebay.log_segments "
                "WHERE receiver_id = :receiver AND epoch < :epoch AND state = 'OPEN' ORDER BY id"
            ),
            {"receiver": receiver_id, "epoch": epoch},
        ).all()
    return [OpenSegment(row.id, row.receiver_id, row.epoch, row.path, row.source_rule) for row in rows]
