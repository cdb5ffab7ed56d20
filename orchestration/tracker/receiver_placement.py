"""Decide which receiver runs on which agent, as the leader, from the driver log (P01-P03, K03-K06).

Owns when receivers are placed and released; `scheduling_policy` decides where. Each decision is a statement under the
leader's term. A receiver that was never placed waits until the agents that are expected are there, so that it does not
matter which agent starts first. Here a placed receiver stays where it is, unless its agent drains or is gone:
`rebalancing` moves receivers to an agent that comes later.

Two kinds of receiver belong to one host: those of a stream with `receivers="per_host"`, one for each host that ever had
an agent, and those that listen, from their first placement on. While their host has no agent they wait, and their
reason says so, because an address that senders know is moved only on request: `forebay agents forget HOST`, or
`forebay agents rebalance --listeners`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from orchestration.pipeline import PER_HOST
from orchestration.tracker.placement_rules import PlacementRules
from orchestration.tracker.scheduling_policy import (
    AgentCapacity,
    PlacedReceiver,
    WaitingReceiver,
    is_settled,
    reschedule_receiver,
    schedule_receivers,
)
from tracker_store.declarations import StreamDeclaration
from tracker_store.hand_overs import list_hand_overs
from tracker_store.pipelines import list_streams
from tracker_store.processes import live_processes
from tracker_store.receivers import (
    add_host_receiver,
    note_waiting,
    placements,
    release_receivers,
    schedule_receiver,
)
from tracker_store.states import DesiredState, ProcessKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sqlalchemy as sa

    from tracker_store.processes import LiveProcess
    from tracker_store.receivers import Placement

# How long, in seconds, a receiver that was taken from a draining agent may take to drain and sign off. After that it is
# placed anyway, and its successor's claim fences it. The agent itself allows 15 s.
HAND_OVER_SECONDS = 20.0

_PLACED = frozenset({ReceiverState.SCHEDULED, ReceiverState.ACTIVE, ReceiverState.PAUSED})

log = structlog.get_logger(__name__)


class ReceiverPlacement:
    """Placement by the leading tracker, which calls `tick` about every second. For one thread."""

    def __init__(self, clock: Callable[[], float], rules: PlacementRules | None = None) -> None:
        """Start with no hand-over in progress; `clock` is monotonic, in seconds. Without rules nothing is held up."""
        self._clock = clock
        self._rules = rules or PlacementRules()
        self._handing_over_since: dict[int, float] = {}
        self._agent_seen_since: dict[int, float] = {}
        # Since when first placements wait for agents; None: they do not.
        self._held_up_since: float | None = None

    def tick(self, connection: sa.Connection, *, term: int) -> None:
        """Release receivers from agents that drain or are gone; then place those that wait."""
        # Agents are read after placements: the agent of a placed receiver existed before, so one that is missing now
        # is gone.
        everything = placements(connection)
        agents = [process for process in live_processes(connection) if process.kind is ProcessKind.AGENT]
        usable = [agent for agent in agents if agent.slots > 0 and not agent.draining]
        if self._release(connection, term, everything, agents) | self._add_host_receivers(connection, term, usable):
            everything = placements(connection)
        waiting = self._waiting(everything)
        settled = self._is_settled(usable, unplaced=any(_is_unplaced(placement) for placement in waiting))
        if waiting:
            due = [placement for placement in waiting if settled or not _is_unplaced(placement)]
            self._place(connection, term, everything, due, usable)
            self._say_why(connection, term, agents, settled=settled)

    def _is_settled(self, usable: Sequence[LiveProcess], *, unplaced: bool) -> bool:
        now = self._clock()
        self._agent_seen_since = {
            agent.process_id: self._agent_seen_since.get(agent.process_id, now) for agent in usable
        }
        # By either clock: the database's may be set back, and this leader may be younger than the agent.
        ages = [max(agent.age_seconds, now - self._agent_seen_since[agent.process_id]) for agent in usable]
        settled = is_settled(
            ages,
            min_agents=self._rules.min_agents,
            settle_seconds=self._rules.settle_seconds,
            held_up_seconds=0.0 if self._held_up_since is None else now - self._held_up_since,
        )
        if settled or not unplaced:
            self._held_up_since = None
        elif self._held_up_since is None:
            self._held_up_since = now
        return settled

    def _release(
        self, connection: sa.Connection, term: int, everything: Sequence[Placement], agents: Sequence[LiveProcess]
    ) -> bool:
        live = {agent.process_id: agent for agent in agents}
        whys: dict[int, str] = {}
        for placement in everything:
            if placement.agent_id is None or placement.state not in _PLACED:
                continue
            agent = live.get(placement.agent_id)
            if agent is None:
                # It signed off between the two reads.
                whys[placement.agent_id] = "its agent has ended"
            elif agent.draining:
                whys[placement.agent_id] = f"agent {agent.name} is draining"
        for agent_id, why in whys.items():
            outcome = release_receivers(connection, term=term, agent_id=agent_id, why=why)
            log.info("receivers taken from an agent", agent_id=agent_id, why=why, outcome=outcome)
        return bool(whys)

    def _add_host_receivers(self, connection: sa.Connection, term: int, usable: Sequence[LiveProcess]) -> bool:
        streams = [
            stream
            for stream in list_streams(connection)
            if StreamDeclaration.of(stream.declaration).receivers == PER_HOST
        ]
        if not streams:
            return False
        there = {(placement.stream_id, placement.host) for placement in placements(connection)}
        missing = [
            (stream, host)
            for stream in streams
            for host in sorted({agent.host for agent in usable})
            if (stream.stream_id, host) not in there
        ]
        for stream, host in missing:
            outcome = add_host_receiver(connection, term=term, stream_id=stream.stream_id, host=host)
            log.info("receiver of a host", stream=stream.name, host=host, outcome=outcome)
        return bool(missing)

    def _waiting(self, everything: Sequence[Placement]) -> list[Placement]:
        """Return the receivers to place now; one being handed over waits until its process signs off or time is up."""
        now = self._clock()
        wanted = [
            placement
            for placement in everything
            if placement.state is ReceiverState.INACTIVE and placement.desired_state is not DesiredState.STOPPED
        ]
        self._handing_over_since = {
            placement.receiver_id: self._handing_over_since.get(placement.receiver_id, now)
            for placement in wanted
            if placement.handing_over
        }
        return [
            placement
            for placement in wanted
            if now - self._handing_over_since.get(placement.receiver_id, now - HAND_OVER_SECONDS) >= HAND_OVER_SECONDS
        ]

    def _place(
        self,
        connection: sa.Connection,
        term: int,
        everything: Sequence[Placement],
        waiting: Sequence[Placement],
        usable: Sequence[LiveProcess],
    ) -> None:
        hosts = {agent.process_id: agent.host for agent in usable}
        placed = [
            PlacedReceiver(placement.receiver_id, placement.stream_id, placement.state, (placement.agent_id,))
            for placement in everything
            if placement.agent_id is not None and placement.state in _PLACED
        ]
        # A receiver that is offered to an agent has a slot there already.
        offered = [offer.agent_id for offer in list_hand_overs(connection) if offer.valid]

        # Receivers without an earlier placement are planned together (K03), then the others one by one (K05).
        new = [placement for placement in waiting if placement.assignment == 0]
        agents = _capacities(usable, placed, offered)
        plan = schedule_receivers([_demand(placement) for placement in new], agents, placed)
        for placement in new:
            self._schedule(connection, term, placement, plan[placement.receiver_id], hosts, placed)
        for placement in waiting:
            if placement.assignment > 0:
                agents = _capacities(usable, placed, offered)
                candidates = reschedule_receiver(_demand(placement), agents, placed)
                self._schedule(connection, term, placement, candidates, hosts, placed)

    def _schedule(
        self,
        connection: sa.Connection,
        term: int,
        placement: Placement,
        candidates: Sequence[int],
        hosts: dict[int, str],
        placed: list[PlacedReceiver],
    ) -> None:
        """Place a receiver on the first of `candidates`, and note that in `placed`."""
        if not candidates:
            return
        agent_id = candidates[0]
        outcome = schedule_receiver(
            connection,
            term=term,
            receiver_id=placement.receiver_id,
            agent_id=agent_id,
            why=f"placed on {hosts[agent_id]}",
            only_host=hosts[agent_id] if placement.listens else None,
        )
        placed.append(PlacedReceiver(placement.receiver_id, placement.stream_id, ReceiverState.SCHEDULED, (agent_id,)))
        log.info("receiver scheduled", receiver_id=placement.receiver_id, host=hosts[agent_id], outcome=outcome)

    def _say_why(self, connection: sa.Connection, term: int, agents: Sequence[LiveProcess], *, settled: bool) -> None:
        for placement in self._waiting(placements(connection)):
            note_waiting(
                connection,
                term=term,
                receiver_id=placement.receiver_id,
                assignment=placement.assignment,
                reason=_why_waiting(placement.host, agents)
                if settled or not _is_unplaced(placement)
                else self._why_held_up(),
            )

    def _why_held_up(self) -> str:
        expected = "" if self._rules.min_agents is None else f" of {self._rules.min_agents}"
        return (
            f"waits for agents to register: {len(self._agent_seen_since)}{expected} are there; it is placed "
            f"{self._rules.settle_seconds:g} s after the newest one at the latest"
        )


def _is_unplaced(placement: Placement) -> bool:
    """Return whether the receiver was never placed, and may run on several hosts."""
    return placement.assignment == 0 and _demand(placement).only_host is None


def _demand(placement: Placement) -> WaitingReceiver:
    # A receiver that listens is bound to its preferred host from its first placement.
    wished = placement.preferred_host
    return WaitingReceiver(
        receiver_id=placement.receiver_id,
        stream_id=placement.stream_id,
        preferred_host=wished,
        only_host=placement.host or (wished if placement.listens else None),
        is_apart=placement.is_apart,
    )


def _capacities(
    usable: Sequence[LiveProcess], placed: Sequence[PlacedReceiver], offered: Sequence[int]
) -> list[AgentCapacity]:
    return [
        AgentCapacity(
            agent.process_id,
            agent.host,
            agent.slots,
            sum(receiver.candidates[0] == agent.process_id for receiver in placed) + offered.count(agent.process_id),
        )
        for agent in usable
    ]


def _why_waiting(host: str | None, agents: Sequence[LiveProcess]) -> str:
    where = "" if host is None else f" on {host}"
    there = [agent for agent in agents if agent.slots > 0 and host in (None, agent.host)]
    if not there:
        return (
            "waits for an agent: start one with forebay agent"
            if host is None
            else f"waits for an agent on {host}; if that host won't come back: forebay agents forget {host}"
        )
    if all(agent.draining for agent in there):
        names = ", ".join(sorted(agent.name for agent in there))
        return f"waits: draining is {names}; to let it back in: forebay agents undrain {there[0].name}"
    return f"waits for a free slot{where}: raise --slots of an agent, or start another"
