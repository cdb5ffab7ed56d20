"""Raises the heartbeat of the process that runs a batch, by which the tracker sees that the attempt goes on."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from tracker_store.connection.engine import connect
from tracker_store.connection.errors import DriverLogError
from tracker_store.receivers.processes import ProcessExpiredError, deregister_process, heartbeat, register_process
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

HEARTBEAT_SECONDS = 1.0

log = structlog.get_logger(__name__)


@contextmanager
def heartbeats(engine: sa.Engine, *, name: str) -> Iterator[int]:
    """Register a process, raise its heartbeat every second until the context ends, and yield its id."""
    with connect(engine) as connection:
        process_id = register_process(
            connection, kind=ProcessKind.BATCH_RUN, name=name, host=socket.gethostname(), pid=os.getpid()
        )
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            try:
                with connect(engine) as connection:
                    heartbeat(connection, process_id=process_id)
            except ProcessExpiredError:
                # The attempt's number fences its next statement on the batch; nothing to stop here.
                log.warning("declared dead by the tracker", process_id=process_id)
                return
            except DriverLogError as error:
                log.warning("heartbeat failed, trying again", error=str(error))

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield process_id
    finally:
        stop.set()
        thread.join()
        try:
            with connect(engine) as connection:
                deregister_process(connection, process_id)
        except DriverLogError as error:
            # It must not hide why the run ends.
            log.warning("could not sign off", error=str(error))
