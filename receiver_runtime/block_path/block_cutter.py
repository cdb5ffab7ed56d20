"""Cut the buffer of one generator into blocks, at each tick or when it is full, and offer them to the queue.

At most one thread at a time has this role, the one for which ``is_cutting`` was set: the timer, or a push thread for
what is large. While the queue has no room for a block nothing is cut, so the buffer fills. Adds no record, and pushes
no block.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.block_path.block import Block
from receiver_runtime.block_path.block_queue import report_failure
from receiver_runtime.block_path.generator_state import GeneratorState

if TYPE_CHECKING:
    from receiver_runtime.block_path.block import BlockBuffer
    from receiver_runtime.block_path.block_pusher import BlockPusher
    from receiver_runtime.block_path.block_queue import BlockQueue
    from receiver_runtime.block_path.generator_state import GeneratorLifecycle

# Bytes. Chunks with a smaller mean size are copied together: each batch in a block costs a few hundred bytes of its
# own.
_SMALL_CHUNK_BYTES = 256 * 1024
# A shared timer itself cuts and encodes at most this many bytes, which takes some microseconds.
_CUT_ON_TIMER_BYTES = 32 * 1024


class BlockCutter:
    """Cut blocks; see the module. The generator's lock guards all fields."""

    def __init__(
        self,
        pusher: BlockPusher,
        lifecycle: GeneratorLifecycle,
        queue: BlockQueue,
        buffer: BlockBuffer,
        schema: pa.Schema,
    ) -> None:
        self._pusher = pusher
        self._lifecycle = lifecycle
        self._queue = queue
        self._buffer = buffer
        self._schema = schema
        self._clock = lifecycle.clock
        self._interval = lifecycle.settings.block_interval
        self._lock = lifecycle.lock
        self._blocks_cut = 0
        self._cut_now = False
        self.is_cutting = False
        self.tick_at = 0.0
        # When the newest block was cut; and since when the next one waits to be cut (None: it does not).
        self._cut_at = 0.0
        self._waits_since: float | None = None

    def start(self, now: float) -> None:
        """Begin an interval. The lock is held."""
        self.tick_at, self._cut_at = now + self._interval, now

    def ask_for_cut(self) -> None:
        """Have the buffer cut before the next tick, or as soon as there is room for the block. The lock is held."""
        self._cut_now = True
        if not self._buffer.records or self._queue.held is not None:
            return
        if self._waits_since is None:
            self._waits_since = self._clock.monotonic()
        if not self.is_cutting:
            self.is_cutting = True
            if self._lifecycle.is_sharing:
                self._lifecycle.submit(self._run)
            else:
                self._lifecycle.at(self._clock.monotonic(), self._run)

    def on_room(self) -> None:
        """Cut what became full while a block waited for room. The lock is held."""
        if self._cut_now or self._lifecycle.state is not GeneratorState.ACTIVE:
            self.ask_for_cut()
            self._lifecycle.changed.notify_all()

    def tick(self) -> float | None:
        """Cut the buffer if it is small, else have a thread cut it; return when the next tick is due. On the timer."""
        with self._lock:
            if self._lifecycle.state is not GeneratorState.ACTIVE:
                return None
            now = self._clock.monotonic()
            if now >= self.tick_at:
                # Missed ticks are skipped.
                self.tick_at += self._interval * (1 + (now - self.tick_at) // self._interval)
            self._queue.close_aged_segments_if_idle(now)
            if not self._buffer.records or self.is_cutting or self._queue.held is not None:
                return self.tick_at
            self.is_cutting = True
            self._waits_since = now
            if self._lifecycle.is_sharing and self._buffer.nbytes > _CUT_ON_TIMER_BYTES:
                self._lifecycle.submit(self._run)
                return self.tick_at
        self._run()
        return self.tick_at

    def _run(self) -> None:
        while self._cut_one():
            pass

    def _cut_one(self) -> bool:
        """Cut a block, encode it, and put it on the queue or hold it; return False when that is all for now."""
        lifecycle = self._lifecycle
        with self._lock:
            self._cut_now = False
            try:
                block = self._cut()
            except Exception as error:  # noqa: BLE001  the timer must not end by it
                # For example, no memory is left: the buffer is unchanged, and the next tick tries again. There is no
                # room yet, so threads that wait for room are not woken.
                report_failure(self._pusher, "a block could not be cut", error)
                self.is_cutting = False
                if lifecycle.state is not GeneratorState.ACTIVE:
                    lifecycle.at(self._clock.monotonic() + self._interval, self._cut_again)
                    lifecycle.changed.notify_all()
                return False
            if block is None:
                self.is_cutting = False
            lifecycle.changed.notify_all()
        if block is None:
            return False
        # From here on nothing may keep a reference to raw batches, or to a block that is on the queue.
        block = self._encoded(block)
        with self._lock:
            if not lifecycle.is_aborted and not self._queue.offer(block):
                # What is full by now waits for the disk.
                self._waits_since = None
            block = None
            wanted = self._cut_now or lifecycle.state is not GeneratorState.ACTIVE
            if not wanted or self._queue.held is not None or not self._buffer.records:
                self.is_cutting = False
                if lifecycle.state is not GeneratorState.ACTIVE:
                    lifecycle.changed.notify_all()
            return self.is_cutting

    def _cut_again(self) -> None:
        with self._lock:
            self.ask_for_cut()

    def _cut(self) -> Block | None:
        """Take the buffer as a block; return None if it is empty (B04). The lock is held."""
        buffer = self._buffer
        if not buffer.records:
            return None
        buffer.gather(self._schema)
        batches = buffer.batches
        if len(batches) > 1 and buffer.nbytes < _SMALL_CHUNK_BYTES * len(batches):
            batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
        now = self._clock.monotonic()
        before, self._cut_at = self._cut_at, now
        since, self._waits_since = self._waits_since, None
        self._blocks_cut += 1
        block = Block(
            self._blocks_cut,
            batches,
            buffer.records,
            buffer.nbytes,
            seconds=now - before,
            waited=0.0 if since is None else now - since,
        )
        buffer.clear()
        try:
            self._pusher.choose_codec(block)
        except Exception as error:  # noqa: BLE001  the timer must not end by it
            report_failure(self._pusher, "a block's codec could not be chosen", error)
        return block

    def _encoded(self, block: Block) -> Block:
        """Return the block as it will be stored, if it can be encoded ahead: so it is compressed during a write."""
        try:
            encoded = self._pusher.encode(block.batches)
        except Exception as error:  # noqa: BLE001  the timer must not end by it
            report_failure(
                self._pusher, f"block {block.number} could not be encoded, it is tried again when it is pushed", error
            )
            return block
        return block if encoded is None else replace(block, batches=(), encoded=encoded)
