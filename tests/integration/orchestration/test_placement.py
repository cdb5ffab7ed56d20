"""Test placement on a real driver log: which receivers are placed, taken away or bound to a host, and why one waits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay import ConsoleSink
from forebay.cli.commands.agents import app
from forebay.sources import CustomSource
from orchestration.declarations.apply import apply
from orchestration.declarations.pipeline import Pipeline, Stream
from orchestration.tracker.placement_rules import PlacementRules
from orchestration.tracker.receiver_placement import HAND_OVER_SECONDS
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from tests.integration.orchestration.fleet import Fleet
from tests.support.driver_log.log import claim_anew, make_log
from tests.support.postgres.counted_statements import counted
from tracker_store.batches.pipelines import apply_stream, list_streams
from tracker_store.connection.errors import DriverLogError
from tracker_store.receivers.agents import forget_host, list_agents, set_draining
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.receivers.processes import deregister_process
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import DesiredState, ReceiverState

if TYPE_CHECKING:
    from typer.testing import Result


@pytest.fixture
def fleet(connection: sa.Connection) -> Fleet:
    return Fleet(connection)


def test_p01_w15_first_placement_is_even_and_spreads_each_stream(fleet: Fleet) -> None:
    for host in ("a", "b", "c"):
        fleet.agent(host)
    fleet.stream("lines", 3)
    fleet.stream("words", 3)
    fleet.tick()
    assert sorted(map(str, fleet.where("lines"))) == sorted(map(str, fleet.where("words"))) == ["a", "b", "c"]


def test_p02_an_agent_that_comes_new_moves_nobody_and_gets_what_waits(fleet: Fleet) -> None:
    fleet.agent("a", slots=3)
    fleet.stream("lines", 4)
    fleet.tick()
    before = fleet.all()
    assert fleet.where() == ["a", "a", "a", None]
    assert before[3].reason == "waits for a free slot: raise --slots of an agent, or start another"
    fleet.agent("b")
    fleet.tick()
    assert fleet.where() == ["a", "a", "a", "b"]
    assert fleet.all()[:3] == before[:3]


def test_k05_of_an_agent_that_is_gone_only_its_own_receivers_move(fleet: Fleet) -> None:
    gone = fleet.agent("a")
    fleet.agent("b")
    fleet.stream("lines", 4)
    fleet.tick()
    assert fleet.where() == ["a", "b", "a", "b"]
    before = fleet.all()
    # The agent signed off while they were being placed on it: no other step would ever look at them again.
    fleet.stop(gone)
    fleet.tick()
    assert fleet.where() == ["b"] * 4
    assert [fleet.all()[1], fleet.all()[3]] == [before[1], before[3]]


class AtGateway:
    """A receiver's class, as `apply` sees it: it asks to run on a host, and has not been started."""

    def __init__(self, host: str) -> None:
        self.preferred_location = host


def declare(fleet: Fleet, lines: Stream) -> None:
    pipeline = Pipeline("p", interval="10s")
    pipeline.output(inputs=[lines], sink=ConsoleSink(), name="o")(lambda lines: None)
    apply(fleet.connection, [pipeline])


def test_r01_p01_a_receivers_preferred_host_counts_at_its_first_placement_while_it_has_room(fleet: Fleet) -> None:
    fleet.agent("a")
    fleet.agent("b", slots=2)
    declare(fleet, Stream("lines", CustomSource(receiver=AtGateway, options={"host": "b"}), receivers=3))
    fleet.tick()
    assert fleet.where() == ["b", "b", "a"]


def test_r01_a_receiver_that_can_not_be_asked_where_it_is_declared_is_placed_all_the_same(fleet: Fleet) -> None:
    fleet.agent("a")
    declare(fleet, Stream("lines", CustomSource(receiver="nowhere_installed:Receiver")))
    fleet.tick()
    assert fleet.where() == ["a"]


def test_r01_a_declaration_that_asks_for_another_host_is_followed(fleet: Fleet) -> None:
    for host in ("a", "b"):
        fleet.agent(host)
    declare(fleet, Stream("lines", CustomSource(receiver=AtGateway, options={"host": "a"})))
    fleet.tick()
    declare(fleet, Stream("lines", CustomSource(receiver=AtGateway, options={"host": "b"})))
    fleet.tick()
    assert fleet.where() == ["b"]


# -- the agents that are expected ------------------------------------------------------------------------------------


