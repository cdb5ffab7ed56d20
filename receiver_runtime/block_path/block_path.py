"""Bring one receiver's records, under one claim, into registered blocks.

Owns the rate limiter, the block generator, the order of sequences, the blocks in flight to the registrar, dead letters,
and the driver log's answers. It reports two things to its supervisor: that the driver log accepts nothing more of this
epoch (``on_refused``), and what keeps blocks from being registered for now (``on_hindered``). It must never start,
restart or end a receiver.
"""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from receiver_runtime.block_path.block_generator import Block, BlockGenerator
from receiver_runtime.block_path.dead_letter_path import DeadLetterPath
from receiver_runtime.block_path.rate_limiter import RateLimiter
from receiver_runtime.block_path.records import conform, to_batch, to_batches
from receiver_runtime.block_path.text_check import TextCheck
from receiver_runtime.block_path.write_ahead_log import WriteAheadLogError
from receiver_runtime.block_store.frames.frame import SourceRule
from receiver_runtime.reporting.acknowledged_blocks import AcknowledgedBlocks
from receiver_runtime.reporting.unfailing_reporter import describe
from receiver_runtime.watching.backoff import Backoff
from receiver_runtime.watching.progress import LONGEST_PAUSE_SECONDS
from receiver_runtime.watching.receiver_calls import HandOvers
from tracker_store.connection.errors import (
    DriverLogError,
    DuplicateKeysError,
    EmptyBlockError,
    OffsetConflictError,
    OtherReleaseError,
)
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from receiver_runtime.block_path.block_handler import BlockHandler, DeadLetter, EncodedBlock
    from receiver_runtime.block_path.block_threads import BlockThreads
    from receiver_runtime.block_path.registrar import Registrar
    from receiver_runtime.reporting.driver_log import DeadLetterRows, KnownKeys, SourcePositions
    from receiver_runtime.reporting.unfailing_reporter import UnfailingReporter
    from receiver_runtime.sources.receiver_settings import ReceiverSettings
    from receiver_runtime.watching.clock import Clock
    from receiver_runtime.watching.progress import Progress
    from tracker_store.blocks.blocks import Claim, NewBlock, OffsetLink, Steering

_STORE_FIRST_DELAY = 0.1
# Seconds. However long the disk was full, everything is acknowledged within a minute after it has room again.
_STORE_LONGEST_DELAY = LONGEST_PAUSE_SECONDS
# The hindrance "the disk takes no blocks".
_STORE = "store blocks"


class BlockGeneratorFailedError(RuntimeError):
    """Nothing more is stored by this process, so another takes over: a thread of the block generator ended."""


class BlockPathListener(Protocol):
    """Receive a block path's reports, on any thread. Both methods return at once, and may get the same report again."""

    def on_refused(self, error: BaseException) -> None:
        """Note that the driver log accepts nothing more of this epoch."""
        ...

    def on_hindered(self, what: str, reason: str | None) -> str:
        """Note that ``what`` is hindered for this reason, or no longer (None). Return the former reason."""
        ...


