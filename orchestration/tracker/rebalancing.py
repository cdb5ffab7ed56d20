"""Rebalance receivers between agents, as the leader: one move at a time, from its decision to its end.

Owns which move is under way and when the last one ended; `rebalancing_policy` decides. A move is a hand-over in the
driver log (``tracker_store.receivers.hand_overs``), so a leader that comes in between finds it there and goes on with
it. This module never takes a receiver from its agent: it goes on there until a process of the other agent is ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from orchestration.policies.rebalancing_policy import (
    Move,
    RebalanceAgent,
    RunningReceiver,
    due_move,
    plan_moves,
)
from tracker_store.receivers.hand_overs import (
    begin_hand_over,
    finish_rebalance_requests,
    list_hand_overs,
    list_rebalance_requests,
    withdraw_hand_over,
)
from tracker_store.receivers.processes import live_processes
from tracker_store.receivers.receivers import is_not_storing, lacks_store, placements
from tracker_store.schema.states import DesiredState, ProcessKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sqlalchemy as sa

    from orchestration.policies.rebalancing_policy import MoveLimits
    from tracker_store.receivers.hand_overs import HandOver
    from tracker_store.receivers.processes import LiveProcess
    from tracker_store.receivers.receivers import Placement

# How long, in seconds, an agent may take to have a process ready for a receiver that it is offered. Meanwhile the
# receiver goes on elsewhere.
OFFER_SECONDS = 60.0
# How long, in seconds, a receiver that is SCHEDULED delays the next move: a hand-over takes at most 20 s, then a claim.
START_SECONDS = 30.0
# How long, in seconds, an agent is offered no receiver after one was offered to it in vain.
AVOIDED_SECONDS = 600.0
# Seconds between looks while a move is under way.
UNDER_WAY_SECONDS = 1.0
# A longer time, in seconds, without a tick that read the driver log means an outage: agents could do nothing either.
OUTAGE_SECONDS = 10.0

_RUNNING = frozenset({ReceiverState.ACTIVE, ReceiverState.PAUSED})
_PLACED = frozenset({ReceiverState.SCHEDULED, *_RUNNING})

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NamedMove:
    """Describe a planned move, for people."""

    receiver_id: int
    receiver: str
    from_host: str
    to_host: str
    why: str


def planned_moves(connection: sa.Connection, *, with_listeners: bool) -> list[NamedMove]:
    """Return the moves that a request would make now, one after the other. No locks."""
    # Agents are read after placements, as in `ReceiverPlacement.tick`.
    placed = placements(connection)
    agents = _usable(live_processes(connection))
    names = {placement.receiver_id: f"{placement.stream_name}/{placement.ordinal}" for placement in placed}
    hosts = {agent.process_id: agent.host for agent in agents}
    moves = plan_moves(
        _agents(agents, {}), _receivers(placed), with_listeners=with_listeners, avoided=_troubled(placed)
    )
    return [
        NamedMove(move.receiver_id, names[move.receiver_id], hosts[move.from_agent], hosts[move.to_agent], move.why)
        for move in moves
    ]


class Rebalancing:
    """Rebalancing by the leading tracker, which calls `tick` about every second. For one thread."""

    def __init__(self, clock: Callable[[], float], limits: MoveLimits) -> None:
        """Start with no move; `clock` is monotonic, in seconds."""
        self._clock = clock
        self._limits = limits
        # A leader does not know when the one before it moved a receiver, so it waits for the whole interval first.
        self._ended_at = clock()
        self._offered_since: dict[tuple[int, int], float] = {}
        self._scheduled_since: dict[tuple[int, int], float] = {}
        self._seen_since: dict[int, float] = {}
        self._ticked_at = clock()
        # The last move, until its receiver runs.
        self._last: Move | None = None
        # Agents to which a move has failed: until when they are avoided (None: until they register again), and why.
        self._avoided: dict[int, tuple[float | None, str]] = {}

    def tick(self, connection: sa.Connection, *, term: int) -> float | None:
        """Follow the move that is under way; without one, begin the next that is due.

        Returns the seconds until it must look again even if nothing has changed; None: it need not.
        """
        now = self._clock()
        # Hand-overs before placements: one that is taken over between the two reads is in both, and never in neither.
        offers = list_hand_overs(connection)
        placed = placements(connection)
        agents = _usable(live_processes(connection))
        self._seen_since = {agent.process_id: self._seen_since.get(agent.process_id, now) for agent in agents}
        self._forget_outage(now)
        self._forget_avoided(now)
        requests = list_rebalance_requests(connection)
        if self._follow(connection, term, offers, placed, agents):
            self._ended_at = now
            return UNDER_WAY_SECONDS
        fleet = _agents(agents, {agent_id: now - since for agent_id, since in self._seen_since.items()})
        move = due_move(
            fleet,
            _receivers(placed),
            limits=self._limits,
            idle_seconds=now - self._ended_at,
            is_asked=bool(requests),
            with_listeners=any(request.listeners for request in requests),
            avoided={*self._avoided, *_troubled(placed)},
        )
        if move is not None:
            self._begin(connection, term, move, placed)
        elif requests:
            ids = [request.request_id for request in requests]
            finish_rebalance_requests(connection, term=term, request_ids=ids)
            log.info("rebalancing is done", requests=ids)
        return UNDER_WAY_SECONDS if move is not None or requests else self._next_poll(now, fleet)

    def _next_poll(self, now: float, agents: Sequence[RebalanceAgent]) -> float | None:
        """Return the seconds until a limit in time is over that may hold a move up now; None: there is none."""
        waits = [until - now for until, _ in self._avoided.values() if until is not None]
        if self._limits.is_on:
            waits.append(self._limits.interval_seconds - (now - self._ended_at))
            waits += [self._limits.host_seconds - agent.alive_seconds for agent in agents]
        if self._scheduled_since:
            # A gap between ticks that looks like an outage would start its clock again.
            waits.append(OUTAGE_SECONDS / 2)
        return min((wait for wait in waits if wait > 0.0), default=None)

    def _forget_outage(self, now: float) -> None:
        """Start the clocks of moves again after an outage of the driver log: no agent is to blame for that time."""
        if now - self._ticked_at > OUTAGE_SECONDS:
            self._offered_since.clear()
            self._scheduled_since.clear()
        self._ticked_at = now

    def _forget_avoided(self, now: float) -> None:
        for agent_id, (until, why) in list(self._avoided.items()):
            if agent_id not in self._seen_since:
                del self._avoided[agent_id]
            elif until is not None and now >= until:
                del self._avoided[agent_id]
                log.info("an agent is offered receivers again", agent_id=agent_id, avoided_because=why)

    def _avoid(self, agent_id: int, why: str, *, for_good: bool = False) -> None:
        self._avoided[agent_id] = (None if for_good else self._clock() + AVOIDED_SECONDS, why)

    def _follow(
        self,
        connection: sa.Connection,
        term: int,
        offers: Sequence[HandOver],
        placed: Sequence[Placement],
        agents: Sequence[LiveProcess],
    ) -> bool:
        """Return whether a move, or another start of a receiver, is under way; withdraw a move that does not go on."""
        offered = self._tend_offers(connection, term, offers, agents)
        scheduled = {
            (placement.receiver_id, placement.assignment)
            for placement in placed
            if placement.state is ReceiverState.SCHEDULED or placement.handing_over
        }
        now = self._clock()
        self._scheduled_since = {key: self._scheduled_since.get(key, now) for key in scheduled}
        starting = any(now - since < START_SECONDS for since in self._scheduled_since.values())
        if offered or starting:
            return True
        self._judge_last(placed)
        return False

    def _tend_offers(
        self, connection: sa.Connection, term: int, offers: Sequence[HandOver], agents: Sequence[LiveProcess]
    ) -> bool:
        now = self._clock()
        usable = {agent.process_id for agent in agents}
        self._offered_since = {
            (offer.receiver_id, offer.assignment): self._offered_since.get((offer.receiver_id, offer.assignment), now)
            for offer in offers
        }
        under_way = False
        for offer in offers:
            waited = now - self._offered_since[offer.receiver_id, offer.assignment]
            if not offer.valid:
                why = "the receiver has failed, has got another assignment, or is to stop"
            elif offer.agent_id not in usable:
                why = "the agent has ended or drains"
            elif waited >= OFFER_SECONDS:
                why = f"no process there was ready within {OFFER_SECONDS:g} s"
                self._avoid(offer.agent_id, why)
            else:
                under_way = True
                continue
            if self._last is not None and self._last.receiver_id == offer.receiver_id:
                # It was not moved, so what happens to it says nothing about the agent that it was offered to.
                self._last = None
            withdraw_hand_over(connection, term=term, receiver_id=offer.receiver_id, assignment=offer.assignment)
            log.warning("a move was withdrawn", receiver_id=offer.receiver_id, agent_id=offer.agent_id, why=why)
        return under_way

    def _judge_last(self, placed: Sequence[Placement]) -> None:
        """Move nothing more to an agent on which the last receiver that moved there failed."""
        last, self._last = self._last, None
        if last is None:
            return
        for placement in placed:
            if placement.receiver_id != last.receiver_id:
                continue
            failed = placement.state is ReceiverState.FAILED
            if failed or (
                placement.agent_id == last.to_agent and (placement.state not in _RUNNING or _is_troubled(placement))
            ):
                # Another try may cost another receiver, if this one has ended.
                self._avoid(last.to_agent, placement.reason, for_good=failed)
                log.warning(
                    "a receiver failed where it was moved", receiver_id=last.receiver_id, reason=placement.reason
                )

    def _begin(self, connection: sa.Connection, term: int, move: Move, placed: Sequence[Placement]) -> None:
        [assignment] = [row.assignment for row in placed if row.receiver_id == move.receiver_id]
        outcome = begin_hand_over(
            connection,
            term=term,
            receiver_id=move.receiver_id,
            assignment=assignment,
            agent_id=move.to_agent,
            why=move.why,
        )
        self._last = move if outcome == "begun" else None
        self._ended_at = self._clock()
        log.info("receiver is to move", receiver_id=move.receiver_id, to=move.to_agent, why=move.why, outcome=outcome)


def _usable(processes: Sequence[LiveProcess]) -> list[LiveProcess]:
    return [
        process
        for process in processes
        if process.kind is ProcessKind.AGENT and process.slots > 0 and not process.draining
    ]


def _is_troubled(placement: Placement) -> bool:
    return is_not_storing(placement.reason) or lacks_store(placement.reason)


def _troubled(placed: Sequence[Placement]) -> set[int]:
    """Return the agents with a receiver that can't go on, mostly because their host lacks the block store."""
    return {
        placement.agent_id
        for placement in placed
        if placement.agent_id is not None and placement.state in _RUNNING and _is_troubled(placement)
    }


def _agents(agents: Sequence[LiveProcess], watched: dict[int, float]) -> list[RebalanceAgent]:
    # By either clock: the database's may be set back, and this leader may be younger than the agent.
    return [
        RebalanceAgent(
            agent.process_id, agent.host, agent.slots, max(agent.age_seconds, watched.get(agent.process_id, 0.0))
        )
        for agent in agents
    ]


def _receivers(placed: Sequence[Placement]) -> list[RunningReceiver]:
    return [
        RunningReceiver(
            placement.receiver_id,
            placement.stream_id,
            placement.agent_id,
            placement.preferred_host,
            moves=(
                placement.state in _RUNNING
                and placement.desired_state is not DesiredState.STOPPED
                and not placement.per_host
                and (placement.host is None or placement.listens)
                and not is_not_storing(placement.reason)
            ),
            is_bound_listener=placement.listens,
            is_apart=placement.is_apart,
            is_bound_to_host=placement.bound_to_host,
        )
        for placement in placed
        if placement.agent_id is not None and placement.state in _PLACED
    ]
