"""A block pusher that keeps what it is called with, for tests of block generators and their threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from receiver_runtime.block_path.block_handler import EncodedBlock
from receiver_runtime.block_path.block_pusher import BlockPusher
from receiver_runtime.block_store.frames.payload import decode_batches, encode_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from receiver_runtime.block_path.block import Block


def batches_of(block: Block) -> list[pa.RecordBatch]:
    """Return the batches of a block that a `RecordingPusher` encoded."""
    assert block.encoded is not None
    return list(decode_batches(block.encoded.payload[0]))


class RecordingPusher(BlockPusher):
    """Keeps what it is called with; pushes wait until `gate` is set, and fail while `failures` are left."""

    def __init__(self) -> None:
        self.pushed: list[Block] = []
        self.generated: list[int] = []
        self.errors: list[str] = []
        self.deaths: list[BaseException] = []
        self.begun = 0
        self.idle = 0
        self.failures = 0
        self.gate = threading.Event()
        self.gate.set()
        self.at_once = 0
        self.most_at_once = 0

    def choose_codec(self, block: Block) -> None:
        self.generated.append(block.number)

    def encode(self, batches: Sequence[pa.RecordBatch]) -> EncodedBlock:
        return EncodedBlock([encode_batches(batches[0].schema, batches)], sum(batch.num_rows for batch in batches))

    def push(self, block: Block) -> None:
        self.begun += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            assert self.gate.wait(30)
            if self.failures:
                self.failures -= 1
                raise OSError("the disk is full")
            self.pushed.append(block)
        finally:
            self.at_once -= 1

    def close_aged_segments(self) -> None:
        self.idle += 1

    def report_failure(self, message: str, error: Exception) -> None:
        self.errors.append(f"{message}: {error}")

    def fail(self, error: BaseException) -> None:
        self.deaths.append(error)

    @property
    def values(self) -> list[list[str]]:
        """The values that are pushed, by block."""
        return [
            [value for batch in batches_of(block) for value in batch.column(0).to_pylist()] for block in self.pushed
        ]

    @property
    def all_values(self) -> list[str]:
        return [value for values in self.values for value in values]