class BlockPath:
    """Bring records into registered blocks; see the module. Call it on any thread, unless a method says otherwise.

    Args:
        schema: of the blocks.
        claim: already answered; the first block takes the sequence after its marker.
        handler: stores blocks in this epoch's write-ahead log.
        registrar: started by its owner.
        driver_log: records the rows of dead letters.
        positions: the positions of the source's partitions, for a source that has them.
        keys: the keys of the stream's records, for a source that has them.
        listener: its supervisor.
        on_steering: called with what the receiver is to do, possibly before the constructor returns.
        threads: for the block generator, if it shares threads with other receivers.
        progress: this receiver's progress.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        claim: Claim,
        settings: ReceiverSettings,
        handler: BlockHandler,
        registrar: Registrar,
        driver_log: DeadLetterRows,
        reporter: UnfailingReporter,
        listener: BlockPathListener,
        on_steering: Callable[[Steering], None],
        positions: SourcePositions | None,
        keys: KnownKeys | None,
        rate_limit: float | None,
        threads: BlockThreads | None,
        clock: Clock,
        progress: Progress,
    ) -> None:
        self._schema = schema
        self._receiver_id = claim.receiver_id
        self._handler = handler
        self._text = TextCheck(schema)
        # The number of the generator's newest block with rows to put aside whose other rows are stored.
        self._stored_before_aside = 0
        self._driver_log = driver_log
        self._reporter = reporter
        self._listener = listener
        self._on_steering = on_steering
        self._positions = positions
        self._keys = keys
        self._clock = clock
        self.progress = progress
        self.limiter = RateLimiter(
            rate_limit,
            initial_rate=settings.backpressure_initial_rate,
            max_rate=settings.receiver_max_rate,
            max_bytes_rate=settings.receiver_max_bytes_rate,
            clock=clock,
        )
        self.generator = BlockGenerator(
            self,
            schema,
            limiter=self.limiter,
            block_interval=settings.block_interval,
            queue_size=settings.block_queue_size,
            max_block_bytes=settings.max_block_bytes,
            name=f"receiver {claim.receiver_id}",
            clock=clock,
            encode=self._encode_ahead,
            threads=threads,
        )
        # For operators, in case the driver log turns out to have lost some of them.
        self.acknowledged = AcknowledgedBlocks()
        # Counts the receiver's threads that wait in a method of this object.
        self.hand_overs = HandOvers(clock)
        # Whether a record was accepted since the receiver's last start.
        self.has_accepted = False
        # Counts the threads that are storing something or wait for their turn to.
        self._storing = HandOvers(clock)

        self._letters = DeadLetterPath(
            handler,
            driver_log,
            reporter,
            storing=self._storing,
            newest_sequence=lambda: self._next_sequence - 1,
            pause=self._pause_unless_refused,
            backoff=partial(Backoff, _STORE_FIRST_DELAY, _STORE_LONGEST_DELAY),
            clock=clock,
            progress=progress,
        )

        # Under this lock a block gets its sequence, is stored, and goes to the registrar: one block at a time.
        self._push_lock = threading.Lock()
        self._next_sequence = claim.sequence + 1
        # Whether the blocks in flight, if any, have keys.
        self._keyed = False

        # Guards everything below.
        self._changed = threading.Condition()
        self._interrupted = False
        self._refused = False
        # Blocks that were stored and then refused. The next epoch's salvage finds those stored before it looked.
        self._refused_blocks = 0
        self._refused_records = 0

        # Last, because a heartbeat may steer it at once.
        self._registration = registrar.attach(
            claim.receiver_id,
            registered_through=handler.registered_through,
            limit=settings.block_queue_size,
            on_steering=self._steer,
            listener=self,
            progress=progress,
            on_lost=self._refuse,
        )

    # -- the supervisor's side ---------------------------------------------------------------------------------------

    @property
    def holds_data(self) -> bool:
        """Return whether something is still to be stored or registered. Takes no lock."""
        return self.generator.holds_data or self._registration.has_unsettled or self._storing.any_since(math.inf)

    @property
    def registered_through(self) -> int:
        """Return the newest sequence that is known to be registered."""
        return self._handler.registered_through.sequence

    @property
    def refused(self) -> tuple[int, int]:
        """Return how many blocks, and how many records in them, were stored and then refused."""
        with self._changed:
            return self._refused_blocks, self._refused_records

    def receiver_starts(self) -> None:
        """Accept records of a receiver that starts."""
        with self._changed:
            self.has_accepted = False
            self._interrupted = False

    def receiver_stops(self) -> None:
        """Lift the rate limit for the records that a stopping receiver has read.

        From now on, a push of records with keys no longer waits for a disk that takes no blocks.
        """
        with self._changed:
            self._interrupted = True
        self.limiter.close()

    def abort(self) -> None:
        """Drop what is not stored, and accept nothing more."""
        self.generator.abort()

    def drain(self) -> None:
        """Return when everything that was handed over is registered, or refused.

        It does not matter whether the driver log answers: what is on the disk can be salvaged, but what is in the
        buffer is lost when the process ends.
        """
        self._registration.lift_limit()
        self.generator.stop()
        self.settle()
        if not self._refused:
            try:
                self._letters.close()
            except Exception as error:  # noqa: BLE001  reported: only counts are lost, and the end must not fail
                self._reporter.error("how many dead letters were not kept could not be recorded", error)

    def settle(self) -> None:
        """Return when no block waits for an answer any more."""
        self._registration.wait_until_settled()

    def close(self) -> None:
        """Close the write-ahead log, and seal its last segment if everything in it is registered."""
        self._handler.close()

    # -- the receiver's side (BufferedPath) --------------------------------------------------------------------------

    def piece(self, records: int, nbytes: int) -> int:
        """Return how many of these records to hand on at once, so that they flow evenly under a rate limit."""
        return self.limiter.piece(records, nbytes)

    def push_single(self, record: object) -> None:
        """Hand one record to the block generator."""
        with self.hand_overs:
            self.generator.add_data(record)
        self.has_accepted = True

    def push_buffered(self, records: pa.RecordBatch | Sequence[object]) -> None:
        """Hand many records to the block generator, in even pieces while a rate limit is set."""
        batch = (
            conform(records, self._schema) if isinstance(records, pa.RecordBatch) else to_batch(records, self._schema)
        )
        done = 0
        with self.hand_overs:
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

        Rows whose text is not UTF-8 become dead letters. If there are only such rows, no block is stored.

        Raises: EmptyBlockError if there are no records, and whatever stopped it. Then the block is not registered, and
        the source must not be acknowledged.
        """
        batches = to_batches(records, self._schema)
        if not batches:
            raise EmptyBlockError(f"receiver {self._receiver_id} stored many records as one block, and there were 0")
        with self.hand_overs:
            self.limiter.acquire(sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches))
            batches = self._put_invalid_aside(batches)
            if batches:
                self._push(self._handler.encode(batches)).result()
        self.has_accepted = True

    def store_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Write dead letters to their segment, then to the driver log; return when all are recorded.

        Many of them share one sync and one statement, because a sender with the wrong encoding sends nothing but bad
        records. Those that are over their peer's budget are only counted.
        """
        with self.hand_overs:
            self._letters.put_aside(letters)

    # -- the receiver's side (LinkedPath) ----------------------------------------------------------------------------

    @property
    def positions(self) -> SourcePositions:
        """Return the source's positions in the driver log."""
        if self._positions is None:
            raise NotImplementedError("this receiver's driver log keeps no positions of sources")
        return self._positions

    def push_linked(self, batch: pa.RecordBatch, links: Sequence[OffsetLink]) -> Future[NewBlock] | None:
        """Store a batch as one block that moves its source's positions; return before it is registered.

        Rows whose text is not UTF-8 become dead letters first. If there are only such rows, return None: no block is
        stored, and the links must go in with the next block.

        The future resolves when the driver log has the block and the positions. It fails with OffsetConflictError if
        another receiver has moved one of the positions. Then no block in flight is registered, and nothing more is
        accepted until the receiver has called ``go_on_after_refusal`` and read the positions again.

        Raises: whatever stopped it. Then nothing of it is stored, or it is not registered.
        """
        with self.hand_overs:
            self.limiter.acquire(batch.num_rows, batch.nbytes)
            batches = self._put_invalid_aside([conform(batch, self._schema)])
            future = self._push(self._handler.encode(batches), tuple(links)) if batches else None
        self.has_accepted = True
        return future

    def go_on_after_refusal(self) -> None:
        """Accept blocks again, after a refusal for a position or a key. Waits for the blocks in flight.

        The refused blocks are dropped here; their caller may hand them over again.

        Raises: the error with which the receiver was refused for good.
        """
        with self._push_lock:
            self._next_sequence = self._registration.go_on() + 1
        self.progress.made()

    # -- the receiver's side (KeyedPath) -----------------------------------------------------------------------------

    def handing_over(self) -> AbstractContextManager[None]:
        """Return a context in which a thread of the receiver counts as waiting here; a stop gives it time to finish."""
        return self.hand_overs

    def wait_for_rate(self, records: int, nbytes: int) -> None:
        """Return when these records may pass the rate limit.

        ``push_keyed`` does not wait for that, because it may have to push records again that have passed already.
        """
        with self.hand_overs:
            self.limiter.acquire(records, nbytes)

    def known_keys(self, keys: Sequence[str], *, wait: bool = True) -> set[str]:
        """Return which of these keys the stream has received within its window, according to the driver log.

        Without ``wait``, return none of them while the driver log is unavailable: a block that repeats a key will be
        refused.
        """
        if self._keys is None:
            raise NotImplementedError("this receiver's driver log keeps no keys")
        with self.hand_overs:
            return self._keys.known_keys(keys, wait=wait)

    def push_keyed(self, batch: pa.RecordBatch, keys: Sequence[str]) -> Future[NewBlock]:
        """Store a batch as one block with its records' keys; return when it is stored, before it is registered.

        The batch has the receiver's schema (``records.conform``), and its text is UTF-8: the caller divides rows and
        keys together (``text_check``). No salvage registers the block, because its sender
        sends the records again if they are not acknowledged. The future resolves when the driver log has the block and
        the keys. It fails with DuplicateKeysError if one of the keys is known. Then no block with keys in flight is
        registered, and nothing is accepted before ``go_on_after_refusal``, which the caller must call. While the disk
        takes no blocks, this waits, except at a stop.

        Raises: whatever stopped it. Then nothing of it is stored, or it is not registered.
        """
        with self.hand_overs:
            encoded = self._handler.encode([batch])
            backoff = Backoff(_STORE_FIRST_DELAY, _STORE_LONGEST_DELAY)
            while True:
                try:
                    future = self._push(encoded, keys=tuple(keys))
                except WriteAheadLogError as error:
                    self.on_error("a block with keys could not be stored", error)
                    if self._interrupted or not self._pause_unless_refused(backoff.next_delay()):
                        raise
                else:
                    self._listener.on_hindered(_STORE, None)
                    self.has_accepted = True
                    return future

    # -- the block generator's side (BlockGeneratorListener) ---------------------------------------------------------

    def on_generate_block(self, block: Block) -> None:
        """Choose the block's codec. The generator encodes it next."""
        self._handler.codec.observe(block.nbytes, seconds=block.seconds, waited=block.waited)

    def on_push_block(self, block: Block) -> None:
        """Store a block and hand it to the registrar. The next block is stored while this one is registered."""
        if block.encoded is not None:
            self._push(block.encoded)
        else:
            valid, letters = self._divide(block.batches)
            # If this fails, the generator calls it again for the same block: its rows must not be stored twice.
            if valid and self._stored_before_aside != block.number:
                self._push(self._handler.encode(valid))
                self._stored_before_aside = block.number
            # After the block: a failed push would store the dead letters again.
            self._letters.put_aside(letters)
        self._listener.on_hindered(_STORE, None)

    def on_idle(self) -> None:
        """Close a segment that has reached its age, after noting in its file what is acknowledged."""
        self._handler.keep_house()

    def on_error(self, message: str, error: Exception) -> None:
        """Report a failed push. It is tried again, and when the queue is full, reading stops (W05)."""
        with self._changed:
            if self._refused:
                return
        self.progress.failed(f"a block could not be stored: {describe(error)}")
        self._listener.on_hindered(
            _STORE, f"a block could not be stored, reading stops when the queue is full: {describe(error)}"
        )
        self._reporter.error("a block could not be stored, it is tried again", error)
        self._reporter.warning(message, error)

    def on_thread_death(self, error: BaseException) -> None:
        """End the process, so that another is started: the generator has ended and takes nothing more."""
        self._refuse(BlockGeneratorFailedError(f"the block generator failed: {describe(error)}"))
        self._reporter.error("the block generator failed", error)

    # -- the driver log's side (OutageListener) ----------------------------------------------------------------------

    def on_driver_log_away(self, what: str, error: Exception) -> None:
        """Show operators why nothing is registered: as the receiver's reason, as soon as that can be written."""
        self._listener.on_hindered(
            what, f"the driver log does not {what}, reading stops when the queue is full: {_first_line(error)}"
        )

    def on_driver_log_back(self, what: str, seconds: float) -> None:
        """Record in the history how long the outage took, and why."""
        why = self._listener.on_hindered(what, None)
        self._reporter.event(
            ReceiverEventKind.ERROR, "what was received had to wait for the driver log", f"{seconds:.1f} s: {why}"
        )

    # -- storing -----------------------------------------------------------------------------------------------------

    def _encode_ahead(self, batches: Sequence[pa.RecordBatch]) -> EncodedBlock | None:
        """Encode a block on the generator's timer; return None if a row must go aside, for which it can't wait."""
        return self._handler.encode(batches, queued=True) if all(map(self._text.is_valid, batches)) else None

    def _divide(self, batches: Sequence[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], list[DeadLetter]]:
        """Return the batches without the rows whose text is not UTF-8, none of them empty, and these rows."""
        valid: list[pa.RecordBatch] = []
        letters: list[DeadLetter] = []
        for batch in batches:
            good = batch
            if not self._text.is_valid(batch):
                good, bad = self._text.divide(batch)
                letters += self._text.dead_letters(bad)
            if good.num_rows:
                valid.append(good)
        return valid, letters

    def _put_invalid_aside(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Store the rows whose text is not UTF-8 as dead letters; return the others."""
        valid, letters = self._divide(batches)
        self._letters.put_aside(letters)
        return valid

    def _push(
        self, encoded: EncodedBlock, links: tuple[OffsetLink, ...] = (), keys: tuple[str, ...] | None = None
    ) -> Future[NewBlock]:
        with self._storing:
            while True:
                try:
                    return self._push_once(encoded, links, keys)
                except DuplicateKeysError:
                    if keys is not None:
                        raise
                # The keys in flight are another thread's. That thread calls ``go_on_after_refusal`` at once.
                self._registration.wait_until_it_goes_on()

    def _push_once(
        self, encoded: EncodedBlock, links: tuple[OffsetLink, ...], keys: tuple[str, ...] | None
    ) -> Future[NewBlock]:
        with self._push_lock:
            if self._keyed is not (keys is not None):
                # Blocks with keys and blocks without are never in flight together: a refusal for a key would refuse the
                # others too, and their sender may not send them again.
                self._registration.wait_until_settled()
                self._keyed = keys is not None
            self._registration.reserve()
            try:
                block = self._handler.store_block(
                    encoded,
                    sequence=self._next_sequence,
                    source_rule=None if keys is None else SourceRule.SENT_AGAIN,
                )
            except BaseException:
                self._registration.release()
                raise
            self.progress.made()
            self._next_sequence += 1
            if links or keys:
                block = replace(block, links=links, keys=keys or ())
            future = self._registration.submit(block)
        future.add_done_callback(partial(self._on_answer, block))
        return future

    def _pause_unless_refused(self, seconds: float) -> bool:
        """Wait; return False as soon as nothing more is to be stored."""
        deadline = self._clock.monotonic() + seconds
        with self._changed:
            while not self._refused and (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait_on(self._changed, left)
            return not self._refused

    # -- the registrar's side (its thread: leave a wish, return) -----------------------------------------------------

    def _on_answer(self, block: NewBlock, future: Future[NewBlock]) -> None:
        error = future.exception()
        if error is None:
            self.acknowledged.add(block)
            return
        if (isinstance(error, OffsetConflictError) and block.links) or isinstance(error, DuplicateKeysError):
            # The receiver drops what it has read and reads on from the driver log's positions; or it leaves out the
            # records that the driver log has.
            return
        with self._changed:
            self._refused_blocks += 1
            self._refused_records += block.records
        self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        """Stop: the driver log accepts nothing more of this epoch."""
        # First, so that a thread that sees refused blocks finds that the supervisor knows the reason.
        self._listener.on_refused(error)
        with self._changed:
            if self._refused:
                return
            self._refused = True
            self._changed.notify_all()
        self.generator.abort()

    def _steer(self, steering: Steering) -> None:
        self.limiter.update_rate(steering.rate_limit)
        self._on_steering(steering)


def _first_line(error: Exception) -> str:
    """Return what the server said, without its hints; if another release migrated the driver log, what to do too."""
    if isinstance(error, OtherReleaseError):
        return str(error)
    said = (error.detail if isinstance(error, DriverLogError) else None) or str(error)
    return said.partition("\n")[0]
