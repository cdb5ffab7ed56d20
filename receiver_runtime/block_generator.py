"""Cuts what a receiver adds into blocks, every ``block_interval``, and pushes them on in order (B01 to B08).

Two threads: the *timer* cuts the buffer into a block at each tick (or early, when the buffer is full) and puts it on
a bounded queue; the *push* thread hands the blocks to the listener, first in, first out. A queue that is full stops
the timer, a buffer that is full then stops whoever adds: so reading from the source stops, and memory is bounded by
``(queue_size + 3) * max_block_bytes``: one block is filled, one waits for the queue, one is being pushed. A batch that
is larger than a block comes in pieces that each fit, so no block is larger, except by one record that alone is.

A push that fails is reported and tried again with backoff for as long as it takes: the thread never dies of it (B07).
Should a thread end by something else after all, the listener is told and the generator is aborted: nobody adds to a
buffer that nobody empties.

Locks: ``_buffer_changed`` guards state and buffer, ``_queue_changed`` the queue; they are never held together.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import structlog

from receiver_runtime.backoff import Backoff
from receiver_runtime.clock import Clock, SystemClock
from receiver_runtime.records import conform, keep_record, to_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from receiver_runtime.block_handler import EncodedBlock
    from receiver_runtime.rate_limiter import RateLimiter

_log = structlog.get_logger(__name__)

# Below this mean size, chunks are copied together: each batch in a block costs a few hundred bytes of its own.
_SMALL_CHUNK_BYTES = 256 * 1024
# Single records become Arrow data in such portions: as Python objects, small ones take ten times the room.
_PORTION_RECORDS = 1024
_PORTION_BYTES = 1024 * 1024
_PUSH_FIRST_DELAY = 0.1
_PUSH_LONGEST_DELAY = 30.0
_IDLE_SECONDS = 1.0


class GeneratorState(StrEnum):
    """The original's five states, in order (B01)."""

    INITIALIZED = "Initialized"
    ACTIVE = "Active"
    STOPPED_ADDING_DATA = "StoppedAddingData"
    STOPPED_GENERATING_BLOCKS = "StoppedGeneratingBlocks"
    STOPPED_ALL = "StoppedAll"


# A stop goes through all of them; an abort goes straight to the end from wherever it is.
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
    """The block generator is not in a state for this. A generator starts once, takes data while Active, and ends."""


@dataclass(frozen=True, slots=True)
class Block:
    """Records on their way to the write-ahead log; never empty.

    ``number`` counts the generator's blocks from 1; ``nbytes`` is the Arrow data's size; ``metadata`` is what was
    handed in with the data, in order. Where the generator encodes, ``encoded`` is what is to be stored, and
    ``batches`` is empty: nothing is held twice.
    """

    number: int
    batches: Sequence[pa.RecordBatch]
    records: int
    nbytes: int
    metadata: Sequence[object]
    encoded: EncodedBlock | None = None


class BlockGeneratorListener(Protocol):
    """Who is told. ``on_add_data`` and ``on_generate_block`` exclude each other; ``on_push_block`` is not locked."""

    def on_add_data(self, data: object, metadata: object) -> None:
        """Data with metadata was added to the buffer."""
        ...

    def on_generate_block(self, block: Block) -> None:
        """A block was cut."""
        ...

    def on_push_block(self, block: Block) -> None:
        """Take a block on; returning is success, and raising means that it is offered again."""
        ...

    def on_idle(self) -> None:
        """Nothing was pushed for a second (the push thread's chance for house-keeping)."""
        ...

    def on_error(self, message: str, error: Exception) -> None:
        """A push or a listener's method failed. Called once per failure, before the next try."""
        ...

    def on_thread_death(self, error: BaseException) -> None:
        """One of the two threads ended by this; the generator was aborted."""
        ...