def test_k03_w15_agents_that_start_3_s_apart_get_the_same_number_of_receivers(fleet: Fleet) -> None:
    fleet.follow(PlacementRules(settle_seconds=5.0))
    fleet.stream("lines", 6)
    for host in ("a", "b", "c"):
        fleet.agent(host)
        fleet.tick()
        assert fleet.where() == [None] * 6
        assert "waits for agents to register" in fleet.all()[0].reason
        fleet.tick(2.0)
    fleet.tick(2.9)
    assert fleet.where() == [None] * 6
    fleet.tick(0.2)
    assert sorted(map(str, fleet.where())) == ["a", "a", "b", "b", "c", "c"]


def test_k03_three_listeners_are_not_all_bound_to_the_agent_that_starts_first(fleet: Fleet) -> None:
    fleet.follow(PlacementRules(min_agents=3, settle_seconds=5.0))
    fleet.stream("lines", 3, listens=True)
    for host in ("a", "b"):
        fleet.agent(host)
        fleet.tick()
    assert fleet.where() == [None] * 3
    assert "2 of 3 are there" in fleet.all()[0].reason
    fleet.agent("c")
    fleet.tick()
    assert sorted(str(placement.host) for placement in fleet.all()) == ["a", "b", "c"]


def test_k03_an_agent_that_registers_again_and_again_does_not_hold_receivers_up_for_ever(fleet: Fleet) -> None:
    fleet.follow(PlacementRules(settle_seconds=5.0))
    fleet.agent("a")
    fleet.stream("lines", 1)
    for _ in range(12):
        flapping = fleet.agent("b")
        fleet.tick(3.0)
        fleet.stop(flapping)
    assert fleet.where() != [None]


def test_k03_a_receiver_that_was_placed_before_waits_for_no_agent(fleet: Fleet) -> None:
    fleet.agent("a")
    gone = fleet.agent("b")
    fleet.stream("lines", 2)
    fleet.tick()
    fleet.follow(PlacementRules(settle_seconds=5.0))
    fleet.stop(gone)
    fleet.agent("c")
    fleet.tick()
    assert None not in fleet.where()


def test_nobody_at_all_is_said(fleet: Fleet) -> None:
    fleet.stream("lines", 1)
    fleet.tick()
    assert fleet.all()[0].reason == "waits for an agent: start one with forebay agent"
    assert fleet.all()[0].assignment == 0


def test_a_deposed_leader_places_and_takes_nothing(fleet: Fleet) -> None:
    agent = fleet.agent("a")
    fleet.stream("lines", 1)
    fleet.tick()
    fleet.stream("words", 1)
    fleet.stream("all", None)
    set_draining(fleet.connection, name="a", draining=True)
    fleet.agent("b")
    assert take_leadership(fleet.connection, seen=read_leadership(fleet.connection), holder="another") is not None
    fleet.tick()
    assert [placement.agent_id for placement in placements(fleet.connection)] == [agent, None]


# -- draining --------------------------------------------------------------------------------------------------------


def test_a_draining_agent_gets_no_receivers_and_loses_its_own(fleet: Fleet) -> None:
    fleet.agent("a")
    fleet.agent("b")
    fleet.stream("lines", 2)
    fleet.tick()
    assert set_draining(fleet.connection, name="a", draining=True) == 1
    fleet.tick()
    assert fleet.where() == ["b", "b"]
    fleet.stream("words", 2)
    fleet.tick()
    assert fleet.where("words") == ["b", "b"]
    set_draining(fleet.connection, name="a", draining=False)
    fleet.tick()
    assert fleet.where() + fleet.where("words") == ["b"] * 4, "receivers that moved away stay there"


def test_a_receiver_taken_away_is_placed_when_its_process_has_drained(fleet: Fleet) -> None:
    fleet.agent("a")
    fleet.stream("lines", 1)
    fleet.tick()
    [process_id] = fleet.start_all().values()
    [before] = fleet.all()
    claim_anew(fleet.connection, before.receiver_id, assignment=before.assignment)
    fleet.agent("b")
    set_draining(fleet.connection, name="a", draining=True)
    for _ in range(3):
        fleet.tick()
        [waiting] = fleet.all()
        assert (waiting.state, waiting.agent_id) == (ReceiverState.INACTIVE, None)
        assert waiting.assignment == before.assignment + 1
        assert waiting.reason == "agent a is draining"
    deregister_process(fleet.connection, process_id)
    fleet.tick()
    assert fleet.where() == ["b"]


