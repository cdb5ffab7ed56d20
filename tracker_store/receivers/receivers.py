"""Read and write `receivers` and `receiver_events`: placement, states, and each receiver's history."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.connection.errors import DriverLogError, UnknownNameError
from tracker_store.receivers.leadership import LED
from tracker_store.schema.declarations import StreamDeclaration
from tracker_store.schema.states import DesiredState, ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import timedelta


class NoSuchReceiverError(UnknownNameError):
    """There is no such receiver: `forebay status` lists those that are declared."""


class ReceiverStoppedError(DriverLogError):
    """It is stopped, and would not start: let it run first, `forebay receivers start STREAM/N`."""


# Most receivers that one statement places or gives a reason: it holds their rows' locks for some milliseconds.
ROWS_PER_STATEMENT = 1_000
#: Prefix of the reason of a receiver that can't do its work: it does not get all of its source, or nothing of it for
#: now; or it holds data and has stored or registered nothing of it for long.
DEGRADED = "degraded"
#: How the reason begins in that last case.
NOT_STORING = f"{DEGRADED}: nothing stored or registered"
#: Prefix of the reason of a receiver that has started where its block store is missing.
STORE_MISSING = "nothing is received before the block store is there"


#: For how long the sum of refused requests stands in a receiver's reason after the last one.
REFUSALS_SHOWN_SECONDS = 600.0
_REFUSED = re.compile(r"(?:^|; )([\d,]+ requests? refused.*)")


def refused_requests(total: int, most: str, number: int) -> str:
    """Return what a receiver's reason says of the requests that it refused: the sum, and the most frequent cause."""
    cause = most if number == total else f"{number:,} of them {most}"
    return f"{total:,} request{'' if total == 1 else 's'} refused: {cause}"


def refused_in(reason: str) -> str | None:
    """Return the part of a receiver's reason that ``refused_requests`` made, or None."""
    found = _REFUSED.search(reason)
    return None if found is None else found[1]


def is_degraded(reason: str) -> bool:
    """Return whether a receiver's reason says that it can't do its work, or not all of it."""
    return reason.startswith(f"{DEGRADED}:")


def condition_of(state: str, reason: str) -> str:
    """Return a receiver's state for people: one that is ACTIVE and can't do its work is degraded."""
    return DEGRADED if state == ReceiverState.ACTIVE and is_degraded(reason) else state


def is_not_storing(reason: str) -> bool:
    """Return whether a receiver's reason says that it is degraded because it stores or registers nothing."""
    return reason.startswith(NOT_STORING)


def lacks_store(reason: str) -> bool:
    """Return whether a receiver's reason says that its host lacks the block store."""
    return reason.startswith(f"{STORE_MISSING}:")


@dataclass(frozen=True, slots=True)
class ReceiverSpec:
    """Hold what a receiver process needs to know. `source`, `settings` and `records` are the stream's declaration.

    `offered_assignment`: the one under which a process of another agent may take the receiver over (None: no process).
    """

    receiver_id: int
    stream_id: int
    stream_name: str
    ordinal: int
    source: Mapping[str, Any]
    settings: Mapping[str, Any]
    assignment: int
    offered_assignment: int | None = None
    records: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Say where a receiver is placed, for the tracker and the agents.

    `host` is the only host where it may run (None: any), `preferred_host` the one that it asked for; `listens`: it
    listens at an address of its own. `handing_over`: it is placed nowhere, and the process that held it has not signed
    off. `own_process`: it shares its process with no other receiver. `per_host`: it is its stream's receiver of `host`.
    `is_apart`: it should not share its host with another receiver of its stream. `bound_to_host`: it may read what only
    its host has. `is_unheld`: no live process has it; its agent must start one.
    """

    receiver_id: int
    stream_id: int
    stream_name: str
    ordinal: int
    state: ReceiverState
    desired_state: DesiredState
    assignment: int
    agent_id: int | None
    reason: str
    host: str | None
    preferred_host: str | None
    listens: bool
    handing_over: bool
    own_process: bool = False
    per_host: bool = False
    is_apart: bool = False
    bound_to_host: bool = True
    is_unheld: bool = False


_PLACEMENTS = """
    SELECT r.id, r.stream_id, s.name AS stream_name, r.ordinal, r.state, r.desired_state, r.assignment, r.agent_id,
        r.reason, r.host, r.preferred_location, r.bound_to_host,
        coalesce(s.declaration ->> 'receivers' = 'per_host', false) AS per_host,
        coalesce(CAST(s.declaration ->> 'shared_address' AS boolean), false) AS shared_address,
        coalesce(CAST(s.declaration ->> 'listens' AS boolean), false) AS listens,
        r.agent_id IS NULL AND EXISTS (
            SELECT
            FROM forebay.processes p
            WHERE p.id = r.process_id AND p.ended_at IS NULL
        ) AS handing_over,
        r.state = 'SCHEDULED' OR NOT EXISTS (
            SELECT
            FROM forebay.processes p
            WHERE p.id = r.process_id AND p.ended_at IS NULL
        ) AS is_unheld,
        coalesce(CAST(s.declaration -> 'settings' ->> 'own_process' AS boolean), false) AS own_process
    FROM forebay.receivers r
    JOIN forebay.streams s ON s.id = r.stream_id
