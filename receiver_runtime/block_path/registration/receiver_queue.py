"""Hold one receiver's blocks until the driver log has answered for them: what waits, and what was sent.

A receiver's own threads hand blocks in through its ``Registration``; the registrar's threads send and settle them.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.reporting.driver_log import REPORT_AFTER
from tracker_store.connection.errors import ChannelConflictError, DuplicateKeysError, OffsetConflictError

if TYPE_CHECKING:
    from collections.abc import Callable

    from receiver_runtime.block_path.registration.registered_through import RegisteredThrough
    from receiver_runtime.reporting.receiver_status import ReceiverStatus
    from receiver_runtime.watching.progress import Progress
    from tracker_store.blocks.blocks import ControlResponse, NewBlock
    from tracker_store.connection.errors import LostCommitsError

_log = structlog.get_logger(__name__)

#: How a hindrance in registering is named to operators.
REGISTER = "register blocks"
#: The errors after which a receiver can resume.
PASSING = (OffsetConflictError, DuplicateKeysError, ChannelConflictError)
#: Those of a hand-over that shares its receiver with others, which then wait until it has called ``resume``.
OF_ONE_HAND_OVER = (DuplicateKeysError, ChannelConflictError)


@dataclass(slots=True)
class WaitingBlock:
    """Hold a block, and what its caller waits for."""

    block: NewBlock
    future: Future[NewBlock]


@dataclass(slots=True)
class ReceiverQueue:
    """Hold one receiver's blocks. The registrar's lock guards all fields except ``sent``, which its thread changes."""

    receiver_id: int
    limit: int
    on_response: Callable[[ControlResponse], None]
    status: ReceiverStatus | None
    registered_through: RegisteredThrough
    progress: Progress
    on_lost: Callable[[LostCommitsError], None]
    #: On the registrar's lock: there is room, or all is settled, or the receiver is detached. There is one condition
    #: for each receiver; with a single one, each registered block would wake the threads that wait for other receivers.
    moved: threading.Condition
    waiting: deque[WaitingBlock] = field(default_factory=deque)
    sent: list[WaitingBlock] = field(default_factory=list)
    reserved: int = 0
    errors_alone: int = 0
    waits_since: float | None = None
    is_wait_shown: bool = False
    #: The newest response that the receiver got, and the server that the newest heartbeat found.
    last_response: ControlResponse | None = None
    server: str | None = None
    response_lock: threading.Lock = field(default_factory=threading.Lock)
    refused: Exception | None = None
    #: Found by a heartbeat; the registrar's thread refuses the receiver with it.
    lost: LostCommitsError | None = None
    leaving: bool = False

    @property
    def unsettled(self) -> int:
        """Return how many blocks wait for an answer."""
        return len(self.waiting) + len(self.sent)

    @property
    def is_refused_for_good(self) -> bool:
        """Return whether the receiver can never resume in this epoch. The lock is held."""
        return self.refused is not None and not isinstance(self.refused, PASSING)

    def freeze(self) -> bool:
        """Make a group of what waits, unless one was sent already; return whether there is one. The lock is held."""
        if not self.sent and self.waiting:
            self.sent = list(self.waiting)
            self.waiting.clear()
        return bool(self.sent)

    # -- the registrar's thread, without the lock --------------------------------------------------------------------

    def settle(self) -> None:
        """Resolve the group that was sent."""
        # Futures first: a thread that waits until all is settled may rely on their callbacks having run.
        self.registered_through.sequence = self.sent[-1].block.sequence
        for waiting in self.sent:
            waiting.future.set_result(waiting.block)
        with self.moved:
            self.sent = []
            self.moved.notify_all()

    def refuse(self, error: Exception) -> None:
        """Fail the receiver's blocks here, and all that it hands in from now on."""
        with self.moved:
            if not self.is_refused_for_good:
                self.refused = error
            # Nothing is handed in from here on, so the order of the two steps below is safe.
            failed = [*self.sent, *self.waiting]
        for waiting in failed:
            waiting.future.set_exception(error)
        with self.moved:
            self.sent = []
            self.waiting.clear()
            self.moved.notify_all()

    def wait(self, began: float, now: float, error: Exception) -> None:
        """Note that a call which began at this moment was not answered; show it once the wait is long."""
        self.progress.failed(f"the driver log does not {REGISTER}: {error}")
        if self.waits_since is None:
            self.waits_since = began
        if self.status is not None and not self.is_wait_shown and now - self.waits_since >= REPORT_AFTER:
            self.is_wait_shown = True
            try:
                self.status.driver_log_unavailable(REGISTER, error)
            except Exception:  # noqa: BLE001  one receiver's fault must not reach the others
                self._log_fault()

    def end_wait(self, now: float) -> None:
        """Note that a call was answered."""
        since, shown = self.waits_since, self.is_wait_shown
        self.waits_since, self.is_wait_shown = None, False
        if self.status is not None and shown and since is not None:
            try:
                self.status.driver_log_available(REGISTER, now - since)
            except Exception:  # noqa: BLE001  one receiver's fault must not reach the others
                self._log_fault()

    def _log_fault(self) -> None:
        with contextlib.suppress(Exception):
            _log.exception("a receiver's status could not show the driver log's", receiver_id=self.receiver_id)

    # -- both of the registrar's threads -----------------------------------------------------------------------------

    def deliver(self, response: ControlResponse) -> None:
        """Call the receiver with what it is to do, if that is new."""
        # Two threads call this: the lock makes sure that the value remembered is the newest one that the receiver got.
        with self.response_lock:
            # Only a heartbeat's answer names the server.
            server = response.server or self.server
            if response == self.last_response and server == self.server:
                # Nearly always so.
                return
            self.last_response, self.server = response, server
            try:
                self.on_response(response)
            except Exception:  # noqa: BLE001  one receiver's fault must not reach the others
                self.last_response, self.server = None, None
                _log.exception("a receiver could not take its control response", receiver_id=self.receiver_id)


