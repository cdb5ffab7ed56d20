"""Whether a receiver that holds data gets on with it: the one look from outside at the threads that should push it.

Each receiver has a ``Progress``, which its own threads move: by what they get done, and by what they tried that failed
with a named error. The watchdog, one thread a process, looks at all of them each second:

- *moving*: it holds nothing, or has got something done within its limit;
- *hindered*: it has got nothing done for the limit, and a thread has tried within it and failed by a named error (a
  full disk, a driver log that is unavailable), or waits to try again. That goes on by itself, so it is reported, and
  nothing is ended;
- *stuck*: it has got nothing done for the limit, and no thread has even failed: one is gone, or hangs in a disk. Only
  another process can go on. Where none could, for the driver log takes no connection, that is a failure like any other.

The watchdog takes no lock, writes no line and asks nobody: whatever hangs must not hold it up as well. Words and deeds
are the threads' that it starts for them. It counts its own looks and not the clock: a process that was stopped, or a
machine that slept, is not stuck for that.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Between two looks.
LOOK_SECONDS = 1.0
#: After a failure a thread waits so long at most before it tries again.
LONGEST_PAUSE_SECONDS = 10.0


class Progress:
    """What one receiver has got done, and tried. Any thread.

    Without a lock: two threads that count at the same moment may count once, and that is a change all the same.
    """

    __slots__ = ("done", "failures", "why")

    def __init__(self) -> None:
        self.done = 0
        self.failures = 0
        #: Of the newest failure.
        self.why = ""

    def made(self) -> None:
        """Count something that is done: a block that is stored, or answered by the driver log."""
        self.done += 1

    def failed(self, why: str) -> None:
        """Count something that was tried, and failed by this error; it is tried again."""
        self.why = why
        self.failures += 1


class Verdict(StrEnum):
    """See the module."""

    MOVING = "moving"
    HINDERED = "hindered"
    STUCK = "stuck"


class ProgressWatch:
    """The watchdog's memory of one receiver. One thread."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done = progress.done
        self._failures = progress.failures
        self._without_progress = 0.0
        self._without_failure = 0.0
        # What a thread waits before it tries again; none has failed, none waits.
        self._pause = 0.0

    def look(self, *, holds_data: bool, limit: float, seconds: float = LOOK_SECONDS) -> Verdict:
        """Return how it is now, ``seconds`` of watching after the look before this one."""
        done, failures = self._progress.done, self._progress.failures
        if not holds_data or done != self._done:
            self._without_progress = self._without_failure = self._pause = 0.0
        elif failures != self._failures:
            self._without_progress += seconds
            self._without_failure, self._pause = 0.0, LONGEST_PAUSE_SECONDS
        else:
            self._without_progress += seconds
            self._without_failure += seconds
        self._done, self._failures = done, failures
        if self._without_progress < limit:
            return Verdict.MOVING
        return Verdict.STUCK if self._without_failure >= limit + self._pause else Verdict.HINDERED


class Watched(Protocol):
    """A receiver, as the watchdog sees it. Neither property may take a lock that a thread holds while it may hang."""

    @property
    def progress(self) -> Progress:
        """What it has got done."""
        ...

    @property
    def progress_limit(self) -> float:
        """Seconds without progress, while it holds data, that are too many."""
        ...

    @property
    def holds_data(self) -> bool:
        """Whether it has something that is to be stored or registered."""
        ...

    def on_hindered(self, seconds: float, why: str) -> None:
        """Say that it has got nothing done for so long. May take its time."""
        ...

    def on_moving(self) -> None:
        """Say that it gets on again. May take its time."""
        ...


@dataclass(slots=True, eq=False)
class _Entry:
    watched: Watched
    watch: ProgressWatch
    hindered: bool = False
    # One at a time: so that what is said last is what is true.
    saying: threading.Thread | None = None


class ProgressWatchdog:
    """See the module. ``start`` once, ``stop`` once.

    Args:
        watched: the receivers that there are now; must take no lock.
        on_stuck: called on the watchdog's thread with those that are stuck, and must wait for nothing without a limit.
            It ends the process and returns True, and from then on nothing is watched any more; or it counts in each
            one's progress why not, and returns False.
    """

    def __init__(
        self,
        watched: Callable[[], Sequence[Watched]],
        on_stuck: Callable[[Sequence[Watched]], bool],
        *,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._watched = watched
        self._on_stuck = on_stuck
        self._look_seconds = look_seconds
        self._entries: dict[int, _Entry] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()

    def look(self) -> Sequence[Watched]:
        """Look at all of them once, and have said what is new; returns those that are stuck."""
        there = list(self._watched())
        self._entries = {
            id(one): self._entries.get(id(one)) or _Entry(one, ProgressWatch(one.progress)) for one in there
        }
        stuck = []
        for entry in self._entries.values():
            one = entry.watched
            verdict = entry.watch.look(holds_data=one.holds_data, limit=one.progress_limit, seconds=self._look_seconds)
            if verdict is Verdict.STUCK:
                stuck.append(one)
            else:
                self._say(entry, hindered=verdict is Verdict.HINDERED)
        return stuck

    def _say(self, entry: _Entry, *, hindered: bool) -> None:
        if hindered is entry.hindered or (entry.saying is not None and entry.saying.is_alive()):
            return
        one = entry.watched
        entry.saying = threading.Thread(
            target=(lambda: one.on_hindered(one.progress_limit, one.progress.why)) if hindered else one.on_moving,
            name="progress",
            daemon=True,
        )
        # No thread to be had: the next look says it.
        with suppress(RuntimeError, MemoryError):
            entry.saying.start()
            entry.hindered = hindered

    def _run(self) -> None:
        while not self._stopping.wait(self._look_seconds):
            try:
                stuck = self.look()
            except Exception:  # noqa: BLE001, S112  out of memory, say: it looks again, and must write no line
                continue
            if stuck and self._on_stuck(stuck):
                return
