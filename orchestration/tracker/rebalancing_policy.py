"""Decide which receiver moves to which agent, by pure functions of the state and of ages (P02, W15).

Owns when a move is due and which move it is. It reads no clock and no driver log, and it never moves a receiver that is
bound to a host, that is on its preferred host, or that is hindered.

There are two reasons for a move: an agent on the receiver's preferred host has a free slot; or the agent where it runs
has at least two receivers more than an agent with a free slot. Each move brings a receiver home or makes the spread
smaller, and neither undoes the other, so repeated moves come to an end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

# A difference of one can't be made smaller: the move would only exchange the two agents.
_LEAST_DIFFERENCE = 2


@dataclass(frozen=True, slots=True)
class RebalanceAgent:
    """A live agent that may have receivers; `alive_seconds` is the time since it registered."""

    agent_id: int
    host: str
    slots: int
    alive_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RunningReceiver:
    """A receiver that is placed on an agent. `moves`: it may be moved at all; a listener only where that was asked."""

    receiver_id: int
    stream_id: int
    agent_id: int
    preferred_host: str | None = None
    moves: bool = True
    is_bound_listener: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A receiver that is to leave one agent for another."""

    receiver_id: int
    from_agent: int
    to_agent: int
    why: str


@dataclass(frozen=True, slots=True)
class MoveLimits:
    """When receivers are moved without a request.

    `is_on`: at all. `interval_seconds`: the time between two moves, from the end of the first. `host_seconds`: how long
    an agent must have been alive before receivers are moved to it, so that a host that comes and goes gets none.
    """

    is_on: bool
    interval_seconds: float
    host_seconds: float


def due_move(
    agents: Sequence[RebalanceAgent],
    receivers: Sequence[RunningReceiver],
    *,
    limits: MoveLimits,
    idle_seconds: float,
    is_asked: bool,
    with_listeners: bool = False,
    avoided: Collection[int] = (),
) -> Move | None:
    """Return the move that is due now; None if there is none.

    Args:
        agents: those that may have receivers.
        receivers: all that are placed. None may be on its way: one move at a time.
        limits: for moves without a request.
        idle_seconds: the time since the last move ended.
        is_asked: a person asks for it now, so `limits` do not apply.
        with_listeners: the person wants listeners to move too, to the address of another host.
        avoided: agents that get no receivers, because an earlier move there failed.
    """
    if not is_asked and (not limits.is_on or idle_seconds < limits.interval_seconds):
        return None
    targets = [
        agent
        for agent in agents
        if agent.agent_id not in avoided and (is_asked or agent.alive_seconds >= limits.host_seconds)
    ]
    return _next_move(agents, receivers, targets, with_listeners=with_listeners)


def plan_moves(
    agents: Sequence[RebalanceAgent], receivers: Sequence[RunningReceiver], *, with_listeners: bool = False
) -> list[Move]:
    """Return the moves that a request would make, one after the other, if nothing else changes meanwhile."""
    moves: list[Move] = []
    now = list(receivers)
    while (move := _next_move(agents, now, agents, with_listeners=with_listeners)) is not None:
        moves.append(move)
        now = [
            replace(receiver, agent_id=move.to_agent) if receiver.receiver_id == move.receiver_id else receiver
            for receiver in now
        ]
    return moves


def _next_move(
    agents: Sequence[RebalanceAgent],
    receivers: Sequence[RunningReceiver],
    targets: Sequence[RebalanceAgent],
    *,
    with_listeners: bool,
) -> Move | None:
    hosts = {agent.agent_id: agent.host for agent in agents}
    loads = Counter(receiver.agent_id for receiver in receivers)
    free = sorted(
        (agent for agent in targets if loads[agent.agent_id] < agent.slots),
        key=lambda agent: (loads[agent.agent_id], agent.agent_id),
    )
    movable = [
        receiver
        for receiver in sorted(receivers, key=lambda receiver: receiver.receiver_id)
        if receiver.moves
        and receiver.agent_id in hosts
        and (with_listeners or not receiver.is_bound_listener)
        and receiver.preferred_host != hosts[receiver.agent_id]
    ]
    return _homecoming(movable, free) or _spreading(movable, free, loads, receivers, hosts)


def _homecoming(movable: Iterable[RunningReceiver], free: Sequence[RebalanceAgent]) -> Move | None:
    for receiver in movable:
        for agent in free:
            if agent.host == receiver.preferred_host:
                why = f"rebalancing: {agent.host} is the host that it prefers"
                return Move(receiver.receiver_id, receiver.agent_id, agent.agent_id, why)
    return None


def _spreading(
    movable: Sequence[RunningReceiver],
    free: Sequence[RebalanceAgent],
    loads: Counter[int],
    receivers: Iterable[RunningReceiver],
    hosts: dict[int, str],
) -> Move | None:
    if not free:
        return None
    to = free[0]
    streams = Counter((receiver.stream_id, hosts.get(receiver.agent_id)) for receiver in receivers)
    candidates = [
        receiver for receiver in movable if loads[receiver.agent_id] - loads[to.agent_id] >= _LEAST_DIFFERENCE
    ]
    if not candidates:
        return None

    def gain(receiver: RunningReceiver) -> tuple[int, int]:
        # From the agent with the most; then a receiver whose stream is spread the better for it.
        stream = receiver.stream_id
        return loads[receiver.agent_id], streams[stream, hosts[receiver.agent_id]] - streams[stream, to.host]

    # `max` takes the first of equals: the lowest id.
    chosen = max(candidates, key=gain)
    why = f"rebalancing: its agent has {loads[chosen.agent_id]} receivers, that of {to.host} {loads[to.agent_id]}"
    return Move(chosen.receiver_id, chosen.agent_id, to.agent_id, why)
