"""Read and write `processes`: which processes live, by heartbeat counters. Only the leader declares one dead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.blocks import Steering
from tracker_store.engine import named_failures
from tracker_store.errors import DriverLogError
from tracker_store.states import DesiredState, ProcessKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ProcessExpiredError(DriverLogError):
    """The tracker has declared this process dead and gave its work away: stop, and start again."""


@dataclass(frozen=True, slots=True)
class LiveProcess:
    """A process that has not ended, with its heartbeat counter as read; `age_seconds` by the database's clock."""

    process_id: int
    kind: ProcessKind
    name: str
    host: str
    slots: int
    heartbeat: int
    draining: bool
    age_seconds: float = 0.0


def register_process(
    connection: sa.Connection, *, kind: ProcessKind, name: str, host: str, pid: int, slots: int = 0
) -> int:
    """Insert a process that is starting; returns its id. Locks: the new row.

    An agent is draining if the last one of its name was: restarting an agent does not end the draining of its host.
    """
    with named_failures():
        process_id: int = connection.execute(
            sa.text("""
                INSERT INTO forebay.processes (kind, name, host, pid, slots, draining)
                VALUES (
                    :kind, :name, :host, :pid, :slots,
                    :kind = 'agent' AND coalesce((
                        SELECT p.draining
                        FROM forebay.processes p
                        WHERE p.kind = 'agent' AND p.name = :name
                        ORDER BY p.id DESC LIMIT 1
                    ), false)
                )
                RETURNING id
            """),
            {"kind": kind.value, "name": name, "host": host, "pid": pid, "slots": slots},
        ).scalar_one()
    return process_id


def heartbeat(
    connection: sa.Connection,
    *,
    process_id: int,
    receiver_ids: Sequence[int] = (),
    queued: Mapping[int, int] | None = None,
) -> list[Steering]:
    """Raise the process's counter by one; returns what each of `receiver_ids` must do.

    `queued`: number of blocks in the receivers' queues, where they have one; only for display. Locks: the process's
    row. Raises ProcessExpiredError when the process was declared dead.
    """
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT alive, receiver_id, rate_limit, desired_state, assignment, newest_sequence
                FROM forebay.heartbeat(:process, CAST(:receivers AS bigint[]), CAST(:queued AS integer[]))
            """),
            {
                "process": process_id,
                "receivers": list(receiver_ids),
                "queued": [(queued or {}).get(receiver_id) for receiver_id in receiver_ids],
            },
        ).all()
    if not rows[0].alive:
        raise ProcessExpiredError(f"process {process_id}")
    return [
        Steering(
            row.receiver_id,
            row.rate_limit,
            DesiredState(row.desired_state),
            row.assignment,
            newest_sequence=row.newest_sequence,
        )
        for row in rows[1:]
    ]


def deregister_process(connection: sa.Connection, process_id: int, reason: str = "stopped") -> None:
    """End a process at its own request. Locks: its row."""
    with named_failures():
        connection.execute(
            sa.text("""
                UPDATE forebay.processes
                SET ended_at = clock_timestamp(), end_reason = :reason
                WHERE id = :id AND ended_at IS NULL
            """),
            {"id": process_id, "reason": reason},
        )


def end_processes_of_pid(connection: sa.Connection, *, hosts: Sequence[str], pid: int, why: str) -> int:
    """End what an operating-system process had registered; its parent calls this after it saw the process end.

    Returns how many rows were still open. Locks: those rows.
    """
    with named_failures():
        return connection.execute(
            sa.text("""
                UPDATE forebay.processes
                SET ended_at = clock_timestamp(), end_reason = :why
                WHERE host = ANY (CAST(:hosts AS text[])) AND pid = :pid AND ended_at IS NULL
            """),
            {"hosts": list(hosts), "pid": pid, "why": why},
        ).rowcount


def live_processes(connection: sa.Connection) -> list[LiveProcess]:
    """Return every process that has not ended. No locks; the partial index holds only live ones."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT id, kind, name, host, slots, heartbeat, draining,
                    CAST(extract(epoch FROM clock_timestamp() - started_at) AS double precision) AS age_seconds
                FROM forebay.processes
                WHERE ended_at IS NULL
                ORDER BY id
            """)
        ).all()
    return [
        LiveProcess(
            row.id,
            ProcessKind(row.kind),
            row.name,
            row.host,
            row.slots,
            row.heartbeat,
            row.draining,
            row.age_seconds,
        )
        for row in rows
    ]


def expire_process(connection: sa.Connection, *, term: int, process_id: int, heartbeat: int, why: str) -> str:
    """Declare dead a process whose counter is still `heartbeat`; frees its receivers for a new placement.

    Locks: leadership FOR SHARE, its receivers FOR UPDATE, its own row. Returns 'expired', 'moved' (it lives) or
    'deposed' (this tracker no longer leads).
    """
    with named_failures():
        outcome: str = connection.execute(
            sa.text("SELECT outcome FROM forebay.expire_process(:term, :process, :heartbeat, :why)"),
            {"term": term, "process": process_id, "heartbeat": heartbeat, "why": why},
        ).scalar_one()
    return outcome