@dataclass(slots=True)
class _Buffer:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    singles: list[object] = field(default_factory=list)
    singles_nbytes: int = 0
    metadata: list[object] = field(default_factory=list)
    records: int = 0
    nbytes: int = 0

    def gather(self, schema: pa.Schema) -> None:
        """Turn the single records so far into a batch, which keeps them before what comes next."""
        if self.singles:
            self.batches.append(to_batch(self.singles, schema))
            self.singles = []
            self.singles_nbytes = 0


class BlockGenerator:
    """One receiver's generator; starts once and stops once.

    Args:
        listener: see ``BlockGeneratorListener``.
        schema: of the records.
        limiter: asked for a permit per record, and per byte, before it is added.
        block_interval: seconds between two ticks; > 0.
        queue_size: blocks that may wait to be pushed.
        max_block_bytes: no block is larger; but one record that is larger is a block of its own.
        name: for threads and logs.
        encode: called by the timer for each block, so that one is compressed while the push thread waits for the disk.
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
        encode: Callable[[Sequence[pa.RecordBatch]], EncodedBlock] | None = None,
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
        self._clock = clock or SystemClock()
        self._encode = encode

        self._buffer_changed = threading.Condition()
        self._state = GeneratorState.INITIALIZED
        self._buffer = _Buffer()
        self._blocks_cut = 0
        self._cut_now = False

        self._queue_changed = threading.Condition()
        self._queue: deque[Block] = deque()
        self._no_more_blocks = False
        self._aborted = False

        self._timer = threading.Thread(
            target=self._guard, args=(self._run_timer,), name=f"{name} block timer", daemon=True
        )
        self._pusher = threading.Thread(
            target=self._guard, args=(self._run_push,), name=f"{name} block push", daemon=True
        )

    @property
    def state(self) -> GeneratorState:
        """Where in its life it is."""
        with self._buffer_changed:
            return self._state

    @property
    def schema(self) -> pa.Schema:
        """Of the records that it takes."""
        return self._schema

    @property
    def waiting_blocks(self) -> int:
        """Blocks on the queue."""
        with self._queue_changed:
            return len(self._queue)

    def start(self) -> None:
        """Start both threads (B01). Raises GeneratorStateError unless Initialized."""
        with self._buffer_changed:
            self._move(GeneratorState.ACTIVE)
        self._timer.start()
        self._pusher.start()

    def stop(self) -> None:
        """Stop adding, cut what is buffered, push all of it, end (B06). Elsewhere than Active: warns and returns.

        Returns when the last block is pushed, however long that takes; ``abort`` from another thread ends it.
        """
        with self._buffer_changed:
            state = self._state
            if state is GeneratorState.ACTIVE:
                self._move(GeneratorState.STOPPED_ADDING_DATA)
                self._buffer_changed.notify_all()
        if state is not GeneratorState.ACTIVE:
            _log.warning("block generator is not active, nothing to stop", name=self._name, state=state)
            return
        self._timer.join()
        self._move_unless_aborted(GeneratorState.STOPPED_GENERATING_BLOCKS)
        with self._queue_changed:
            self._no_more_blocks = True
            self._queue_changed.notify_all()
        self._pusher.join()
        self._move_unless_aborted(GeneratorState.STOPPED_ALL)

    def abort(self) -> None:
        """End at once and drop what is held: nobody would accept it any more (the receiver was fenced).

        Does not wait for the threads, so that a listener may call it.
        """
        with self._buffer_changed:
            if self._state is not GeneratorState.STOPPED_ALL:
                self._move(GeneratorState.STOPPED_ALL)
            self._buffer = _Buffer()
            self._buffer_changed.notify_all()
        with self._queue_changed:
            self._aborted = True
            self._queue.clear()
            self._queue_changed.notify_all()
        self._limiter.close()

    def add_data(self, record: object, metadata: object = None) -> None:
        """Add one record; waits for its permit, and while the buffer is full (B03).

        Raises:
            GeneratorStateError: not Active.
            RecordTypeError: the record does not fit the schema; nothing was added.
        """
        self._require_active()
        kept, nbytes = keep_record(record, self._schema)
        self._limiter.acquire(1, nbytes)
        with self._buffer_changed:
            self._wait_for_room(nbytes)
            buffer = self._buffer
            if len(buffer.singles) >= _PORTION_RECORDS or buffer.singles_nbytes >= _PORTION_BYTES:
                buffer.gather(self._schema)
            buffer.singles.append(kept)
            buffer.singles_nbytes += nbytes
            self._count(1, nbytes, record, metadata)

    def add_multiple_data(self, records: pa.RecordBatch | Sequence[object], metadata: object = None) -> None:
        """Add many records, all of them to one block (B03); waits for all their permits, and for room.

        What is larger than a block comes in pieces, in order, each of them for itself; the metadata with the last, for
        then all of it is in.

        Raises: as ``add_data``; of what is larger than a block, pieces may be in.
        """
        self._require_active()
        batch = (
            conform(records, self._schema) if isinstance(records, pa.RecordBatch) else to_batch(records, self._schema)
        )
        done = 0
        while done < batch.num_rows:
            piece = _head_of(batch.slice(done), self._max_block_bytes)
            done += piece.num_rows
            last = done == batch.num_rows
            nbytes = piece.nbytes
            self._limiter.acquire(piece.num_rows, nbytes)
            with self._buffer_changed:
                self._wait_for_room(nbytes)
                self._buffer.gather(self._schema)
                self._buffer.batches.append(piece)
                self._count(piece.num_rows, nbytes, records, metadata if last else None)

    def _require_active(self) -> None:
        if self.state is not GeneratorState.ACTIVE:
            raise GeneratorStateError(f"the block generator takes no data, it is {self.state}")

    def _wait_for_room(self, nbytes: int) -> None:
        """With the lock held: wait until ``nbytes`` fit into the block that is being filled."""
        while (
            self._state is GeneratorState.ACTIVE
            and self._buffer.records
            and self._buffer.nbytes + nbytes > self._max_block_bytes
        ):
            self._cut_now = True
            self._buffer_changed.notify_all()
            self._buffer_changed.wait()
        if self._state is not GeneratorState.ACTIVE:
            raise GeneratorStateError(f"the block generator takes no data, it is {self._state}")

    def _count(self, records: int, nbytes: int, data: object, metadata: object) -> None:
        self._buffer.records += records
        self._buffer.nbytes += nbytes
        if metadata is not None:
            self._buffer.metadata.append(metadata)
            try:
                self._listener.on_add_data(data, metadata)
            except Exception as error:  # noqa: BLE001  the data is in: who added it must not add it again
                self._report("a listener failed when data was added", error)
        if self._buffer.nbytes >= self._max_block_bytes:
            self._cut_now = True
            self._buffer_changed.notify_all()

    def _guard(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001  told to the listener; this is a thread's outermost frame
            _log.exception("a thread of a block generator ended", name=self._name)
            self.abort()
            self._listener.on_thread_death(error)

    def _run_timer(self) -> None:
        tick = self._clock.monotonic() + self._interval
        last = False
        while not last:
            with self._buffer_changed:
                while (
                    self._state is GeneratorState.ACTIVE
                    and not self._cut_now
                    and (left := tick - self._clock.monotonic()) > 0
                ):
                    self._clock.wait_on(self._buffer_changed, left)
                stopping = self._state is not GeneratorState.ACTIVE
                try:
                    block = self._cut()
                except Exception as error:  # noqa: BLE001  the timer must not end by it
                    # Out of memory, say: the buffer is as it was, and the next tick tries again.
                    self._report("a block could not be cut", error)
                    block = None
                    self._clock.wait_on(self._buffer_changed, self._interval)
                last = stopping and not self._buffer.records
                self._cut_now = False
                self._buffer_changed.notify_all()
            if block is not None:
                # Nothing here may hold raw batches while it waits for the queue, nor a block that the queue has.
                block = self._encoded(block)
                self._enqueue(block)
                block = None
            now = self._clock.monotonic()
            if now >= tick:
                # A tick that was missed (the queue was full) is not made up for.
                tick += self._interval * (1 + (now - tick) // self._interval)

    def _cut(self) -> Block | None:
        """With the lock held: the buffer as a block; None when it is empty (B04)."""
        if not self._buffer.records:
            return None
        buffer = self._buffer
        buffer.gather(self._schema)
        batches = buffer.batches
        if len(batches) > 1 and buffer.nbytes < _SMALL_CHUNK_BYTES * len(batches):
            batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
        self._buffer = _Buffer()
        self._blocks_cut += 1
        block = Block(self._blocks_cut, batches, buffer.records, buffer.nbytes, buffer.metadata)
        try:
            self._listener.on_generate_block(block)
        except Exception as error:  # noqa: BLE001  the timer must not end by it
            self._report("a listener failed when a block was cut", error)
        return block

    def _encoded(self, block: Block) -> Block:
        if self._encode is None:
            return block
        try:
            return replace(block, batches=(), encoded=self._encode(block.batches))
        except Exception as error:  # noqa: BLE001  the timer must not end by it
            self._report(f"block {block.number} could not be encoded, it is tried again when it is pushed", error)
            return block

    def _enqueue(self, block: Block) -> None:
        with self._queue_changed:
            while len(self._queue) >= self._queue_size and not self._aborted:
                self._queue_changed.wait()
            if not self._aborted:
                self._queue.append(block)
                self._queue_changed.notify_all()

    def _run_push(self) -> None:
        while (block := self._next_block()) is not None:
            self._push(block)

    def _next_block(self) -> Block | None:
        """The oldest block; None when there is none and will be none."""
        while True:
            with self._queue_changed:
                if not self._queue and not self._no_more_blocks and not self._aborted:
                    self._queue_changed.wait(_IDLE_SECONDS)
                if self._aborted:
                    return None
                if self._queue:
                    block = self._queue.popleft()
                    self._queue_changed.notify_all()
                    return block
                if self._no_more_blocks:
                    return None
            try:
                self._listener.on_idle()
            except Exception as error:  # noqa: BLE001  the push thread must not end by it
                self._report("house-keeping between two blocks failed", error)

    def _push(self, block: Block) -> None:
        backoff = Backoff(_PUSH_FIRST_DELAY, _PUSH_LONGEST_DELAY)
        while True:
            try:
                self._listener.on_push_block(block)
            except Exception as error:  # noqa: BLE001  the push thread must not end by it (B07)
                # An abort makes pushes fail; that is no news.
                with self._queue_changed:
                    if self._aborted:
                        return
                self._report(f"block {block.number} could not be pushed, attempt {backoff.failures + 1}", error)
            else:
                return
            deadline = self._clock.monotonic() + backoff.next_delay()
            with self._queue_changed:
                while not self._aborted and (left := deadline - self._clock.monotonic()) > 0:
                    self._clock.wait_on(self._queue_changed, left)
                if self._aborted:
                    return

    def _report(self, message: str, error: Exception) -> None:
        try:
            self._listener.on_error(message, error)
        except Exception:  # noqa: BLE001  neither thread may end by it
            _log.exception("reporting an error failed", name=self._name, message=message)

    def _move_unless_aborted(self, to: GeneratorState) -> None:
        with self._buffer_changed:
            if self._state is not GeneratorState.STOPPED_ALL:
                self._move(to)

    def _move(self, to: GeneratorState) -> None:
        if to not in TRANSITIONS[self._state]:
            raise GeneratorStateError(f"a block generator that is {self._state} can't become {to}")
        self._state = to


def _head_of(batch: pa.RecordBatch, most: int) -> pa.RecordBatch:
    """So many of the first records as fit into ``most`` bytes, one at least; their memory stays the batch's."""
    head = batch
    while (nbytes := head.nbytes) > most and head.num_rows > 1:
        # By the mean size, which falls each time: `most / nbytes` is less than 1.
        head = batch.slice(0, max(1, head.num_rows * most // nbytes))
    return head
