"""Counts and reports unsynced blocks that a crash lost; a lost durable block would fail the batch instead.

Looks only at blocks of ephemeral segments, and only in a store that can be reached: a block is lost when its bytes
are missing, or, where a crash may leave other bytes, differ. Spark's tasks skip the same blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from orchestration.batches.attached_store import open_attached_store
from tracker_store.receivers.receivers import report_event
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    import sqlalchemy as sa

    from tracker_store.batches.received_block_tracker import AllocatedBlock

_SHOWN = 10

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LostBlocks:
    """Hold the lost blocks of a batch and of its windows, in their order."""

    lost: Sequence[AllocatedBlock] = ()

    @property
    def blocks(self) -> int:
        """Return how many blocks are lost."""
        return len(self.lost)

    @property
    def records(self) -> int:
        """Return how many records were in them."""
        return sum(block.records for block in self.lost)


def find_lost_blocks(connection: sa.Connection, block_store: str, blocks: Iterable[AllocatedBlock]) -> LostBlocks:
    """Look for the ephemeral blocks, each once and segment by segment.

    Raises the store's error if it can't be reached, or is not the attached one.
    """
    ephemeral = {(block.receiver_id, block.sequence): block for block in blocks if block.ephemeral}
    if not ephemeral:
        return LostBlocks()
    from receiver_runtime.block_store.frames.reading import FrameAt  # noqa: PLC0415  loads pyarrow

    store = open_attached_store(connection, block_store)
    by_segment: dict[str, dict[FrameAt, AllocatedBlock]] = {}
    for block in ephemeral.values():
        at = FrameAt(block.handle.offset, block.handle.length, block.handle.crc32c)
        by_segment.setdefault(block.path, {})[at] = block
    lost = []
    for path, frames in by_segment.items():
        gone = store.lost_frames(path, list(frames))
        if gone:
            log.warning("ephemeral blocks are lost", segment=path, blocks=len(gone))
        lost += [block for at, block in frames.items() if at in gone]
    return LostBlocks(lost)


def report_lost_blocks(connection: sa.Connection, lost: LostBlocks, *, pipeline: str, batch_time: datetime) -> None:
    """Write an event for each receiver that lost blocks. Locks: the new rows."""
    for receiver_id in sorted({block.receiver_id for block in lost.lost}):
        of_receiver = LostBlocks([block for block in lost.lost if block.receiver_id == receiver_id])
        sequences = ", ".join(str(block.sequence) for block in of_receiver.lost[:_SHOWN])
        more = f" and {of_receiver.blocks - _SHOWN} more" if of_receiver.blocks > _SHOWN else ""
        report_event(
            connection,
            receiver_id=receiver_id,
            epoch=0,
            kind=ReceiverEventKind.ERROR,
            message="blocks were lost that were never synced (durability: ephemeral)",
            detail=f"{of_receiver.blocks} blocks, {of_receiver.records} records, passed over by {pipeline!r} at "
            f"{batch_time.isoformat()}: sequence {sequences}{more}",
        )
