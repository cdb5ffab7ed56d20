"""Read and write `processes`: which processes live, by heartbeat counters. Only the leader declares one dead."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.blocks.blocks import ControlResponse
from tracker_store.connection.engine import Prepared, fetch_prepared, named_failures, shares_sessions
from tracker_store.connection.errors import DriverLogError
from tracker_store.schema.states import DesiredState, ProcessKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_HEARTBEAT = Prepared(
    "forebay_heartbeat",
    "forebay.heartbeat",
    "alive, ids, rate_limits, desired_states, assignments, newest_sequences, server",
    ("bigint", "bigint[]", "jsonb", "boolean"),
)
# One in this number of heartbeats of a session asks for the newest sequences and the server too.
_WHOLE_EVERY = 10
# The name of a connection's dictionary of heartbeats that were answered in its session, by process.
_BEATS = "forebay_heartbeats"
_DESIRED = {state.value: state for state in DesiredState}


class ProcessExpiredError(DriverLogError):
    """Stop, and start again: the tracker has declared this process dead and gave its work away."""


@dataclass(frozen=True, slots=True)
class LiveProcess:
    """Hold a process that has not ended, with its heartbeat counter as read; `age_seconds` by the database's clock."""

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
    fetched: Mapping[int, int] | None = None,
) -> list[ControlResponse]:
    """Raise the process's counter by one; returns what each of `receiver_ids` must do.

    The first call in a session, and each tenth one after it, also returns the newest sequences and the server; the
    others return None for them. A server loses commits only when it stops or is replaced, which ends its sessions.

    `queued`: number of blocks in the receivers' queues, where they have one, only for display; None: as they were, and
    `fetched` is not written either: the records that receivers have fetched and not handed on, where they say so.
    Locks: the process's row. Raises ProcessExpiredError when the process was declared dead.
    """
    # Behind a pooler that lends transactions, each one may run on another server's session.
    seen: dict[int, int] = {} if shares_sessions(connection.engine) else connection.info.setdefault(_BEATS, {})
    beats = seen.get(process_id, 0)
    whole = beats % _WHOLE_EVERY == 0
    in_queue: dict[str, object] | None = None
    if queued is not None:
        in_queue = {str(one): queued[one] for one in receiver_ids if one in queued}
        if fetched:
            in_queue["fetched"] = {one: fetched[one] for one in receiver_ids if one in fetched}
    with named_failures():
        [row] = fetch_prepared(
            connection,
            _HEARTBEAT,
            ("%s", "%s", "%s", "%s"),
            (
                process_id,
                "{" + ",".join(map(str, receiver_ids)) + "}",
                None if in_queue is None else json.dumps(in_queue),
                whole,
            ),
        )
    alive, ids, rate_limits, desired_states, assignments, newest_sequences, server = row
    if not alive:
        raise ProcessExpiredError(f"process {process_id}")
    # Only now: a whole answer that was lost is asked for again.
    seen[process_id] = beats + 1
    return [
        ControlResponse(
            receiver_id, rate_limit, _DESIRED[desired_state], assignment, newest_sequence=newest, server=server
        )
        for receiver_id, rate_limit, desired_state, assignment, newest in zip(
            ids or (), rate_limits or (), desired_states or (), assignments or (), newest_sequences or (), strict=True
        )
    ]


def deregister_process(connection: sa.Connection, process_id: int, reason: str = "stopped") -> None:
    """End a process at its own request, and release what is placed on it if it is an agent.

    Only the login that registered it may. Locks: the receivers that are placed on it, by id, then its row.
    """
    with named_failures():
        connection.execute(
            sa.text("SELECT forebay.end_processes(ARRAY[CAST(:id AS bigint)], :reason)"),
            {"id": process_id, "reason": reason},
        )


def end_processes_of_pid(connection: sa.Connection, *, hosts: Sequence[str], pid: int, why: str) -> int:
    """End what an operating-system process had registered; its parent calls this after it saw the process end.

    Only processes that the same login registered; what is placed on an agent among them is released. Returns how many
    rows were still open. Locks: the receivers that are placed on them, by id, then those rows.
    """
    with named_failures():
        ended: int = connection.execute(
            # A row keeps its host and pid, so it does not matter that the look at them locks nothing.
            sa.text("""
                SELECT forebay.end_processes(
                    ARRAY(
                        SELECT id
                        FROM forebay.processes
                        WHERE host = ANY (CAST(:hosts AS text[])) AND pid = :pid AND ended_at IS NULL
                    ),
                    :why
                )
            """),
            {"hosts": list(hosts), "pid": pid, "why": why},
        ).scalar_one()
    return ended


def live_heartbeats(connection: sa.Connection) -> list[tuple[int, int]]:
    """Return (id, heartbeat counter) of every process that has not ended. No locks; one row, since it is read often."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(heartbeat), '{}') AS counters
                FROM forebay.processes
                WHERE ended_at IS NULL
            """)
        ).one()
    return list(zip(row.ids, row.counters, strict=True))


def receiver_pids(connection: sa.Connection) -> set[int]:
    """Return the pids of receivers that have not ended, on any host. No locks; by the index of live processes."""
    with named_failures():
        pids = connection.execute(
            sa.text("SELECT pid FROM forebay.processes WHERE ended_at IS NULL AND kind = :kind"),
            {"kind": ProcessKind.RECEIVER.value},
        ).scalars()
        return set(pids)


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
