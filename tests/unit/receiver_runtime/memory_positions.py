"""Keep the positions of a custom source in memory, beside a chain of blocks in memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from receiver_runtime.receivers.positioned_run import SOURCE
from receiver_runtime.reporting.receiver_driver_log import ReceiverDriverLog
from tracker_store.blocks.blocks import Claim, OffsetLink, Position

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.unit.receiver_runtime.support import MemoryBlockLog
    from tracker_store.blocks.source_positions import Peer

_SECONDS = 30.0


class MemoryPositions(ReceiverDriverLog):
    """The positions of a chain in memory: the end of its newest link, or the origin."""

    def __init__(self, log: MemoryBlockLog) -> None:
        self.claim = Claim(1, 5, 0)
        self._log = log
        self.origins: dict[str, int] = {}
        self.may_answer = threading.Event()
        self.may_answer.set()

    def links(self) -> list[OffsetLink]:
        return [link for block in self._log.chain(1) for link in block.links]

    def all_of(self, source: str) -> Mapping[str, Position]:
        assert self.may_answer.wait(_SECONDS)
        assert source == SOURCE
        found = {partition: Position(0, offset) for partition, offset in self.origins.items()}
        return found | {link.partition: Position(link.generation, link.to_offset) for link in self.links()}

    def open_partition(self, source: str, partition: str, start_offset: int) -> Position:
        self.origins.setdefault(partition, start_offset)
        return self.all_of(source)[partition]

    def forget(self, source: str, partitions: Sequence[str]) -> None:
        raise NotImplementedError

    def peers(self) -> Sequence[Peer]:
        raise NotImplementedError
