"""Keep a batch driver's rows in the driver log: a driver whose heartbeat was declared dead ends at once."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import psutil
import structlog

from tracker_store.batches.run_queue import LEFT, register_batch_driver, remove_batch_driver, set_batch_driver_state
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import DriverLogError
from tracker_store.receivers.processes import ProcessExpiredError, deregister_process, heartbeat, register_process
from tracker_store.schema.states import BatchDriverState, ProcessKind

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

HEARTBEAT_SECONDS = 1.0
FENCED_EXIT_CODE = 3

log = structlog.get_logger(__name__)


def end_at_once(code: int = FENCED_EXIT_CODE) -> None:
    """End this process and its JVM, whatever they are doing.

    For a process that was declared dead: another attempt may already run, so the work of this one is useless.
    """
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
    os._exit(code)


class DriverRegistration:
    """Register this process at once, and keep it registered until `end`; a thread raises its counter every second."""

    def __init__(
        self, engine: sa.Engine, *, host: str, location: str, on_fenced: Callable[[], object] = end_at_once
    ) -> None:
        """Register. Raises DriverLogError.

        Args:
            engine: the driver log.
            host: where this process runs, as its agent names it.
            location: the code location whose runs it takes.
            on_fenced: called, in another thread, when this process was declared dead.
        """
        self.host = host
        self.location = location
        self._engine = engine
        self._on_fenced = on_fenced
        self._stop = threading.Event()
        with connect(engine) as connection:
            self.process_id = register_process(
                connection, kind=ProcessKind.BATCH_DRIVER, name=f"{location} on {host}", host=host, pid=os.getpid()
            )
            register_batch_driver(connection, process_id=self.process_id, location=location)
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def note(self, state: BatchDriverState) -> None:
        """Record the driver's state, which decides whether runs are handed to it. Raises DriverLogError."""
        with connect(self._engine) as connection:
            set_batch_driver_state(connection, process_id=self.process_id, state=state)

    def end(self, reason: str) -> None:
        """Sign off, once; if the driver log can't be reached, the agent or the tracker does it later.

        A driver whose agent is gone (LEFT) keeps its driver row, so that runs wait a while for the next driver.
        """
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join()
        try:
            with connect(self._engine) as connection:
                deregister_process(connection, self.process_id, reason)
                if reason != LEFT:
                    remove_batch_driver(connection, process_id=self.process_id)
        except DriverLogError as error:
            log.warning("could not sign off", error=str(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end("stopped")

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                with connect(self._engine) as connection:
                    heartbeat(connection, process_id=self.process_id)
            except ProcessExpiredError:
                log.warning("declared dead by the tracker or the agent: stopping at once", process_id=self.process_id)
                self._on_fenced()
                return
            except DriverLogError as error:
                log.warning("heartbeat failed, trying again", error=str(error))