class Registration:
    """Hand one receiver's blocks to the registrar. Any thread."""

    def __init__(self, queue: ReceiverQueue, changed: threading.Condition, lock: threading.RLock) -> None:
        self._queue = queue
        self._changed = changed
        # The condition's own lock; entering it takes a third of the time.
        self._lock = lock

    @property
    def registered_through(self) -> int:
        """Return the newest sequence that is known to be registered."""
        return self._queue.registered_through.sequence

    @property
    def has_unsettled(self) -> bool:
        """Return whether blocks wait for an answer. Takes no lock."""
        return self._queue.unsettled > 0

    def reserve(self) -> None:
        """Wait for room for one more block, and keep it for the next `submit`.

        Raises: the error with which the receiver was refused.
        """
        queue = self._queue
        with self._lock:
            while queue.refused is None and queue.unsettled + queue.reserved >= queue.limit:
                queue.moved.wait()
            if queue.refused is not None:
                raise queue.refused
            queue.reserved += 1

    def release(self) -> None:
        """Give reserved room back."""
        with self._changed:
            self._queue.reserved -= 1
            self._queue.moved.notify_all()

    def submit(self, block: NewBlock) -> Future[NewBlock]:
        """Hand in the next block, in the room reserved for it; its future resolves when the driver log has it."""
        future: Future[NewBlock] = Future()
        with self._lock:
            self._queue.reserved -= 1
            refused = self._queue.refused
            if refused is None:
                self._queue.waiting.append(WaitingBlock(block, future))
                self._changed.notify_all()
        if refused is not None:
            future.set_exception(refused)
        return future

    def resume(self) -> int:
        """Accept blocks again after a refusal that passes; return the sequence that the next one follows.

        Raises: the error with which the receiver was refused for good.
        """
        queue = self._queue
        with self._changed:
            while queue.unsettled:
                queue.moved.wait()
            if queue.refused is not None and queue.is_refused_for_good:
                raise queue.refused
            queue.refused = None
            queue.moved.notify_all()
            return queue.registered_through.sequence

    def wait_until_resumed(self) -> None:
        """Return when blocks are accepted again after a refusal of a hand-over's own, or never will be."""
        with self._changed:
            while isinstance(self._queue.refused, OF_ONE_HAND_OVER):
                self._queue.moved.wait()

    def lift_limit(self) -> None:
        """Make room for any number of blocks: nothing more is read, and what is stored now can be salvaged."""
        with self._changed:
            self._queue.limit = sys.maxsize
            self._queue.moved.notify_all()

    def wait_until_settled(self) -> None:
        """Return when no block of this receiver waits for an answer any more, registered or refused."""
        with self._changed:
            while self._queue.unsettled:
                self._queue.moved.wait()
