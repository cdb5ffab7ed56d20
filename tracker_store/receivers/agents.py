"""Read and write what the driver log holds of agents and their hosts.

This covers which agents there are, which are draining, and which hosts have been given up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.close_names import did_you_mean
from tracker_store.connection.engine import named_failures
from tracker_store.connection.errors import DriverLogError, UnknownNameError

if TYPE_CHECKING:
    from datetime import datetime


_NO_SUCH_AGENT = "`forebay agents` lists the agents that there are, and the hosts that had one."


@dataclass(frozen=True, slots=True)
class AgentRow:
    """Hold a live agent, or a host without an agent for which receivers wait (`agent_id` is then null)."""

    agent_id: int | None
    name: str
    host: str
    slots: int
    receivers: int
    waiting: int
    draining: bool
    started_at: datetime | None


def list_agents(connection: sa.Connection) -> list[AgentRow]:
    """Return every live agent, then every host without one that receivers are bound to. No locks.

    `receivers` counts the receivers placed on the agent; `waiting` counts those that are bound to its host and placed
    nowhere.
    """
    with named_failures():
        rows = connection.execute(
            sa.text("""
                WITH agents AS (
                    SELECT *
                    FROM forebay.processes
                    WHERE kind = 'agent' AND ended_at IS NULL
                ), placed AS (
                    SELECT agent_id, count(*) AS receivers
                    FROM forebay.receivers
                    WHERE removed_at IS NULL AND agent_id IS NOT NULL
                    GROUP BY agent_id
                ), bound AS (
                    SELECT host, count(*) AS waiting
                    FROM forebay.receivers
                    WHERE removed_at IS NULL AND host IS NOT NULL AND agent_id IS NULL
                    GROUP BY host
                )
                SELECT a.id AS agent_id, a.name, a.host, a.slots, coalesce(p.receivers, 0) AS receivers,
                    coalesce(b.waiting, 0) AS waiting, a.draining, a.started_at
                FROM agents a
                LEFT JOIN placed p ON p.agent_id = a.id
                LEFT JOIN bound b ON b.host = a.host
                UNION ALL
                SELECT NULL, '', b.host, 0, 0, b.waiting, false, NULL
                FROM bound b
                WHERE NOT EXISTS (SELECT FROM agents a WHERE a.host = b.host)
                ORDER BY 1 NULLS LAST, 3
            """)
        ).all()
    return [AgentRow(*row) for row in rows]


def set_draining(connection: sa.Connection, *, name: str, draining: bool) -> int:
    """Drain the newest agent of this name, or stop draining it; returns how many receivers are placed on it.

    The next agent of the name inherits it. Locks: the agent's row. Raises DriverLogError.
    """
    with named_failures():
        placed: int | None = connection.execute(
            sa.text("""
                UPDATE forebay.processes a
                SET draining = :draining
                WHERE a.id = (SELECT max(p.id) FROM forebay.processes p WHERE p.kind = 'agent' AND p.name = :name)
                RETURNING (SELECT count(*) FROM forebay.receivers r WHERE r.agent_id = a.id)
            """),
            {"name": name, "draining": draining},
        ).scalar()
    if placed is None:
        names = [row.name for row in list_agents(connection) if row.agent_id is not None]
        raise UnknownNameError.of("agent", name, names, _NO_SUCH_AGENT)
    return placed


def forget_host(connection: sa.Connection, host: str) -> tuple[int, int]:
    """Give up a host: remove its own receivers, free its listeners for another address, and forget its block store.

    Returns how many receivers were removed and how many were freed. The blocks of the removed receivers are allocated
    like any others; if the host comes back, so do its receivers. A block store that only this host knew no longer keeps
    other hosts from starting. Locks: their rows. Raises DriverLogError while an agent runs there, or if nothing
    belongs to it.
    """
    with named_failures():
        agent: str | None = connection.execute(
            sa.text("""
                SELECT min(name) FROM forebay.processes WHERE kind = 'agent' AND ended_at IS NULL AND host = :host
            """),
            {"host": host},
        ).scalar_one()
        if agent is not None:
            raise DriverLogError(
                f"host {host!r}",
                f"First stop the agent that runs on that host (`forebay agents drain {agent}` empties it and gives "
                "nothing up).",
            )
        rows = connection.execute(
            sa.text("""
                UPDATE forebay.receivers r
                SET assignment = r.assignment + 1, state = 'INACTIVE', agent_id = NULL, process_id = NULL,
                    since = clock_timestamp(),
                    removed_at = CASE WHEN s.declaration ->> 'receivers' = 'per_host' THEN clock_timestamp() END,
                    host = CASE WHEN s.declaration ->> 'receivers' = 'per_host' THEN r.host END,
                    reason = 'host ' || CAST(:host AS text) || ' was given up'
                FROM forebay.streams s
                WHERE s.id = r.stream_id AND r.host = :host AND r.removed_at IS NULL
                RETURNING r.removed_at IS NOT NULL AS removed
            """),
            {"host": host},
        ).all()
        forgotten = connection.execute(
            sa.text("DELETE FROM forebay.block_stores WHERE host = :host RETURNING host"), {"host": host}
        ).all()
    if not rows and not forgotten:
        hosts = [row.host for row in list_agents(connection) if row.agent_id is None]
        hint = did_you_mean(host, hosts)
        detail = f"no receiver belongs to host {host!r}, and no block store{f': {hint}' if hint else ''}"
        raise DriverLogError(detail, _NO_SUCH_AGENT)
    removed = sum(row.removed for row in rows)
    return removed, len(rows) - removed
