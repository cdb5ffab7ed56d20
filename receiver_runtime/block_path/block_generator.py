"""Cut what a receiver adds into blocks, every ``block_interval``, and push them on in order (B01 to B08).

Two roles run at the same time. The *timer* cuts the buffer into a block at each tick (or earlier, when the buffer is
full) and puts the block on a bounded queue. The *push* role hands the blocks to the listener, first in, first out. A
full queue stops the timer, and a full buffer then blocks the threads that add records: so reading from the source
stops.

This bounds memory by ``queue_size * max_block_bytes`` (with a queue of 6 or more). Where blocks are that large, the
queue takes five fewer, because besides the queue one block is being filled, one is being encoded from another, one
waits for the queue, and one is being pushed. A batch that is larger than a block is cut into pieces that each fit, so
no block is larger, unless one record alone is.

A generator alone has a thread for each role. The generators of a process share their threads (``block_threads``): no
generator holds one while it has nothing to do or waits before a retry.

A push that fails is reported and retried with backoff for as long as it takes: a failed push never ends the role (B07).
If any other error ends a role, the threads report it. Then the generator is aborted and the listener is told, so that
no receiver adds to a buffer that is never emptied.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import structlog

from receiver_runtime.block_path.block_threads import BlockThreads
from receiver_runtime.block_path.records import keep_record, to_batch
from receiver_runtime.watching.backoff import Backoff
from receiver_runtime.watching.clock import Clock
from receiver_runtime.watching.progress import LONGEST_PAUSE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from receiver_runtime.block_path.block_handler import EncodedBlock
    from receiver_runtime.block_path.rate_limiter import RateLimiter

_log = structlog.get_logger(__name__)

# How many copies of a block are held besides the queue: one is being filled, one is being encoded from another, one
# waits for the queue, one is being pushed.
_BESIDE_THE_QUEUE = 5

# Bytes. Chunks with a smaller mean size are copied together: each batch in a block costs a few hundred bytes of its
# own.
_SMALL_CHUNK_BYTES = 256 * 1024
# Single records are turned into Arrow data in portions of this size: small ones take ten times the memory as Python
# objects.
_PORTION_RECORDS = 1024
_PORTION_BYTES = 1024 * 1024
_PUSH_FIRST_DELAY = 0.1
# Seconds. However long the disk was full, everything is acknowledged within a minute after it has room again.
_PUSH_LONGEST_DELAY = LONGEST_PAUSE_SECONDS
_IDLE_SECONDS = 1.0
# A shared timer itself cuts and encodes at most this many bytes, which takes some microseconds.
_CUT_ON_TIMER_BYTES = 32 * 1024


class GeneratorState(StrEnum):
    """Name the original's five states, in order (B01)."""

    INITIALIZED = "Initialized"
    ACTIVE = "Active"
    STOPPED_ADDING_DATA = "StoppedAddingData"
    STOPPED_GENERATING_BLOCKS = "StoppedGeneratingBlocks"
    STOPPED_ALL = "StoppedAll"


# A stop goes through all of them; an abort moves from any state directly to the last.
TRANSITIONS: Mapping[GeneratorState, frozenset[GeneratorState]] = {
    GeneratorState.INITIALIZED: frozenset({GeneratorState.ACTIVE, GeneratorState.STOPPED_ALL}),
    GeneratorState.ACTIVE: frozenset({GeneratorState.STOPPED_ADDING_DATA, GeneratorState.STOPPED_ALL}),
    GeneratorState.STOPPED_ADDING_DATA: frozenset(
        {GeneratorState.STOPPED_GENERATING_BLOCKS, GeneratorState.STOPPED_ALL}
    ),
    GeneratorState.STOPPED_GENERATING_BLOCKS: frozenset({GeneratorState.STOPPED_ALL}),
    GeneratorState.STOPPED_ALL: frozenset(),
}


class GeneratorStateError(RuntimeError):
    """Block generators start once, take data while Active, and end: this one is not in a state for the call."""


@dataclass(frozen=True, slots=True)
class Block:
    """Hold records on their way to the write-ahead log; never empty.

    ``number`` counts the generator's blocks from 1; ``nbytes`` is the size of the Arrow data. ``seconds`` is the time
    since the block before it was cut, and ``waited`` the part of it in which it could have been cut but the timer's
    role was busy with another block. If the generator encodes, ``encoded`` is what will be stored, and ``batches`` is
    empty, so that nothing is held twice.
    """

    number: int
    batches: Sequence[pa.RecordBatch]
    records: int
    nbytes: int
    encoded: EncodedBlock | None = None
    seconds: float = 0.0
    waited: float = 0.0

    @property
    def held_bytes(self) -> int:
        """Return how many bytes the block holds in memory."""
        return self.nbytes if self.encoded is None else self.encoded.nbytes


