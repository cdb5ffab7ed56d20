"""Define ``RunReceiver``: a receiver with a separate object, a run, for its work from each ``on_start`` to ``on_stop``.

Owns when a run begins and ends, and nothing of what it does: each kind of source defines its own runs.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol

from receiver_runtime.supervisor.receiver import Receiver

if TYPE_CHECKING:
    from receiver_runtime.supervisor.attached_supervisor import AttachedSupervisor


class Run(Protocol):
    """Run a reader, a server or a listener, which is made for one start and never started again."""

    def start(self) -> None:
        """Begin, on threads of its own."""
        ...

    def stop(self) -> None:
        """End; return when everything that was read is handed on, and everything that was opened is closed."""
        ...


class RunReceiver(Receiver):
    """Start and stop runs; see the module. A subclass makes them.

    Users' classes are subclasses too: they need not call ``__init__``, and may have a ``_lock`` and a ``_run``.
    """

    _current_run: Run | None = None

    def attach_supervisor(self, supervisor: AttachedSupervisor) -> None:
        """Attach the supervisor, before the first start. Raises RuntimeError if there is one already."""
        super().attach_supervisor(supervisor)
        self._current_run_lock = threading.Lock()

    @abstractmethod
    def make_run(self) -> Run:
        """Return a new run for one start, without starting it."""

    def on_start(self) -> None:
        """Start a run."""
        run = self.make_run()
        with self._current_run_lock:
            # `is_stopped` is true before `on_stop` is called. A run that began after `on_stop` would never end.
            if not self.is_stopped():
                self._current_run = run
                run.start()

    def on_stop(self) -> None:
        """End the run; return when its ``stop`` returns. Safe to call twice."""
        with self._current_run_lock:
            run, self._current_run = self._current_run, None
        if run is not None:
            run.stop()