"""


def _placement(row: sa.Row[Any]) -> Placement:
    return Placement(
        receiver_id=row.id,
        stream_id=row.stream_id,
        stream_name=row.stream_name,
        ordinal=row.ordinal,
        state=ReceiverState(row.state),
        desired_state=DesiredState(row.desired_state),
        assignment=row.assignment,
        agent_id=row.agent_id,
        reason=row.reason,
        host=row.host,
        preferred_host=row.preferred_location,
        listens=row.listens,
        handing_over=row.handing_over,
        own_process=row.own_process,
        per_host=row.per_host,
        is_apart=row.listens or row.shared_address,
        bound_to_host=row.bound_to_host,
        is_unheld=row.is_unheld,
    )


def get_receiver(connection: sa.Connection, receiver_id: int) -> ReceiverSpec:
    """Return one receiver with its stream's declaration. No locks. Raises NoSuchReceiverError."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT r.id, r.stream_id, s.name, r.ordinal, s.declaration, r.assignment,
                    h.assignment AS offered_assignment
                FROM forebay.receivers r
                JOIN forebay.streams s ON s.id = r.stream_id
                LEFT JOIN forebay.hand_overs h ON h.receiver_id = r.id AND h.from_assignment = r.assignment
                WHERE r.id = :id AND r.removed_at IS NULL
            """),
            {"id": receiver_id},
        ).one_or_none()
    if row is None:
        raise NoSuchReceiverError(f"receiver {receiver_id}")
    declared = StreamDeclaration.of(row.declaration)
    return ReceiverSpec(
        receiver_id=row.id,
        stream_id=row.stream_id,
        stream_name=row.name,
        ordinal=row.ordinal,
        source=declared.source,
        settings=declared.settings,
        assignment=row.assignment,
        offered_assignment=row.offered_assignment,
        records=declared.records,
    )


def placements(connection: sa.Connection) -> list[Placement]:
    """Return every receiver that is not removed. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text(f"""
                {_PLACEMENTS}
                WHERE r.removed_at IS NULL
                ORDER BY r.id
            """)
        ).all()
    return [_placement(row) for row in rows]


