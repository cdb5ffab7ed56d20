"""Tells an output function about the batch that it runs in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from orchestration.declarations.pipeline import Stream
    from tracker_store.batches.received_block_tracker import AllocatedBlock


@dataclass(frozen=True, slots=True)
class Batch:
    """Describe a batch to an output function that has a parameter `batch`.

    `lost_records`, in `lost_blocks`, are not in the data: they were never synced (durability: ephemeral), and a crash
    lost them. They include the batch's own, which count in `records`, and those of earlier batches in its windows.
    """

    pipeline: str
    time: datetime
    attempt: int
    records: int
    _blocks: Mapping[str, Sequence[AllocatedBlock]]
    lost_blocks: int = 0
    lost_records: int = 0

    def blocks(self, stream: Stream) -> Sequence[AllocatedBlock]:
        """Return the batch's blocks of `stream`, in the order of (receiver, sequence)."""
        return self._blocks.get(stream.name, ())