@pytest.mark.parametrize("change", ["declared again", "removed and back"])
def test_a_receiver_of_a_changed_stream_is_placed_when_its_process_has_drained(fleet: Fleet, change: str) -> None:
    fleet.agent("a")
    fleet.stream("lines", 2)
    fleet.tick()
    processes = fleet.start_all()
    second = fleet.all()[1].receiver_id
    if change == "declared again":
        apply_stream(fleet.connection, name="lines", declaration={"source": {}, "settings": {"x": 1}}, receivers=2)
    else:
        # Its declaration differs each time, so both receivers are taken away.
        fleet.stream("lines", 1)
        fleet.stream("lines", 2)
    for _ in range(3):
        fleet.tick()
        assert {waiting.reason for waiting in fleet.all()} <= {"declaration changed", "removed from the declaration"}
        assert fleet.where() == [None, None]
    deregister_process(fleet.connection, processes[second])
    fleet.tick()
    assert fleet.where() == [None, "a"]


def test_a_process_that_does_not_sign_off_is_waited_for_with_a_limit(fleet: Fleet) -> None:
    fleet.agent("a")
    fleet.stream("lines", 1)
    fleet.tick()
    fleet.start_all()
    fleet.agent("b")
    set_draining(fleet.connection, name="a", draining=True)
    fleet.tick()
    fleet.tick(HAND_OVER_SECONDS - 1)
    assert fleet.where() == [None]
    fleet.tick(1)
    assert fleet.where() == ["b"]


def test_draining_outlives_the_agent(fleet: Fleet) -> None:
    """Check this because a host is drained mostly to be restarted."""
    fleet.stop(fleet.agent("a"))
    set_draining(fleet.connection, name="a", draining=True)
    fleet.agent("a")
    fleet.agent("b")
    fleet.stream("lines", 2)
    fleet.tick()
    assert fleet.where() == ["b", "b"]
    # Other agents are not affected, and draining ends when it is revoked.
    assert [row.draining for row in list_agents(fleet.connection)] == [True, False]
    set_draining(fleet.connection, name="a", draining=False)
    fleet.agent("a")
    assert [row.draining for row in list_agents(fleet.connection)] == [False, False, False]


def test_draining_the_only_agent_stops_its_receivers_and_shows_why_they_wait(fleet: Fleet) -> None:
    fleet.agent("a")
    fleet.stream("lines", 1)
    fleet.tick()
    set_draining(fleet.connection, name="a", draining=True)
    fleet.tick()
    assert fleet.where() == [None]
    assert fleet.all()[0].reason == "waits: draining is a; to let it back in: forebay agents undrain a"
    set_draining(fleet.connection, name="a", draining=False)
    fleet.tick()
    assert fleet.where() == ["a"]


# -- one receiver per host -------------------------------------------------------------------------------------------


def test_per_host_each_host_has_one_and_new_hosts_get_one(fleet: Fleet) -> None:
    fleet.stream("lines", None)
    fleet.tick()
    assert fleet.all() == []
    fleet.agent("a")
    fleet.agent("b")
    fleet.tick()
    assert fleet.where() == ["a", "b"]
    fleet.agent("c")
    # An agent without slots, and one that drains, are not hosts for receivers.
    fleet.agent("d", slots=0)
    fleet.agent("e")
    set_draining(fleet.connection, name="e", draining=True)
    fleet.tick()
    fleet.tick()
    assert fleet.where() == ["a", "b", "c"]


def test_per_host_a_missing_host_is_waited_for_and_gets_its_own_receiver_back(fleet: Fleet) -> None:
    fleet.stream("lines", None)
    away = fleet.agent("a")
    fleet.agent("b")
    fleet.tick()
    before = [placement.receiver_id for placement in fleet.all()]
    fleet.stop(away)
    fleet.tick()
    assert fleet.where() == [None, "b"]
    assert fleet.all()[0].reason == ("waits for an agent on a; if that host won't come back: forebay agents forget a")
    fleet.agent("a")
    fleet.tick()
    assert fleet.where() == ["a", "b"]
    assert [placement.receiver_id for placement in fleet.all()] == before


def test_per_host_a_forgotten_host_loses_its_receiver_and_gets_the_same_one_back(fleet: Fleet) -> None:
    fleet.stream("lines", None)
    gone = fleet.agent("a")
    fleet.agent("b")
    fleet.tick()
    before = [placement.receiver_id for placement in fleet.all()]
    with pytest.raises(DriverLogError, match="First stop the agent"):
        forget_host(fleet.connection, "a")
    fleet.stop(gone)
    assert forget_host(fleet.connection, "a") == (1, 0)
    fleet.tick()
    assert fleet.where() == ["b"]
    with pytest.raises(DriverLogError, match="no receiver belongs to host 'a'"):
        forget_host(fleet.connection, "a")
    fleet.agent("a")
    fleet.tick()
    assert fleet.where() == ["a", "b"]
    assert [placement.receiver_id for placement in fleet.all()] == before


