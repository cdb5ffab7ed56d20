"""A driver log with a leader, and agents and receiver processes that are only rows, for tests of placement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestration.tracker.placement_rules import PlacementRules
from orchestration.tracker.rebalancing import OUTAGE_SECONDS, Rebalancing
from orchestration.tracker.receiver_placement import ReceiverPlacement
from tests.support.clock import Clock
from tracker_store.batches.pipelines import apply_stream
from tracker_store.receivers.hand_overs import list_hand_overs, sign_off_receiver, take_over
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.receivers.processes import deregister_process, register_process
from tracker_store.receivers.receivers import placements, set_preferred_location, set_receiver_state
from tracker_store.schema.states import ProcessKind, ReceiverState

if TYPE_CHECKING:
    import sqlalchemy as sa

    from tracker_store.receivers.hand_overs import HandOver
    from tracker_store.receivers.receivers import Placement


class Fleet:
    """A driver log with a leader, and the agents and streams that a test needs."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self.clock = Clock()
        self.names: dict[int, str] = {}
        self.processes: dict[int, int] = {}
        self.bound: dict[str, bool] = {}
        self.rules = PlacementRules()
        self.lead()

    def follow(self, rules: PlacementRules) -> None:
        """Go on under these rules."""
        self.rules = rules
        self.lead()

    def lead(self) -> None:
        """Let another tracker lead, which knows nothing but the driver log."""
        term = take_leadership(self.connection, seen=read_leadership(self.connection), holder="a test")
        assert term is not None
        self.term = term
        self.placement = ReceiverPlacement(self.clock, self.rules)
        self.rebalancing = Rebalancing(self.clock, self.rules.moves)

    def agent(self, host: str, *, slots: int = 8) -> int:
        agent_id = register_process(self.connection, kind=ProcessKind.AGENT, name=host, host=host, pid=1, slots=slots)
        self.names[agent_id] = host
        return agent_id

    def stop(self, agent_id: int) -> None:
        """End the agent's row as if it was killed and declared dead; its receivers are not released."""
        deregister_process(self.connection, agent_id)

    def stream(
        self,
        name: str,
        receivers: int | None,
        *,
        listens: bool = False,
        preferred_host: str | None = None,
        bound_to_host: bool = False,
    ) -> None:
        declaration: dict[str, object] = {
            "source": {},
            "settings": {},
            "receivers": "per_host" if receivers is None else receivers,
            "listens": listens,
        }
        apply_stream(
            self.connection,
            name=name,
            declaration=declaration,
            receivers=receivers,
            preferred_host=preferred_host,
        )
        self.bound[name] = bound_to_host

    def tick(self, seconds: float = 1.0) -> None:
        """Let the leader place receivers."""
        self.clock.now += seconds
        self.placement.tick(self.connection, term=self.term)

    def all(self, stream: str = "lines") -> list[Placement]:
        return [placement for placement in placements(self.connection) if placement.stream_name == stream]

    def where(self, stream: str = "lines") -> list[str | None]:
        """Return the host of each receiver, in the order of their numbers."""
        return [
            None if placement.agent_id is None else self.names[placement.agent_id] for placement in self.all(stream)
        ]

    def start_all(self) -> dict[int, int]:
        """Give each placed receiver a process that holds it; return the processes' ids by receiver."""
        started = {}
        for placement in placements(self.connection):
            if placement.state is ReceiverState.SCHEDULED:
                started[placement.receiver_id] = self.start(placement.receiver_id, placement.assignment)
        return started

    def start(self, receiver_id: int, assignment: int) -> int:
        process_id = register_process(self.connection, kind=ProcessKind.RECEIVER, name="r", host="h", pid=1)
        [starting] = [one for one in placements(self.connection) if one.receiver_id == receiver_id]
        set_preferred_location(
            self.connection,
            receiver_id=receiver_id,
            host=starting.preferred_host,
            bound_to_host=self.bound.get(starting.stream_name, True),
        )
        assert set_receiver_state(
            self.connection,
            receiver_id=receiver_id,
            assignment=assignment,
            state=ReceiverState.ACTIVE,
            process_id=process_id,
        )
        self.processes[receiver_id] = process_id
        return process_id

    # -- moves -------------------------------------------------------------------------------------------------------

    def rebalance(self, seconds: float = 1.0) -> list[HandOver]:
        """Let the leader place and move receivers for this long; return the moves that are under way then."""
        left = seconds
        while left > OUTAGE_SECONDS:
            self.lead_on(OUTAGE_SECONDS)
            left -= OUTAGE_SECONDS
        self.lead_on(left)
        return list(list_hand_overs(self.connection))

    def lead_on(self, seconds: float) -> None:
        """Let this time pass without a tick, and make one."""
        self.tick(seconds)
        self.rebalancing.tick(self.connection, term=self.term)

    def take(self, offer: HandOver) -> bool:
        """Let a process of the offer's agent take the receiver over; the process before does not sign off."""
        return take_over(self.connection, receiver_id=offer.receiver_id, assignment=offer.assignment)

    def complete(self, offer: HandOver) -> None:
        """Let a process of the offer's agent take the receiver over, and run it when the one before has signed off."""
        [before] = [one for one in placements(self.connection) if one.receiver_id == offer.receiver_id]
        assert self.take(offer)
        sign_off_receiver(
            self.connection,
            receiver_id=offer.receiver_id,
            assignment=before.assignment,
            process_id=self.processes[offer.receiver_id],
        )
        self.start(offer.receiver_id, offer.assignment)

    def rebalance_all(self, seconds: float = 1.0, *, ticks: int = 60) -> int:
        """Let the leader move receivers until it has none to move for long; return how many were moved."""
        moved = 0
        for _ in range(ticks):
            for offer in self.rebalance(seconds):
                self.complete(offer)
                moved += 1
        return moved
