"""Push the blocks of one generator, first in, first out: a bounded queue, and the role that empties it.

At most one thread at a time has the push role, the one for which ``is_pushing`` was set. A push that fails is reported
and retried with backoff for as long as it takes: a failed push never ends the role (B07). Cuts no block, and never
drops one, except when the generator is aborted.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_path.generator_state import GeneratorState
from receiver_runtime.watching.backoff import store_backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from receiver_runtime.block_path.block import Block
    from receiver_runtime.block_path.block_pusher import BlockPusher
    from receiver_runtime.block_path.generator_state import GeneratorLifecycle

_log = structlog.get_logger(__name__)

# How many copies of a block are held besides the queue: one is being filled, one is being encoded from another, one
# waits for the queue, one is being pushed.
_BESIDE_THE_QUEUE = 5
_IDLE_SECONDS = 1.0


class BlockQueue:
    """Hold and push blocks; see the module. The generator's lock guards all fields."""

    def __init__(self, pusher: BlockPusher, lifecycle: GeneratorLifecycle) -> None:
        settings = lifecycle.settings
        self._pusher = pusher
        self._lifecycle = lifecycle
        self._size = settings.block_queue_size
        self._max_bytes = max(settings.block_queue_size - _BESIDE_THE_QUEUE, 1) * settings.max_block_bytes
        self._clock = lifecycle.clock
        #: Called with the lock held when the block that waited for room is on the queue.
        self.on_room: Callable[[], None] = lambda: None
        self._lock = lifecycle.lock
        self._blocks: deque[Block] = deque()
        self._nbytes = 0
        #: A block that waits for room on the queue.
        self.held: Block | None = None
        # The block being pushed, and whether a thread is pushing or has been asked to.
        self._current: Block | None = None
        self.is_pushing = False
        self._waits_to_retry = False
        self.pushed_at = 0.0
        self.backoff = store_backoff()

    def __len__(self) -> int:
        """Return how many blocks are on the queue."""
        return len(self._blocks)

    @property
    def holds_data(self) -> bool:
        """Return whether something waits to be pushed or is being pushed. Takes no lock, so the answer may be late."""
        return bool(self.held or self._blocks or self._current)

    def offer(self, block: Block) -> bool:
        """Put a block on the queue, and have it pushed; return False if it is held until there is room.

        The lock is held.
        """
        if not self._has_room_for(block):
            self.held = block
            return False
        self._put(block)
        if not self.is_pushing:
            self.is_pushing = True
            self._lifecycle.submit(self._run)
        return True

    def close_aged_segments_if_idle(self, now: float) -> None:
        """Have a thread keep house if nothing was pushed for a second. The lock is held."""
        if not self.is_pushing and now - self.pushed_at >= _IDLE_SECONDS:
            self.is_pushing = True
            self._lifecycle.submit(self._close_aged_segments)

    def clear(self) -> None:
        """Drop what is held, at an abort. The lock is held."""
        self.held = None
        self._blocks.clear()
        self._nbytes = 0
        if self._waits_to_retry:
            self._waits_to_retry = False
            self._current = None
            self.is_pushing = False

    def _has_room_for(self, block: Block) -> bool:
        """Return whether the queue has room for a block; an empty queue takes any block. The lock is held."""
        if not self._blocks:
            return True
        return len(self._blocks) < self._size and self._nbytes + block.held_bytes <= self._max_bytes

    def _put(self, block: Block) -> None:
        self._blocks.append(block)
        self._nbytes += block.held_bytes

    # -- the push role -----------------------------------------------------------------------------------------------

    def _close_aged_segments(self) -> None:
        try:
            self._pusher.close_aged_segments()
        except Exception as error:  # noqa: BLE001  the push thread must not end by it
            report_failure(self._pusher, "house-keeping between two blocks failed", error)
        self._run()

    def _run(self) -> None:
        block = self._next_block()
        while block is not None:
            if not self._push(block):
                # The retry is due later; this thread does not wait for it.
                return
            block = self._next_block(pushed=True)

    def _next_block(self, *, pushed: bool = False) -> Block | None:
        """Take the oldest block that is not pushed; return None, and give the role up, if there is none."""
        lifecycle = self._lifecycle
        with self._lock:
            if lifecycle.is_aborted or pushed:
                self._current = None
            if lifecycle.is_aborted:
                pass
            elif self._current is None and self._blocks:
                self._current = self._blocks.popleft()
                self._nbytes -= self._current.held_bytes
                if self.held is not None and self._has_room_for(self.held):
                    self._put(self.held)
                    self.held = None
                    self.on_room()
            if self._current is None:
                self.is_pushing = False
                self.pushed_at = self._clock.monotonic()
                if lifecycle.state is not GeneratorState.ACTIVE:
                    lifecycle.changed.notify_all()
            return self._current

    def _push(self, block: Block) -> bool:
        """Push a block; return False if that failed and will be tried again."""
        try:
            self._pusher.push(block)
        except Exception as error:  # noqa: BLE001  the push thread must not end by it (B07)
            # An abort makes pushes fail; that is not reported.
            with self._lock:
                if self._lifecycle.is_aborted:
                    return True
            # Report before the retry, so that no failure is reported after the success. This can't raise.
            report_failure(
                self._pusher, f"block {block.number} could not be pushed, attempt {self.backoff.failures + 1}", error
            )
            with self._lock:
                if self._lifecycle.is_aborted:
                    return True
                self._waits_to_retry = True
                again_at = self._clock.monotonic() + self.backoff.next_delay()
                self._lifecycle.at(again_at, self._retry)
            return False
        if self.backoff.failures:
            self.backoff.reset()
        return True

    def _retry(self) -> None:
        """Push again. Runs on the timer."""
        with self._lock:
            if self._waits_to_retry:
                self._waits_to_retry = False
                self._lifecycle.submit(self._run)


def report_failure(pusher: BlockPusher, message: str, error: Exception) -> None:
    """Report an error of one of the two roles; no role may end because that fails."""
    try:
        pusher.report_failure(message, error)
    except Exception:  # noqa: BLE001  logged
        with contextlib.suppress(Exception):
            _log.exception("reporting an error failed", message=message)
