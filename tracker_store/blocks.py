"""`add_block` and `claim`: the statements on the chain of blocks that is the fence (design §4).

The database decides; see ``functions/add_block.sql`` and ``functions/claim.sql`` for what may be trusted and how
long. Nothing here retries: an unknown outcome is the caller's to resolve, by sending the identical blocks again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.engine import named_failures
from tracker_store.errors import (
    BlockConflictError,
    ClaimBusyError,
    ClaimLostError,
    DriverLogError,
    NotAssignedError,
    ReceiverFencedError,
    SequenceGapError,
)
from tracker_store.schema import DesiredState

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class BlockHandle:
    """Where a block's frame lies: `offset` and `length` in bytes within the segment's file."""

    segment_id: int
    offset: int
    length: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class NewBlock:
    """A stored block, not yet registered. `bytes` counts the frame; `records` counts rows."""

    receiver_id: int
    epoch: int
    sequence: int
    records: int
    bytes: int
    handle: BlockHandle


@dataclass(frozen=True, slots=True)
class Steering:
    """What a receiver is told with every answer: `rate_limit` in records/s (None: unlimited)."""

    receiver_id: int
    rate_limit: float | None
    desired_state: DesiredState
    assignment: int


class AddOutcome(StrEnum):
    """What became of one receiver's blocks, in the order in which the cases are tested."""

    ADDED = "added"
    ALREADY_ADDED = "already added"
    FENCED = "fenced"
    CONFLICT = "conflict"
    GAP = "gap"
    AGAIN = "again"


_ERRORS: dict[AddOutcome, type[DriverLogError]] = {
    AddOutcome.FENCED: ReceiverFencedError,
    AddOutcome.CONFLICT: BlockConflictError,
    AddOutcome.GAP: SequenceGapError,
}


@dataclass(frozen=True, slots=True)
class AddResult:
    """One receiver's outcome: all of its blocks were added, or none was."""

    receiver_id: int
    outcome: AddOutcome
    detail: str | None
    steering: Steering


@dataclass(frozen=True, slots=True)
class Claim:
    """An epoch that this process owns. `sequence` is the marker's; the first block takes the next."""

    receiver_id: int
    epoch: int
    sequence: int


_ADD_BLOCKS = sa.text(
    "SELECT receiver_id, outcome, detail, rate_limit, desired_state, assignment FROM forebay.add_block("
    "CAST(:receiver_ids AS bigint[]), CAST(:epochs AS bigint[]), CAST(:sequences AS bigint[]), "
    "CAST(:records AS bigint[]), CAST(:bytes AS bigint[]), CAST(:segments AS bigint[]), "
    "CAST(:offsets AS bigint[]), CAST(:lengths AS bigint[]), CAST(:checksums AS bigint[]))"
)


def add_blocks(connection: sa.Connection, blocks: Sequence[NewBlock]) -> list[AddResult]:
    """Register `blocks` of any number of receivers in one round trip, all or nothing per receiver.

    A receiver's blocks must be one run of sequences of one epoch. Locks: the new rows' keys alone, in the order of
    (receiver, sequence). Raises OutcomeUnknownError when the answer was lost.
    """
    if not blocks:
        return []
    ordered = sorted(blocks, key=lambda block: (block.receiver_id, block.sequence))
    with named_failures():
        rows = connection.execute(
            _ADD_BLOCKS,
            {
                "receiver_ids": [block.receiver_id for block in ordered],
                "epochs": [block.epoch for block in ordered],
                "sequences": [block.sequence for block in ordered],
                "records": [block.records for block in ordered],
                "bytes": [block.bytes for block in ordered],
                "segments": [block.handle.segment_id for block in ordered],
                "offsets": [block.handle.offset for block in ordered],
                "lengths": [block.handle.length for block in ordered],
                "checksums": [block.handle.crc32c for block in ordered],
            },
        ).all()
    return [
        AddResult(
            receiver_id=row.receiver_id,
            outcome=AddOutcome(row.outcome),
            detail=row.detail,
            steering=Steering(
                row.receiver_id, row.rate_limit, DesiredState(row.desired_state), row.assignment
            ),
        )
        for row in rows
    ]


def raise_for_outcome(result: AddResult) -> None:
    """Raise the named error of a refusal. AGAIN passes: its caller sends the identical blocks again."""
    error = _ERRORS.get(result.outcome)
    if error is not None:
        raise error(result.detail)


def newest_epoch(connection: sa.Connection, receiver_id: int) -> int:
    """The epoch of the receiver's newest row; 0 when it has none. No locks; one probe of the primary key."""
    with named_failures():
        epoch: int | None = connection.execute(
            sa.text(
                "SELECT epoch FROM forebay.blocks WHERE receiver_id = :receiver ORDER BY sequence DESC LIMIT 1"
            ),
            {"receiver": receiver_id},
        ).scalar()
    return epoch or 0


def claim(connection: sa.Connection, *, receiver_id: int, seen_epoch: int, assignment: int) -> Claim:
    """Take a receiver over: insert the marker row of a new epoch.

    Locks: the receiver's row FOR SHARE. Raises NotAssignedError, ClaimLostError, ClaimBusyError, and
    OutcomeUnknownError, after which the epoch is *not* owned: read the newest epoch and claim again.
    """
    with named_failures():
        row = connection.execute(
            sa.text(
                "SELECT outcome, detail, epoch, sequence FROM forebay.claim(:receiver, :seen_epoch, :assignment)"
            ),
            {"receiver": receiver_id, "seen_epoch": seen_epoch, "assignment": assignment},
        ).one()
    if row.outcome == "claimed":
        return Claim(receiver_id, row.epoch, row.sequence)
    errors = {"not assigned": NotAssignedError, "lost": ClaimLostError, "busy": ClaimBusyError}
    raise errors[row.outcome](row.detail)