def test_per_host_and_a_number_can_replace_each_other(fleet: Fleet) -> None:
    fleet.agent("a")
    fleet.agent("b")
    fleet.stream("lines", 3)
    fleet.tick()
    fleet.stream("lines", None)
    fleet.tick()
    assert (fleet.where(), [placement.host for placement in fleet.all()]) == (["a", "b"], ["a", "b"])
    fleet.stream("lines", 4)
    fleet.tick()
    assert len(fleet.where()) == 4
    assert None not in fleet.where()
    assert [placement.host for placement in fleet.all()] == [None] * 4


# -- listeners -------------------------------------------------------------------------------------------------------


def test_a_listener_is_never_moved_to_another_address_without_a_request(fleet: Fleet) -> None:
    there = fleet.agent("a")
    fleet.stream("lines", 1, listens=True)
    fleet.tick()
    fleet.agent("b")
    fleet.stop(there)
    for _ in range(3):
        fleet.tick()
        assert fleet.where() == [None]
    assert "forebay agents forget a" in fleet.all()[0].reason
    fleet.agent("a")
    fleet.tick()
    assert fleet.where() == ["a"]


def test_a_listener_keeps_its_address_when_its_agent_drains_or_its_stream_changes(fleet: Fleet) -> None:
    fleet.agent("a")
    fleet.stream("lines", 1, listens=True)
    fleet.tick()
    fleet.agent("b")
    set_draining(fleet.connection, name="a", draining=True)
    fleet.tick()
    assert fleet.where() == [None]
    fleet.connection.execute(
        sa.text('UPDATE forebay.streams SET declaration = declaration || \'{"source": {"x": 1}}\'')
    )
    fleet.stream("lines", 1, listens=True)
    fleet.tick()
    assert fleet.where() == [None]
    # When it no longer listens, it may be placed anywhere.
    fleet.stream("lines", 1, listens=False)
    fleet.tick()
    assert fleet.where() == ["b"]


def test_a_listener_may_move_on_request(fleet: Fleet) -> None:
    there = fleet.agent("a")
    fleet.stream("lines", 1, listens=True)
    fleet.tick()
    fleet.agent("b")
    fleet.stop(there)
    fleet.tick()
    assert forget_host(fleet.connection, "a") == (0, 1)
    fleet.tick()
    assert fleet.where() == ["b"]
    assert [placement.host for placement in fleet.all()] == ["b"]


def test_a_listener_with_a_preferred_host_waits_for_it(fleet: Fleet) -> None:
    fleet.agent("a")
    fleet.stream("lines", 1, listens=True, preferred_host="gateway")
    fleet.tick()
    assert fleet.where() == [None]
    fleet.agent("gateway")
    fleet.tick()
    assert fleet.where() == ["gateway"]


# -- declarations and the command line -------------------------------------------------------------------------------


def test_a_stream_declares_that_it_listens_and_that_it_is_one_per_host(fleet: Fleet) -> None:
    everywhere = Stream("everywhere", SocketText(listen="0.0.0.0:9999"), receivers="per_host")
    plain = Stream("plain", SocketText(host="localhost", port=9999), receivers=2)
    pipeline = Pipeline("p", interval="10s", backpressure_enabled=True)
    pipeline.output(inputs=[everywhere, plain], sink=ConsoleSink(), name="o")(lambda everywhere, plain: None)
    apply(fleet.connection, [pipeline])
    assert [
        (row.name, row.declaration["receivers"], row.declaration["listens"]) for row in list_streams(fleet.connection)
    ] == [("everywhere", "per_host", True), ("plain", 2, False)]
    fleet.agent("a")
    fleet.tick()
    fleet.tick()
    assert (fleet.where("everywhere"), fleet.where("plain")) == (["a"], ["a", "a"])
    # Applying it again changes nothing and takes no receiver from a host.
    assert apply(fleet.connection, [pipeline]) == []
    assert fleet.where("everywhere") == ["a"]


def test_a_listener_behind_a_shared_address_may_run_on_any_host(fleet: Fleet) -> None:
    there = fleet.agent("a")
    declare(fleet, Stream("lines", SocketText(listen="0.0.0.0:9999"), shared_address=True))
    fleet.tick()
    fleet.agent("b")
    fleet.stop(there)
    fleet.tick()
    assert (fleet.where(), [placement.host for placement in fleet.all()]) == (["b"], [None])