def placements_on_agent(connection: sa.Connection, agent_id: int) -> list[Placement]:
    """Return the receivers that an agent must run now, and those that it is offered. No locks.

    An offered receiver (``hand_overs``) has the assignment under which it may be taken over. O(its receivers and all
    hand-overs), by the partial index on the agent.
    """
    with named_failures():
        rows = connection.execute(
            # One statement, so that a receiver that is taken over just now is in the one part or in the other.
            sa.text(f"""
                SELECT placed.*, h.assignment AS offered
                FROM (
                    {_PLACEMENTS}
                    -- Found by an index, and in the short table of hand-overs: each agent asks every second.
                    WHERE r.id = ANY (ARRAY(
                        SELECT o.id
                        FROM forebay.receivers o
                        WHERE o.agent_id = :agent
                        UNION
                        SELECT o.receiver_id
                        FROM forebay.hand_overs o
                        WHERE o.agent_id = :agent
                    ))
                      AND r.removed_at IS NULL
                      AND r.desired_state <> 'stopped'
                ) placed
                LEFT JOIN forebay.hand_overs h
                    ON h.receiver_id = placed.id AND h.from_assignment = placed.assignment AND h.agent_id = :agent
                WHERE (placed.agent_id = :agent OR h.agent_id = :agent)
                  AND placed.state IN ('SCHEDULED', 'ACTIVE', 'PAUSED')
                ORDER BY placed.id
            """),  # noqa: S608  constants
            {"agent": agent_id},
        ).all()
    return [
        _placement(row) if row.offered is None else replace(_placement(row), assignment=row.offered) for row in rows
    ]


@dataclass(frozen=True, slots=True)
class Placing:
    """Hold a decision to place a receiver on an agent; `only_host` binds it to that host."""

    receiver_id: int
    agent_id: int
    why: str
    only_host: str | None = None


def schedule_receivers(connection: sa.Connection, *, term: int, placings: Sequence[Placing]) -> set[int]:
    """Place receivers on agents, each under a new assignment; return those that were placed, by id.

    A receiver that is not INACTIVE any more, or is removed, stays as it is; in another's term all do. The clock keeps
    assignments distinct after a failover or a restore that lost some, as it does epochs: an agent does not start a
    receiver again under an assignment that it has seen refused. The clock may be set back.

    Locks: leadership FOR SHARE, those receivers' rows by id.
    """
    scheduled: set[int] = set()
    for first in range(0, len(placings), ROWS_PER_STATEMENT):
        some = placings[first : first + ROWS_PER_STATEMENT]
        with named_failures():
            scheduled.update(
                connection.execute(
                    sa.text(f"""
                        {LED}, chosen AS (
                            SELECT c.id, c.agent_id, c.why, c.only_host
                            FROM unnest(
                                CAST(:receivers AS bigint[]), CAST(:agents AS bigint[]), CAST(:whys AS text[]),
                                CAST(:hosts AS text[])
                            ) AS c(id, agent_id, why, only_host)
                            WHERE EXISTS (SELECT FROM led)
                        ), locked AS MATERIALIZED (
                            SELECT r.id, c.agent_id, c.why, c.only_host
                            FROM forebay.receivers r
                            JOIN chosen c ON c.id = r.id
                            WHERE r.state = 'INACTIVE' AND r.removed_at IS NULL
                            ORDER BY r.id FOR UPDATE OF r
                        ), placed AS (
                            UPDATE forebay.receivers r
                            SET state = 'SCHEDULED', reason = l.why, since = clock_timestamp(), agent_id = l.agent_id,
                                process_id = NULL, host = coalesce(r.host, l.only_host),
                                assignment = greatest(
                                    r.assignment + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint
                                )
                            FROM locked l
                            WHERE r.id = l.id
                            RETURNING r.id, r.reason
                        ), noted AS (
                            INSERT INTO forebay.receiver_events (receiver_id, epoch, kind, message)
                            SELECT id, 0, 'SCHEDULED', reason FROM placed ORDER BY id
                        )
                        SELECT id FROM placed
                    """),  # noqa: S608  a constant
                    {
                        "term": term,
                        "receivers": [placing.receiver_id for placing in some],
                        "agents": [placing.agent_id for placing in some],
                        "whys": [placing.why for placing in some],
                        "hosts": [placing.only_host for placing in some],
                    },
                ).scalars()
            )
    return scheduled


