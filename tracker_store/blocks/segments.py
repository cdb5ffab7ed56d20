"""Read and write `log_segments`: a segment's row comes before its file, so a sweep never meets an unknown file.

OPEN means that the file may hold blocks that are not registered; SEALED, that its length is final and everything in it
has been dealt with: the segment's own process seals it when the last of its blocks is registered, salvage when it has
gone through the file (``functions/blocks/salvage_blocks.sql``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.blocks.blocks import AddOutcome, move_arrays
from tracker_store.connection.engine import named_failures
from tracker_store.connection.errors import LostCommitsError, ReceiverFencedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from tracker_store.blocks.blocks import Claim, NewBlock


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """Hold a segment that was never sealed; `path` is relative to the block store's root.

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
class CodecSum:
    """Count the blocks that are compressed by a codec (`none`: they are not), and their bytes as stored."""

    codec: str
    blocks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Say where an epoch ended. `known`: the driver log has the epoch; if not, it lost the claim's commit."""

    sequence: int
    known: bool


@dataclass(frozen=True, slots=True)
class OldestKnown:
    """Hold a receiver's first epoch in the driver log (0: none), and how far its blocks are cleaned up."""

    epoch: int
    low_mark: int


@dataclass(frozen=True, slots=True)
class LeftSegments:
    """Count what a receiver that no process runs left unsealed: its files may hold blocks that no row names.

    The receiver's next process salvages them; a `removed` receiver has no next process.
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

    Called again with the same path (the answer was lost), it returns the existing row; it raises ReceiverFencedError if
    salvage has sealed that meanwhile, because nothing would look for what is written there now, and if this login's
    processes do not hold the receiver.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT outcome, segment_id
                FROM forebay.open_segment(
                    :receiver, :epoch, :path, :source_rule, CAST(:store AS text), :durability
                )
            """),
            {
                "receiver": receiver_id,
                "epoch": epoch,
                "path": path,
                "source_rule": source_rule,
                "store": store,
                "durability": durability,
            },
        ).one()
    if row.outcome == "not held":
        raise ReceiverFencedError(f"receiver {receiver_id} is held by no process of this login: not opening {path}")
    if row.outcome != "open":
        raise ReceiverFencedError(f"segment {path} is sealed: a later epoch of receiver {receiver_id} has salvaged it")
    segment_id: int = row.segment_id
    return segment_id


def seal_segment(
    connection: sa.Connection,
    *,
    segment_id: int,
    length: int,
    owner: tuple[int, int],
    through: int = 0,
    codecs: Sequence[CodecSum] = (),
) -> None:
    """Record a segment's final length of `length` bytes, and add its blocks by codec to the receiver's totals.

    Locks: its row, then the totals' rows. Repeating it changes nothing.

    If the driver log lacks its newest block, `through` (0: it has none), the segment stays open for salvage; in that
    case the calling process had an answer whose commit the driver log has lost since. The segment also stays open if
    the id no longer belongs to a segment of the `owner`, its (receiver, epoch), or if no process of this login holds
    the receiver.
    """
    _seal(connection, {segment_id: length}, owner=owner, is_salvage=False, through=through, codecs=codecs)


def _seal(
    connection: sa.Connection,
    lengths: Mapping[int, int],
    *,
    owner: tuple[int, int],
    is_salvage: bool,
    through: int,
    codecs: Sequence[CodecSum] = (),
) -> str:
    ordered = sorted(lengths)
    with named_failures():
        outcome: str = connection.execute(
            sa.text("""
                SELECT forebay.seal_segments(
                    :receiver, :epoch, :is_salvage, :through, CAST(:ids AS bigint[]), CAST(:lengths AS bigint[]),
                    CAST(:codecs AS text[]), CAST(:blocks AS bigint[]), CAST(:bytes AS bigint[])
                )
            """),
            {
                "receiver": owner[0],
                "epoch": owner[1],
                "is_salvage": is_salvage,
                "through": through,
                "ids": ordered,
                "lengths": [lengths[segment_id] for segment_id in ordered],
                "codecs": [each.codec for each in codecs],
                "blocks": [each.blocks for each in codecs],
                "bytes": [each.bytes for each in codecs],
            },
        ).scalar_one()
    return outcome


def open_segments_before(connection: sa.Connection, *, receiver_id: int, epoch: int) -> Sequence[OpenSegment]:
    """Return the receiver's unsealed segments of epochs before `epoch`, by epoch, oldest first. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT id, receiver_id, epoch, path, source_rule, durability, store,
                    coalesce(salvaged_to, 0) AS salvaged_to
                FROM forebay.log_segments
                WHERE receiver_id = :receiver AND epoch < :epoch AND state = 'OPEN'
                ORDER BY epoch, id
            """),
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
    """Return receivers that no process runs and that have unsealed segments, by stream and ordinal. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT s.name AS stream, r.ordinal, r.id AS receiver_id, count(*) AS segments,
                    min(g.opened_at) AS oldest, coalesce(r.removed_at, s.removed_at) IS NOT NULL AS removed
                FROM forebay.log_segments g
                JOIN forebay.receivers r ON r.id = g.receiver_id
                JOIN forebay.streams s ON s.id = r.stream_id
                WHERE g.state = 'OPEN' AND r.state IN ('INACTIVE', 'FAILED')
                GROUP BY s.id, r.id
                ORDER BY s.name, r.ordinal
            """)
        ).all()
    return [LeftSegments(*row) for row in rows]


