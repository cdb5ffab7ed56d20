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

from collections import Counter
from typing import TYPE_CHECKING

import structlog

from orchestration.policies.scheduling_policy import (
    AgentCapacity,
    PlacedReceiver,
    Rescheduling,
    WaitingReceiver,
    is_settled,
    schedule_receivers,
)
from orchestration.tracker.placement_rules import PlacementRules
from tracker_store.batches.pipelines import per_host_streams
from tracker_store.receivers import receivers as store
from tracker_store.receivers.hand_overs import list_hand_overs
from tracker_store.receivers.processes import live_processes
from tracker_store.receivers.receivers import (
    Placing,
    Waiting,
    add_host_receiver,
    note_waiting,
    placements,
    release_receivers,
)
from tracker_store.schema.states import DesiredState, ProcessKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sqlalchemy as sa

    from tracker_store.receivers.processes import LiveProcess
    from tracker_store.receivers.receivers import Placement

# How long, in seconds, a receiver that was taken from a draining agent may take to drain and sign off. After that it is
# placed anyway, and its successor's claim fences it. The agent itself allows 15 s.
HAND_OVER_SECONDS = 20.0

# Seconds between looks while first placements wait for agents: their ages are times, which no change tells of.
HELD_UP_SECONDS = 1.0

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

    def tick(self, connection: sa.Connection, *, term: int) -> float | None:
        """Release receivers from agents that drain or are gone; then place those that wait.

        Returns the seconds until it must look again even if nothing has changed; None: it need not.
        """
        # Agents are read after placements: the agent of a placed receiver existed before, so one that is missing now
        # is gone.
        everything = placements(connection)
        agents = [process for process in live_processes(connection) if process.kind is ProcessKind.AGENT]
        usable = [agent for agent in agents if agent.slots > 0 and not agent.draining]
        if self._release(connection, term, everything, agents) | self._add_host_receivers(
            connection, term, everything, usable
        ):
            everything = placements(connection)
        waiting, next_in = self._waiting(everything)
        settled = self._is_settled(usable, unplaced=any(_is_unplaced(placement) for placement in waiting))
        if waiting:
            due = [placement for placement in waiting if settled or not _is_unplaced(placement)]
            placed = self._place(connection, term, everything, due, usable)
            left = [placement for placement in waiting if placement.receiver_id not in placed]
            self._say_why(connection, term, left, agents, settled=settled)
        return HELD_UP_SECONDS if self._held_up_since is not None else next_in

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
            taken = release_receivers(connection, term=term, agent_id=agent_id, why=why)
            log.info("receivers taken from an agent", agent_id=agent_id, why=why, receivers=len(taken))
        return bool(whys)

    def _add_host_receivers(
        self, connection: sa.Connection, term: int, everything: Sequence[Placement], usable: Sequence[LiveProcess]
    ) -> bool:
        streams = per_host_streams(connection)
        if not streams:
            return False
        there = {(placement.stream_id, placement.host) for placement in everything}
        missing = [
            (stream_id, host)
            for stream_id in streams
            for host in sorted({agent.host for agent in usable})
            if (stream_id, host) not in there
        ]
        for stream_id, host in missing:
            added = add_host_receiver(connection, term=term, stream_id=stream_id, host=host)
            log.info("receiver of a host", stream=streams[stream_id], host=host, added=added)
        return bool(missing)

    def _waiting(self, everything: Sequence[Placement]) -> tuple[list[Placement], float | None]:
        """Return the receivers to place now, and the seconds until time is up for the next that is being handed over.

        One that is being handed over waits until its process signs off or time is up.
        """
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
        left = {
            receiver_id: HAND_OVER_SECONDS - (now - since) for receiver_id, since in self._handing_over_since.items()
        }
        waiting = [placement for placement in wanted if left.get(placement.receiver_id, 0.0) <= 0.0]
        return waiting, min((seconds for seconds in left.values() if seconds > 0.0), default=None)

    def _place(
        self,
        connection: sa.Connection,
        term: int,
        everything: Sequence[Placement],
        waiting: Sequence[Placement],
        usable: Sequence[LiveProcess],
    ) -> set[int]:
        """Place what has a slot, by one statement for many; return the receivers that were placed."""
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
        chosen = {receiver_id: candidates[0] for receiver_id, candidates in plan.items() if candidates}
        placed += [
            PlacedReceiver(
                placement.receiver_id,
                placement.stream_id,
                ReceiverState.SCHEDULED,
                (chosen[placement.receiver_id],),
            )
            for placement in new
            if placement.receiver_id in chosen
        ]
        again = Rescheduling(_capacities(usable, placed, offered), placed)
        for placement in waiting:
            demand = _demand(placement)
            if placement.assignment > 0 and (candidates := again.candidates(demand)):
                chosen[placement.receiver_id] = candidates[0]
                again.place(demand, candidates[0])
        placings = [
            Placing(
                placement.receiver_id,
                chosen[placement.receiver_id],
                f"placed on {hosts[chosen[placement.receiver_id]]}",
                hosts[chosen[placement.receiver_id]] if placement.listens else None,
            )
            for placement in waiting
            if placement.receiver_id in chosen
        ]
        scheduled = store.schedule_receivers(connection, term=term, placings=placings)
        for placing in placings:
            log.info(
                "receiver scheduled",
                receiver_id=placing.receiver_id,
                host=hosts[placing.agent_id],
                outcome="scheduled" if placing.receiver_id in scheduled else "not inactive",
            )
        return set(chosen)

    def _say_why(
        self,
        connection: sa.Connection,
        term: int,
        left: Sequence[Placement],
        agents: Sequence[LiveProcess],
        *,
        settled: bool,
    ) -> None:
        # One text for each host that receivers wait for, and one for those that may run on any.
        whys = {host: _why_waiting(host, agents) for host in {placement.host for placement in left}}
        reasons = [
            Waiting(
                placement.receiver_id,
                placement.assignment,
                whys[placement.host] if settled or not _is_unplaced(placement) else self._why_held_up(),
            )
            for placement in left
        ]
        # A reason that is there already is not sent again.
        said = {placement.receiver_id: placement.reason for placement in left}
        new = [reason for reason in reasons if reason.reason != said[reason.receiver_id]]
        note_waiting(connection, term=term, waiting=new)

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
    taken = Counter(offered)
    taken.update(receiver.candidates[0] for receiver in placed)
    return [AgentCapacity(agent.process_id, agent.host, agent.slots, taken[agent.process_id]) for agent in usable]


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
