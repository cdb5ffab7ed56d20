"""Turns blocks and dead letters into frames, and stores them in the write-ahead log (the original's H02).

There is one handler; *durable* and *ephemeral* differ only in the log's sync. It keeps no block after the store, and
it registers nothing: a stored block counts when the driver log has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from receiver_runtime.block_store.columns import stamped
from receiver_runtime.block_store.frame import DeadLetterReason, FrameKind, SourceRule, encode_frame
from receiver_runtime.block_store.payload import DEFAULT_COMPRESSION, Compression, encode_parts
from tracker_store.blocks import BlockHandle, NewBlock

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from receiver_runtime.write_ahead_log import WriteAheadLog


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that can't be stored as what it should be: its raw bytes, why, and which part (from 0)."""

    reason: DeadLetterReason
    data: bytes
    part: int = 0


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block as it will be stored, but for its frame: that needs a sequence, and this can be made before."""

    payload: Sequence[pa.Buffer]
    records: int

    @property
    def nbytes(self) -> int:
        """Of the payload."""
        return sum(buffer.size for buffer in self.payload)


class BlockHandler:
    """Stores one epoch's blocks. Safe from any thread; the caller gives sequences out in order."""

    def __init__(
        self,
        log: WriteAheadLog,
        schema: pa.Schema,
        *,
        receiver_id: int,
        epoch: int,
        source_rule: SourceRule,
        compression: Compression = DEFAULT_COMPRESSION,
    ) -> None:
        self._log = log
        self._schema = stamped(schema)
        self._receiver_id = receiver_id
        self._epoch = epoch
        self._source_rule = source_rule
        self._compression = compression

    def encode(self, batches: Sequence[pa.RecordBatch]) -> EncodedBlock:
        """Compress a block ahead of its turn, while its predecessor is written. Holds no lock."""
        payload = encode_parts(self._schema, batches, compression=self._compression)
        return EncodedBlock(payload, sum(batch.num_rows for batch in batches))

    def store_block(
        self,
        block: EncodedBlock | Sequence[pa.RecordBatch],
        *,
        sequence: int,
        registered_through: int,
        source_rule: SourceRule | None = None,
    ) -> NewBlock:
        """Store one block; on return it survives a crash and waits to be registered.

        ``source_rule`` is this block's own, where it is not that of the others.

        Raises: as ``WriteAheadLog.write``, and InvalidFrameError for a block without records.
        """
        encoded = block if isinstance(block, EncodedBlock) else self.encode(block)
        frame = encode_frame(
            encoded.payload,
            kind=FrameKind.BLOCK,
            source_rule=self._source_rule if source_rule is None else source_rule,
            receiver_id=self._receiver_id,
            epoch=self._epoch,
            sequence=sequence,
            registered_through=registered_through,
            records=encoded.records,
        )
        handle = self._log.write([frame], sequence=sequence, registered_through=registered_through)[0]
        return NewBlock(self._receiver_id, self._epoch, sequence, encoded.records, handle.length, handle)

    def store_dead_letters(
        self, letters: Sequence[DeadLetter], *, sequence: int, registered_through: int
    ) -> list[BlockHandle]:
        """Store dead letters by one sync; returns their handles, in order. Raises as ``WriteAheadLog.write``.

        To be followed by ``dead_letters_recorded``.
        """
        return self._log.write(
            [
                encode_frame(
                    letter.data,
                    kind=FrameKind.DEAD_LETTER,
                    source_rule=self._source_rule,
                    receiver_id=self._receiver_id,
                    epoch=self._epoch,
                    sequence=sequence,
                    registered_through=registered_through,
                    records=1,
                    reason=letter.reason,
                    part=letter.part,
                )
                for letter in letters
            ],
            sequence=sequence,
            registered_through=registered_through,
            until_recorded=True,
        )

    def dead_letters_recorded(self, handles: Sequence[BlockHandle]) -> None:
        """Say that these have their rows: until then their segment is not sealed."""
        self._log.recorded(handles)

    def roll_if_due(self, registered_through: int = 0) -> None:
        """See ``WriteAheadLog.roll_if_due``."""
        self._log.roll_if_due(registered_through)

    def close(self, registered_through: int = 0) -> None:
        """Close the log; seal its last segment, if everything in it is registered."""
        self._log.close(registered_through)
