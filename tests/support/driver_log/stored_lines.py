"""Store lines in blocks and register them, as a receiver process would, for tests that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.block_store.frames.encryption import BlockKey, FrameEncryptor
from receiver_runtime.block_store.frames.frame import encode_frame
from receiver_runtime.block_store.frames.payload import encode_batches
from receiver_runtime.block_store.stores.stores import open_block_store
from receiver_runtime.sources.fields.secret import Secret
from tests.support.driver_log.log import claim_anew, new_segment
from tests.support.receivers.frame_fields import block_fields
from tracker_store.blocks.blocks import BlockHandle, NewBlock, add_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

SCHEMA = pa.schema([("value", pa.string())])


class LineReceiver:
    """One receiver's epoch with one segment: each call of `receive` adds a block."""

    def __init__(
        self, connection: sa.Connection, block_store: str, receiver_id: int, *, block_key: str | None = None
    ) -> None:
        """Claim `receiver_id` and begin a segment; `block_key` is a reference to the key that encrypts its blocks."""
        self._connection = connection
        self._encryptor = None if block_key is None else FrameEncryptor(BlockKey.read(Secret(block_key)))
        self._claimed = claim_anew(connection, receiver_id)
        self._sequence = self._claimed.sequence
        self._offset = 0
        path = f"{receiver_id}/{self._claimed.epoch}.segment"
        self._segment_id = new_segment(connection, self._claimed, path)
        self._writer = open_block_store(block_store).create_segment(path)

    def receive(self, lines: Sequence[str]) -> None:
        """Store and register one block."""
        self._sequence += 1
        batch = pa.record_batch([pa.array(lines, pa.string())], schema=SCHEMA)
        frame = encode_frame(
            encode_batches(SCHEMA, [batch]),
            block_fields(
                receiver_id=self._claimed.receiver_id,
                epoch=self._claimed.epoch,
                sequence=self._sequence,
                records=len(lines),
            ),
            encryptor=self._encryptor,
        )
        self._writer.append(frame)
        self._writer.sync()
        handle = BlockHandle(self._segment_id, self._offset, frame.length, frame.crc32c)
        added = NewBlock(
            self._claimed.receiver_id, self._claimed.epoch, self._sequence, len(lines), frame.length, handle
        )
        [result] = add_blocks(self._connection, [added])
        assert result.outcome == "added", result
        self._offset += frame.length

    def close(self) -> None:
        """Close the segment's file."""
        self._writer.close()
