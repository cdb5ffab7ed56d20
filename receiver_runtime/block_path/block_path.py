"""Bring one receiver's records, under one claim, into registered blocks: from ``Receiver.store`` to the registrar.

Owns the parts of that path and the rate limiter: the block generator, what pushes its blocks, what writes blocks in
order, and dead letters. It must never start, restart or end a receiver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from receiver_runtime.block_path.block_generator import BlockGenerator
from receiver_runtime.block_path.block_pusher import BlockPusher
from receiver_runtime.block_path.block_writer import BlockWriter
from receiver_runtime.block_path.dead_letters.dead_letter_path import DeadLetterPath
from receiver_runtime.block_path.load.rate_limiter import RateLimiter
from receiver_runtime.block_path.records import conform, to_batch, to_batches
from receiver_runtime.block_path.text_check import RowsWaitError
from receiver_runtime.block_path.write_ahead_log import WriteAheadLogError
from receiver_runtime.watching.backoff import store_backoff
from receiver_runtime.watching.receiver_calls import InFlightCalls
from tracker_store.connection.errors import EmptyBlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from receiver_runtime.block_path.block_handler import BlockHandler, DeadLetter
    from receiver_runtime.block_path.load.block_threads import BlockThreads
    from receiver_runtime.block_path.receiver_context import ReceiverContext
    from tracker_store.blocks.blocks import ChannelMove, ControlResponse, NewBlock, OffsetLink
    from tracker_store.blocks.channels import ChannelKey

T = TypeVar("T")


class BlockPath:
    """Bring records into registered blocks; see the module. Call it on any thread, unless a method says otherwise.

    Args:
        handler: stores blocks in this epoch's write-ahead log.
        threads: for the block generator, if it shares threads with other receivers.
        rate_limit: the rate that backpressure has set, in records per second.
        on_refused: called when the driver log accepts nothing more of this epoch; see ``BlockWriter``.
        on_response: called with what the receiver is to do, possibly before the constructor returns.
    """

    def __init__(
        self,
        context: ReceiverContext,
        handler: BlockHandler,
        *,
        threads: BlockThreads | None,
        rate_limit: float | None,
        on_refused: Callable[[BaseException], None],
        on_response: Callable[[ControlResponse], None],
    ) -> None:
        self._schema = context.schema
        #: What becomes of the receiver's rows before they are stored.
        self.rows = context.rows
        self._receiver_id = context.receiver_id
        self._reporter = context.reporter
        self._handler = handler
        #: Has the positions of the source's partitions, for a source that has them.
        self.positions = context.driver_log
        self._driver_log = context.driver_log
        self.progress = context.progress
        settings = context.settings
        self.limiter = RateLimiter(
            rate_limit,
            initial_rate=settings.backpressure_initial_rate,
            max_rate=settings.receiver_max_rate,
            max_bytes_rate=settings.receiver_max_bytes_rate,
            clock=context.clock,
        )
        self.writer = BlockWriter(context, handler, on_refused=on_refused)
        self._letters = DeadLetterPath(context, handler, self.writer)
        self.pusher = BlockPusher(context, handler, self.writer, self._letters)
        self.generator = BlockGenerator(
            self.pusher,
            context.schema,
            limiter=self.limiter,
            settings=settings,
            name=f"receiver {context.receiver_id}",
            clock=context.clock,
            threads=threads,
        )
        #: Counts the receiver's threads that wait in a method of this object: a stop gives them time to finish.
        self.in_flight = InFlightCalls(context.clock)
        #: Whether a record was accepted since the receiver's last start.
        self.has_accepted = False
        # True too before its first start, which does not wait for a disk (``letter_replay``).
        self._interrupted = True

        def apply(response: ControlResponse) -> None:
            self.limiter.update_rate(response.rate_limit)
            on_response(response)

        # Last, because a heartbeat's response may come at once.
        self.writer.attach(drop_buffer=self.generator.abort, on_response=apply)

    # -- the supervisor's side ---------------------------------------------------------------------------------------

    @property
    def holds_data(self) -> bool:
        """Return whether something is still to be stored or registered. Takes no lock."""
        return self.generator.holds_data or self.writer.holds_data

    def receiver_starts(self) -> None:
        """Accept records of a receiver that starts."""
        self.has_accepted = False
        self._interrupted = False

    def receiver_stops(self) -> None:
        """Lift the rate limit for the records that a stopping receiver has read.

        From now on, a push of records with keys no longer waits for a disk that takes no blocks.
        """
        self._interrupted = True
        self.limiter.close()

    def close(self, *, drain: bool) -> None:
        """Close the write-ahead log, and seal its last segment if everything in it is registered.

        With ``drain``, first wait until everything that was handed over is registered, or refused. It does not matter
        whether the driver log answers: what is on the disk can be salvaged, but what is in the buffer is lost when the
        process ends.
        """
        if drain:
            self.writer.lift_limit()
            self.generator.stop()
            self.writer.settle()
            if not self.writer.is_refused:
                try:
                    self._letters.close()
                except Exception as error:  # noqa: BLE001  reported: only counts are lost, and the end must not fail
                    self._reporter.error("how many dead letters were not kept could not be recorded", error)
        self._handler.close()

    # -- the receiver's side: records that the generator makes blocks of, or that are one block ----------------------

    def piece(self, records: int, nbytes: int) -> int:
        """Return how many of these records to hand on at once, so that they flow evenly under a rate limit."""
        return self.limiter.piece(records, nbytes)

    def push_single(self, record: object) -> None:
        """Hand one record to the block generator."""
        with self.in_flight:
            self.generator.add_data(record)
        self.has_accepted = True

    def push_buffered(self, records: pa.RecordBatch | Sequence[object]) -> None:
        """Hand many records to the block generator, in even pieces while a rate limit is set."""
        batch = (
            conform(records, self._schema) if isinstance(records, pa.RecordBatch) else to_batch(records, self._schema)
        )
        done = 0
        with self.in_flight:
            while done < batch.num_rows:
                # Ask again for each piece, so that a new rate takes effect in the middle of a chunk.
                rest = batch.slice(done)
                piece = rest.slice(0, self.limiter.piece(rest.num_rows, rest.nbytes))
                done += piece.num_rows
                self.generator.add_multiple_data(piece)
                self.has_accepted = True

    def push_if_free(self, batch: pa.RecordBatch) -> bool:
        """Do as ``push_buffered``, but add nothing if that would have to wait; return whether the batch was added."""
        if not self.generator.add_if_free(conform(batch, self._schema)):
            return False
        self.has_accepted = True
        return True

    def push_and_report_block(self, records: pa.RecordBatch | pa.Table | Sequence[object]) -> None:
        """Store many records as one block; return when it is registered (S07).

        Rows that a block can't have become dead letters. If there are only such rows, no block is stored.

        Raises: EmptyBlockError if there are no records, and whatever stopped it. Then the block is not registered, and
        the source must not be acknowledged.
        """
        batches = to_batches(records, self._schema)
        if not batches:
            raise EmptyBlockError(f"receiver {self._receiver_id} stored many records as one block, and there were 0")
        with self.in_flight:
            self.limiter.acquire(sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches))
            batches = self.until_read(lambda: self.pusher.store_invalid(batches))
            if batches:
                self.writer.push(self._handler.encode(batches)).result()
        self.has_accepted = True

    def store_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Write dead letters to their segment, then to the driver log; return when all are recorded.

        Many of them share one sync and one statement, because a sender with the wrong encoding sends nothing but bad
        records. Those that are over their peer's budget are only counted.
        """
        with self.in_flight:
            self._letters.store(letters)

    def until_read(self, check: Callable[[], T]) -> T:
        """Check rows; while another system must be waited for to read them, wait, except at a stop.

        Raises RowsWaitError at a stop: nothing of the rows is stored.
        """
        backoff = store_backoff()
        has_waited = False
        while True:
            try:
                checked = check()
            except RowsWaitError as error:
                has_waited = True
                self.pusher.report_failure("a block could not be stored", error)
                if self._interrupted or not self.writer.pause(backoff.next_delay()):
                    raise
            else:
                if has_waited:
                    self.pusher.report_stored()
                return checked

    # -- the receiver's side: blocks that move the positions of their source -----------------------------------------

    def push_linked(self, batch: pa.RecordBatch, links: Sequence[OffsetLink]) -> Future[NewBlock] | None:
        """Store a batch as one block that moves its source's positions; return before it is registered.

        Rows that a block can't have become dead letters first. If there are only such rows, return None: no block is
        stored, and the links must go in with the next block.

        The future resolves when the driver log has the block and the positions. It fails with OffsetConflictError if
        another receiver has moved one of the positions. Then no block in flight is registered, and nothing more is
        accepted until the receiver has called ``writer.resume_after_refusal`` and read the positions again.

        Raises: whatever stopped it. Then nothing of it is stored, or it is not registered.
        """
        with self.in_flight:
            self.limiter.acquire(batch.num_rows, batch.nbytes)
            batches = self.until_read(lambda: self.pusher.store_invalid([conform(batch, self._schema)]))
            future = self.writer.push(self._handler.encode(batches), tuple(links)) if batches else None
        self.has_accepted = True
        return future

    # -- the receiver's side: blocks with their records' keys --------------------------------------------------------

    def wait_for_rate(self, records: int, nbytes: int) -> None:
        """Return when these records may pass the rate limit.

        ``push_keyed`` does not wait for that, because it may have to push records again that have passed already.
        """
        with self.in_flight:
            self.limiter.acquire(records, nbytes)

    def known_keys(self, keys: Sequence[str], *, wait: bool = True) -> set[str]:
        """Return which of these keys the stream has received within its window, according to the driver log.

        Without ``wait``, return none of them while the driver log is unavailable: a block that repeats a key will be
        refused.
        """
        with self.in_flight:
            return self._driver_log.known_keys(keys, wait=wait)

    def push_keyed(self, batch: pa.RecordBatch, keys: Sequence[str]) -> Future[NewBlock]:
        """Store a batch as one block with its records' keys; return when it is stored, before it is registered.

        The batch has the blocks' schema: the caller checks the rows (``rows``), and divides rows and keys together. No
        salvage registers the block, because its sender sends the records again if they are not acknowledged. The future
        resolves when the driver log has the block and the keys. It fails with
        DuplicateKeysError if one of the keys is known. Then no block with keys in flight is registered, and nothing is
        accepted before ``writer.resume_after_refusal``, which the caller must call. While the disk takes no blocks,
        this waits, except at a stop.

        Raises: whatever stopped it. Then nothing of it is stored, or it is not registered.
        """
        return self._push_sent_again(batch, keys=tuple(keys))

    # -- the receiver's side: blocks that move senders' channels -----------------------------------------------------

    def channel_positions(self, channels: Sequence[ChannelKey], *, wait: bool = True) -> list[int]:
        """Return the driver log's position of each channel, in order.

        Without ``wait``, raise where the driver log is unavailable.
        """
        with self.in_flight:
            return self._driver_log.channel_positions(channels, wait=wait)

    def move_channels(self, moves: Sequence[ChannelMove]) -> bool:
        """Move channels on without a block: all of them, or none if one is elsewhere; returns whether they moved."""
        with self.in_flight:
            # So that a driver log that loses the move gets it from the file.
            note = self._until_stored(lambda: self.writer.note_moves(moves))
            moved = self._driver_log.move_channels(moves)
            self._handler.moves_recorded(note)
            return moved

    def push_channels(self, batch: pa.RecordBatch, moves: Sequence[ChannelMove]) -> Future[NewBlock]:
        """Store a batch as one block that moves channels; return when it is stored, before it is registered.

        As ``push_keyed``, with moves in place of keys: the future fails with ChannelConflictError if a channel is not
        where its move begins.

        Raises: whatever stopped it. Then nothing of it is stored, or it is not registered.
        """
        return self._push_sent_again(batch, moves=tuple(moves))

    def _push_sent_again(
        self, batch: pa.RecordBatch, *, keys: tuple[str, ...] | None = None, moves: tuple[ChannelMove, ...] = ()
    ) -> Future[NewBlock]:
        """Store a block of records that are sent again if not acknowledged; waits for a disk, except at a stop."""
        with self.in_flight:
            encoded = self._handler.encode([batch])
            future = self._until_stored(lambda: self.writer.push(encoded, keys=keys, moves=moves))
        self.has_accepted = True
        return future

    def _until_stored(self, store: Callable[[], T]) -> T:
        backoff = store_backoff()
        while True:
            try:
                stored = store()
            except WriteAheadLogError as error:
                self.pusher.report_failure("a block that is sent again could not be stored", error)
                if self._interrupted or not self.writer.pause(backoff.next_delay()):
                    raise
            else:
                self.pusher.report_stored()
                return stored
