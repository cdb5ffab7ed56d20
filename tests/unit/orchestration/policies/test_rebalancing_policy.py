"""Check which receiver is moved where, and when: examples, and what must hold for any fleet."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.policies.rebalancing_policy import (
    Move,
    MoveLimits,
    RebalanceAgent,
    RunningReceiver,
    due_move,
    plan_moves,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MANY = 100
LIMITS = MoveLimits(is_on=True, interval_seconds=10.0, host_seconds=60.0)


def fleet(*hosts: str, slots: int = MANY, alive: float = 3600.0) -> list[RebalanceAgent]:
    return [RebalanceAgent(number, host, slots, alive) for number, host in enumerate(hosts, 1)]


def placed(*agents: int) -> list[RunningReceiver]:
    """Return a receiver of one stream on each of these agents."""
    return [RunningReceiver(number, 1, agent) for number, agent in enumerate(agents, 1)]


def after(receivers: Sequence[RunningReceiver], moves: Sequence[Move]) -> list[RunningReceiver]:
    now = {receiver.receiver_id: receiver for receiver in receivers}
    for move in moves:
        assert now[move.receiver_id].agent_id == move.from_agent
        now[move.receiver_id] = replace(now[move.receiver_id], agent_id=move.to_agent)
    return list(now.values())


def spread(agents: Sequence[RebalanceAgent], receivers: Sequence[RunningReceiver]) -> list[int]:
    counted = Counter(receiver.agent_id for receiver in receivers)
    return [counted[agent.agent_id] for agent in agents]


def due(agents: Sequence[RebalanceAgent], receivers: Sequence[RunningReceiver], **given_: object) -> Move | None:
    return due_move(
        agents,
        receivers,
        **{"limits": LIMITS, "idle_seconds": 3600.0, "is_asked": False, **given_},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("before", "moves"),
    [
        ([1] * 6, 4),  # three agents, of which the first came first
        ([1, 1, 1, 2, 2, 2], 2),  # after a rolling restart of three
        ([1, 1, 1, 2, 2], 1),
        ([1, 1, 2, 2, 3, 3], 0),
        ([1, 1, 2, 2, 3], 0),
    ],
)
def test_w15_receivers_are_spread_with_the_fewest_moves(before: list[int], moves: int) -> None:
    agents = fleet("a", "b", "c")
    receivers = placed(*before)
    planned = plan_moves(agents, receivers)
    loads = spread(agents, after(receivers, planned))
    assert max(loads) - min(loads) <= 1
    assert len(planned) == moves


def test_the_stream_with_the_most_receivers_there_leaves_first() -> None:
    receivers = [RunningReceiver(1, 7, 1), RunningReceiver(2, 8, 1), RunningReceiver(3, 8, 1), RunningReceiver(4, 7, 2)]
    agents = fleet("a", "b")
    receivers.append(RunningReceiver(5, 9, 1))
    [move] = plan_moves(agents, receivers)
    assert (move.receiver_id, move.to_agent) == (2, 2), "stream 8 has none on b, and two on a"


def test_r01_a_receiver_goes_home_when_its_host_has_come() -> None:
    receivers = [RunningReceiver(1, 1, 1, preferred_host="b"), RunningReceiver(2, 1, 1)]
    [move] = plan_moves(fleet("a", "b"), receivers)
    assert (move.receiver_id, move.to_agent) == (1, 2)
    assert "prefers" in move.why


def test_r01_a_receiver_on_its_preferred_host_is_never_moved() -> None:
    receivers = [RunningReceiver(number, 1, 1, preferred_host="a") for number in range(6)]
    assert plan_moves(fleet("a", "b"), receivers) == []


def test_a_listener_moves_only_when_that_is_asked() -> None:
    agents = fleet("a", "b")
    receivers = [RunningReceiver(number, 1, 1, is_bound_listener=True) for number in range(4)]
    assert plan_moves(agents, receivers) == []
    assert due(agents, receivers) is None
    assert due(agents, receivers, is_asked=True) is None
    assert due(agents, receivers, is_asked=True, with_listeners=True) is not None


def test_receivers_that_must_be_apart_are_parted_and_never_brought_together() -> None:
    agents = fleet("a", "b", "c")
    together = [RunningReceiver(1, 7, 1, is_apart=True), RunningReceiver(2, 7, 1, is_apart=True)]
    [move] = plan_moves(agents[:2], together)
    assert "listens on a" in move.why
    # Agent a has four more than b, on which the stream has one already.
    receivers = [*together[:1], RunningReceiver(3, 7, 2, is_apart=True)]
    others = [RunningReceiver(number, 8, 1, moves=False) for number in range(10, 14)]
    assert plan_moves(agents[:2], [*receivers, *others]) == []
    assert [move.to_agent for move in plan_moves(agents, [*receivers, *others])] == [3]


def test_a_passing_flap_gets_nothing() -> None:
    agents = [*fleet("a"), RebalanceAgent(2, "b", MANY, 59.0)]
    assert due(agents, placed(1, 1)) is None
    assert due([agents[0], replace(agents[1], alive_seconds=60.0)], placed(1, 1)) is not None


def test_moves_keep_the_interval_and_can_be_switched_off() -> None:
    agents, receivers = fleet("a", "b"), placed(1, 1)
    assert due(agents, receivers, idle_seconds=9.9) is None
    assert due(agents, receivers, idle_seconds=10.0) is not None
    assert due(agents, receivers, limits=replace(LIMITS, is_on=False)) is None


def test_a_request_waits_for_neither_and_needs_no_switch() -> None:
    move = due(
        fleet("a", "b", alive=0.0),
        placed(1, 1),
        limits=replace(LIMITS, is_on=False),
        idle_seconds=0.0,
        is_asked=True,
    )
    assert move is not None


def test_an_agent_to_which_a_move_failed_gets_no_further_one() -> None:
    agents = fleet("a", "b", "c")
    move = due(agents, placed(1, 1, 1), avoided={2})
    assert move is not None
    assert move.to_agent == 3
    assert due(agents, placed(1, 1, 1), avoided={2, 3}) is None


fleets = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.floats(0, 200)), min_size=1, max_size=5).map(
    lambda rows: [RebalanceAgent(number, *row) for number, row in enumerate(rows, 1)]
)


@st.composite
def systems(draw: st.DrawFn) -> tuple[list[RebalanceAgent], list[RunningReceiver]]:
    """Return agents, and receivers on them; an agent may have more than its slots, after a restart with fewer."""
    agents = draw(fleets)
    gone = len(agents) + 1
    receivers = [
        RunningReceiver(
            number,
            stream,
            draw(st.integers(1, gone)),
            draw(st.none() | st.sampled_from("abcde")),
            moves=draw(st.booleans()),
            is_bound_listener=stream == 2,
            is_apart=stream > 1,
        )
        for number, stream in enumerate(draw(st.lists(st.integers(1, 3), max_size=12)))
    ]
    return agents, receivers


@given(systems(), st.booleans())
def test_moves_come_to_an_end_where_nothing_more_can_be_evened_out(
    system: tuple[list[RebalanceAgent], list[RunningReceiver]], with_listeners: bool
) -> None:
    agents, receivers = system
    moves = plan_moves(agents, receivers, with_listeners=with_listeners)
    # Each receiver goes home at most once, and each other move makes the spread smaller.
    assert len(moves) <= (len(receivers) + 1) * (len(receivers) + 1) ** 2
    end = after(receivers, moves)
    loads = Counter(receiver.agent_id for receiver in end)
    hosts = {agent.agent_id: agent.host for agent in agents}
    for receiver in end:
        if not receiver.moves or receiver.agent_id not in hosts or (receiver.is_bound_listener and not with_listeners):
            continue
        here = hosts[receiver.agent_id]
        home = here == receiver.preferred_host
        streams = Counter((other.stream_id, hosts.get(other.agent_id)) for other in end)
        for agent in agents:
            taken = receiver.is_apart and streams[receiver.stream_id, agent.host] > (agent.host == here)
            if loads[agent.agent_id] < agent.slots and not taken:
                assert home or not receiver.is_apart or streams[receiver.stream_id, here] == 1 or agent.host == here
                assert home or agent.host != receiver.preferred_host
                assert home or loads[receiver.agent_id] - loads[agent.agent_id] <= 1


@given(systems(), st.booleans())
def test_no_move_breaks_a_rule(
    system: tuple[list[RebalanceAgent], list[RunningReceiver]], with_listeners: bool
) -> None:
    agents, receivers = system
    by_id = {agent.agent_id: agent for agent in agents}
    now = receivers
    for move in plan_moves(agents, receivers, with_listeners=with_listeners):
        loads = Counter(receiver.agent_id for receiver in now)
        [receiver] = [one for one in now if one.receiver_id == move.receiver_id]
        assert receiver.moves
        assert with_listeners or not receiver.is_bound_listener
        assert by_id[move.from_agent].host != receiver.preferred_host
        assert loads[move.to_agent] < by_id[move.to_agent].slots
        from_host, to_host = by_id[move.from_agent].host, by_id[move.to_agent].host
        hosts = [
            by_id[one.agent_id].host for one in now if one.agent_id in by_id and one.stream_id == receiver.stream_id
        ]
        assert not receiver.is_apart or to_host == from_host or to_host not in hosts
        assert (
            to_host == receiver.preferred_host
            or loads[move.from_agent] - loads[move.to_agent] >= 2
            or (receiver.is_apart and hosts.count(from_host) > 1)
        )
        now = after(now, [move])


@given(systems(), st.floats(0, 100), st.booleans())
def test_without_a_request_no_move_is_early_or_to_a_young_agent(
    system: tuple[list[RebalanceAgent], list[RunningReceiver]], idle: float, is_on: bool
) -> None:
    agents, receivers = system
    move = due(agents, receivers, idle_seconds=idle, limits=replace(LIMITS, is_on=is_on))
    if move is not None:
        assert is_on
        assert idle >= LIMITS.interval_seconds
        [to] = [agent for agent in agents if agent.agent_id == move.to_agent]
        assert to.alive_seconds >= LIMITS.host_seconds
        [receiver] = [one for one in receivers if one.receiver_id == move.receiver_id]
        assert not receiver.is_bound_listener