def release_receivers(connection: sa.Connection, *, term: int, agent_id: int, why: str) -> set[int]:
    """Take all receivers from an agent, for a new placement; return which were taken, by id.

    None in another's term. Their rows go on naming their processes until these have signed off, so that the next
    placement can wait for it. Locks: leadership FOR SHARE, those receivers' rows by id.
    """
    with named_failures():
        return set(
            connection.execute(
                sa.text(f"""
                    {LED}, locked AS MATERIALIZED (
                        SELECT r.id
                        FROM forebay.receivers r
                        WHERE r.agent_id = :agent AND r.state IN ('SCHEDULED', 'ACTIVE', 'PAUSED')
                          AND EXISTS (SELECT FROM led)
                        ORDER BY r.id FOR UPDATE
                    )
                    UPDATE forebay.receivers r
                    SET state = 'INACTIVE', reason = :why, since = clock_timestamp(), agent_id = NULL,
                        assignment = r.assignment + 1
                    FROM locked l
                    WHERE r.id = l.id
                    RETURNING r.id
                """),  # noqa: S608  a constant
                {"term": term, "agent": agent_id, "why": why},
            ).scalars()
        )


def add_host_receiver(connection: sa.Connection, *, term: int, stream_id: int, host: str) -> bool:
    """Give a stream with one receiver per host its receiver on a host; return whether it is a new one.

    One that was removed with its host comes back as it was: the same receiver, and the same sequence. A stream that was
    removed meanwhile gets none, nor does any in another's term. Only the leader adds receivers of hosts, and its
    snapshot has all that the leader before it added, whose shared lock its own take-over has waited for.

    Locks: leadership FOR SHARE, the stream's row FOR KEY SHARE, which excludes its removal, then the receiver's row.
    """
    with named_failures():
        added = connection.execute(
            sa.text(f"""
                {LED}, declared AS MATERIALIZED (
                    SELECT s.id
                    FROM forebay.streams s
                    WHERE s.id = :stream AND s.removed_at IS NULL AND EXISTS (SELECT FROM led)
                    FOR KEY SHARE
                ), there AS (
                    UPDATE forebay.receivers r
                    SET removed_at = NULL
                    FROM declared d
                    WHERE r.stream_id = d.id AND r.host = :host
                    RETURNING r.id
                )
                INSERT INTO forebay.receivers (stream_id, ordinal, host)
                SELECT d.id,
                    (
                        SELECT coalesce(max(r.ordinal), 0) + 1
                        FROM forebay.receivers r
                        WHERE r.stream_id = d.id
                    ),
                    :host
                FROM declared d
                WHERE NOT EXISTS (SELECT FROM there)
                RETURNING id
            """),  # noqa: S608  a constant
            {"term": term, "stream": stream_id, "host": host},
        ).scalar()
    return added is not None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Name a receiver that is not placed under `assignment`, and say why."""

    receiver_id: int
    assignment: int
    reason: str


def note_waiting(connection: sa.Connection, *, term: int, waiting: Sequence[Waiting]) -> None:
    """Record why receivers are not placed.

    Locks: leadership FOR SHARE, by id the rows of those whose reason is new and whose assignment is still the newest.
    """
    for first in range(0, len(waiting), ROWS_PER_STATEMENT):
        some = waiting[first : first + ROWS_PER_STATEMENT]
        with named_failures():
            connection.execute(
                sa.text(f"""
                    {LED}, waiting AS (
                        SELECT w.id, w.assignment, w.reason
                        FROM unnest(
                            CAST(:ids AS bigint[]), CAST(:assignments AS bigint[]), CAST(:reasons AS text[])
                        ) AS w(id, assignment, reason)
                        WHERE EXISTS (SELECT FROM led)
                    ), locked AS MATERIALIZED (
                        SELECT r.id, w.reason
                        FROM forebay.receivers r
                        JOIN waiting w ON w.id = r.id
                        WHERE r.assignment = w.assignment AND r.state = 'INACTIVE' AND r.reason <> w.reason
                        ORDER BY r.id FOR UPDATE OF r
                    )
                    UPDATE forebay.receivers r
                    SET reason = l.reason
                    FROM locked l
                    WHERE r.id = l.id
                """),  # noqa: S608  a constant
                {
                    "term": term,
                    "ids": [one.receiver_id for one in some],
                    "assignments": [one.assignment for one in some],
                    "reasons": [one.reason for one in some],
                },
            )


def set_receiver_state(
    connection: sa.Connection,
    *,
    receiver_id: int,
    assignment: int,
    state: ReceiverState,
    reason: str = "",
    process_id: int | None = None,
    held_by: int | None = None,
) -> bool:
    """Move a receiver to `state` within its assignment, from the states that the table of transitions allows.

    Locks: the receiver's row. Returns False if nothing moved: a newer assignment or another login owns the row, the
    process `held_by` (None: any) does not hold it, or its state does not allow the move. Moving to the same state again
    is a success.
    """
    with named_failures():
        moved: bool = connection.execute(
            sa.text("""
                SELECT forebay.set_receiver_state(
                    :id, :assignment, :state, :reason, CAST(:process AS bigint), CAST(:held_by AS bigint)
                )
            """),
            {
                "id": receiver_id,
                "assignment": assignment,
                "state": state.value,
                "reason": reason,
                "process": process_id,
                "held_by": held_by,
            },
        ).scalar_one()
    return moved


def give_up_receiver(
    connection: sa.Connection, *, receiver_id: int, assignment: int, process_id: int, reason: str
) -> bool:
    """Take a receiver from the process that hangs with it; its agent starts another under the same assignment.

    Locks: the receiver's row. Returns False if that process no longer holds it: another one does, or none should.
    """
    return set_receiver_state(
        connection,
        receiver_id=receiver_id,
        assignment=assignment,
        state=ReceiverState.SCHEDULED,
        reason=reason,
        held_by=process_id,
    )


def set_preferred_location(
    connection: sa.Connection, *, receiver_id: int, host: str | None, bound_to_host: bool = True
) -> None:
    """Record the host that a receiver asks for, and whether it may read what only its host has.

    Locks: the receiver's row, if one of them is new.
    """
    with named_failures():
        connection.execute(
            sa.text("SELECT forebay.set_preferred_location(:id, CAST(:host AS text), CAST(:bound AS boolean))"),
            {"id": receiver_id, "host": host, "bound": bound_to_host},
        )


def report_event(
    connection: sa.Connection,
    *,
    receiver_id: int,
    epoch: int,
    kind: ReceiverEventKind,
    message: str,
    detail: str = "",
) -> None:
    """Append to a receiver's history. Locks: the new row."""
    with named_failures():
        connection.execute(
            sa.text("""
                INSERT INTO forebay.receiver_events (receiver_id, epoch, kind, message, detail)
                VALUES (:receiver, :epoch, :kind, :message, :detail)
            """),
            {
                "receiver": receiver_id,
                "epoch": epoch,
                "kind": kind.value,
                "message": message,
                "detail": detail,
            },
        )


