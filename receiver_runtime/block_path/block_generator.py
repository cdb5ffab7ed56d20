"""Cut what a receiver adds into blocks, every ``block_interval``, and push them on in order (B01 to B08).

Two roles run at the same time. The *timer* (``block_cutter``) cuts the buffer into a block at each tick (or earlier,
when the buffer is full) and puts the block on a bounded queue. The *push* role (``block_queue``) hands the blocks to
the pusher, first in, first out. A full queue stops the timer, and a full buffer then blocks the threads that add
records: so reading from the source stops.

This bounds memory by ``queue_size * max_block_bytes`` (with a queue of 6 or more). Where blocks are that large, the
queue takes five fewer, because besides the queue one block is being filled, one is being encoded from another, one
waits for the queue, and one is being pushed. A batch that is larger than a block is cut into pieces that each fit, so
no block is larger, unless one record alone is.

A generator alone has a thread for each role. The generators of a process share their threads (``block_threads``): no
generator holds one while it has nothing to do or waits before a retry.

A push that fails is reported and retried with backoff for as long as it takes: a failed push never ends the role (B07).
If any other error ends a role, the generator is aborted and its pusher is called (``BlockPusher.fail``), so that no
receiver adds to a buffer that is never emptied.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_path.block import BlockBuffer
from receiver_runtime.block_path.block_cutter import BlockCutter
from receiver_runtime.block_path.block_queue import BlockQueue
from receiver_runtime.block_path.generator_state import GeneratorLifecycle, GeneratorState
from receiver_runtime.block_path.load.block_threads import BlockThreads
from receiver_runtime.block_path.records import keep_record
from receiver_runtime.watching.clock import Clock

if TYPE_CHECKING:
    import pyarrow as pa

    from receiver_runtime.block_path.block_pusher import BlockPusher
    from receiver_runtime.block_path.load.rate_limiter import RateLimiter
    from receiver_runtime.sources.receiver_settings import ReceiverSettings

_log = structlog.get_logger(__name__)

# Single records are turned into Arrow data in portions of this size: small ones take ten times the memory as Python
# objects.
_PORTION_RECORDS = 1024
_PORTION_BYTES = 1024 * 1024


class BlockGenerator:
    """Generate one receiver's blocks; starts once and stops once.

    Its lock (``GeneratorLifecycle.lock``) guards the buffer, the cutter and the queue.

    Args:
        pusher: takes the blocks.
        schema: of the records.
        limiter: asked for a permit per record, and per byte, before the record is added.
        settings: the seconds between two ticks, how many blocks may wait to be pushed, and the size that no block
            exceeds, except a block of one record that is larger.
        name: for threads and logs.
        threads: shared threads; without them the generator makes two of its own.
    """

    def __init__(
        self,
        pusher: BlockPusher,
        schema: pa.Schema,
        *,
        limiter: RateLimiter,
        settings: ReceiverSettings,
        name: str = "receiver",
        clock: Clock | None = None,
        threads: BlockThreads | None = None,
    ) -> None:
        self._pusher = pusher
        self._schema = schema
        self._limiter = limiter
        self._max_block_bytes = settings.max_block_bytes
        self._name = name
        self._clock = clock or Clock()
        self._owns_threads = threads is None
        # A timer that is not shared cuts and encodes blocks of any size.
        self._threads = threads or BlockThreads(at_once=1, most=1, slot=0, name=name, clock=self._clock)
        self._attached = False
        self._lifecycle = GeneratorLifecycle(
            settings, self._threads, is_sharing=threads is not None, clock=self._clock, on_death=self._die
        )
        self._lock = self._lifecycle.lock
        self._buffer = BlockBuffer()
        self._queue = BlockQueue(pusher, self._lifecycle)
        self._cutter = BlockCutter(pusher, self._lifecycle, self._queue, self._buffer, schema)
        self._queue.on_room = self._cutter.on_room

    @property
    def state(self) -> GeneratorState:
        """Return the current state."""
        return self._lifecycle.state

    @property
    def waiting_blocks(self) -> int:
        """Return how many blocks are on the queue."""
        return len(self._queue)

    @property
    def holds_data(self) -> bool:
        """Return whether something waits to be pushed or is being pushed. Takes no lock, so the answer may be late."""
        return bool(self._buffer.records or self._cutter.is_cutting) or self._queue.holds_data

    def start(self) -> None:
        """Begin to tick and to push (B01). Raises GeneratorStateError unless Initialized."""
        with self._lock:
            self._lifecycle.move(GeneratorState.ACTIVE)
            self._attached = True
            self._queue.pushed_at = now = self._clock.monotonic()
            self._cutter.start(now)
        self._threads.attach()
        self._lifecycle.at(self._cutter.tick_at, self._cutter.tick)

    def stop(self) -> None:
        """Stop adding, cut what is buffered, push all of it, end (B06). In a state other than Active: warn and return.

        Returns when the last block is pushed, however long that takes; ``abort`` from another thread ends the wait.
        """
        lifecycle = self._lifecycle
        with self._lock:
            state = lifecycle.state
            if state is GeneratorState.ACTIVE:
                lifecycle.move(GeneratorState.STOPPED_ADDING_DATA)
                self._cutter.ask_for_cut()
                # Wake the threads that wait for room.
                lifecycle.changed.notify_all()
        if state is not GeneratorState.ACTIVE:
            with contextlib.suppress(Exception):
                _log.warning("block generator is not active, nothing to stop", name=self._name, state=state)
            return
        with self._lock:
            while self._cutter.is_cutting or (
                not lifecycle.is_aborted and (self._queue.held is not None or self._buffer.records)
            ):
                lifecycle.changed.wait()
            lifecycle.move_unless_ended(GeneratorState.STOPPED_GENERATING_BLOCKS)
            while self._queue.is_pushing or (not lifecycle.is_aborted and len(self._queue)):
                lifecycle.changed.wait()
            lifecycle.move_unless_ended(GeneratorState.STOPPED_ALL)
        self._leave_threads()

    def abort(self) -> None:
        """End at once and drop what is held, because it would not be accepted any more (the receiver was fenced).

        Does not wait for calls in progress, so the pusher may call it.
        """
        with self._lock:
            self._lifecycle.move_unless_ended(GeneratorState.STOPPED_ALL)
            self._lifecycle.is_aborted = True
            self._buffer.clear()
            self._queue.clear()
            self._lifecycle.changed.notify_all()
        self._limiter.close()
        self._leave_threads()

    def _leave_threads(self) -> None:
        with self._lock:
            attached, self._attached = self._attached, False
        if attached:
            self._threads.detach()
            if self._owns_threads:
                self._threads.close()

    def _die(self, error: BaseException) -> None:
        """End the generator and report it: an error ended one of its roles (called by the threads).

        The abort comes first: a log line or a report that fails must not keep the supervisor from hearing of the end.
        """
        with self._lock:
            # It does not matter which role ended: after the abort neither does anything more.
            self._cutter.is_cutting = self._queue.is_pushing = False
        try:
            self.abort()
        finally:
            self._pusher.fail(error)
        _log.error("a role of a block generator ended", name=self._name, error=f"{type(error).__name__}: {error}")

    def add_data(self, record: object) -> None:
        """Add one record; wait for its permit, and while the buffer is full (B03).

        Raises:
            GeneratorStateError: not Active.
            RecordTypeError: the record does not fit the schema; nothing was added.
        """
        self._lifecycle.require_active()
        kept, nbytes = keep_record(record, self._schema)
        self._limiter.acquire(1, nbytes)
        with self._lock:
            self._wait_for_room(nbytes)
            buffer = self._buffer
            if len(buffer.singles) >= _PORTION_RECORDS or buffer.singles_nbytes >= _PORTION_BYTES:
                buffer.gather(self._schema)
            buffer.singles.append(kept)
            buffer.singles_nbytes += nbytes
            self._count(1, nbytes)

    def add_multiple_data(self, batch: pa.RecordBatch) -> None:
        """Add many records, all of them to one block (B03); waits for all their permits, and for room.

        The batch has the generator's schema (``records.conform``).

        A batch that is larger than a block is added in pieces, in order, each piece as a batch of its own.

        Raises:
            GeneratorStateError: not Active; some pieces of a batch that is larger than a block may have been added.
        """
        self._lifecycle.require_active()
        done = 0
        while done < batch.num_rows:
            piece = _head_of(batch.slice(done), self._max_block_bytes)
            done += piece.num_rows
            nbytes = piece.nbytes
            self._limiter.acquire(piece.num_rows, nbytes)
            with self._lock:
                self._wait_for_room(nbytes)
                self._buffer.gather(self._schema)
                self._buffer.batches.append(piece)
                self._count(piece.num_rows, nbytes)

    def add_if_free(self, batch: pa.RecordBatch) -> bool:
        """Do as ``add_multiple_data`` if that need not wait; else add nothing. Return whether the batch was added.

        Raises: as ``add_multiple_data``.
        """
        nbytes = batch.nbytes
        with self._lock:
            self._lifecycle.require_active()
            buffer = self._buffer
            if buffer.nbytes + nbytes > self._max_block_bytes:
                return False
            if not self._limiter.acquire_if_free(batch.num_rows, nbytes):
                return False
            if buffer.singles:
                buffer.gather(self._schema)
            buffer.batches.append(batch)
            self._count(batch.num_rows, nbytes)
        return True

    def _wait_for_room(self, nbytes: int) -> None:
        """Wait, with the lock held, until ``nbytes`` fit into the block that is being filled."""
        lifecycle, buffer = self._lifecycle, self._buffer
        while (
            lifecycle.state is GeneratorState.ACTIVE
            and buffer.records
            and buffer.nbytes + nbytes > self._max_block_bytes
        ):
            self._cutter.ask_for_cut()
            lifecycle.changed.wait()
        lifecycle.require_active()

    def _count(self, records: int, nbytes: int) -> None:
        self._buffer.records += records
        self._buffer.nbytes += nbytes
        if self._buffer.nbytes >= self._max_block_bytes:
            self._cutter.ask_for_cut()


def _head_of(batch: pa.RecordBatch, most: int) -> pa.RecordBatch:
    """Return as many of the first records as fit into ``most`` bytes, at least one; they share the batch's memory."""
    head = batch
    while (nbytes := head.nbytes) > most and head.num_rows > 1:
        # Estimate by the mean size. The number falls each time, because `most / nbytes` is less than 1.
        head = batch.slice(0, max(1, head.num_rows * most // nbytes))
    return head
