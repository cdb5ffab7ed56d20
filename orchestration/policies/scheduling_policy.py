"""Plan where receivers are placed, by pure functions of the state (the original's ReceiverSchedulingPolicy, P01-P03).

Owns the original's two algorithms and adds slots, receivers that belong to one host, and spreading a stream's receivers
over hosts where that does not unbalance the agents. It may use every agent that it is given, so callers must leave out
dead and draining agents. It never moves a placed receiver: `rebalancing_policy` does.

Answers are candidates, the best first. The original gave them to Spark as preferences, and checked them when a receiver
registered (P03: none means anywhere). Here the receiver is placed on the first candidate; with none, it waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from tracker_store.schema.states import ReceiverState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# How many times the time to settle first placements wait at most.
MOST_SETTLES = 6


@dataclass(frozen=True, slots=True)
class AgentCapacity:
    """Describe a live agent that may get receivers: it has `slots`, of which `running` are taken."""

    agent_id: int
    host: str
    slots: int
    running: int = 0


@dataclass(frozen=True, slots=True)
class WaitingReceiver:
    """Describe a receiver to be placed. `preferred_host` is a preference; only on `only_host` may it run.

    `is_apart`: it goes to a host without another receiver of its stream, if there is one: both listen at one port.
    """

    receiver_id: int
    stream_id: int = 0
    preferred_host: str | None = None
    only_host: str | None = None
    is_apart: bool = False


@dataclass(frozen=True, slots=True)
class PlacedReceiver:
    """Describe a placed receiver, with the agent where it runs or, while SCHEDULED, the agents where it may run."""

    receiver_id: int
    stream_id: int
    state: ReceiverState
    candidates: tuple[int, ...]


class _Plan:
    """Count the slots taken so far: receivers by agent, and each stream's receivers by host."""

    def __init__(self, agents: Sequence[AgentCapacity], placed: Iterable[PlacedReceiver]) -> None:
        self._agents = agents
        self._loads = {agent.agent_id: agent.running for agent in agents}
        self._hosts = {agent.agent_id: agent.host for agent in agents}
        self._streams: dict[tuple[int, str], int] = {}
        for receiver in placed:
            for agent_id in receiver.candidates[:1]:
                if agent_id in self._hosts:
                    self._count_stream(receiver.stream_id, agent_id)

    def free(self, host: str | None = None) -> list[AgentCapacity]:
        """Return the agents with a free slot, on `host` if given."""
        return [
            agent for agent in self._agents if self._loads[agent.agent_id] < agent.slots and host in (None, agent.host)
        ]

    def free_for(self, receiver: WaitingReceiver, host: str | None) -> list[AgentCapacity]:
        """Return the agents with a free slot for this receiver, on `host` if given."""
        free = self.free(host)
        if not receiver.is_apart:
            return free
        fewest = min((self.of_stream(agent, receiver.stream_id) for agent in free), default=0)
        return [agent for agent in free if self.of_stream(agent, receiver.stream_id) == fewest]

    def idle(self) -> list[AgentCapacity]:
        """Return the agents that have slots, none of them taken."""
        return [agent for agent in self.free() if self._loads[agent.agent_id] == 0]

    def least(self, agents: Sequence[AgentCapacity], stream_id: int) -> AgentCapacity:
        """Return the agent with the fewest receivers, then the fewest of the stream on its host, then the first."""
        return min(agents, key=lambda agent: (self._loads[agent.agent_id], self.of_stream(agent, stream_id)))

    def of_stream(self, agent: AgentCapacity, stream_id: int) -> int:
        return self._streams.get((stream_id, agent.host), 0)

    def take(self, agent: AgentCapacity, stream_id: int) -> None:
        self._loads[agent.agent_id] += 1
        self._count_stream(stream_id, agent.agent_id)

    def _count_stream(self, stream_id: int, agent_id: int) -> None:
        key = (stream_id, self._hosts[agent_id])
        self._streams[key] = self._streams.get(key, 0) + 1


def is_settled(
    agent_ages: Sequence[float], *, min_agents: int | None, settle_seconds: float, held_up_seconds: float = 0.0
) -> bool:
    """Return whether receivers may be placed for the first time (K03): the agents that are expected are there.

    They are there when there are `min_agents`, or when the newest agent registered `settle_seconds` ago. `agent_ages`:
    the seconds since each agent that may have receivers registered. `held_up_seconds`: how long receivers have waited
    for this; an agent that registers again and again does not hold them up for ever.
    """
    if min_agents is not None and len(agent_ages) >= min_agents:
        return True
    return held_up_seconds >= MOST_SETTLES * settle_seconds or all(age >= settle_seconds for age in agent_ages)


