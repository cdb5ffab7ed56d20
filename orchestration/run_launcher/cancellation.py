"""Ends the run that the main thread is in, when somebody wants it to end.

Spark's jobs are cancelled first, and Python is interrupted after: an interrupt that falls into a call to the JVM leaves
its answer unread on the connection, and every later call of the process gets the answer of the one before it. So a
driver that had to be interrupted ends, and another takes its place (``was_interrupted``).
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from tracker_store.engine import connect
from tracker_store.outage import SURVIVED, Outage
from tracker_store.run_queue import CANCEL_CHANNEL, Notifications, is_cancel_requested

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import sqlalchemy as sa

# A notification may be lost with its connection: so often it asks.
LOOK_SECONDS = 1.0
# So long a run has to end by itself, whose jobs were cancelled; the whole of it has to fit into 2 s.
SPARK_SECONDS = 1.5
# And one that has no job, which may begin one, or be in Python.
PYTHON_SECONDS = 0.7
AGAIN_SECONDS = 0.1

log = structlog.get_logger(__name__)


class Cancellation:
    """A thread that listens; `watching` says which run is in progress."""

    def __init__(
        self, engine: sa.Engine, *, cancel_jobs: Callable[[str], bool], on_cancel: Callable[[str], None]
    ) -> None:
        """Starts to listen; to be made in the main thread, which it interrupts.

        Args:
            engine: the driver log.
            cancel_jobs: cancels Spark's jobs of a run, and says whether there were any; called from the thread.
            on_cancel: told of each run that is to end, from the thread.
        """
        self._engine = engine
        self._cancel_jobs = cancel_jobs
        self._on_cancel = on_cancel
        self._main = threading.main_thread().ident
        self._run_id: str | None = None
        # Held while a run ends, and while it is interrupted: the next run never gets this one's interrupt.
        self._lock = threading.Lock()
        self.was_interrupted = False
        threading.Thread(target=self._listen, name="cancellation", daemon=True).start()

    @contextmanager
    def watching(self, run_id: str) -> Iterator[None]:
        """The main thread runs this one, until the end of the block."""
        self._run_id = run_id
        try:
            yield
        finally:
            with self._lock:
                self._run_id = None

    def cancel(self, run_id: str) -> None:
        """End the run if it is still in progress: the Spark job group first, an interrupt after."""
        with self._lock:
            if self._run_id != run_id:
                return
            self._on_cancel(run_id)
        begun = time.monotonic()
        deadline = begun + PYTHON_SECONDS
        while self._run_id == run_id and time.monotonic() < deadline:
            # Again and again: a run that was between two jobs begins the next one.
            if self._cancel_jobs(run_id):
                deadline = begun + SPARK_SECONDS
            time.sleep(AGAIN_SECONDS)
        with self._lock:
            if self._run_id == run_id and self._main is not None:
                self.was_interrupted = True
                signal.pthread_kill(self._main, signal.SIGINT)

    def _listen(self) -> None:
        notifications = Notifications(self._engine, [CANCEL_CHANNEL])
        outage = Outage("the listener for cancellations")
        cancelled: str | None = None
        while True:
            try:
                payloads = notifications.wait(LOOK_SECONDS)
                outage.answered()
                run_id = self._run_id
                if run_id is None or run_id == cancelled:
                    continue
                if run_id not in payloads:
                    with connect(self._engine) as connection:
                        if not is_cancel_requested(connection, run_id):
                            continue
            except SURVIVED as error:
                outage.failed(error)
                time.sleep(LOOK_SECONDS)
                continue
            cancelled = run_id
            log.info("the run is to be cancelled", run_id=run_id)
            self.cancel(run_id)
