"""What a crash took of blocks that were never synced: counted and told, where a durable block would fail the batch.

Only blocks of ephemeral segments are looked at, and only a store that can be reached is believed: a block is lost when
its bytes are not there, or are others. Tasks pass over the same blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tracker_store.receivers import report_event
from tracker_store.schema import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    import sqlalchemy as sa

    from tracker_store.received_block_tracker import AllocatedBlock

_SHOWN = 10

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LostBlocks:
    """The blocks of a batch that are lost, in the batch's order."""

    lost: Sequence[AllocatedBlock] = ()

    @property
    def blocks(self) -> int:
        """How many."""
        return len(self.lost)

    @property
    def records(self) -> int:
        """How many records were in them."""
        return sum(block.records for block in self.lost)


def find_lost_blocks(block_store: str, blocks: Iterable[AllocatedBlock]) -> LostBlocks:
    """Read the ephemeral ones among the blocks; raises what a store raises that can't be reached."""
    ephemeral = [block for block in blocks if block.ephemeral]
    if not ephemeral:
        return LostBlocks()
    from receiver_runtime.block_store.errors import BlockCorruptError, BlockMissingError  # noqa: PLC0415  loads pyarrow
    from receiver_runtime.block_store.stores import open_block_store  # noqa: PLC0415

    store = open_block_store(block_store)
    lost = []
    for block in ephemeral:
        handle = block.handle
        try:
            store.read_frame(block.path, handle.offset, handle.length, handle.crc32c)
        except (BlockMissingError, BlockCorruptError) as error:
            log.warning("an ephemeral block is lost", receiver_id=block.receiver_id, error=str(error))
            lost.append(block)
    return LostBlocks(lost)


def report_lost_blocks(connection: sa.Connection, lost: LostBlocks, *, pipeline: str, batch_time: datetime) -> None:
    """An event for each receiver that lost any. Locks: the new rows."""
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
