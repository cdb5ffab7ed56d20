"""Statements on `log_segments`: a segment's row comes before its file, so a sweep never meets an unknown file.

OPEN says that its file may hold blocks that are not registered; SEALED, that its length is final and that everything
in it has been dealt with: its own process seals a segment when the last of its blocks is registered, salvage when it
has gone through the file (``functions/salvage_blocks.sql``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.blocks import AddOutcome
from tracker_store.engine import named_failures
from tracker_store.errors import ReceiverFencedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from tracker_store.blocks import NewBlock


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A segment that was never sealed; `path` is relative to the block store's root.

    `store` says where its file was made (None: unknown); frames before `salvaged_to` are in blocks of later epochs.
    """

    segment_id: int
    receiver_id: int
    epoch: int
    path: str
    source_rule: str
    durability: str = "durable"
    store: str | None = None
    salvaged_to: int = 0


@dataclass(frozen=True, slots=True)
class LeftSegments:
    """What a receiver that runs nowhere left unsealed: blocks may lie there that no row names.

    Its next process goes through them; a `removed` one has no next process.
    """

    stream: str
    ordinal: int
    receiver_id: int
    segments: int
    oldest: datetime
    removed: bool


def open_segment(
    connection: sa.Connection,
    *,
    receiver_id: int,
    epoch: int,
    path: str,
    source_rule: str,
    store: str | None = None,
    durability: str = "durable",
) -> int:
    """Insert the row of a segment that is about to be made; returns its id. Locks: the new row.

    Asked again for the same path (the answer was lost), it returns the row that is there; raises
    ReceiverFencedError where salvage has sealed that meanwhile: what is written there now, nobody would look for.
    """
    with named_failures():
        segment_id: int | None = connection.execute(
            sa.text(
                "INSERT INTO forebay.log_segments AS g (receiver_id, epoch, path, source_rule, store, durability) "
                "VALUES (:receiver, :epoch, :path, :source_rule, :store, :durability) "
                "ON CONFLICT (path) DO UPDATE SET path = excluded.path WHERE g.state = 'OPEN' RETURNING id"
            ),
            {
                "receiver": receiver_id,
                "epoch": epoch,
                "path": path,
                "source_rule": source_rule,
                "store": store,
                "durability": durability,
            },
        ).scalar()
    if segment_id is None:
        raise ReceiverFencedError(f"segment {path} is sealed: a later epoch of receiver {receiver_id} has salvaged it")
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
    """The receiver's unsealed segments of epochs before `epoch`, by epoch, each one's oldest first. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text(
                "SELECT id, receiver_id, epoch, path, source_rule, durability, store, "
                "coalesce(salvaged_to, 0) AS salvaged_to FROM forebay.log_segments "
                "WHERE receiver_id = :receiver AND epoch < :epoch AND state = 'OPEN' ORDER BY epoch, id"
            ),
            {"receiver": receiver_id, "epoch": epoch},
        ).all()
    return [
        OpenSegment(
            row.id,
            row.receiver_id,
            row.epoch,
            row.path,
            row.source_rule,
            durability=row.durability,
            store=row.store,
            salvaged_to=row.salvaged_to,
        )
        for row in rows
    ]


def left_segments(connection: sa.Connection) -> Sequence[LeftSegments]:
    """Receivers that no process runs and whose last one left segments unsealed, by stream and ordinal. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text(
                "SELECT s.name AS stream, r.ordinal, r.id AS receiver_id, count(*) AS segments, "
                "min(g.opened_at) AS oldest, "
                "coalesce(r.removed_at, s.removed_at) IS NOT NULL AS removed FROM forebay.log_segments g "
                "JOIN forebay.receivers r ON r.id = g.receiver_id JOIN forebay.streams s ON s.id = r.stream_id "
                "WHERE g.state = 'OPEN' AND r.state IN ('INACTIVE', 'FAILED') "
                "GROUP BY s.id, r.id ORDER BY s.name, r.ordinal"
            )
        ).all()
    return [LeftSegments(*row) for row in rows]


