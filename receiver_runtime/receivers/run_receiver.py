"""Define ``RunReceiver``: a receiver with a separate object, a run, for its work from each ``on_start`` to ``on_stop``.

Owns when a run begins and ends, and nothing of what it does: each kind of source defines its own runs.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import Protocol

from receiver_runtime.receiver import Receiver


class Run(Protocol):
    """A reader, a server or a listener: made for one start, and never started again."""

    def start(self) -> None:
        """Begin, on threads of its own."""
        ...

    def stop(self) -> None:
        """End; return when everything that was read is handed on, and everything that was opened is closed."""
        ...


class RunReceiver(Receiver):
    """Start and stop runs; see the module. A subclass makes them."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._run: Run | None = None

    @abstractmethod
    def make_run(self) -> Run:
        """Return a new run for one start, without starting it."""

    def on_start(self) -> None:
        """Start a run."""
        run = self.make_run()
        with self._lock:
            # `is_stopped` is true before `on_stop` is called. A run that began after `on_stop` would never end.
            if not self.is_stopped():
                self._run = run
                run.start()

    def on_stop(self) -> None:
        """End the run; return when its ``stop`` returns. Safe to call twice."""
        with self._lock:
            run, self._run = self._run, None
        if run is not None:
            run.stop()