@pytest.fixture
def url(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("COLUMNS", "120")
    return database_url


def forebay_agents(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_the_command_lists_drains_and_undrains(url: str, fleet: Fleet) -> None:
    assert "none" in forebay_agents().stdout
    fleet.agent("a", slots=2)
    fleet.agent("b", slots=1)
    gone = fleet.agent("c", slots=1)
    fleet.stream("lines", None)
    fleet.tick()
    fleet.stop(gone)
    fleet.tick()
    drained = forebay_agents("drain", "a")
    assert drained.exit_code == 0
    assert "a is draining; 1 receiver(s) leave it." in drained.stdout
    assert "forebay agents undrain a" in drained.stdout
    fleet.tick()
    listed = json.loads(forebay_agents("--json").stdout)["agents"]
    assert [
        (row["name"], row["host"], row["receivers"], row["slots"], row["waiting"], row["draining"]) for row in listed
    ] == [("a", "a", 0, 2, 1, True), ("b", "b", 1, 1, 0, False), ("", "c", 0, 0, 1, False)]
    shown = forebay_agents().stdout
    assert [line.split()[-1] for line in shown.splitlines() if line.strip()][-3:] == ["draining", "running", "gone"]
    assert forebay_agents("undrain", "a").exit_code == 0
    fleet.tick()
    assert fleet.where() == ["a", "b", None]
    forgot = forebay_agents("forget", "c", "--yes")
    assert "1 receiver(s) of its own removed, 0 listener(s)" in forgot.stdout
    fleet.tick()
    assert fleet.where() == ["a", "b"]


def test_what_was_done_to_agents_is_said_as_json(url: str, fleet: Fleet) -> None:
    agent = fleet.agent("a", slots=2)
    fleet.agent("b", slots=2)
    fleet.stream("lines", None)
    fleet.tick()
    drained = forebay_agents("drain", "a", "--json")
    assert json.loads(drained.stdout) == {"name": "a", "draining": True, "receivers": 1, "free_slots": 1}
    assert "a is draining" in drained.stderr
    undrained = forebay_agents("undrain", "a", "--json")
    assert json.loads(undrained.stdout) == {"name": "a", "draining": False, "receivers": 1}
    refused = forebay_agents("forget", "a", "--json", "--yes")
    assert (refused.exit_code, refused.stdout) == (1, "")
    fleet.stop(agent)
    fleet.tick()
    forgot = forebay_agents("forget", "a", "--json", "--yes")
    assert json.loads(forgot.stdout) == {
        "host": "a",
        "forgotten": True,
        "removed_receivers": 1,
        "freed_listeners": 0,
    }


def test_an_unknown_or_living_agent_is_exit_code_1_with_the_way_out(url: str, fleet: Fleet) -> None:
    make_log(fleet.connection)
    fleet.agent("a")
    for arguments, says in [
        (("drain", "nobody"), "forebay agents"),
        (("undrain", "nobody"), "'nobody'"),
        (("forget", "nowhere", "--yes"), "'nowhere'"),
        (("forget", "a", "--yes"), "First stop the agent"),
    ]:
        answer = forebay_agents(*arguments)
        assert answer.exit_code == 1
        assert says in answer.stdout
    assert {placement.desired_state for placement in placements(fleet.connection)} == {DesiredState.RUNNING}


def _lose_an_agent(fleet: Fleet, stream: str, receivers: int) -> tuple[int, int]:
    """Place that many receivers on two agents; count what it takes to place one agent's again when it is gone."""
    lost, kept = fleet.agent(f"{stream}-lost", slots=receivers), fleet.agent(f"{stream}-kept", slots=receivers)
    fleet.stream(stream, receivers)
    with counted(fleet.connection) as first:
        fleet.tick()
    assert {placement.agent_id for placement in fleet.all(stream)} == {lost, kept}
    fleet.stop(lost)
    with counted(fleet.connection) as again:
        fleet.tick()
    assert {placement.agent_id for placement in fleet.all(stream)} == {kept}
    with counted(fleet.connection) as waits:
        fleet.stop(kept)
        fleet.tick()
    assert {placement.reason[:5] for placement in fleet.all(stream)} == {"waits"}
    fleet.connection.execute(sa.text("UPDATE forebay.receivers SET removed_at = clock_timestamp()"))
    # The loss of one agent releases its receivers by one statement, and the second one's likewise.
    return len(first.statements), len(again.statements) + len(waits.statements)


def test_many_receivers_are_placed_and_wait_by_as_many_statements_as_a_few(fleet: Fleet) -> None:
    few = _lose_an_agent(fleet, "few", 10)
    assert _lose_an_agent(fleet, "many", 1_000) == few
