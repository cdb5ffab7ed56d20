"""Where receivers are placed: pure, state in and plan out (the original's ReceiverSchedulingPolicy, P01-P03).

Owns the original's two algorithms, with what it lacked: slots, receivers that belong to one host, and a stream's
receivers on different hosts where that costs no balance. Whom it is given it may use, so dead and draining agents must
not be given. It never moves a receiver that is placed.

Answers are candidates, the best first. The original gave them to Spark as preferences and let the register check
enforce them (P03: none means anywhere); here the first is where the receiver is placed, and none means that it waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from tracker_store.states import ReceiverState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class AgentCapacity:
    """A live agent that may get receivers: at most `slots`, of which `running` are taken."""

    agent_id: int
    host: str
    slots: int
    running: int = 0


@dataclass(frozen=True, slots=True)
class WaitingReceiver:
    """A receiver to be placed. `preferred_host` is a wish of its own; elsewhere than on `only_host` it may not run."""

    receiver_id: int
    stream_id: int = 0
    preferred_host: str | None = None
    only_host: str | None = None


@dataclass(frozen=True, slots=True)
class PlacedReceiver:
    """A receiver that is placed: where it runs or, while SCHEDULED, where it may."""

    receiver_id: int
    stream_id: int
    state: ReceiverState
    candidates: tuple[int, ...]


class _Plan:
    """What is taken so far: receivers by agent, and each stream's by host."""

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
        """Agents with a slot, on `host` where one is given."""
        return [
            agent for agent in self._agents if self._loads[agent.agent_id] < agent.slots and host in (None, agent.host)
        ]

    def idle(self) -> list[AgentCapacity]:
        """Agents with slots, and nothing in them."""
        return [agent for agent in self.free() if self._loads[agent.agent_id] == 0]

    def least(self, agents: Sequence[AgentCapacity], stream_id: int) -> AgentCapacity:
        """The one with the fewest receivers; of several, on the host with the fewest of the stream; then the first."""
        return min(agents, key=lambda agent: (self._loads[agent.agent_id], self.of_stream(agent, stream_id)))

    def of_stream(self, agent: AgentCapacity, stream_id: int) -> int:
        return self._streams.get((stream_id, agent.host), 0)

    def take(self, agent: AgentCapacity, stream_id: int) -> None:
        self._loads[agent.agent_id] += 1
        self._count_stream(stream_id, agent.agent_id)

    def _count_stream(self, stream_id: int, agent_id: int) -> None:
        key = (stream_id, self._hosts[agent_id])
        self._streams[key] = self._streams.get(key, 0) + 1


def schedule_receivers(
    receivers: Sequence[WaitingReceiver], agents: Sequence[AgentCapacity], placed: Sequence[PlacedReceiver] = ()
) -> dict[int, tuple[int, ...]]:
    """Place all of `receivers` at once (P01): those with a host first, then the rest evenly.

    Returns candidates by receiver, the first of which is where it is counted; a receiver that has to wait for a slot,
    or for its host, has none. `placed` are counted in `running` already; here they say on which hosts a stream is.
    """
    plan = _Plan(agents, placed)
    # Who may run on one host alone comes before who only wishes to, and both before those to whom all hosts are alike.
    bound = [(receiver, receiver.only_host) for receiver in receivers if receiver.only_host is not None]
    wishing = [(r, r.preferred_host) for r in receivers if r.only_host is None and r.preferred_host is not None]
    movable = [receiver for receiver in receivers if receiver.only_host is None]
    candidates: dict[int, tuple[int, ...]] = {receiver.receiver_id: () for receiver in receivers}
    for receiver, host in [*bound, *wishing, *((receiver, None) for receiver in movable)]:
        free = plan.free(host)
        if free and not candidates[receiver.receiver_id]:
            chosen = plan.least(free, receiver.stream_id)
            plan.take(chosen, receiver.stream_id)
            candidates[receiver.receiver_id] = (chosen.agent_id,)
    # An idle agent is offered to the receiver with the fewest candidates.
    for agent in plan.idle() if movable else []:
        fewest = min((receiver.receiver_id for receiver in movable), key=lambda key: len(candidates[key]))
        candidates[fewest] += (agent.agent_id,)
    return candidates


def reschedule_receiver(
    receiver: WaitingReceiver, agents: Sequence[AgentCapacity], placed: Sequence[PlacedReceiver]
) -> tuple[int, ...]:
    """Candidates for one receiver, by the weights of all others (P02); nobody else moves.

    An ACTIVE receiver weighs 1 on its agent, a SCHEDULED one 1/n on each of its n candidates. Agents without weight are
    candidates, all of them; else all those with the least weight. Those on the preferred host come first. Agents that
    are full are none; what the receiver itself weighed before does not count, nor does who is not among `agents`.
    """
    plan = _Plan(agents, [other for other in placed if other.receiver_id != receiver.receiver_id])
    weights = _weights(receiver, placed)
    free = plan.free(receiver.only_host)
    preferred = [agent for agent in free if agent.host == receiver.preferred_host]
    weightless = [agent for agent in free if not weights.get(agent.agent_id)]
    least = min((weights.get(agent.agent_id, Fraction(0)) for agent in free), default=Fraction(0))
    others = weightless or [agent for agent in free if weights[agent.agent_id] == least]

    def in_order(some: Sequence[AgentCapacity]) -> list[AgentCapacity]:
        return sorted(
            some,
            key=lambda agent: (
                weights.get(agent.agent_id, Fraction(0)),
                plan.of_stream(agent, receiver.stream_id),
            ),
        )

    return tuple(dict.fromkeys(agent.agent_id for agent in [*in_order(preferred), *in_order(others)]))


def _weights(receiver: WaitingReceiver, placed: Iterable[PlacedReceiver]) -> Mapping[int, Fraction]:
    weights: dict[int, Fraction] = {}
    for other in placed:
        if other.receiver_id == receiver.receiver_id or not other.candidates:
            continue
        if other.state is ReceiverState.SCHEDULED:
            share = Fraction(1, len(other.candidates))
            for agent_id in other.candidates:
                weights[agent_id] = weights.get(agent_id, Fraction(0)) + share
        elif other.state in {ReceiverState.ACTIVE, ReceiverState.PAUSED}:
            agent_id = other.candidates[0]
            weights[agent_id] = weights.get(agent_id, Fraction(0)) + 1
    return weights
