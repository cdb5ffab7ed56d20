"""Check each second whether the receivers of a process make progress: the only check of their threads from outside.

The watchdog takes no lock, writes no line and asks no other part, because it must not hang where they hang. It starts
threads that report and act. ``progress`` says what counts as hanging.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from receiver_runtime.watching.progress import CHECK_SECONDS, ProgressWatch, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver_runtime.process.receiver_task import ReceiverTask


@dataclass(slots=True, eq=False)
class _Entry:
    task: ReceiverTask
    watch: ProgressWatch
    failing: bool = False
    # One thread at a time, so that the last report is the true one.
    reporting: threading.Thread | None = None


class ProgressWatchdog:
    """Watch all receivers of a process; see the module. ``start`` once, ``stop`` once.

    Args:
        watched: returns the current receivers; must take no lock.
        on_hanging: called on the watchdog's thread with the hanging receivers; must not wait without a time limit. It
            either ends the process and returns True, and nothing is watched from then on; or it counts in each one's
            progress why the process goes on, and returns False.
    """

    def __init__(
        self,
        watched: Callable[[], Sequence[ReceiverTask]],
        on_hanging: Callable[[Sequence[ReceiverTask]], bool],
        *,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        self._watched = watched
        self._on_hanging = on_hanging
        self._check_seconds = check_seconds
        self._entries: dict[int, _Entry] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()

    def check(self) -> Sequence[ReceiverTask]:
        """Check all of them once, and have changes reported; return the hanging ones."""
        there = list(self._watched())
        self._entries = {
            id(one): self._entries.get(id(one)) or _Entry(one, ProgressWatch(one.progress)) for one in there
        }
        hanging = []
        for entry in self._entries.values():
            one = entry.task
            verdict = entry.watch.check(
                holds_data=one.holds_data, limit=one.progress_limit, seconds=self._check_seconds
            )
            if verdict is Verdict.HANGING:
                hanging.append(one)
            else:
                self._report(entry, failing=verdict is Verdict.FAILING)
        return hanging

    def _report(self, entry: _Entry, *, failing: bool) -> None:
        if failing is entry.failing or (entry.reporting is not None and entry.reporting.is_alive()):
            return
        one = entry.task
        entry.reporting = threading.Thread(
            target=(lambda: one.on_failing(one.progress_limit, one.progress.why)) if failing else one.on_moving,
            name="progress",
            daemon=True,
        )
        # If no thread can be started, the next check reports it.
        with suppress(RuntimeError, MemoryError):
            entry.reporting.start()
            entry.failing = failing

    def _run(self) -> None:
        while not self._stopping.wait(self._check_seconds):
            try:
                hanging = self.check()
            except Exception:  # noqa: BLE001, S112  out of memory, for example: it checks again, and must write no line
                continue
            if hanging and self._on_hanging(hanging):
                return