@dataclass(frozen=True, slots=True)
class NewReceiverEvent:
    """Hold an event to add to a receiver's history."""

    receiver_id: int
    epoch: int
    kind: ReceiverEventKind
    message: str
    detail: str = ""


def report_events(connection: sa.Connection, events: Sequence[NewReceiverEvent]) -> None:
    """Append events to receivers' histories, in this order; none of them if one is refused. Locks: the new rows."""
    if not events:
        return
    with named_failures():
        connection.execute(
            sa.text("""
                INSERT INTO forebay.receiver_events (receiver_id, epoch, kind, message, detail)
                SELECT e.receiver_id, e.epoch, e.kind, e.message, e.detail
                FROM unnest(
                    CAST(:receivers AS bigint[]), CAST(:epochs AS bigint[]), CAST(:kinds AS text[]),
                    CAST(:messages AS text[]), CAST(:details AS text[])
                ) WITH ORDINALITY AS e (receiver_id, epoch, kind, message, detail, number)
                ORDER BY e.number
            """),
            {
                "receivers": [event.receiver_id for event in events],
                "epochs": [event.epoch for event in events],
                "kinds": [event.kind.value for event in events],
                "messages": [event.message for event in events],
                "details": [event.detail for event in events],
            },
        )


def receiver_events(connection: sa.Connection, receiver_id: int) -> Sequence[tuple[ReceiverEventKind, str, str]]:
    """Return a receiver's history as (kind, message, detail), oldest first. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text(
                "SELECT kind, message, detail FROM forebay.receiver_events WHERE receiver_id = :receiver ORDER BY id"
            ),
            {"receiver": receiver_id},
        ).all()
    return [(ReceiverEventKind(row.kind), row.message, row.detail) for row in rows]


def receivers_named(connection: sa.Connection, name: str) -> list[Placement]:
    """Return the receivers of STREAM, or the one of STREAM/N. No locks. Raises NoSuchReceiverError."""
    stream, _, ordinal = name.partition("/")
    there = placements(connection)
    found = [
        placement for placement in there if placement.stream_name == stream and ordinal in ("", str(placement.ordinal))
    ]
    if not found:
        names = {one.stream_name + (f"/{one.ordinal}" if ordinal else ""): None for one in there}
        raise NoSuchReceiverError.of("receiver", name, list(names), "`forebay receivers` lists those that there are.")
    return found


@dataclass(frozen=True, slots=True)
class ReceiverProcess:
    """Locate the process that holds a receiver (None: no living one), and the host of the agent where it is placed."""

    host: str | None
    pid: int | None
    agent_host: str | None


def process_of_receiver(connection: sa.Connection, receiver_id: int) -> ReceiverProcess:
    """Return the process that claimed a receiver last under its assignment, and its agent's host. No locks."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT p.host, p.pid, a.host AS agent_host
                FROM forebay.receivers r
                LEFT JOIN forebay.processes p ON p.id = r.process_id AND p.ended_at IS NULL
                LEFT JOIN forebay.processes a ON a.id = r.agent_id
                WHERE r.id = :receiver
            """),
            {"receiver": receiver_id},
        ).one()
    return ReceiverProcess(row.host, row.pid, row.agent_host)


def set_desired_state(connection: sa.Connection, *, receiver_ids: Collection[int], desired: DesiredState) -> None:
    """Set what an operator wants of these receivers: of all of them, or of none.

    Locks: their rows, by id. Raises ReceiverStoppedError, which names the first one that stopped pipelines hold.
    """
    with named_failures():
        refused = connection.execute(
            sa.text("""
                WITH named AS MATERIALIZED (
                    SELECT id, stream_id, ordinal, desired_before_stop
                    FROM forebay.receivers
                    WHERE id = ANY (:ids) AND removed_at IS NULL
                    ORDER BY id
                    FOR UPDATE
                ), changed AS (
                    UPDATE forebay.receivers r
                    SET desired_state = :desired
                    FROM named n
                    WHERE r.id = n.id AND NOT EXISTS (SELECT FROM named WHERE desired_before_stop IS NOT NULL)
                )
                SELECT s.name || '/' || n.ordinal
                FROM named n JOIN forebay.streams s ON s.id = n.stream_id
                WHERE n.desired_before_stop IS NOT NULL
                ORDER BY s.name, n.ordinal
                LIMIT 1
            """),
            {"ids": list(receiver_ids), "desired": desired.value},
        ).scalar()
    if refused is not None:
        raise ReceiverStoppedError(
            f"receiver {refused}",
            "Run `forebay start`, which lets both run: the pipelines that read it are stopped, and it with them. "
            "If nothing reads it (`forebay streams`), apply a pipeline that does.",
        )


def restart_receivers(
    connection: sa.Connection, *, receiver_ids: Collection[int], why: str, also_waiting: bool = True
) -> None:
    """Give these receivers a new assignment, as ``restart_receiver`` does: all of them, or none.

    Without `also_waiting`, those that wait for their placement or start are left alone: a repeated request would delay
    them. Locks: their rows, by id. Raises ReceiverStoppedError, which names the first one that is stopped.
    """
    with named_failures():
        refused = connection.execute(
            sa.text("""
                WITH named AS MATERIALIZED (
                    SELECT id, stream_id, ordinal, desired_state, state
                    FROM forebay.receivers
                    WHERE id = ANY (:ids) AND removed_at IS NULL
                    ORDER BY id
                    FOR UPDATE
                ), restarted AS (
                    UPDATE forebay.receivers r
                    SET state = 'INACTIVE', reason = :why, since = clock_timestamp(), agent_id = NULL,
                        assignment = r.assignment + 1
                    FROM named n
                    WHERE r.id = n.id AND (:also_waiting OR n.state NOT IN ('INACTIVE', 'SCHEDULED'))
                      AND NOT EXISTS (SELECT FROM named WHERE desired_state = 'stopped')
                    RETURNING r.id
                ), noted AS (
                    INSERT INTO forebay.receiver_events (receiver_id, epoch, kind, message, detail)
                    SELECT id, 0, 'RESTARTED', :why, '' FROM restarted
                )
                SELECT s.name || '/' || n.ordinal
                FROM named n JOIN forebay.streams s ON s.id = n.stream_id
                WHERE n.desired_state = 'stopped'
                ORDER BY s.name, n.ordinal
                LIMIT 1
            """),
            {"ids": list(receiver_ids), "why": why, "also_waiting": also_waiting},
        ).scalar()
    if refused is not None:
        raise ReceiverStoppedError(f"receiver {refused}")


def restart_receiver(
    connection: sa.Connection, *, receiver_id: int, why: str, by: str = "", failed_under: int | None = None
) -> bool:
    """Give a receiver a new assignment, so that the tracker places it again; its process drains and ends.

    With `failed_under`, only if it is still FAILED under that assignment. `by` goes to the event's detail: it names an
    automatic caller, and is empty for a person (see ``failed_receivers``). Locks: the receiver's row. Returns False if
    nothing changed.
    """
    with named_failures():
        restarted = connection.execute(
            sa.text("""
                WITH restarted AS (
                    UPDATE forebay.receivers
                    SET state = 'INACTIVE', reason = :why, since = clock_timestamp(), agent_id = NULL,
                        assignment = assignment + 1
                    WHERE id = :id
                      AND removed_at IS NULL
                      AND desired_state <> 'stopped'
                      AND (CAST(:assignment AS bigint) IS NULL OR state = 'FAILED' AND assignment = :assignment)
                    RETURNING id
                )
                INSERT INTO forebay.receiver_events (receiver_id, epoch, kind, message, detail)
                SELECT id, 0, 'RESTARTED', :why, :by
                FROM restarted
                RETURNING receiver_id
            """),
            {"id": receiver_id, "why": why, "by": by, "assignment": failed_under},
        ).scalar()
    return restarted is not None


@dataclass(frozen=True, slots=True)
class FailedReceiver:
    """Hold a FAILED receiver that should run: one episode, identified by its assignment.

    `restarts` counts the automatic ones of the last hour; `failed_for` is by the database's clock.
    """

    receiver_id: int
    stream_name: str
    ordinal: int
    assignment: int
    reason: str
    failed_for: timedelta
    restarts: int


def failed_receivers(connection: sa.Connection, streams: Sequence[str]) -> list[FailedReceiver]:
    """Return those of these streams' receivers that are FAILED and not desired stopped. No locks.

    Reads an hour of their events.
    """
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT r.id, s.name, r.ordinal, r.assignment, r.reason, clock_timestamp() - r.since AS failed_for,
                    (
                        SELECT count(*)
                        FROM forebay.receiver_events v
                        WHERE v.receiver_id = r.id
                          AND v.epoch = 0
                          AND v.kind = 'RESTARTED'
                          AND v.detail <> ''
                          AND v.at > clock_timestamp() - interval '1 hour'
                    ) AS restarts
                FROM forebay.receivers r
                JOIN forebay.streams s ON s.id = r.stream_id
                WHERE r.state = 'FAILED'
                  AND r.desired_state <> 'stopped'
                  AND r.removed_at IS NULL
                  AND s.removed_at IS NULL
                  AND s.name = ANY (CAST(:streams AS text[]))
                ORDER BY s.name, r.ordinal
            """),
            {"streams": list(streams)},
        ).all()
    return [FailedReceiver(*row) for row in rows]
