"""The threads that the block generators of a process share: one timer, and push threads for what may take long.

Owns threads and their order of work, and knows nothing of blocks. A thread for each generator's timer and pushes is
what this is instead of: with a hundred receivers that each have a small block now and then, a process did little but
switch between threads.

- The *timer* calls what is due, some receivers' ticks at a time (``slot``). What it calls must not wait for anything.
- *Push threads* take work first come, first served. A few are enough while each piece of work takes a few
  milliseconds; when some has waited for longer, as with a slow disk, there are more of them. Where none is begun at
  all, since all threads hang (in a disk, a replica, the driver log), there is another one, and so on up to what all
  the users can have under way at once: so nobody is held up for long by what another waits for. A thread that has had
  nothing to do for a while ends.

No thread is lost. Whatever escapes from a call, BaseException included, is counted (``deaths``) and given to the
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

from receiver_runtime.clock import Clock, SystemClock

_log = structlog.get_logger(__name__)

#: Told what a call has raised; must return at once.
OnDeath = Callable[[BaseException], object]
# By moment, then by number: when, what to call, and whom to tell when that raises.
_Due = tuple[float, int, Callable[[], object], OnDeath | None]

# There is a thread more when work has waited for so long, …
_PATIENCE_SECONDS = 0.05
# … or, from so many on, when no work was begun for so long: more of them help a slow disk no more, and a processor that
# is overloaded least of all.
_MANY = 16
# After the system refused a thread.
_NEXT_THREAD_SECONDS = 1.0
# A push thread that had nothing to do for so long ends.
_LINGER_SECONDS = 10.0
# With fewer users nobody waits for others.
_SLOTS_FROM = 10
# What each user may have under way at once: a cut, and a push.
_PER_USER = 2
_AFTER_A_DEATH_SECONDS = 0.1


class BlockThreads:
    """See the module. Any thread may call any method, also from the work that runs here.

    Args:
        at_once: push threads that there are at least, and that start at once on what comes.
        most: push threads that there are at most; None for what the users can keep busy.
        slot: with ten users or more the timer looks again at multiples of so many seconds, so that it wakes once for
            several of them.
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
        self._clock = clock or SystemClock()
        # Everything below is under this lock; the condition is the timer's alone.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._due: list[_Due] = []
        self._numbers = itertools.count()
        self._wakes_at = -math.inf
        self._work: deque[tuple[float, Callable[[], object], OnDeath | None]] = deque()
        # Threads that have work, or were woken for it; and those that sleep, the newest last.
        self._busy = 0
        self._begun_at = -math.inf
        self._none_before = -math.inf
        self._idle: list[_PushThread] = []
        self._users = 0
        self._started = False
        self._closed = False
        self._deaths = 0
        # The timer's own: what it has taken to call now, and what is to be called again.
        self._taken: deque[_Due] = deque()
        self._again: list[_Due] = []

    @property
    def deaths(self) -> int:
        """How often something escaped from a call, or ended a thread."""
        with self._lock:
            return self._deaths

    def attach(self) -> None:
        """There is a user more; the first one starts the threads."""
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
        """There is a user less."""
        with self._lock:
            self._users -= 1

    def close(self) -> None:
        """End the threads; does not wait for them.

        What waits by then is still done, and what is due later is done now, and once: whoever asked may wait for it.
        """
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for thread in idle:
            thread.wake.release()

    def at(self, moment: float, action: Callable[[], float | None], *, on_death: OnDeath | None = None) -> None:
        """Call ``action`` on the timer when it is ``moment`` by the clock, or shortly after; it must return at once.

        Where it returns a moment, it is called again then; where it raises, it is not, and ``on_death`` is told.
        """
        with self._lock:
            heapq.heappush(self._due, (moment, next(self._numbers), action, on_death))
            if moment < self._wakes_at:
                self._changed.notify_all()

    def submit(self, action: Callable[[], object], *, on_death: OnDeath | None = None) -> None:
        """Call ``action`` on a push thread, as soon as one is free; it may take as long as it likes.

        ``on_death`` is told what it raises.
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
            except BaseException as error:  # noqa: BLE001  everybody's ticks come from this thread
                self._count_death(error)
                # What it had taken is still taken. Out of memory, say: there may be some in a moment.
                threading.Event().wait(_AFTER_A_DEATH_SECONDS)

    def _turn(self) -> bool:
        """Wait until something is due, and call it; False at the end."""
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
        """Call it; nothing that it raises gets out of here."""
        try:
            return action()
        except BaseException as error:  # noqa: BLE001  counted, and told to whom it concerns; the thread must go on
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
        """With the lock held: until there is something to do."""
        now = self._clock.monotonic()
        moment = self._due[0][0] if self._due else math.inf
        if self._work and self._busy < self._bound():
            moment = min(moment, self._thread_more_at())
        if self._slot and self._users >= _SLOTS_FROM and moment != math.inf:
            moment = math.ceil(moment / self._slot) * self._slot
        self._wakes_at = moment
        return max(0.0, moment - now)

    def _thread_more_at(self) -> float:
        """With the lock held, while work waits: when there should be a thread more for it."""
        since = self._work[0][0]
        return max((since if self._busy < _MANY else max(since, self._begun_at)) + _PATIENCE_SECONDS, self._none_before)

    def _relief(self, now: float) -> bool:
        """With the lock held: whether work has waited too long; then there is a thread more."""
        if not self._work or self._busy >= self._bound() or now < self._thread_more_at():
            return False
        self._busy += 1
        return True

    def _bound(self) -> int:
        return max(self._at_once, self._users * _PER_USER if self._most is None else self._most)

    # -- push threads ------------------------------------------------------------------------------------------------

    def _wake(self, thread: _PushThread | None) -> None:
        """One that sleeps, or a new one; it counts as busy already."""
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
            # The system has no more of them: the work waits for those that there are, or for the next try.
            with self._lock:
                self._busy -= 1
                self._none_before = self._clock.monotonic() + _NEXT_THREAD_SECONDS
                # The timer makes that try.
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
                    # Whatever may fail comes before the work is taken.
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
                # It may hold a block.
                work = None
            elif not self._sleep(thread):
                return

    def _replace(self, thread: _PushThread, error: BaseException) -> None:
        """A thread ended by an error of this module's: put another one in its place."""
        with self._lock:
            asleep = thread in self._idle
            if asleep:
                self._idle.remove(thread)
        if not asleep:
            # The new one takes over that it counts as busy.
            self._start_thread()
        self._count_death(error)

    def _sleep(self, thread: _PushThread) -> bool:
        """Until there is work; False when there was none for long, and the thread is to end."""
        while not thread.wake.acquire(timeout=_LINGER_SECONDS):
            with self._lock:
                if thread in self._idle and self._busy + len(self._idle) > self._at_once:
                    self._idle.remove(thread)
                    return False
        return True


class _PushThread:
    """What wakes it."""

    __slots__ = ("wake",)

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
