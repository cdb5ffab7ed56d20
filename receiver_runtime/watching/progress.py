"""Count what a receiver gets done, and judge whether one that holds data makes progress.

Each receiver has a ``Progress``. Its threads count in it what they got done, and what they tried that failed with a
named error. The watchdog (``progress_watchdog``), one thread per process, checks all of them each second:

- *moving*: the receiver holds nothing, or has got something done within its limit;
- *failing*: it has got nothing done for the limit, but a thread tried within that time and failed with a named error
  (a full disk, an unavailable driver log), or waits to retry. That resolves itself, so it is reported, and nothing is
  ended;
- *hanging*: it has got nothing done for the limit, and no thread has even failed: a thread is gone, or hangs in a disk.
  Only another process can go on. If none could, because the driver log takes no connection, that counts as a failure
  like any other.

Nothing here takes a lock or writes a line, because the watchdog must not hang where others hang. It counts its own
checks instead of reading the clock, so a process that was stopped, or a machine that slept, does not count as hanging.
"""

from __future__ import annotations

from enum import StrEnum

#: Seconds between two checks.
CHECK_SECONDS = 1.0
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
    FAILING = "failing"
    HANGING = "hanging"


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

    def check(self, *, holds_data: bool, limit: float, seconds: float = CHECK_SECONDS) -> Verdict:
        """Return the verdict, ``seconds`` after the previous check."""
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
        return Verdict.HANGING if self._without_failure >= limit + self._pause else Verdict.FAILING
