"""Read and write `hand_overs`: planned moves of receivers from the agent where they run to another, and requests.

A move has three steps, each one statement, so that a process that dies between two of them leaves nothing to repair:

1. The leader offers the receiver to an agent (`begin_hand_over`). The receiver goes on as before.
2. The agent starts a process. When that process is ready to claim, it takes the receiver over (`take_over`): the
   receiver's row gets the new assignment, by which its process learns that it must drain and sign off.
3. The new process waits for the sign-off (`predecessor_holds`), claims, salvages, and reads.

The fence is the claim, as in every placement; a hand-over only decides when it comes.

What `forebay agents rebalance` asks of the leading tracker is a row without a receiver until the leader finds nothing
more to move, so it outlives the leader. Several requests are worked off together: they ask for the same state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.receivers.leadership import LED

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class HandOver:
    """Hold the offer of a receiver to an agent. `valid`: it still runs under the assignment that was seen then."""

    receiver_id: int
    agent_id: int
    assignment: int
    valid: bool


def begin_hand_over(
    connection: sa.Connection, *, term: int, receiver_id: int, assignment: int, agent_id: int, why: str
) -> str:
    """Offer a receiver that runs under `assignment` to another agent.

    Locks: leadership FOR SHARE, the receiver's row. Returns 'begun', 'under way' (another one is not finished),
    'changed' (it does not run under that assignment any more), 'no agent' (ended or draining), or 'deposed'.
    """
    with named_failures():
        outcome: str = connection.execute(
            sa.text("SELECT outcome FROM forebay.begin_hand_over(:term, :receiver, :assignment, :agent, :why)"),
            {"term": term, "receiver": receiver_id, "assignment": assignment, "agent": agent_id, "why": why},
        ).scalar_one()
    return outcome


def withdraw_hand_over(connection: sa.Connection, *, term: int, receiver_id: int, assignment: int) -> bool:
    """Delete the hand-over that has this assignment; the receiver goes on where it is. Returns False if it is gone.

    Locks: leadership FOR SHARE, the hand-over's row.
    """
    with named_failures():
        deleted = connection.execute(
            sa.text(f"""
                {LED}
                DELETE FROM forebay.hand_overs
                WHERE receiver_id = :receiver AND assignment = :assignment AND EXISTS (SELECT FROM led)
                RETURNING receiver_id
            """),  # noqa: S608  a constant
            {"term": term, "receiver": receiver_id, "assignment": assignment},
        ).scalar()
    return deleted is not None


def list_hand_overs(connection: sa.Connection) -> Sequence[HandOver]:
    """Return every hand-over that is neither finished nor withdrawn. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT h.receiver_id, h.agent_id, h.assignment,
                    r.assignment = h.from_assignment AND r.removed_at IS NULL AND r.desired_state <> 'stopped'
                        AND r.state IN ('SCHEDULED', 'ACTIVE', 'PAUSED') AS valid
                FROM forebay.hand_overs h
                JOIN forebay.receivers r ON r.id = h.receiver_id
                ORDER BY h.receiver_id
            """)
        ).all()
    return [HandOver(*row) for row in rows]


def take_over(connection: sa.Connection, *, receiver_id: int, assignment: int) -> bool:
    """Take a receiver over under the assignment of its hand-over; returns False if it is not offered any more.

    Repeating it after a lost answer returns the same. Locks: the receiver's row, then the hand-over's.
    """
    with named_failures():
        outcome: str = connection.execute(
            sa.text("SELECT outcome FROM forebay.take_over(:receiver, :assignment)"),
            {"receiver": receiver_id, "assignment": assignment},
        ).scalar_one()
    return outcome == "taken over"


def predecessor_holds(connection: sa.Connection, *, receiver_id: int, assignment: int) -> bool:
    """Return whether a receiver that waits for its claim under `assignment` is still held by the process before.

    False also when another assignment is in force: then the claim is refused, and says so. No locks.
    """
    with named_failures():
        holds: bool = connection.execute(
            sa.text("""
                SELECT EXISTS (
                    SELECT
                    FROM forebay.receivers r
                    JOIN forebay.processes p ON p.id = r.process_id
                    WHERE r.id = :receiver
                      AND r.assignment = :assignment
                      AND r.state = 'SCHEDULED'
                      AND p.ended_at IS NULL
                )
            """),
            {"receiver": receiver_id, "assignment": assignment},
        ).scalar_one()
    return holds


def sign_off_receiver(connection: sa.Connection, *, receiver_id: int, assignment: int, process_id: int) -> None:
    """Record that a process holds nothing more of a receiver that has a newer assignment; others share the process.

    Locks: the receiver's row.
    """
    with named_failures():
        connection.execute(
            sa.text("SELECT forebay.sign_off_receiver(:receiver, :assignment, :process)"),
            {"receiver": receiver_id, "assignment": assignment, "process": process_id},
        )


@dataclass(frozen=True, slots=True)
class RebalanceRequest:
    """Hold a request that is not finished; `listeners`: receivers that listen at their host's address may move too."""

    request_id: int
    listeners: bool


def request_rebalance(connection: sa.Connection, *, listeners: bool) -> int:
    """Ask the leader to rebalance now; returns the request's id. Locks: the new row."""
    with named_failures():
        request_id: int = connection.execute(
            sa.text("INSERT INTO forebay.hand_overs (listeners) VALUES (:listeners) RETURNING id"),
            {"listeners": listeners},
        ).scalar_one()
    return request_id


def list_rebalance_requests(connection: sa.Connection) -> Sequence[RebalanceRequest]:
    """Return the requests that are not finished, oldest first. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("SELECT id, listeners FROM forebay.hand_overs WHERE listeners IS NOT NULL ORDER BY id")
        ).all()
    return [RebalanceRequest(row.id, row.listeners) for row in rows]


def finish_rebalance_requests(connection: sa.Connection, *, term: int, request_ids: Sequence[int]) -> None:
    """Delete requests: nothing more is to be moved for them. Locks: leadership FOR SHARE, their rows."""
    with named_failures():
        connection.execute(
            sa.text(f"""
                {LED}
                DELETE FROM forebay.hand_overs
                WHERE id = ANY (CAST(:ids AS bigint[])) AND listeners IS NOT NULL AND EXISTS (SELECT FROM led)
            """),  # noqa: S608  a constant
            {"term": term, "ids": list(request_ids)},
        )