def schedule_receivers(
    receivers: Sequence[WaitingReceiver], agents: Sequence[AgentCapacity], placed: Sequence[PlacedReceiver] = ()
) -> dict[int, tuple[int, ...]]:
    """Place all of `receivers` at once (P01): those with a host first, then the rest evenly.

    Returns candidates by receiver; the receiver is counted on the first of them. A receiver that has to wait for a
    slot, or for its host, has none. `placed` is already counted in `running`; here it gives the hosts of each stream.
    """
    plan = _Plan(agents, placed)
    # Receivers bound to one host come first, then those that prefer one, then those without a preference.
    bound = [(receiver, receiver.only_host) for receiver in receivers if receiver.only_host is not None]
    wishing = [(r, r.preferred_host) for r in receivers if r.only_host is None and r.preferred_host is not None]
    movable = [receiver for receiver in receivers if receiver.only_host is None]
    candidates: dict[int, tuple[int, ...]] = {receiver.receiver_id: () for receiver in receivers}
    for receiver, host in [*bound, *wishing, *((receiver, None) for receiver in movable)]:
        free = plan.free_for(receiver, host)
        if free and not candidates[receiver.receiver_id]:
            chosen = plan.least(free, receiver.stream_id)
            plan.take(chosen, receiver.stream_id)
            candidates[receiver.receiver_id] = (chosen.agent_id,)
    # An idle agent is offered to the receiver with the fewest candidates.
    for agent in plan.idle() if movable else []:
        fewest = min((receiver.receiver_id for receiver in movable), key=lambda key: len(candidates[key]))
        candidates[fewest] += (agent.agent_id,)
    return candidates


class Rescheduling:
    """Place receivers again, one after the other (P02); no other receiver moves.

    An ACTIVE receiver weighs 1 on its agent, a SCHEDULED one 1/n on each of its n candidates. All agents without weight
    are candidates; if there are none, all those with the least weight. Agents on the preferred host come first. Full
    agents are never candidates. Receivers are counted once, and each placement adds to the counts.
    """

    def __init__(self, agents: Sequence[AgentCapacity], placed: Sequence[PlacedReceiver]) -> None:
        """Count all other receivers; weight on agents that are not in `agents` does not count."""
        self._plan = _Plan(agents, placed)
        self._agents = {agent.agent_id: agent for agent in agents}
        self._weights = _weights(placed)

    def candidates(self, receiver: WaitingReceiver) -> tuple[int, ...]:
        """Return the candidates for a receiver that is not placed, the best first."""
        free = self._plan.free_for(receiver, receiver.only_host)
        preferred = [agent for agent in free if agent.host == receiver.preferred_host]
        weightless = [agent for agent in free if not self._weight(agent)]
        least = min((self._weight(agent) for agent in free), default=Fraction(0))
        others = weightless or [agent for agent in free if self._weight(agent) == least]
        in_order = [*self._in_order(preferred, receiver), *self._in_order(others, receiver)]
        return tuple(dict.fromkeys(agent.agent_id for agent in in_order))

    def place(self, receiver: WaitingReceiver, agent_id: int) -> None:
        """Count the receiver on an agent from now on."""
        self._plan.take(self._agents[agent_id], receiver.stream_id)
        self._weights[agent_id] = self._weights.get(agent_id, Fraction(0)) + 1

    def _weight(self, agent: AgentCapacity) -> Fraction:
        return self._weights.get(agent.agent_id, Fraction(0))

    def _in_order(self, some: Sequence[AgentCapacity], receiver: WaitingReceiver) -> list[AgentCapacity]:
        return sorted(some, key=lambda agent: (self._weight(agent), self._plan.of_stream(agent, receiver.stream_id)))


def _weights(placed: Iterable[PlacedReceiver]) -> dict[int, Fraction]:
    weights: dict[int, Fraction] = {}
    for other in placed:
        if not other.candidates:
            continue
        if other.state is ReceiverState.SCHEDULED:
            share = Fraction(1, len(other.candidates))
            for agent_id in other.candidates:
                weights[agent_id] = weights.get(agent_id, Fraction(0)) + share
        elif other.state in {ReceiverState.ACTIVE, ReceiverState.PAUSED}:
            agent_id = other.candidates[0]
            weights[agent_id] = weights.get(agent_id, Fraction(0)) + 1
    return weights
