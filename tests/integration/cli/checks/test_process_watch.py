"""Check which ends of processes `forebay up` finds in the driver log: those that none asked for, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.cli.checks.process_watch import LOOK_SECONDS, ProcessWatch
from tests.support.driver_log.log import make_log
from tests.support.polling import eventually
from tracker_store.batches.run_queue import CRASHED, register_batch_driver
from tracker_store.receivers.processes import deregister_process, register_process
from tracker_store.receivers.receivers import report_event
from tracker_store.reports.listener_events import newest_position
from tracker_store.schema.states import ProcessKind, ReceiverEventKind

if TYPE_CHECKING:
    import sqlalchemy as sa

KILLED = "receiver process was killed by SIGKILL; crash 1, restart in 0.0 s"


def driver(connection: sa.Connection, pid: int) -> int:
    process_id = register_process(connection, kind=ProcessKind.BATCH_DRIVER, name="d", host="h", pid=pid)
    register_batch_driver(connection, process_id=process_id, location="forebay")
    return process_id


def test_each_end_that_none_asked_for_is_told_once(connection: sa.Connection) -> None:
    [receiver] = make_log(connection, receivers=1).receiver_ids

    def report(kind: ReceiverEventKind, message: str) -> None:
        report_event(connection, receiver_id=receiver, epoch=0, kind=kind, message=message)

    told: list[str] = []
    now = 0.0
    watch = ProcessWatch(told.append, location="forebay", clock=lambda: now)
    before_any = newest_position(connection)
    report(ReceiverEventKind.EXITED, "before it looked")
    # An event is shown when all older transactions of the server have ended.
    eventually(lambda: newest_position(connection) != before_any, "the event is shown")
    before = driver(connection, 6)
    deregister_process(connection, before, CRASHED)
    killed, stopped = driver(connection, 7), driver(connection, 8)
    watch.look(connection)
    report(ReceiverEventKind.STOPPED, "stopped")
    report(ReceiverEventKind.EXITED, KILLED)
    deregister_process(connection, killed, f"{CRASHED} (was killed by SIGKILL)")
    deregister_process(connection, stopped)

    def look() -> bool:
        nonlocal now
        now += LOOK_SECONDS
        watch.look(connection)
        return len(told) > 1

    eventually(look, "both ends are told")
    look()
    assert sorted(told) == [
        "batch driver: its process (pid 7) was killed by SIGKILL: forebay logs agent",
        f"lines/1: {KILLED}: forebay logs lines/1",
    ]
