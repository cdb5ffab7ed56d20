"""Wait for the end of child processes without asking again and again: an idle installation should sleep.

Owns descriptors of processes (pidfds of Linux) and a pipe by which a wait is ended early. It never sends a signal, and
takes no process's exit code, except where there are no pidfds: there it polls, as often as `POLL_SECONDS` says.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable

#: Seconds between two polls where the system has no pidfds.
POLL_SECONDS = 0.05
_MILLISECONDS = 1000


class ProcessEnds:
    """Waits for the ends of this process's children. One thread waits; any thread may wake it."""

    def __init__(self) -> None:
        """Open the pipe."""
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._descriptors: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptors back. No thread may wait or wake any more."""
        self._forget(set())
        os.close(self._woken)
        os.close(self._wake)

    def wake(self) -> None:
        """End the wait that is under way, or the next one, at once."""
        # A full pipe holds a wake-up already.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"w")

    def wait(self, processes: Iterable[subprocess.Popen[bytes]], seconds: float) -> bool:
        """Wait until one of them has ended, or until `wake`; return False after `seconds` without either.

        One whose end was taken (`poll` has returned its code) is not waited for.
        """
        # One whose end was taken has no process id any more: another process may have its number.
        running = {process.pid: process for process in processes if process.returncode is None}
        self._forget(running.keys())
        deadline = time.monotonic() + seconds
        asked = [process for pid, process in running.items() if not self._watch(pid)]
        poller = select.poll()
        for descriptor in (self._woken, *self._descriptors.values()):
            poller.register(descriptor, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            found = poller.poll(max(0.0, min(left, POLL_SECONDS) if asked else left) * _MILLISECONDS)
            if any(descriptor == self._woken for descriptor, _ in found):
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            if found or any(process.poll() is not None for process in asked):
                return True
            if left <= 0:
                return False

    def _watch(self, pid: int) -> bool:
        if pid not in self._descriptors:
            opened = _pidfd(pid)
            if opened is None:
                return False
            self._descriptors[pid] = opened
        return True

    def _forget(self, staying: Iterable[int]) -> None:
        for pid in self._descriptors.keys() - set(staying):
            os.close(self._descriptors.pop(pid))


def _pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable once the process has ended; None where the system has none to give."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
