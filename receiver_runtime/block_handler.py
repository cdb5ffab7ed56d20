"""Turns blocks and dead letters into frames, and stores them in the write-ahead log (the original's H02).

There is one handler; *durable* and *ephemeral* differ only in the log's sync. It keeps no block after the store, and
it registers nothing: a stored block counts when the driver log has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from receiver_runtime.block_store.frame import DeadLetterReason, FrameKind, SourceRule, encode_frame
from receiver_runtime.block_store.payload import encode_batches
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
    ) -> None:
        self._log = log
        self._schema = schema
        self._receiver_id = receiver_id
        self._epoch = epoch
        self._source_rule = source_rule

    def store_block(self, batches: Sequence[pa.RecordBatch], *, sequence: int, registered_through: int) -> NewBlock:
        """Store one block; on return it survives a crash and waits to be registered.

        Raises: as ``WriteAheadLog.write``, and InvalidFrameError for a block without records.
        """
        records = sum(batch.num_rows for batch in batches)
        frame = encode_frame(
            encode_batches(self._schema, batches),
            kind=FrameKind.BLOCK,
            source_rule=self._source_rule,
            receiver_id=self._receiver_id,
            epoch=self._epoch,
            sequence=sequence,
            registered_through=registered_through,
            records=records,
        )
        handle = self._log.write([frame])[0]
        return NewBlock(self._receiver_id, self._epoch, sequence, records, handle.length, handle)

    def store_dead_letters(
        self, letters: Sequence[DeadLetter], *, sequence: int, registered_through: int
    ) -> list[BlockHandle]:
        """Store dead letters by one sync; returns their handles, in order. Raises as ``WriteAheadLog.write``."""
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
            ]
        )

    def roll_if_due(self) -> None:
        """See ``WriteAheadLog.roll_if_due``."""
        self._log.roll_if_due()

    def close(self) -> None:
        """Close the log and seal its last segment."""
        self._log.close()
