"""Keep as many push threads as the waiting work needs; see ``block_threads``, which owns the lock and the timer.

A few threads take new work at once. When work has waited longer, the timer starts more, one at a time. A thread that
has had nothing to do for a while ends, and one that fails in this module's own code is replaced.
"""

from __future__ import annotations

import contextlib
import math
import threading
import traceback
from collections import deque
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from receiver_runtime.watching.clock import Clock

    #: Called with what a call has raised; must return at once.
    OnDeath = Callable[[BaseException], object]

_log = structlog.get_logger(__name__)

#: Seconds that work may wait before another thread is started …
RETRY_SECONDS = 0.05
# … or, from this many threads on, seconds in which no work was begun. More threads than that don't make a slow disk
# faster, least of all on an overloaded processor.
_MANY = 16
# Seconds to wait after the system refused a thread.
_NEXT_THREAD_SECONDS = 1.0
# Seconds without work after which a push thread ends.
_LINGER_SECONDS = 10.0
# How many calls each user may have in progress at once: a cut and a push.
_PER_USER = 2


class PushThread:
    """Hold what wakes a push thread."""

    __slots__ = ("wake",)

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()


class GuardedCalls:
    """Make calls of which nothing leaves, and count those that raised."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.deaths = 0

    def make(self, action: Callable[[], object], on_death: OnDeath | None) -> object:
        """Call it; nothing that it raises leaves this method."""
        try:
            return action()
        except BaseException as error:  # noqa: BLE001  counted, and given to on_death; the thread must go on
            if on_death is not None:
                try:
                    on_death(error)
                except BaseException as another:  # noqa: BLE001  as above
                    self.count_death(another)
            self.count_death(error)
            return None

    def count_death(self, error: BaseException) -> None:
        """Count an error."""
        with self._lock:
            self.deaths += 1
        with contextlib.suppress(BaseException):
            _log.error("what a block thread called failed", trace="".join(traceback.format_exception(error)))


class PushThreads:
    """Hold the push threads and their work. The lock of ``BlockThreads`` guards all fields.

    Args:
        changed: on that lock; notified where the timer has to decide again.
        at_once: the least number of threads, which take new work at once.
        most: the largest number of threads; None: as many as the users can keep busy.
    """

    def __init__(
        self,
        changed: threading.Condition,
        lock: threading.Lock,
        calls: GuardedCalls,
        *,
        at_once: int,
        most: int | None,
        name: str,
        clock: Clock,
    ) -> None:
        self._changed = changed
        self._lock = lock
        self._calls = calls
        self._at_once = at_once
        self._most = most
        self._name = name
        self._clock = clock
        self._work: deque[tuple[float, Callable[[], object], OnDeath | None]] = deque()
        self.users = 0
        # The number of threads that have work or were woken for it; and below the sleeping threads, the newest last.
        self.busy = 0
        self.idle: list[PushThread] = []
        self._begun_at = -math.inf
        self._none_before = -math.inf
        self._closed = False

    # -- the lock is held --------------------------------------------------------------------------------------------

    def add(self, now: float, action: Callable[[], object], on_death: OnDeath | None) -> bool:
        """Add work; return whether a thread is to take it at once: then ``wake`` the next one, without the lock."""
        self._work.append((now, action, on_death))
        if self.busy >= self._at_once:
            return False
        self.busy += 1
        return True

    def reserve(self) -> None:
        """Count the first threads as busy, before they are started."""
        self.busy = self._at_once

    def next_idle(self) -> PushThread | None:
        """Return the thread to wake; None: there is none, and one is to be started."""
        return self.idle.pop() if self.idle else None

    def more_at(self) -> float:
        """Return when another thread should be started for the waiting work; inf for never."""
        if not self._work or self.busy >= self._bound():
            return math.inf
        since = self._work[0][0]
        return max((since if self.busy < _MANY else max(since, self._begun_at)) + RETRY_SECONDS, self._none_before)

    def relieve(self, now: float) -> bool:
        """Return whether work has waited too long, and count another thread as busy then."""
        if now < self.more_at():
            return False
        self.busy += 1
        return True

    def close(self) -> list[PushThread]:
        """Take no more work in; return the threads to wake, so that they end."""
        self._closed = True
        idle, self.idle = self.idle, []
        return idle

    def _bound(self) -> int:
        return max(self._at_once, self.users * _PER_USER if self._most is None else self._most)

    # -- without the lock --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the first threads, which count as busy already."""
        for _ in range(self._at_once):
            self.wake(None)

    def wake(self, thread: PushThread | None) -> None:
        """Wake a sleeping thread, or start a new one (None); it counts as busy already."""
        if thread is not None:
            thread.wake.release()
            return
        thread = PushThread()
        try:
            threading.Thread(target=self._run, args=(thread,), name=f"{self._name} block push", daemon=True).start()
        except (RuntimeError, MemoryError):
            # The system has no more threads: the work waits for the existing ones, or for the next attempt.
            with self._lock:
                self.busy -= 1
                self._none_before = self._clock.monotonic() + _NEXT_THREAD_SECONDS
                # The timer makes that attempt.
                self._changed.notify_all()
            _log.exception("a block push thread could not be started")

    def _run(self, thread: PushThread) -> None:
        try:
            self._work_until_idle(thread)
        except BaseException as error:  # noqa: BLE001  counted, and replaced
            with self._lock:
                asleep = thread in self.idle
                if asleep:
                    self.idle.remove(thread)
            if not asleep:
                # The new thread takes over the old one's place in the count of busy threads.
                self.wake(None)
            self._calls.count_death(error)

    def _work_until_idle(self, thread: PushThread) -> None:
        while True:
            with self._lock:
                work = None
                if self._work:
                    # Everything that may fail comes before the work is taken.
                    self._begun_at = self._clock.monotonic()
                    work = self._work.popleft()
                elif self._closed:
                    self.busy -= 1
                    return
                else:
                    self.idle.append(thread)
                    self.busy -= 1
            if work is not None:
                self._calls.make(work[1], work[2])
                # It may hold a reference to a block.
                work = None
            elif not self._sleep(thread):
                return

    def _sleep(self, thread: PushThread) -> bool:
        """Sleep until there is work; return False if there was none for long, and the thread is to end."""
        while not thread.wake.acquire(timeout=_LINGER_SECONDS):
            with self._lock:
                if thread in self.idle and self.busy + len(self.idle) > self._at_once:
                    self.idle.remove(thread)
                    return False
        return True
