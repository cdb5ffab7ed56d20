"""Check whether a receiver that holds data makes progress: the only check of its threads from outside.

Each receiver has a ``Progress``. Its threads count in it what they got done, and what they tried that failed with a
named error. The watchdog, one thread per process, looks at all of them each second:

- *moving*: the receiver holds nothing, or has got something done within its limit;
- *hindered*: it has got nothing done for the limit, but a thread tried within that time and failed with a named error
  (a full disk, an unavailable driver log), or waits to retry. That resolves itself, so it is reported, and nothing is
  ended;
- *stuck*: it has got nothing done for the limit, and no thread has even failed: a thread is gone, or hangs in a disk.
  Only another process can go on. If none could, because the driver log takes no connection, that counts as a failure
  like any other.

The watchdog takes no lock, writes no line and asks no other part, because it must not hang where they hang. It starts
threads that report and act. It counts its own looks instead of reading the clock, so a process that was stopped, or a
machine that slept, does not count as stuck.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Seconds between two looks.
LOOK_SECONDS = 1.0
#: Seconds. A thread that failed waits at most this long before it tries again.
LONGEST_PAUSE_SECONDS = 10.0


class Progress:
    """Count what one receiver has got done, and tried. Any thread.

    It takes no lock: two threads that count at the same moment may count once, but that is still a change.
    """

    __slots__ = ("done", "failures", "why")

    def __init__(self) -> None:
        self.done = 0
        self.failures = 0
        #: The newest failure.
        self.why = ""

    def made(self) -> None:
        """Count something done: a block that was stored, or that the driver log answered."""
        self.done += 1

    def failed(self, why: str) -> None:
        """Count an attempt that failed with this error and will be repeated."""
        self.why = why
        self.failures += 1


class Verdict(StrEnum):
    """Name how a receiver does; see the module."""

    MOVING = "moving"
    HINDERED = "hindered"
    STUCK = "stuck"


class ProgressWatch:
    """Remember one receiver for the watchdog. One thread."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done = progress.done
        self._failures = progress.failures
        self._without_progress = 0.0
        self._without_failure = 0.0
        # Seconds that a thread may wait before it tries again; 0 if none has failed.
        self._pause = 0.0

    def look(self, *, holds_data: bool, limit: float, seconds: float = LOOK_SECONDS) -> Verdict:
        """Return the verdict, ``seconds`` after the previous look."""
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
    """Show the watchdog a receiver. Neither property may take a lock that a thread holds while it may hang."""

    @property
    def progress(self) -> Progress:
        """Return what the receiver has got done."""
        ...

    @property
    def progress_limit(self) -> float:
        """Return how many seconds without progress, while it holds data, are too many."""
        ...

    @property
    def holds_data(self) -> bool:
        """Return whether it has something to be stored or registered."""
        ...

    def on_hindered(self, seconds: float, why: str) -> None:
        """Report that it has made no progress for these seconds. May take its time."""
        ...

    def on_moving(self) -> None:
        """Report that it makes progress again. May take its time."""
        ...


@dataclass(slots=True, eq=False)
class _Entry:
    watched: Watched
    watch: ProgressWatch
    hindered: bool = False
    # One thread at a time, so that the last report is the true one.
    saying: threading.Thread | None = None


class ProgressWatchdog:
    """Watch all receivers of a process; see the module. ``start`` once, ``stop`` once.

    Args:
        watched: returns the current receivers; must take no lock.
        on_stuck: called on the watchdog's thread with the stuck receivers; must not wait without a time limit. It
            either ends the process and returns True, and nothing is watched from then on; or it counts in each one's
            progress why the process goes on, and returns False.
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
        """Look at all of them once, and have changes reported; return the stuck ones."""
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
        # If no thread can be started, the next look reports it.
        with suppress(RuntimeError, MemoryError):
            entry.saying.start()
            entry.hindered = hindered

    def _run(self) -> None:
        while not self._stopping.wait(self._look_seconds):
            try:
                stuck = self.look()
            except Exception:  # noqa: BLE001, S112  out of memory, for example: it looks again, and must write no line
                continue
            if stuck and self._on_stuck(stuck):
                return
