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

import heapq
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable

from receiver_runtime.block_path.load.push_threads import RETRY_SECONDS, GuardedCalls, PushThreads
from receiver_runtime.watching.clock import Clock

#: Called with what a call has raised; must return at once.
OnDeath = Callable[[BaseException], object]
# Ordered by moment, then by number: when, what to call, and the callback for an error.
_Due = tuple[float, int, Callable[[], object], OnDeath | None]

# Number of users. With fewer, ticks are not gathered into slots.
_SLOTS_FROM = 10
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
        self._slot = slot
        self._name = name
        self._clock = clock or Clock()
        self._calls = GuardedCalls()
        # Guards everything below. Only the timer waits on the condition.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._pushing = PushThreads(
            self._changed, self._lock, self._calls, at_once=at_once, most=most, name=name, clock=self._clock
        )
        self._due: list[_Due] = []
        self._numbers = itertools.count()
        self._wakes_at = -math.inf
        self._started = False
        self._closed = False
        # Only the timer uses these: what it has taken to call now, and what it will call again.
        self._taken: deque[_Due] = deque()
        self._again: list[_Due] = []

    @property
    def deaths(self) -> int:
        """Return how often a call raised an error, or an error ended a thread."""
        return self._calls.deaths

    def attach(self) -> None:
        """Add a user; the first one starts the threads."""
        with self._lock:
            self._pushing.users += 1
            if self._started or self._closed:
                return
            self._started = True
            self._pushing.reserve()
        threading.Thread(target=self._run_timer, name=f"{self._name} block timer", daemon=True).start()
        self._pushing.start()

    def detach(self) -> None:
        """Remove a user."""
        with self._lock:
            self._pushing.users -= 1

    def close(self) -> None:
        """End the threads; do not wait for them.

        Waiting work is still done, and what is due later is done now, once, because its caller may wait for it.
        """
        with self._lock:
            self._closed = True
            idle = self._pushing.close()
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
            if not self._pushing.add(now, action, on_death):
                if now + RETRY_SECONDS < self._wakes_at:
                    self._changed.notify_all()
                return
            thread = self._pushing.next_idle()
        self._pushing.wake(thread)

    # -- the timer ---------------------------------------------------------------------------------------------------

    def _run_timer(self) -> None:
        while True:
            try:
                if not self._turn():
                    return
            except BaseException as error:  # noqa: BLE001  every receiver's ticks come from this thread
                self._calls.count_death(error)
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
            more = not closed and self._pushing.relieve(now)
            thread = self._pushing.next_idle() if more else None
        if more:
            self._pushing.wake(thread)
        while self._taken:
            _, number, action, on_death = self._taken.popleft()
            moment = self._calls.make(action, on_death)
            if isinstance(moment, float | int):
                self._again.append((moment, number, action, on_death))
        return not closed

    def _seconds_left(self) -> float:
        """Return the seconds until there is something to do. The lock is held."""
        now = self._clock.monotonic()
        moment = self._due[0][0] if self._due else math.inf
        moment = min(moment, self._pushing.more_at())
        if self._slot and self._pushing.users >= _SLOTS_FROM and moment != math.inf:
            moment = math.ceil(moment / self._slot) * self._slot
        self._wakes_at = moment
        return max(0.0, moment - now)
