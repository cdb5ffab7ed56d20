"""``RunReceiver``: a receiver whose work, from each ``on_start`` to its ``on_stop``, is an object of its own.

Owns when that object begins and ends, and nothing of what it does: the kinds of source say what one is.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import Protocol

from receiver_runtime.receiver import Receiver


class Run(Protocol):
    """A reader, a server, a listener: made for one start, and never started again."""

    def start(self) -> None:
        """Begin, on threads of its own."""
        ...

    def stop(self) -> None:
        """End; returns when all that was read is handed on, and what was opened is closed."""
        ...


class RunReceiver(Receiver):
    """See the module. A child makes the run."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._run: Run | None = None

    @abstractmethod
    def make_run(self) -> Run:
        """The run of a start, which begins nothing yet."""

    def on_start(self) -> None:
        """Start a run."""
        run = self.make_run()
        with self._lock:
            # Said before on_stop is called: nobody would end this one.
            if not self.is_stopped():
                self._run = run
                run.start()

    def on_stop(self) -> None:
        """End it; returns as its ``stop`` does. Safe twice."""
        with self._lock:
            run, self._run = self._run, None
        if run is not None:
            run.stop()
