"""Test the statements of a hand-over: who may begin, take over and sign off, and what makes a hand-over void."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import Log, claim_anew, make_log, wait_until_blocked
from tests.support.driver_log.placing import schedule_receiver
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import NotAssignedError
from tracker_store.receivers.agents import set_draining
from tracker_store.receivers.hand_overs import (
    begin_hand_over,
    list_hand_overs,
    predecessor_holds,
    sign_off_receiver,
    take_over,
)
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.receivers.processes import deregister_process, register_process
from tracker_store.receivers.receivers import (
    get_receiver,
    placements,
    placements_on_agent,
    release_receivers,
    restart_receiver,
    set_desired_state,
    set_receiver_state,
)
from tracker_store.schema.states import DesiredState, ProcessKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracker_store.receivers.receivers import Placement


class Moving:
    """A receiver that runs on agent `old`, and an agent `new`."""

    def __init__(self, log: Log) -> None:
        self.connection = log.connection
        [self.receiver_id] = log.receiver_ids
        self.term = take_leadership(self.connection, seen=read_leadership(self.connection), holder="me") or 0
        self.old, self.new = self.process("old"), self.process("new")
        assert schedule_receiver(
            self.connection, term=self.term, receiver_id=self.receiver_id, agent_id=self.old, why=""
        )
        self.assignment = self.row.assignment
        self.process_id = self.process("lines/1", ProcessKind.RECEIVER)
        self.claimed = claim_anew(self.connection, self.receiver_id, self.assignment)
        self.set(ReceiverState.ACTIVE)

    def process(self, name: str, kind: ProcessKind = ProcessKind.AGENT) -> int:
        return register_process(self.connection, kind=kind, name=name, host=name, pid=1, slots=4)

    def set(self, state: ReceiverState) -> None:
        assert set_receiver_state(
            self.connection,
            receiver_id=self.receiver_id,
            assignment=self.assignment,
            state=state,
            process_id=self.process_id,
        )

    @property
    def row(self) -> Placement:
        [found] = placements(self.connection)
        return found

    def begin(self, agent_id: int | None = None, connection: sa.Connection | None = None) -> str:
        return begin_hand_over(
            connection or self.connection,
            term=self.term,
            receiver_id=self.receiver_id,
            assignment=self.assignment,
            agent_id=self.new if agent_id is None else agent_id,
            why="a test",
        )

    def offered(self) -> int:
        """Let the hand-over begin; return its assignment."""
        assert self.begin() == "begun"
        [offer] = list_hand_overs(self.connection)
        assert (offer.agent_id, offer.valid) == (self.new, True)
        return offer.assignment

    def take(self, assignment: int) -> bool:
        return take_over(self.connection, receiver_id=self.receiver_id, assignment=assignment)


@pytest.fixture
def moving(connection: sa.Connection) -> Moving:
    return Moving(make_log(connection))


def test_an_offered_receiver_runs_where_it_is_and_is_listed_for_both_agents(moving: Moving) -> None:
    before = moving.row
    offered = moving.offered()
    assert moving.row == before
    assert offered > before.assignment
    [placed] = placements_on_agent(moving.connection, moving.old)
    [to_take] = placements_on_agent(moving.connection, moving.new)
    assert (placed.assignment, to_take.assignment) == (before.assignment, offered)
    assert get_receiver(moving.connection, moving.receiver_id).offered_assignment == offered
    # No process may claim under the offer: the receiver is not taken over yet.
    with pytest.raises(NotAssignedError):
        claim_anew(moving.connection, moving.receiver_id, offered)


def test_a_receiver_that_is_taken_over_has_its_agent_and_assignment_and_names_the_process_before(
    moving: Moving,
) -> None:
    offered = moving.offered()
    for _ in range(2):
        assert moving.take(offered), "a repeated call after a lost answer returns the same"
    row = moving.row
    assert (row.state, row.agent_id, row.assignment) == (ReceiverState.SCHEDULED, moving.new, offered)
    assert placements_on_agent(moving.connection, moving.old) == []
    assert [one.assignment for one in placements_on_agent(moving.connection, moving.new)] == [offered]
    assert list_hand_overs(moving.connection) == []
    [event] = moving.connection.execute(
        sa.text("SELECT message, detail FROM forebay.receiver_events ORDER BY id DESC LIMIT 1")
    )
    assert tuple(event) == ("moved from old to new", "a test")
    assert predecessor_holds(moving.connection, receiver_id=moving.receiver_id, assignment=offered)
    sign_off_receiver(
        moving.connection,
        receiver_id=moving.receiver_id,
        assignment=moving.assignment,
        process_id=moving.process_id,
    )
    assert not predecessor_holds(moving.connection, receiver_id=moving.receiver_id, assignment=offered)
    assert claim_anew(moving.connection, moving.receiver_id, offered).epoch > moving.claimed.epoch
    with pytest.raises(NotAssignedError):
        claim_anew(moving.connection, moving.receiver_id, moving.assignment)


def test_a_process_signs_off_only_what_another_assignment_has_taken(moving: Moving) -> None:
    def sign_off(assignment: int, process_id: int) -> int | None:
        sign_off_receiver(
            moving.connection, receiver_id=moving.receiver_id, assignment=assignment, process_id=process_id
        )
        found: int | None = moving.connection.execute(sa.text("SELECT process_id FROM forebay.receivers")).scalar_one()
        return found

    assert sign_off(moving.assignment, moving.process_id) == moving.process_id
    assert moving.take(moving.offered())
    assert sign_off(moving.assignment, moving.new) == moving.process_id
    assert sign_off(moving.assignment, moving.process_id) is None


def test_a_process_that_ends_without_signing_off_is_waited_for_no_longer(moving: Moving) -> None:
    offered = moving.offered()
    assert moving.take(offered)
    deregister_process(moving.connection, moving.process_id)
    assert not predecessor_holds(moving.connection, receiver_id=moving.receiver_id, assignment=offered)


def restarts(moving: Moving) -> None:
    assert restart_receiver(moving.connection, receiver_id=moving.receiver_id, why="")


def releases(moving: Moving) -> None:
    assert release_receivers(moving.connection, term=moving.term, agent_id=moving.old, why="") == {moving.receiver_id}


def changes_its_declaration(moving: Moving) -> None:
    apply_stream(moving.connection, name="lines", declaration={"source": {"x": 1}, "settings": {}}, receivers=1)


def stops(moving: Moving) -> None:
    set_desired_state(moving.connection, receiver_ids=[moving.receiver_id], desired=DesiredState.STOPPED)


def fails(moving: Moving) -> None:
    moving.set(ReceiverState.FAILED)


def ends_its_new_agent(moving: Moving) -> None:
    deregister_process(moving.connection, moving.new)


@pytest.mark.parametrize("happens", [restarts, releases, changes_its_declaration, stops, fails, ends_its_new_agent])
def test_what_happens_first_makes_the_hand_over_void(moving: Moving, happens: Callable[[Moving], None]) -> None:
    offered = moving.offered()
    happens(moving)
    before = moving.row
    assert not moving.take(offered)
    assert moving.row == before


def test_a_void_hand_over_is_listed_as_such_and_replaced(moving: Moving) -> None:
    moving.offered()
    restarts(moving)
    assert [offer.valid for offer in list_hand_overs(moving.connection)] == [False]
    assert placements_on_agent(moving.connection, moving.new) == []
    schedule_receiver(moving.connection, term=moving.term, receiver_id=moving.receiver_id, agent_id=moving.old, why="")
    moving.assignment = moving.row.assignment
    moving.set(ReceiverState.ACTIVE)
    moving.offered()


def test_a_hand_over_begins_only_for_what_runs_and_only_once(moving: Moving) -> None:
    assert moving.begin(moving.old) == "changed", "it runs there"
    set_draining(moving.connection, name="new", draining=True)
    assert moving.begin() == "no agent"
    set_draining(moving.connection, name="new", draining=False)
    assert moving.begin() == "begun"
    assert moving.begin(moving.process("third")) == "under way"
    restarts(moving)
    assert moving.begin() == "changed"


def test_an_agent_that_stops_gives_back_what_it_takes_over_and_the_process_before_is_waited_for(
    moving: Moving,
) -> None:
    assert moving.take(moving.offered())
    deregister_process(moving.connection, moving.new)
    row = moving.row
    assert (row.state, row.agent_id, row.handing_over) == (ReceiverState.INACTIVE, None, True)


def test_of_a_take_over_and_a_restart_at_the_same_time_one_comes_first(engine: sa.Engine, moving: Moving) -> None:
    """Check that the take-over waits for the row, and then reads what is in it."""
    offered = moving.offered()
    with connect(engine) as other, connect(engine) as late, ThreadPoolExecutor(1) as pool:
        other.execute(sa.text("BEGIN"))
        restart_receiver(other, receiver_id=moving.receiver_id, why="a test")
        taking = pool.submit(take_over, late, receiver_id=moving.receiver_id, assignment=offered)
        wait_until_blocked(moving.connection)
        other.execute(sa.text("COMMIT"))
        assert taking.result(20) is False
    assert moving.row.state is ReceiverState.INACTIVE


def test_an_agent_learns_that_no_process_has_a_receiver(moving: Moving) -> None:
    connection = moving.connection

    def unheld(agent_id: int) -> bool:
        [placement] = placements_on_agent(connection, agent_id)
        return placement.is_unheld

    assert not unheld(moving.old)
    # It is offered to another agent, while its process has it.
    moving.begin()
    assert not unheld(moving.new)
    # Taken over: no process has claimed it yet, and the process before is about to sign off.
    [offer] = list_hand_overs(connection)
    assert take_over(connection, receiver_id=moving.receiver_id, assignment=offer.assignment)
    assert unheld(moving.new)
    process_id = moving.process("lines/1", ProcessKind.RECEIVER)
    assert set_receiver_state(
        connection,
        receiver_id=moving.receiver_id,
        assignment=offer.assignment,
        state=ReceiverState.ACTIVE,
        process_id=process_id,
    )
    assert not unheld(moving.new)
    # A process that was declared dead just before it became ACTIVE.
    deregister_process(connection, process_id)
    assert unheld(moving.new)
