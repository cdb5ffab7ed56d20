"""Decide which receiver moves to which agent, by pure functions of the state and of ages (P02, W15).

Owns when a move is due and which move it is. It reads no clock and no driver log, and it never moves a receiver that is
bound to a host, that is on its preferred host, or that stores nothing.

There are three reasons for a move, always to an agent with a free slot: the agent is on the receiver's preferred host;
the receiver must not share its host with another of its stream, and does; or the agent where it runs has at least two
receivers more. Each move makes one of these rarer, and none brings back what an earlier one in this list has removed:
repeated moves come to an end.
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
    """Describe a live agent that may have receivers; `alive_seconds` is the time since it registered."""

    agent_id: int
    host: str
    slots: int
    alive_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RunningReceiver:
    """Describe a receiver that is placed on an agent.

    `moves`: it may be moved at all. `is_bound_listener`: it may be moved only where that was asked. `is_apart`: it
    should not share its host with another receiver of its stream, because only one process can listen at an address.
    `is_bound_to_host`: it may read what only its host has, so without a request it moves only to the host it prefers.
    """

    receiver_id: int
    stream_id: int
    agent_id: int
    preferred_host: str | None = None
    moves: bool = True
    is_bound_listener: bool = False
    is_apart: bool = False
    is_bound_to_host: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """Name a receiver that is to leave one agent for another."""

    receiver_id: int
    from_agent: int
    to_agent: int
    why: str


@dataclass(frozen=True, slots=True)
class MoveLimits:
    """Say when receivers are moved without a request.

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
    return _next_move(agents, receivers, targets, with_listeners=with_listeners, is_asked=is_asked)


def plan_moves(
    agents: Sequence[RebalanceAgent],
    receivers: Sequence[RunningReceiver],
    *,
    with_listeners: bool = False,
    avoided: Collection[int] = (),
) -> list[Move]:
    """Return the moves that a request would make, one after the other, if nothing else changes meanwhile."""
    moves: list[Move] = []
    now = list(receivers)
    targets = [agent for agent in agents if agent.agent_id not in avoided]
    while (move := _next_move(agents, now, targets, with_listeners=with_listeners, is_asked=True)) is not None:
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
    is_asked: bool,
) -> Move | None:
    state = _State(agents, receivers, targets)
    movable = [
        receiver
        for receiver in sorted(receivers, key=lambda receiver: receiver.receiver_id)
        if receiver.moves
        and (with_listeners or not receiver.is_bound_listener)
        and receiver.agent_id in state.hosts
        and receiver.preferred_host != state.hosts[receiver.agent_id]
    ]
    spread = [receiver for receiver in movable if is_asked or not receiver.is_bound_to_host]
    return _homecoming(state, movable) or _parting(state, movable) or _spreading(state, spread)


class _State:
    """Hold where receivers are: by agent, and each stream's by host."""

    def __init__(
        self,
        agents: Sequence[RebalanceAgent],
        receivers: Sequence[RunningReceiver],
        targets: Sequence[RebalanceAgent],
    ) -> None:
        self.hosts = {agent.agent_id: agent.host for agent in agents}
        self.loads = Counter(receiver.agent_id for receiver in receivers)
        self._of_stream = Counter((receiver.stream_id, self.hosts.get(receiver.agent_id)) for receiver in receivers)
        self._free = sorted(
            (agent for agent in targets if self.loads[agent.agent_id] < agent.slots),
            key=lambda agent: (self.loads[agent.agent_id], agent.agent_id),
        )

    def of_stream(self, receiver: RunningReceiver, host: str) -> int:
        """Return how many receivers of its stream are on a host."""
        return self._of_stream[receiver.stream_id, host]

    def is_crowded(self, receiver: RunningReceiver) -> bool:
        """Return whether the receiver shares its host with another of its stream, and should not."""
        return receiver.is_apart and self.of_stream(receiver, self.hosts[receiver.agent_id]) > 1

    def free_for(self, receiver: RunningReceiver) -> list[RebalanceAgent]:
        """Return the agents to which the receiver may go, the one with the fewest receivers first."""
        here = self.hosts[receiver.agent_id]
        return [
            agent
            for agent in self._free
            if agent.agent_id != receiver.agent_id
            and not (receiver.is_apart and self.of_stream(receiver, agent.host) > (agent.host == here))
        ]


def _homecoming(state: _State, movable: Iterable[RunningReceiver]) -> Move | None:
    for receiver in movable:
        for agent in state.free_for(receiver):
            if agent.host == receiver.preferred_host:
                why = f"rebalancing: {agent.host} is the host that it prefers"
                return Move(receiver.receiver_id, receiver.agent_id, agent.agent_id, why)
    return None


def _parting(state: _State, movable: Iterable[RunningReceiver]) -> Move | None:
    for receiver in movable:
        here = state.hosts[receiver.agent_id]
        if state.is_crowded(receiver):
            for agent in state.free_for(receiver):
                if agent.host != here:
                    why = f"rebalancing: another receiver of its stream listens on {here}"
                    return Move(receiver.receiver_id, receiver.agent_id, agent.agent_id, why)
    return None


def _spreading(state: _State, movable: Iterable[RunningReceiver]) -> Move | None:
    best: tuple[tuple[int, int], Move] | None = None
    for receiver in movable:
        free = state.free_for(receiver)
        if not free:
            continue
        to, load = free[0], state.loads[receiver.agent_id]
        if load - state.loads[to.agent_id] < _LEAST_DIFFERENCE:
            continue
        # From the agent with the most; then a receiver whose stream is spread the better for it; then the lowest id.
        here = state.hosts[receiver.agent_id]
        gain = (load, state.of_stream(receiver, here) - state.of_stream(receiver, to.host))
        if best is None or gain > best[0]:
            why = f"rebalancing: its agent has {load} receivers, that of {to.host} {state.loads[to.agent_id]}"
            best = gain, Move(receiver.receiver_id, receiver.agent_id, to.agent_id, why)
    return None if best is None else best[1]