class BlockGeneratorListener(Protocol):
    """Receive the blocks. The generator holds its lock while it calls ``on_generate_block``, not ``on_push_block``."""

    def on_generate_block(self, block: Block) -> None:
        """Note that a block was cut."""
        ...

    def on_push_block(self, block: Block) -> None:
        """Take a block. Returning means success; after an error the block is offered again."""
        ...

    def on_idle(self) -> None:
        """Keep house: nothing was pushed for a second. Called on the push thread."""
        ...

    def on_error(self, message: str, error: Exception) -> None:
        """Report that a push or a listener's method failed. Called once per failure, before the next attempt."""
        ...

    def on_thread_death(self, error: BaseException) -> None:
        """Report that one of the two roles ended by this error and the generator was aborted."""
        ...


@dataclass(slots=True)
class _Buffer:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    singles: list[object] = field(default_factory=list)
    singles_nbytes: int = 0
    records: int = 0
    nbytes: int = 0

    def gather(self, schema: pa.Schema) -> None:
        """Turn the single records so far into a batch, so that they stay before what comes next."""
        if self.singles:
            self.batches.append(to_batch(self.singles, schema))
            self.singles = []
            self.singles_nbytes = 0


class BlockGenerator:
    """Generate one receiver's blocks; starts once and stops once.

    Args:
        listener: see ``BlockGeneratorListener``.
        schema: of the records.
        limiter: asked for a permit per record, and per byte, before the record is added.
        block_interval: seconds between two ticks; > 0.
        queue_size: how many blocks may wait to be pushed.
        max_block_bytes: no block is larger, except a block of one record that is larger.
        name: for threads and logs.
        encode: called by the timer for each block, so that a block is compressed while the push thread waits for the
            disk. None: the block is left to the listener as it is.
        threads: shared threads; without them the generator makes two of its own.
    """

    def __init__(
        self,
        listener: BlockGeneratorListener,
        schema: pa.Schema,
        *,
        limiter: RateLimiter,
        block_interval: float = 0.2,
        queue_size: int = 10,
        max_block_bytes: int = 16 * 2**20,
        name: str = "receiver",
        clock: Clock | None = None,
        encode: Callable[[Sequence[pa.RecordBatch]], EncodedBlock | None] | None = None,
        threads: BlockThreads | None = None,
    ) -> None:
        if block_interval <= 0:
            raise ValueError(f"a block interval of {block_interval} s: give more than 0, as '200ms'")
        if queue_size < 1 or max_block_bytes < 1:
            raise ValueError("block_queue_size and max_block_bytes must be 1 or more")
        self._listener = listener
        self._schema = schema
        self._limiter = limiter
        self._interval = block_interval
        self._queue_size = queue_size
        self._max_block_bytes = max_block_bytes
        self._name = name
        self._clock = clock or Clock()
        self._encode = encode

        self._owns_threads = threads is None
        # A timer that is not shared cuts and encodes blocks of any size.
        self._threads = threads or BlockThreads(at_once=1, most=1, slot=0, name=name, clock=self._clock)

        # Guards everything below. Entering the lock takes a third of the time of entering the condition.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._state = GeneratorState.INITIALIZED
        self._attached = False
        self._aborted = False
        # The timer's role: the buffer, whether it is being cut, and a block that waits for the queue.
        self._buffer = _Buffer()
        self._blocks_cut = 0
        self._cut_now = False
        self._cutting = False
        self._held: Block | None = None
        self._tick_at = 0.0
        # When the newest block was cut; and since when the next one waits to be cut (None: it does not).
        self._cut_at = 0.0
        self._waits_since: float | None = None
        # The push role: the queue, the block being pushed, and whether a thread is pushing or has been asked to.
        self._queue: deque[Block] = deque()
        self._queue_bytes = 0
        self._queue_max_bytes = max(queue_size - _BESIDE_THE_QUEUE, 1) * max_block_bytes
        self._current: Block | None = None
        self._pushing = False
        self._waits_to_retry = False
        self._pushed_at = 0.0
        self._backoff = Backoff(_PUSH_FIRST_DELAY, _PUSH_LONGEST_DELAY)

    @property
    def state(self) -> GeneratorState:
        """Return the current state."""
        with self._changed:
            return self._state

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the records that it takes."""
        return self._schema

    @property
    def waiting_blocks(self) -> int:
        """Return how many blocks are on the queue."""
        with self._changed:
            return len(self._queue)

    @property
    def holds_data(self) -> bool:
        """Return whether something waits to be pushed or is being pushed. Takes no lock, so the answer may be late."""
        return bool(self._buffer.records or self._cutting or self._held or self._queue or self._current)

    def start(self) -> None:
        """Begin to tick and to push (B01). Raises GeneratorStateError unless Initialized."""
        with self._changed:
            self._move(GeneratorState.ACTIVE)
            self._attached = True
            now = self._clock.monotonic()
            self._tick_at, self._pushed_at, self._cut_at = now + self._interval, now, now
        self._threads.attach()
        self._threads.at(self._tick_at, self._tick, on_death=self._die)

    def stop(self) -> None:
        """Stop adding, cut what is buffered, push all of it, end (B06). In a state other than Active: warn and return.

        Returns when the last block is pushed, however long that takes; ``abort`` from another thread ends the wait.
        """
        with self._changed:
            state = self._state
            if state is GeneratorState.ACTIVE:
                self._move(GeneratorState.STOPPED_ADDING_DATA)
                self._ask_for_cut()
                # Wake the threads that wait for room.
                self._changed.notify_all()
        if state is not GeneratorState.ACTIVE:
            with contextlib.suppress(Exception):
                _log.warning("block generator is not active, nothing to stop", name=self._name, state=state)
            return
        with self._changed:
            while self._cutting or (not self._aborted and (self._held is not None or self._buffer.records)):
                self._changed.wait()
            self._move_unless_aborted(GeneratorState.STOPPED_GENERATING_BLOCKS)
            while self._pushing or (not self._aborted and self._queue):
                self._changed.wait()
            self._move_unless_aborted(GeneratorState.STOPPED_ALL)
        self._leave_threads()

    def abort(self) -> None:
        """End at once and drop what is held, because it would not be accepted any more (the receiver was fenced).

        Does not wait for calls in progress, so a listener may call it.
        """
        with self._changed:
            self._move_unless_aborted(GeneratorState.STOPPED_ALL)
            self._aborted = True
            self._buffer = _Buffer()
            self._held = None
            self._queue.clear()
            self._queue_bytes = 0
            if self._waits_to_retry:
                self._waits_to_retry = False
                self._current = None
                self._pushing = False
            self._changed.notify_all()
        self._limiter.close()
        self._leave_threads()

    def _leave_threads(self) -> None:
        with self._changed:
            attached, self._attached = self._attached, False
        if attached:
            self._threads.detach()
            if self._owns_threads:
                self._threads.close()

    def add_data(self, record: object) -> None:
        """Add one record; wait for its permit, and while the buffer is full (B03).

        Raises:
            GeneratorStateError: not Active.
            RecordTypeError: the record does not fit the schema; nothing was added.
        """
        self._require_active()
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
        self._require_active()
        done = 0
        while done < batch.num_rows:
            piece = _head_of(batch.slice(done), self._max_block_bytes)
            done += piece.num_rows
            nbytes = piece.nbytes
            self._limiter.acquire(piece.num_rows, nbytes)
            with self._changed:
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
            if self._state is not GeneratorState.ACTIVE:
                raise GeneratorStateError(f"the block generator takes no data, it is {self._state}")
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

    def _require_active(self) -> None:
        if self.state is not GeneratorState.ACTIVE:
            raise GeneratorStateError(f"the block generator takes no data, it is {self.state}")

    def _wait_for_room(self, nbytes: int) -> None:
        """Wait, with the lock held, until ``nbytes`` fit into the block that is being filled."""
        while (
            self._state is GeneratorState.ACTIVE
            and self._buffer.records
            and self._buffer.nbytes + nbytes > self._max_block_bytes
        ):
            self._ask_for_cut()
            self._changed.wait()
        if self._state is not GeneratorState.ACTIVE:
            raise GeneratorStateError(f"the block generator takes no data, it is {self._state}")

    def _count(self, records: int, nbytes: int) -> None:
        self._buffer.records += records
        self._buffer.nbytes += nbytes
        if self._buffer.nbytes >= self._max_block_bytes:
            self._ask_for_cut()

    # -- the timer's role: at most one thread at a time, the one for which `_cutting` was set ------------------------

    def _tick(self) -> float | None:
        """Cut the buffer if it is small, else have a thread cut it; return when the next tick is due. On the timer."""
        with self._lock:
            if self._state is not GeneratorState.ACTIVE:
                return None
            now = self._clock.monotonic()
            if now >= self._tick_at:
                # Missed ticks are skipped.
                self._tick_at += self._interval * (1 + (now - self._tick_at) // self._interval)
            if not self._pushing and now - self._pushed_at >= _IDLE_SECONDS:
                self._pushing = True
                self._threads.submit(self._keep_house, on_death=self._die)
            if not self._buffer.records or self._cutting or self._held is not None:
                return self._tick_at
            self._cutting = True
            self._waits_since = now
            if not self._owns_threads and self._buffer.nbytes > _CUT_ON_TIMER_BYTES:
                self._threads.submit(self._run_cut, on_death=self._die)
                return self._tick_at
        self._run_cut()
        return self._tick_at

    def _ask_for_cut(self) -> None:
        """Have the buffer cut before the next tick, or as soon as there is room for the block. The lock is held."""
        self._cut_now = True
        if self._waits_since is None and self._buffer.records and self._held is None:
            self._waits_since = self._clock.monotonic()
        if self._buffer.records and not self._cutting and self._held is None:
            self._cutting = True
            if self._owns_threads:
                self._threads.at(self._clock.monotonic(), self._run_cut, on_death=self._die)
            else:
                self._threads.submit(self._run_cut, on_death=self._die)

    def _run_cut(self) -> None:
        while self._cut_one():
            pass

    def _cut_one(self) -> bool:
        """Cut a block, encode it, and put it on the queue or hold it; return False when that is all for now."""
        with self._lock:
            self._cut_now = False
            try:
                block = self._cut()
            except Exception as error:  # noqa: BLE001  the timer must not end by it
                # For example, no memory is left: the buffer is unchanged, and the next tick tries again. There is no
                # room yet, so threads that wait for room are not woken.
                self._report("a block could not be cut", error)
                self._cutting = False
                if self._state is not GeneratorState.ACTIVE:
                    self._threads.at(self._clock.monotonic() + self._interval, self._cut_again, on_death=self._die)
                    self._changed.notify_all()
                return False
            if block is None:
                self._cutting = False
            self._changed.notify_all()
        if block is None:
            return False
        # From here on nothing may keep a reference to raw batches, or to a block that is on the queue.
        block = self._encoded(block)
        with self._lock:
            if not self._aborted:
                if self._has_room_for(block):
                    self._put(block)
                    self._have_pushed()
                else:
                    self._held = block
                    # What is full by now waits for the disk.
                    self._waits_since = None
            block = None
            wanted = self._cut_now or self._state is not GeneratorState.ACTIVE
            if not wanted or self._held is not None or not self._buffer.records:
                self._cutting = False
                if self._state is not GeneratorState.ACTIVE:
                    self._changed.notify_all()
            return self._cutting

    def _has_room_for(self, block: Block) -> bool:
        """Return whether the queue has room for a block; an empty queue takes any block. The lock is held."""
        if not self._queue:
            return True
        return len(self._queue) < self._queue_size and self._queue_bytes + block.held_bytes <= self._queue_max_bytes

    def _put(self, block: Block) -> None:
        self._queue.append(block)
        self._queue_bytes += block.held_bytes

    def _cut_again(self) -> None:
        with self._lock:
            self._ask_for_cut()

    def _cut(self) -> Block | None:
        """Take the buffer as a block; return None if it is empty (B04). The lock is held."""
        if not self._buffer.records:
            return None
        buffer = self._buffer
        buffer.gather(self._schema)
        batches = buffer.batches
        if len(batches) > 1 and buffer.nbytes < _SMALL_CHUNK_BYTES * len(batches):
            batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
        self._buffer = _Buffer()
        self._blocks_cut += 1
        now = self._clock.monotonic()
        before, self._cut_at = self._cut_at, now
        since, self._waits_since = self._waits_since, None
        waited = 0.0 if since is None else now - since
        block = Block(
            self._blocks_cut,
            batches,
            buffer.records,
            buffer.nbytes,
            seconds=now - before,
            waited=waited,
        )
        try:
            self._listener.on_generate_block(block)
        except Exception as error:  # noqa: BLE001  the timer must not end by it
            self._report("a listener failed when a block was cut", error)
        return block

    def _encoded(self, block: Block) -> Block:
        if self._encode is None:
            return block
        try:
            encoded = self._encode(block.batches)
        except Exception as error:  # noqa: BLE001  the timer must not end by it
            self._report(f"block {block.number} could not be encoded, it is tried again when it is pushed", error)
            return block
        return block if encoded is None else replace(block, batches=(), encoded=encoded)

    # -- the push role: at most one thread at a time, the one for which `_pushing` was set ---------------------------

    def _have_pushed(self) -> None:
        """Have the queue pushed: there is a block on it. The lock is held."""
        if not self._pushing:
            self._pushing = True
            self._threads.submit(self._run_push, on_death=self._die)

    def _run_push(self) -> None:
        block = self._next_block()
        while block is not None:
            if not self._push(block):
                # The retry is due later; this thread does not wait for it.
                return
            block = self._next_block(pushed=True)

    def _next_block(self, *, pushed: bool = False) -> Block | None:
        """Take the oldest block that is not pushed; return None, and give the role up, if there is none."""
        with self._lock:
            if self._aborted or pushed:
                self._current = None
            if self._aborted:
                pass
            elif self._current is None and self._queue:
                self._current = self._queue.popleft()
                self._queue_bytes -= self._current.held_bytes
                if self._held is not None and self._has_room_for(self._held):
                    self._put(self._held)
                    self._held = None
                    if self._cut_now or self._state is not GeneratorState.ACTIVE:
                        self._ask_for_cut()
                        self._changed.notify_all()
            if self._current is None:
                self._pushing = False
                self._pushed_at = self._clock.monotonic()
                if self._state is not GeneratorState.ACTIVE:
                    self._changed.notify_all()
            return self._current

    def _push(self, block: Block) -> bool:
        """Push a block; return False if that failed and will be tried again."""
        try:
            self._listener.on_push_block(block)
        except Exception as error:  # noqa: BLE001  the push thread must not end by it (B07)
            # An abort makes pushes fail; that is not reported.
            with self._changed:
                if self._aborted:
                    return True
            # Report before the retry, so that the listener never hears of a failure after the success. This can't
            # raise.
            self._report(f"block {block.number} could not be pushed, attempt {self._backoff.failures + 1}", error)
            with self._changed:
                if self._aborted:
                    return True
                self._waits_to_retry = True
                again_at = self._clock.monotonic() + self._backoff.next_delay()
                self._threads.at(again_at, self._retry, on_death=self._die)
            return False
        if self._backoff.failures:
            self._backoff.reset()
        return True

    def _retry(self) -> None:
        """Push again. Runs on the timer."""
        with self._changed:
            if self._waits_to_retry:
                self._waits_to_retry = False
                self._threads.submit(self._run_push, on_death=self._die)

    def _keep_house(self) -> None:
        try:
            self._listener.on_idle()
        except Exception as error:  # noqa: BLE001  the push thread must not end by it
            self._report("house-keeping between two blocks failed", error)
        self._run_push()

    def _die(self, error: BaseException) -> None:
        """End the generator and report it: an error ended one of its roles (called by the threads).

        The abort comes first: a log line or a report that fails must not keep the listener from hearing of the end.
        """
        with self._changed:
            # It does not matter which role ended: after the abort neither does anything more.
            self._cutting = self._pushing = False
        try:
            self.abort()
        finally:
            self._listener.on_thread_death(error)
        _log.error("a role of a block generator ended", name=self._name, error=f"{type(error).__name__}: {error}")

    def _report(self, message: str, error: Exception) -> None:
        try:
            self._listener.on_error(message, error)
        except Exception:  # noqa: BLE001  neither thread may end by it
            with contextlib.suppress(Exception):
                _log.exception("reporting an error failed", name=self._name, message=message)

    def _move_unless_aborted(self, to: GeneratorState) -> None:
        if self._state is not GeneratorState.STOPPED_ALL:
            self._move(to)

    def _move(self, to: GeneratorState) -> None:
        if to not in TRANSITIONS[self._state]:
            raise GeneratorStateError(f"a block generator that is {self._state} can't become {to}")
        self._state = to


def _head_of(batch: pa.RecordBatch, most: int) -> pa.RecordBatch:
    """Return as many of the first records as fit into ``most`` bytes, at least one; they share the batch's memory."""
    head = batch
    while (nbytes := head.nbytes) > most and head.num_rows > 1:
        # Estimate by the mean size. The number falls each time, because `most / nbytes` is less than 1.
        head = batch.slice(0, max(1, head.num_rows * most // nbytes))
    return head
