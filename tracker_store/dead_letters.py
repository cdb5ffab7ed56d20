"""Statements on `dead_letters`: records that could not be processed, kept aside and counted, never dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.engine import named_failures

if TYPE_CHECKING:
    from tracker_store.blocks import BlockHandle


def add_dead_letter(
    connection: sa.Connection,
    *,
    receiver_id: int,
    epoch: int,
    reason: str,
    part: int,
    bytes: int,  # noqa: A002  the column's name
    handle: BlockHandle,
) -> None:
    """Record one dead letter (or `part` of one, from 0). Locks: the new row.

    Asked again for the same handle (the answer was lost), it changes nothing.
    """
    with named_failures():
        connection.execute(
            sa.text(
                "INSERT INTO forebay.dead_letters "
                '(receiver_id, epoch, reason, part, bytes, segment_id, "offset", length, crc32c) '
                "VALUES (:receiver, :epoch, :reason, :part, :bytes, :segment, :offset, :length, :crc32c) "
                'ON CONFLICT (segment_id, "offset") DO NOTHING'
            ),
            {
                "receiver": receiver_id,
                "epoch": epoch,
                "reason": reason,
                "part": part,
                "bytes": bytes,
                "segment": handle.segment_id,
                "offset": handle.offset,
                "length": handle.length,
                "crc32c": handle.crc32c,
            },
        )
