"""Take a receiver's blocks from its block generator: choose their codec, encode them, store them and their bad rows.

Rows that a block can't have become dead letters. Owns that division, and what operators see while the disk takes no
blocks. It never drops a block: one that can't be stored is offered again by the generator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from receiver_runtime.block_path.block_handler import EncodedBlock
from receiver_runtime.reporting.unfailing_reporter import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from receiver_runtime.block_path.block import Block
    from receiver_runtime.block_path.block_handler import BlockHandler, DeadLetter
    from receiver_runtime.block_path.block_writer import BlockWriter
    from receiver_runtime.block_path.dead_letters.dead_letter_path import DeadLetterPath
    from receiver_runtime.block_path.receiver_context import ReceiverContext

# The hindrance "the disk takes no blocks".
_STORE = "store blocks"
# A block with more dead letters is encoded when it is pushed, so that only one such block at a time holds them.
_MOST_LETTERS_AHEAD = 10_000


class BlockPusher:
    """Push one receiver's blocks; see the module. Only ``choose_codec`` is called under the generator's lock."""

    def __init__(
        self, context: ReceiverContext, handler: BlockHandler, writer: BlockWriter, letters: DeadLetterPath
    ) -> None:
        self._handler = handler
        self._writer = writer
        self._letters = letters
        self._rows = context.rows
        self._status = context.status
        self._reporter = context.reporter
        self._progress = context.progress
        # The number of the generator's newest block that is stored, its dead letters perhaps not.
        self._newest_stored = 0

    # -- the block generator's side ----------------------------------------------------------------------------------

    def choose_codec(self, block: Block) -> None:
        """Choose the block's codec. The generator has cut it, and encodes it next."""
        self._handler.codec.observe(block.nbytes, seconds=block.seconds, waited=block.waited)

    def encode(self, batches: Sequence[pa.RecordBatch]) -> EncodedBlock | None:
        """Encode a block on the generator's timer, without the rows that it can't have; None if that has to wait."""
        if not all(map(self._rows.is_ready, batches)):
            return None
        encoded = self._encoded(batches)
        return encoded if len(encoded.letters) <= _MOST_LETTERS_AHEAD else None

    def push(self, block: Block) -> None:
        """Store a block and hand it to the registrar. The next block is stored while this one is registered.

        Returning means success; after an error the block is offered again.
        """
        encoded = self._encoded(block.batches) if block.encoded is None else block.encoded
        # If the letters fail, the generator calls it again for the same block: its rows must not be stored twice.
        if encoded.records and self._newest_stored != block.number:
            self._writer.push(encoded)
            self._newest_stored = block.number
        # After the block: a failed push would store the dead letters again.
        self._letters.store(encoded.letters)
        self.report_stored()

    def close_aged_segments(self) -> None:
        """Close a segment that has reached its age, after noting in its file what is acknowledged.

        Called on a push thread when nothing was pushed for a second.
        """
        self._handler.close_aged_segments()

    def report_failure(self, message: str, error: Exception) -> None:
        """Report a failed push, before it is tried again. When the queue is full, reading stops (W05)."""
        if self._writer.is_refused:
            return
        self._progress.failed(f"a block could not be stored: {describe(error)}")
        self._status.hinder(
            _STORE, f"a block could not be stored, reading stops when the queue is full: {describe(error)}"
        )
        self._reporter.error("a block could not be stored, it is tried again", error)
        self._reporter.warning(message, error)

    def fail(self, error: BaseException) -> None:
        """End the process, so that another is started: the generator has ended by this error and takes nothing more."""
        self._writer.refuse(RuntimeError(f"the block generator failed: {describe(error)}"))
        self._reporter.error("the block generator failed", error)

    def _encoded(self, batches: Sequence[pa.RecordBatch]) -> EncodedBlock:
        valid, letters = self._divide(batches)
        if not letters:
            return self._handler.encode(valid, queued=True)
        return replace(self._handler.encode(valid, queued=True) if valid else EncodedBlock((), 0), letters=letters)

    # -- every path of records ---------------------------------------------------------------------------------------

    def report_stored(self) -> None:
        """Show that the disk takes blocks."""
        self._status.clear(_STORE)

    def store_invalid(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Store the rows that a block can't have as dead letters; return the others as a block has them."""
        valid, letters = self._divide(batches)
        self._letters.store(letters)
        return valid

    def _divide(self, batches: Sequence[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], list[DeadLetter]]:
        """Return the batches without the rows that a block can't have, none of them empty, and these rows."""
        valid: list[pa.RecordBatch] = []
        letters: list[DeadLetter] = []
        for batch in self._rows.together(batches):
            checked = self._rows.check(batch)
            letters += checked.letters
            if checked.batch.num_rows:
                valid.append(checked.batch)
        return valid, letters