def end_of_epoch(connection: sa.Connection, *, receiver_id: int, epoch: int) -> EpochEnd:
    """Return the newest sequence that an epoch with a successor added, or its marker's. No locks.

    The sequence has no gaps and markers are never cleaned up: an epoch has all numbers up to its successor's marker,
    also those whose rows clean-up has deleted. Once the successor's claim is answered this never changes.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT
                    coalesce(
                        (
                            SELECT b.sequence
                            FROM forebay.blocks b
                            WHERE b.receiver_id = :receiver AND b.sequence > coalesce(last.sequence, 0)
                            ORDER BY b.sequence LIMIT 1
                        ) - 1,
                        last.sequence, 0
                    ) AS sequence,
                    coalesce(last.epoch = :epoch, false) AS known
                FROM (SELECT 1) AS one
                LEFT JOIN LATERAL (
                    SELECT b.sequence, b.epoch
                    FROM forebay.blocks b
                    WHERE b.receiver_id = :receiver AND b.epoch <= :epoch
                    ORDER BY b.sequence DESC LIMIT 1
                ) AS last ON true
            """),
            {"receiver": receiver_id, "epoch": epoch},
        ).one()
    return EpochEnd(row.sequence, row.known)


def oldest_known(connection: sa.Connection, *, receiver_id: int) -> OldestKnown:
    """Return since when the driver log knows a receiver, and how far its blocks are cleaned up. No locks."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT
                    coalesce((
                        SELECT b.epoch
                        FROM forebay.blocks b
                        WHERE b.receiver_id = :receiver
                        ORDER BY b.sequence LIMIT 1
                    ), 0) AS epoch,
                    coalesce((SELECT r.low_mark FROM forebay.receivers r WHERE r.id = :receiver), 0) AS low_mark
            """),
            {"receiver": receiver_id},
        ).one()
    return OldestKnown(row.epoch, row.low_mark)


def receivers_of_lost_segments(connection: sa.Connection, segments: Iterable[tuple[int, int, int]]) -> set[int]:
    """Return the receivers of those (segment id, receiver, epoch) that the driver log does not have. No locks.

    It had them when it assigned their ids: it has lost commits since, and may assign the same ids again.
    """
    asked = sorted(set(segments))
    with named_failures():
        return set(
            connection.execute(
                sa.text("""
                    SELECT DISTINCT a.receiver
                    FROM unnest(
                        CAST(:ids AS bigint[]), CAST(:receivers AS bigint[]), CAST(:epochs AS bigint[])
                    ) AS a(id, receiver, epoch)
                    LEFT JOIN forebay.log_segments g ON g.id = a.id AND g.receiver_id = a.receiver AND g.epoch = a.epoch
                    WHERE g.id IS NULL
                """),
                {
                    "ids": [segment_id for segment_id, _, _ in asked],
                    "receivers": [receiver_id for _, receiver_id, _ in asked],
                    "epochs": [epoch for _, _, epoch in asked],
                },
            ).scalars()
        )


def count_blocks_of_segment(connection: sa.Connection, *, receiver_id: int, segment_id: int) -> tuple[int, int]:
    """Return (blocks, records) registered in a segment. No locks; a scan of the receiver's blocks."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT count(*) AS blocks, coalesce(sum(b.records), 0) AS records
                FROM forebay.blocks b
                WHERE b.receiver_id = :receiver AND b.segment_id = :segment
            """),
            {"receiver": receiver_id, "segment": segment_id},
        ).one()
    return row.blocks, int(row.records)


def salvage_blocks(
    connection: sa.Connection, blocks: Sequence[NewBlock], *, salvaged_to: int
) -> tuple[AddOutcome, str | None]:
    """Add blocks of one old segment as the next of a new epoch, and record up to which offset it is salvaged.

    Both or neither. Locks: the new rows' keys, the rows of moved channels, then the segment's row. After an unknown
    outcome send the identical call again, as with `add_blocks`.
    """
    first = blocks[0]
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT outcome, detail
                FROM forebay.salvage_blocks(
                    :receiver, :epoch, :first, :segment, :to, CAST(:records AS bigint[]), CAST(:offsets AS bigint[]),
                    CAST(:lengths AS bigint[]), CAST(:checksums AS bigint[]), CAST(:move_blocks AS integer[]),
                    CAST(:senders AS text[]), CAST(:channels AS text[]), CAST(:froms AS bigint[]),
                    CAST(:tos AS bigint[])
                )
            """),
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
                **dict(zip(("move_blocks", "senders", "channels", "froms", "tos"), move_arrays(blocks), strict=True)),
            },
        ).one()
    return AddOutcome(row.outcome), row.detail


def seal_salvaged(connection: sa.Connection, lengths: Mapping[int, int], *, claimed: Claim, through: int) -> None:
    """Seal an epoch's segments at the lengths that salvage found, all at once. Locks: their rows, by id.

    Segments that their own process has sealed meanwhile stay as they are. Repeating it changes nothing. Raises
    LostCommitsError if the salvage's blocks, `through` being the newest, are no longer in the driver log, and
    ReceiverFencedError if another epoch is in their place.
    """
    outcome = _seal(connection, lengths, owner=(claimed.receiver_id, claimed.epoch), is_salvage=True, through=through)
    if outcome == "fenced":
        raise ReceiverFencedError(f"another epoch or login holds receiver {claimed.receiver_id}")
    if outcome != "sealed":
        raise LostCommitsError(f"sequence {through} was salvaged and is not there", (claimed.receiver_id,))