def end_of_epoch(connection: sa.Connection, *, receiver_id: int, epoch: int) -> int:
    """The newest sequence that an epoch which has a successor added, or its marker's. No locks.

    The sequence has no gaps and markers are never cleaned: an epoch has all numbers up to its successor's marker,
    also those whose rows clean-up has taken. Once the successor's claim is answered this never changes.
    """
    with named_failures():
        end: int = connection.execute(
            sa.text(
                "SELECT (SELECT b.sequence FROM forebay.blocks b "
                "        WHERE b.receiver_id = :receiver AND b.sequence > coalesce(last.sequence, 0) "
                "        ORDER BY b.sequence LIMIT 1) - 1 "
                "FROM (SELECT (SELECT b.sequence FROM forebay.blocks b "
                "              WHERE b.receiver_id = :receiver AND b.epoch <= :epoch "
                "              ORDER BY b.sequence DESC LIMIT 1) AS sequence) AS last"
            ),
            {"receiver": receiver_id, "epoch": epoch},
        ).scalar_one()
    return end


def count_blocks_of_segment(connection: sa.Connection, *, receiver_id: int, segment_id: int) -> tuple[int, int]:
    """(blocks, records) that are registered and lie in a segment. No locks; a scan of the receiver's blocks."""
    with named_failures():
        row = connection.execute(
            sa.text(
                "SELECT count(*) AS blocks, coalesce(sum(b.records), 0) AS records FROM forebay.blocks b "
                "WHERE b.receiver_id = :receiver AND b.segment_id = :segment"
            ),
            {"receiver": receiver_id, "segment": segment_id},
        ).one()
    return row.blocks, int(row.records)


def salvage_blocks(
    connection: sa.Connection, blocks: Sequence[NewBlock], *, salvaged_to: int
) -> tuple[AddOutcome, str | None]:
    """Add blocks of one old segment as the next of a new epoch, and note that it is salvaged up to an offset.

    Both or none. Locks: the new rows' keys, then the segment's row. To be sent again identically after an unknown
    outcome, as `add_blocks`.
    """
    first = blocks[0]
    with named_failures():
        row = connection.execute(
            sa.text(
                "SELECT outcome, detail FROM forebay.salvage_blocks(:receiver, :epoch, :first, :segment, :to, "
                "CAST(:records AS bigint[]), CAST(:offsets AS bigint[]), CAST(:lengths AS bigint[]), "
                "CAST(:checksums AS bigint[]))"
            ),
            {
                "receiver": first.receiver_id,
                "epoch": first.epoch,
                "first": first.sequence,
                "segment": first.handle.segment_id,
                "to": salvaged_to,
                "records": [block.records for block in blocks],
                "offsets": [block.handle.offset for block in blocks],
                "lengths": [block.handle.length for block in blocks],
                "checksums": [block.handle.crc32c for block in blocks],
            },
        ).one()
    return AddOutcome(row.outcome), row.detail


def seal_salvaged(connection: sa.Connection, lengths: Mapping[int, int]) -> None:
    """Seal an epoch's segments at the lengths that salvage found, all at once. Locks: their rows, by id.

    Those that their own process has sealed meanwhile stay as they are. Repeating it changes nothing.
    """
    ordered = sorted(lengths)
    with named_failures():
        connection.execute(
            sa.text(
                "WITH locked AS ("
                "  SELECT g.id FROM forebay.log_segments g WHERE g.id = ANY (CAST(:ids AS bigint[])) "
                "  ORDER BY g.id FOR UPDATE) "
                "UPDATE forebay.log_segments g "
                "SET state = 'SEALED', length = found.length, sealed_at = clock_timestamp() "
                "FROM locked JOIN unnest(CAST(:ids AS bigint[]), CAST(:lengths AS bigint[])) AS found(id, length) "
                "  ON found.id = locked.id "
                "WHERE g.id = locked.id AND g.state = 'OPEN'"
            ),
            {"ids": ordered, "lengths": [lengths[segment_id] for segment_id in ordered]},
        )
