"""Test rebalancing on a real driver log: moves by the leader, whatever ends or changes between their steps."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from forebay.cli.commands.agents import app
from orchestration.policies.rebalancing_policy import MoveLimits
from orchestration.tracker.placement_rules import PlacementRules
from orchestration.tracker.rebalancing import AVOIDED_SECONDS, OFFER_SECONDS, OUTAGE_SECONDS, START_SECONDS
from tests.integration.orchestration.fleet import Fleet
from tracker_store.receivers.agents import set_draining
from tracker_store.receivers.hand_overs import list_rebalance_requests, predecessor_holds, request_rebalance
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.receivers.processes import deregister_process, expire_process
from tracker_store.receivers.receivers import NOT_STORING, STORE_MISSING, set_desired_state, set_receiver_state
from tracker_store.schema.states import DesiredState, ReceiverState

if TYPE_CHECKING:
    import sqlalchemy as sa
    from typer.testing import Result

    from tracker_store.receivers.hand_overs import HandOver

INTERVAL, HOST_AGE = 10.0, 60.0
ON = PlacementRules(moves=MoveLimits(is_on=True, interval_seconds=INTERVAL, host_seconds=HOST_AGE))


@pytest.fixture
def fleet(connection: sa.Connection) -> Fleet:
    """Yield a fleet with one agent, a, and six receivers on it; rebalancing is on."""
    made = Fleet(connection)
    made.agent("a")
    made.stream("lines", 6)
    made.tick()
    made.start_all()
    made.follow(ON)
    return made


def spread(fleet: Fleet) -> list[int]:
    counted = Counter(fleet.where())
    return [counted[host] for host in "abc"]


def test_w15_agents_that_come_later_get_their_share_one_receiver_at_a_time(fleet: Fleet) -> None:
    fleet.agent("b")
    fleet.agent("c")
    assert spread(fleet) == [6, 0, 0]
    assert fleet.rebalance_all(5.0) == 4
    assert spread(fleet) == [2, 2, 2]
    assert fleet.rebalance_all(5.0) == 0


def test_moves_keep_their_interval_and_wait_for_the_host(fleet: Fleet) -> None:
    fleet.rebalance(1.0)
    fleet.agent("b")
    assert fleet.rebalance(0.0) == []
    assert fleet.rebalance(HOST_AGE - 1) == []
    [offer] = fleet.rebalance(1.0)
    assert fleet.rebalance(1.0) == [offer], "one at a time"
    fleet.complete(offer)
    assert fleet.rebalance(1.0) == []
    assert fleet.rebalance(INTERVAL - 2) == []
    assert len(fleet.rebalance(2.0)) == 1


def test_the_receiver_runs_where_it_is_until_the_other_agent_has_a_process(fleet: Fleet) -> None:
    before = fleet.all()
    fleet.agent("b")
    fleet.rebalance()
    [offer] = fleet.rebalance(HOST_AGE)
    assert fleet.rebalance() == [offer]
    assert fleet.rebalance(OFFER_SECONDS - 1) == [offer]
    assert fleet.all() == before
    # It never has one: the receiver stays, and that agent is offered no other.
    assert fleet.rebalance(1.0) == []
    assert fleet.rebalance(AVOIDED_SECONDS - 1) == []
    assert fleet.all() == before
    assert not fleet.take(offer), "the offer was withdrawn"
    # The host may be well again.
    [again] = fleet.rebalance(1.0)
    assert again.agent_id == offer.agent_id


def test_a_receiver_that_fails_where_it_was_moved_is_the_last_that_is_moved_there(fleet: Fleet) -> None:
    offer = begin(fleet)
    fleet.complete(offer)
    assert set_receiver_state(
        fleet.connection, receiver_id=offer.receiver_id, assignment=offer.assignment, state=ReceiverState.FAILED
    )
    assert fleet.rebalance_all() == 0
    assert list_rebalance_requests(fleet.connection) == [], "the request comes to an end"
    assert fleet.rebalance(2 * AVOIDED_SECONDS) == [], "another try would cost another receiver"


def test_a_receiver_that_fails_before_it_moves_delays_no_other_and_bans_no_agent(fleet: Fleet) -> None:
    offer = begin(fleet)
    [before] = [one for one in fleet.all() if one.receiver_id == offer.receiver_id]
    assert set_receiver_state(
        fleet.connection, receiver_id=offer.receiver_id, assignment=before.assignment, state=ReceiverState.FAILED
    )
    assert [one.receiver_id for one in fleet.rebalance()] in ([], [offer.receiver_id + 1])
    [next_offer] = fleet.rebalance()
    assert (next_offer.agent_id, next_offer.receiver_id) == (offer.agent_id, offer.receiver_id + 1)
    assert not fleet.take(offer)


@pytest.mark.parametrize("reason", [f"{STORE_MISSING}: not mounted?", f"{NOT_STORING} for 30 s: EIO"])
def test_no_receiver_is_moved_to_a_host_where_one_can_not_store(fleet: Fleet, url: str, reason: str) -> None:
    offer = begin(fleet)
    fleet.complete(offer)
    state = {"receiver_id": offer.receiver_id, "assignment": offer.assignment, "state": ReceiverState.ACTIVE}
    assert set_receiver_state(fleet.connection, **state, reason=reason)  # type: ignore[arg-type]
    assert fleet.rebalance_all() == 0
    assert fleet.rebalance(2 * AVOIDED_SECONDS) == []
    assert "Nothing to move" in forebay_agents("rebalance", "--dry-run").stdout
    assert set_receiver_state(fleet.connection, **state, reason="reading")  # type: ignore[arg-type]
    assert fleet.rebalance_all(INTERVAL) > 0


@pytest.mark.parametrize("taken", [False, True], ids=["while it is offered", "before it runs"])
def test_an_outage_of_the_driver_log_bans_no_agent(fleet: Fleet, *, taken: bool) -> None:
    offer = begin(fleet)
    fleet.rebalance(START_SECONDS / 2)
    if taken:
        assert fleet.take(offer)
        fleet.rebalance(1.0)
    fleet.lead_on(10 * max(OFFER_SECONDS, OUTAGE_SECONDS))
    assert [one.receiver_id for one in fleet.rebalance()] == ([] if taken else [offer.receiver_id])
    if taken:
        deregister_process(fleet.connection, fleet.processes[offer.receiver_id])
        fleet.start(offer.receiver_id, offer.assignment)
    else:
        fleet.complete(offer)
    fleet.rebalance_all()
    assert spread(fleet) == [3, 3, 0]


# -- what ends between the steps -------------------------------------------------------------------------------------


def begin(fleet: Fleet) -> HandOver:
    """Let a move to a new agent on b begin."""
    agent = fleet.agent("b")
    request_rebalance(fleet.connection, listeners=False)
    [offer] = fleet.rebalance()
    assert offer.agent_id == agent
    return offer


@pytest.mark.parametrize("taken", [False, True], ids=["before it is taken over", "before it runs"])
def test_another_leader_goes_on_with_the_move(fleet: Fleet, *, taken: bool) -> None:
    offer = begin(fleet)
    if taken:
        assert fleet.take(offer)
    fleet.lead()
    for _ in range(3):
        assert [one.receiver_id for one in fleet.rebalance()] == ([] if taken else [offer.receiver_id])
    if taken:
        deregister_process(fleet.connection, fleet.processes[offer.receiver_id])
        fleet.start(offer.receiver_id, offer.assignment)
    else:
        fleet.complete(offer)
    # The request has outlived the leader too.
    fleet.rebalance_all()
    assert spread(fleet) == [3, 3, 0]
    assert list_rebalance_requests(fleet.connection) == []


def test_a_deposed_leader_moves_nothing(fleet: Fleet) -> None:
    fleet.agent("b")
    request_rebalance(fleet.connection, listeners=False)
    assert take_leadership(fleet.connection, seen=read_leadership(fleet.connection), holder="another") is not None
    assert fleet.rebalance() == []
    assert len(list_rebalance_requests(fleet.connection)) == 1


@pytest.mark.parametrize("how", ["ends", "drains"])
def test_a_move_to_an_agent_that_is_gone_before_it_has_a_process_is_withdrawn(fleet: Fleet, how: str) -> None:
    before = fleet.all()
    offer = begin(fleet)
    if how == "ends":
        fleet.stop(offer.agent_id)
    else:
        set_draining(fleet.connection, name="b", draining=True)
    assert fleet.rebalance() == []
    assert fleet.all() == before


def test_the_agent_that_a_receiver_leaves_ends_first(fleet: Fleet) -> None:
    offer = begin(fleet)
    fleet.stop(next(iter(fleet.names)))
    fleet.rebalance()
    assert not fleet.take(offer), "it has been placed anew"
    assert fleet.rebalance() == []
    for process in fleet.processes.values():
        deregister_process(fleet.connection, process)
    fleet.tick()
    fleet.start_all()
    assert spread(fleet) == [0, 6, 0]


def test_the_new_agent_is_lost_while_the_process_before_drains(fleet: Fleet) -> None:
    offer = begin(fleet)
    assert fleet.take(offer)
    lost = offer.agent_id
    assert expire_process(fleet.connection, term=fleet.term, process_id=lost, heartbeat=0, why="silent") == "expired"
    [waiting] = [one for one in fleet.all() if one.receiver_id == offer.receiver_id]
    assert (waiting.state, waiting.handing_over) == (ReceiverState.INACTIVE, True)
    # It is placed when the process before has signed off, and not earlier.
    fleet.tick()
    assert None in fleet.where()
    deregister_process(fleet.connection, fleet.processes[offer.receiver_id])
    fleet.tick()
    assert spread(fleet) == [6, 0, 0]


def test_the_process_before_falls_silent_and_the_new_one_keeps_the_receiver(fleet: Fleet) -> None:
    offer = begin(fleet)
    assert fleet.take(offer)
    asked = {"receiver_id": offer.receiver_id, "assignment": offer.assignment}
    assert predecessor_holds(fleet.connection, **asked)
    silent = fleet.processes[offer.receiver_id]
    assert expire_process(fleet.connection, term=fleet.term, process_id=silent, heartbeat=0, why="silent") == "expired"
    assert not predecessor_holds(fleet.connection, **asked)
    [now] = [one for one in fleet.all() if one.receiver_id == offer.receiver_id]
    assert (now.state, now.assignment) == (ReceiverState.SCHEDULED, offer.assignment)


def test_a_receiver_that_is_to_stop_is_not_taken_over(fleet: Fleet) -> None:
    offer = begin(fleet)
    set_desired_state(fleet.connection, receiver_ids=[offer.receiver_id], desired=DesiredState.STOPPED)
    assert not fleet.take(offer)
    assert [one.receiver_id for one in fleet.rebalance()] != [offer.receiver_id]


# -- who may move ----------------------------------------------------------------------------------------------------


def test_slots_are_never_exceeded_even_by_a_receiver_that_waits_for_one(fleet: Fleet) -> None:
    fleet.agent("b", slots=1)
    request_rebalance(fleet.connection, listeners=False)
    [offer] = fleet.rebalance()
    # Agent a has eight slots, six of them taken: the third of these waits, and does not get the offered slot.
    fleet.stream("words", 3)
    fleet.tick()
    assert fleet.where("words") == ["a", "a", None]
    fleet.complete(offer)
    fleet.tick()
    assert fleet.where("words") == ["a"] * 3
    assert spread(fleet) == [5, 1, 0]


def test_a_receiver_of_a_host_and_a_listener_are_not_moved_but_a_listener_on_request(connection: sa.Connection) -> None:
    fleet = Fleet(connection)
    fleet.follow(ON)
    fleet.agent("a")
    fleet.stream("own", None)
    fleet.stream("lines", 2, listens=True)
    fleet.tick()
    fleet.tick()
    fleet.start_all()
    fleet.agent("b")
    fleet.tick()
    fleet.start_all()
    assert (fleet.where("own"), fleet.where()) == (["a", "b"], ["a", "a"])
    assert fleet.rebalance_all(HOST_AGE) == 0
    request_rebalance(connection, listeners=False)
    assert fleet.rebalance_all() == 0
    request_rebalance(connection, listeners=True)
    assert fleet.rebalance_all() == 1
    assert (fleet.where("own"), sorted(map(str, fleet.where()))) == (["a", "b"], ["a", "b"])
    # It is bound to its new host from now on.
    assert [placement.host for placement in fleet.all()] == fleet.where()


def test_a_receiver_that_reads_what_its_host_has_is_moved_on_request_alone(connection: sa.Connection) -> None:
    fleet = Fleet(connection)
    fleet.follow(ON)
    fleet.agent("a")
    fleet.stream("lines", 4, bound_to_host=True)
    fleet.stream("homesick", 1, bound_to_host=True, preferred_host="gateway")
    fleet.tick()
    fleet.start_all()
    lost = fleet.agent("b")
    assert fleet.rebalance_all(HOST_AGE) == 0
    request_rebalance(connection, listeners=False)
    assert fleet.rebalance_all() == 2
    assert sorted(map(str, fleet.where())) == ["a", "a", "b", "b"]
    # It asks for its preferred host itself, and a host that is lost leaves no choice.
    home = fleet.agent("gateway")
    assert fleet.rebalance_all(HOST_AGE / 2) == 1
    assert fleet.where("homesick") == ["gateway"]
    fleet.stop(home)
    for placement in fleet.all():
        if placement.agent_id == lost:
            deregister_process(connection, fleet.processes[placement.receiver_id])
    fleet.stop(lost)
    fleet.tick()
    assert fleet.where() == ["a"] * 4


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def url(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("COLUMNS", "160")
    return database_url


def forebay_agents(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_the_command_shows_the_moves_and_asks_for_them(url: str, fleet: Fleet) -> None:
    assert "Nothing to move" in forebay_agents("rebalance").stdout
    fleet.agent("b")
    fleet.agent("c")
    shown = forebay_agents("rebalance", "--dry-run")
    assert shown.exit_code == 0
    assert "lines/1" in shown.stdout
    assert "one after the other" not in shown.stdout
    assert json.loads(forebay_agents("rebalance", "--dry-run", "--json").stdout)["requested"] is False
    assert list_rebalance_requests(fleet.connection) == []
    asked = json.loads(forebay_agents("rebalance", "--json").stdout)
    assert asked["requested"] is True
    assert [(move["from_host"], move["to_host"]) for move in asked["moves"]] == [("a", "b"), ("a", "c")] * 2
    # Without the age of the hosts, and without pauses.
    assert fleet.rebalance_all(0.1) == 4
    assert spread(fleet) == [2, 2, 2]


def test_two_requests_at_once_are_one_rebalancing(url: str, fleet: Fleet) -> None:
    fleet.agent("b")
    assert forebay_agents("rebalance").exit_code == 0
    assert forebay_agents("rebalance").exit_code == 0
    assert len(list_rebalance_requests(fleet.connection)) == 2
    assert fleet.rebalance_all(0.1) == 3
    assert spread(fleet) == [3, 3, 0]
    assert list_rebalance_requests(fleet.connection) == []
