"""Remember the newest blocks that the driver log has acknowledged to this process: numbers, never payloads.

They tell operators what is affected if the driver log turns out to lack some of them. Nothing is decided by them.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracker_store.blocks.blocks import NewBlock, OffsetLink

# Blocks. At five a second they cover more than three minutes, and a standby lags by seconds.
_MOST = 1_000
# How many partitions a message names.
_SHOWN = 10


class AcknowledgedBlocks:
    """Remember one epoch of one receiver. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: deque[tuple[int, int, tuple[OffsetLink, ...]]] = deque(maxlen=_MOST)

    def add(self, block: NewBlock) -> None:
        """Note that the next block is registered."""
        with self._lock:
            self._newest.append((block.sequence, block.records, block.links))

    def describe_after(self, sequence: int) -> str | None:
        """Describe the blocks acknowledged after a sequence: number, records, sequences, positions; None: no block."""
        with self._lock:
            found = [item for item in self._newest if item[0] > sequence]
        if not found:
            return None
        first, last = found[0][0], found[-1][0]
        records = sum(records for _, records, _ in found)
        # Older ones may have been dropped.
        older = f", and {first - sequence - 1} blocks before these" if first > sequence + 1 else ""
        said = f"{len(found)} blocks, {records} records (sequences {first}..{last}{older})"
        positions: dict[tuple[str, str], tuple[int, int]] = {}
        for _, _, links in found:
            for link in links:
                place = (link.source, link.partition)
                positions[place] = (positions.get(place, (link.from_offset, 0))[0], link.to_offset)
        if positions:
            shown = [f"{source}/{name}: {a}..{b}" for (source, name), (a, b) in list(positions.items())[:_SHOWN]]
            said += f", positions {'; '.join(shown)}{' …' if len(positions) > _SHOWN else ''}"
        return said
