"""Cancel the run that the main thread executes, on request.

Spark's jobs are cancelled first, and Python is interrupted only afterwards: an interrupt during a call to the JVM
leaves the answer unread on the connection, and every later call of the process gets the answer to the call before it.
So a driver that had to be interrupted ends, and another takes its place (``was_interrupted``).
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from tracker_store.batches.run_queue import CANCEL_CHANNEL, Notifications, is_cancel_requested
from tracker_store.connection.engine import connect
from tracker_store.connection.outage import SURVIVED, Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import sqlalchemy as sa

# Seconds between reads of the driver log: a notification may be lost with its connection.
POLL_SECONDS = 1.0
# How long a run may take to end after its Spark jobs were cancelled, before it is interrupted; a cancellation must fit
# into 2 s in all.
SPARK_SECONDS = 1.5
# The same for a run without a Spark job, which may start one or be in Python code.
PYTHON_SECONDS = 0.7
# Seconds between attempts to cancel Spark's jobs.
AGAIN_SECONDS = 0.1

log = structlog.get_logger(__name__)


class Cancellation:
    """Listen for cancellations in a thread; `watching` sets the run in progress."""

    def __init__(
        self, engine: sa.Engine, *, cancel_jobs: Callable[[str], bool], on_cancel: Callable[[str], None]
    ) -> None:
        """Start to listen. Create it in the main thread, which it interrupts.

        Args:
            engine: the driver log.
            cancel_jobs: cancels a run's Spark jobs, and returns whether there were any; called from the thread.
            on_cancel: called with each run that is to end, from the thread.
        """
        self._engine = engine
        self._cancel_jobs = cancel_jobs
        self._on_cancel = on_cancel
        self._main = threading.main_thread().ident
        self._run_id: str | None = None
        # Held while a run ends and while it is interrupted, so that the next run never gets this run's interrupt.
        self._lock = threading.Lock()
        self.was_interrupted = False
        threading.Thread(target=self._listen, name="cancellation", daemon=True).start()

    @contextmanager
    def watching(self, run_id: str) -> Iterator[None]:
        """Mark `run_id` as the run that the main thread executes, until the end of the block."""
        self._run_id = run_id
        try:
            yield
        finally:
            with self._lock:
                self._run_id = None

    def cancel(self, run_id: str) -> None:
        """End the run if it is still in progress: cancel its Spark job group first, interrupt it afterwards."""
        with self._lock:
            if self._run_id != run_id:
                return
            self._on_cancel(run_id)
        begun = time.monotonic()
        deadline = begun + PYTHON_SECONDS
        while self._run_id == run_id and time.monotonic() < deadline:
            # Repeatedly, because a run that was between two jobs starts the next one.
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
                payloads = notifications.wait(POLL_SECONDS)
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
                time.sleep(POLL_SECONDS)
                continue
            cancelled = run_id
            log.info("the run is to be cancelled", run_id=run_id)
            self.cancel(run_id)
