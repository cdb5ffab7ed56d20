"""Share threads among the block generators of a process: one timer, and push threads for work that may take long.

Owns threads and their order of work, and knows nothing of blocks. It replaces a thread for each generator's timer and
pushes: with a hundred receivers that each have a small block now and then, a process did little but switch between
threads.

- The *timer* calls what is due, several receivers' ticks at a time (``slot``). What it calls must not wait.
- *Push threads* take work first come, first served. A few are enough while each piece of work takes a few
  milliseconds. When work has waited longer, as with a slow disk, more are started. If no work is begun at all,
  because all threads hang (in a disk, a replica, the driver log), another is started, and so on up to what all the
  users can have in progress at once. So no user waits long for what another user waits for. A thread that has had
  nothing to do for a while ends.

No thread is lost. Any exception from a call, BaseException included, is counted (``deaths``) and given to the
``on_death`` that came with the call, and the thread goes on. A thread that fails in this module's own code is replaced.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import threading
import traceback
from collections import deque
from collections.abc import Callable

import structlog

from receiver_runtime.watching.clock import Clock

_log = structlog.get_logger(__name__)

#: Called with what a call has raised; must return at once.
OnDeath = Callable[[BaseException], object]
# Ordered by moment, then by number: when, what to call, and the callback for an error.
_Due = tuple[float, int, Callable[[], object], OnDeath | None]

# Seconds that work may wait before another thread is started …
_PATIENCE_SECONDS = 0.05
# … or, from this many threads on, seconds in which no work was begun. More threads than that don't make a slow disk
# faster, least of all on an overloaded processor.
_MANY = 16
# Seconds to wait after the system refused a thread.
_NEXT_THREAD_SECONDS = 1.0
# Seconds without work after which a push thread ends.
_LINGER_SECONDS = 10.0
# Number of users. With fewer, ticks are not gathered into slots.
_SLOTS_FROM = 10
# How many calls each user may have in progress at once: a cut and a push.
_PER_USER = 2
_AFTER_A_DEATH_SECONDS = 0.1


class BlockThreads:
    """Run the shared threads; see the module. Any thread may call any method, also from the work that runs here.

    Args:
        at_once: the least number of push threads, which take new work at once.
        most: the largest number of push threads; None: as many as the users can keep busy.
        slot: with ten users or more the timer wakes at multiples of these seconds, once for several users.
        name: of the threads.
    """

    def __init__(
        self,
        *,
        at_once: int = 2,
        most: int | None = None,
        slot: float = 0.02,
        name: str = "receivers",
        clock: Clock | None = None,
    ) -> None:
        self._at_once = at_once
        self._most = most
        self._slot = slot
        self._name = name
        self._clock = clock or Clock()
        # Guards everything below. Only the timer waits on the condition.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._due: list[_Due] = []
        self._numbers = itertools.count()
        self._wakes_at = -math.inf
        self._work: deque[tuple[float, Callable[[], object], OnDeath | None]] = deque()
        # The number of threads that have work or were woken for it; and below the sleeping threads, the newest last.
        self._busy = 0
        self._begun_at = -math.inf
        self._none_before = -math.inf
        self._idle: list[_PushThread] = []
        self._users = 0
        self._started = False
        self._closed = False
        self._deaths = 0
        # Only the timer uses these: what it has taken to call now, and what it will call again.
        self._taken: deque[_Due] = deque()
        self._again: list[_Due] = []

    @property
    def deaths(self) -> int:
        """Return how often a call raised an error, or an error ended a thread."""
        with self._lock:
            return self._deaths

    def attach(self) -> None:
        """Add a user; the first one starts the threads."""
        with self._lock:
            self._users += 1
            if self._started or self._closed:
                return
            self._started = True
            self._busy = self._at_once
        threading.Thread(target=self._run_timer, name=f"{self._name} block timer", daemon=True).start()
        for _ in range(self._at_once):
            self._start_thread()

    def detach(self) -> None:
        """Remove a user."""
        with self._lock:
            self._users -= 1

    def close(self) -> None:
        """End the threads; do not wait for them.

        Waiting work is still done, and what is due later is done now, once, because its caller may wait for it.
        """
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for thread in idle:
            thread.wake.release()

    def at(self, moment: float, action: Callable[[], float | None], *, on_death: OnDeath | None = None) -> None:
        """Call ``action`` on the timer at ``moment`` by the clock, or shortly after; it must return at once.

        If it returns a moment, it is called again then. If it raises, it is not called again, and ``on_death`` is
        called.
        """
        with self._lock:
            heapq.heappush(self._due, (moment, next(self._numbers), action, on_death))
            if moment < self._wakes_at:
                self._changed.notify_all()

    def submit(self, action: Callable[[], object], *, on_death: OnDeath | None = None) -> None:
        """Call ``action`` on a push thread as soon as one is free; it may take any time.

        ``on_death`` is called with what it raises.
        """
        with self._lock:
            now = self._clock.monotonic()
            self._work.append((now, action, on_death))
            thread = None
            if self._busy < self._at_once:
                thread = self._idle.pop() if self._idle else None
                self._busy += 1
            elif now + _PATIENCE_SECONDS < self._wakes_at:
                self._changed.notify_all()
                return
            else:
                return
        self._wake(thread)

    # -- the timer ---------------------------------------------------------------------------------------------------

    def _run_timer(self) -> None:
        while True:
            try:
                if not self._turn():
                    return
            except BaseException as error:  # noqa: BLE001  every receiver's ticks come from this thread
                self._count_death(error)
                # What it had taken stays taken. Memory may have run out, and may be free in a moment.
                threading.Event().wait(_AFTER_A_DEATH_SECONDS)

    def _turn(self) -> bool:
        """Wait until something is due, and call it; return False at the end."""
        with self._changed:
            while self._again:
                heapq.heappush(self._due, self._again[-1])
                self._again.pop()
            while not self._closed and not self._taken and (left := self._seconds_left()) != 0:
                self._clock.wait_on(self._changed, None if left == math.inf else left)
            self._wakes_at = -math.inf
            closed = self._closed
            now = math.inf if closed else self._clock.monotonic()
            while self._due and self._due[0][0] <= now:
                self._taken.append(self._due[0])
                heapq.heappop(self._due)
            more = not closed and self._relief(now)
            thread = self._idle.pop() if more and self._idle else None
        if more:
            self._wake(thread)
        while self._taken:
            _, number, action, on_death = self._taken.popleft()
            moment = self._call(action, on_death)
            if isinstance(moment, float | int):
                self._again.append((moment, number, action, on_death))
        return not closed

    def _call(self, action: Callable[[], object], on_death: OnDeath | None) -> object:
        """Call it; nothing that it raises leaves this method."""
        try:
            return action()
        except BaseException as error:  # noqa: BLE001  counted, and given to on_death; the thread must go on
            if on_death is not None:
                try:
                    on_death(error)
                except BaseException as another:  # noqa: BLE001  as above
                    self._count_death(another)
            self._count_death(error)
            return None

    def _count_death(self, error: BaseException) -> None:
        with self._lock:
            self._deaths += 1
        with contextlib.suppress(BaseException):
            _log.error("what a block thread called failed", trace="".join(traceback.format_exception(error)))

    def _seconds_left(self) -> float:
        """Return the seconds until there is something to do. The lock is held."""
        now = self._clock.monotonic()
        moment = self._due[0][0] if self._due else math.inf
        if self._work and self._busy < self._bound():
            moment = min(moment, self._thread_more_at())
        if self._slot and self._users >= _SLOTS_FROM and moment != math.inf:
            moment = math.ceil(moment / self._slot) * self._slot
        self._wakes_at = moment
        return max(0.0, moment - now)

    def _thread_more_at(self) -> float:
        """Return when another thread should be started for the waiting work. The lock is held."""
        since = self._work[0][0]
        return max((since if self._busy < _MANY else max(since, self._begun_at)) + _PATIENCE_SECONDS, self._none_before)

    def _relief(self, now: float) -> bool:
        """Return whether work has waited too long, and count another thread as busy then. The lock is held."""
        if not self._work or self._busy >= self._bound() or now < self._thread_more_at():
            return False
        self._busy += 1
        return True

    def _bound(self) -> int:
        return max(self._at_once, self._users * _PER_USER if self._most is None else self._most)

    # -- push threads ------------------------------------------------------------------------------------------------

    def _wake(self, thread: _PushThread | None) -> None:
        """Wake a sleeping thread, or start a new one; it counts as busy already."""
        if thread is None:
            self._start_thread()
        else:
            thread.wake.release()

    def _start_thread(self) -> None:
        thread = _PushThread()
        try:
            threading.Thread(
                target=self._run_push, args=(thread,), name=f"{self._name} block push", daemon=True
            ).start()
        except (RuntimeError, MemoryError):
            # The system has no more threads: the work waits for the existing ones, or for the next attempt.
            with self._lock:
                self._busy -= 1
                self._none_before = self._clock.monotonic() + _NEXT_THREAD_SECONDS
                # The timer makes that attempt.
                self._changed.notify_all()
            _log.exception("a block push thread could not be started")

    def _run_push(self, thread: _PushThread) -> None:
        try:
            self._work_until_idle(thread)
        except BaseException as error:  # noqa: BLE001  counted, and replaced
            self._replace(thread, error)

    def _work_until_idle(self, thread: _PushThread) -> None:
        while True:
            with self._lock:
                work = None
                if self._work:
                    # Everything that may fail comes before the work is taken.
                    self._begun_at = self._clock.monotonic()
                    work = self._work.popleft()
                elif self._closed:
                    self._busy -= 1
                    return
                else:
                    self._idle.append(thread)
                    self._busy -= 1
            if work is not None:
                self._call(work[1], work[2])
                # It may hold a reference to a block.
                work = None
            elif not self._sleep(thread):
                return

    def _replace(self, thread: _PushThread, error: BaseException) -> None:
        """Replace a thread that an error of this module has ended."""
        with self._lock:
            asleep = thread in self._idle
            if asleep:
                self._idle.remove(thread)
        if not asleep:
            # The new thread takes over the old one's place in the count of busy threads.
            self._start_thread()
        self._count_death(error)

    def _sleep(self, thread: _PushThread) -> bool:
        """Sleep until there is work; return False if there was none for long, and the thread is to end."""
        while not thread.wake.acquire(timeout=_LINGER_SECONDS):
            with self._lock:
                if thread in self._idle and self._busy + len(self._idle) > self._at_once:
                    self._idle.remove(thread)
                    return False
        return True


class _PushThread:
    """Hold what wakes a push thread."""

    __slots__ = ("wake",)

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
