"""Check placement: Spark Streaming's two algorithms (P01-P03), and what must hold for any fleet."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.policies.scheduling_policy import (
    AgentCapacity,
    PlacedReceiver,
    Rescheduling,
    WaitingReceiver,
    is_settled,
    schedule_receivers,
)
from tracker_store.schema.states import ReceiverState

if TYPE_CHECKING:
    from collections.abc import Sequence

ACTIVE, SCHEDULED, INACTIVE = ReceiverState.ACTIVE, ReceiverState.SCHEDULED, ReceiverState.INACTIVE
MANY = 100


def fleet(*hosts: str, slots: int = MANY) -> list[AgentCapacity]:
    return [AgentCapacity(number, host, slots) for number, host in enumerate(hosts, 1)]


def reschedule_receiver(
    receiver: WaitingReceiver, agents: Sequence[AgentCapacity], placed: Sequence[PlacedReceiver]
) -> tuple[int, ...]:
    """Return the candidates for one receiver; its own earlier weight does not count."""
    others = [other for other in placed if other.receiver_id != receiver.receiver_id]
    return Rescheduling(agents, others).candidates(receiver)


def firsts(plan: dict[int, tuple[int, ...]]) -> dict[int, int]:
    return {receiver_id: candidates[0] for receiver_id, candidates in plan.items() if candidates}


# -- K03: when ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ages", "min_agents", "settled"),
    [
        ([], None, True),  # nothing can be placed, and nothing is held up for another reason
        ([0.0], 1, True),  # `forebay up`
        ([0.0], None, False),
        ([5.0], None, True),
        ([6.0, 3.0, 0.0], None, False),  # three agents that start 3 s apart
        ([11.0, 8.0, 5.0], None, True),
        ([0.0, 0.0], 3, False),
        ([0.0, 0.0, 0.0], 3, True),
        ([9.0, 5.0], 3, True),  # the third one does not come
    ],
)
def test_k03_first_placement_waits_for_the_agents_that_are_expected(
    ages: list[float], min_agents: int | None, settled: bool
) -> None:
    assert is_settled(ages, min_agents=min_agents, settle_seconds=5.0) is settled


def test_k03_an_agent_that_starts_again_and_again_holds_first_placement_up_for_a_limited_time() -> None:
    held_up = [is_settled([0.0], min_agents=None, settle_seconds=5.0, held_up_seconds=s) for s in (0.0, 29.9, 30.0)]
    assert held_up == [False, False, True]


def test_receivers_that_listen_at_one_port_are_placed_apart_whatever_else_the_hosts_have() -> None:
    agents = [AgentCapacity(1, "a", MANY, 5), AgentCapacity(2, "b", MANY)]
    listeners = [WaitingReceiver(n, stream_id=7, is_apart=True) for n in (1, 2)]
    assert sorted(firsts(schedule_receivers(listeners, agents)).values()) == [1, 2]
    there = [PlacedReceiver(1, 7, ACTIVE, (2,))]
    assert reschedule_receiver(listeners[1], agents, there)[0] == 1
    # Without another host they share one: the second one tries until the port is free.
    assert firsts(schedule_receivers(listeners, agents[1:])) == {1: 2, 2: 2}


# -- P01: all at once ------------------------------------------------------------------------------------------------


def test_p01_no_receivers_no_plan() -> None:
    assert schedule_receivers([], fleet("a")) == {}


def test_p01_p03_no_agents_and_every_receiver_waits() -> None:
    assert schedule_receivers([WaitingReceiver(1), WaitingReceiver(2, preferred_host="a")], []) == {1: (), 2: ()}


def test_p01_more_receivers_than_agents_are_spread_evenly() -> None:
    plan = schedule_receivers([WaitingReceiver(n) for n in range(6)], fleet("a", "b", "c"))
    assert Counter(firsts(plan).values()) == {1: 2, 2: 2, 3: 2}
    assert {len(candidates) for candidates in plan.values()} == {1}


def test_p01_of_more_agents_than_receivers_the_idle_ones_are_offered_evenly() -> None:
    plan = schedule_receivers([WaitingReceiver(n) for n in range(3)], fleet("a", "b", "c", "d", "e", "f"))
    assert plan == {0: (1, 4), 1: (2, 5), 2: (3, 6)}


def test_p01_preferred_hosts_first_then_evenly() -> None:
    receivers = [WaitingReceiver(n, preferred_host="b" if n >= 4 else None) for n in range(6)]
    plan = schedule_receivers(receivers, fleet("a", "b", "c"))
    assert {plan[4], plan[5]} == {(2,)}
    assert Counter(firsts(plan).values()) == {1: 2, 2: 2, 3: 2}


def test_p01_of_several_agents_on_the_preferred_host_the_least_loaded_is_chosen() -> None:
    receivers = [WaitingReceiver(n, preferred_host="a") for n in range(4)]
    assert Counter(firsts(schedule_receivers(receivers, fleet("a", "a", "b"))).values()) == {1: 2, 2: 2}


@pytest.mark.parametrize("agents", [fleet("a", "b"), [AgentCapacity(7, "gone", 0), *fleet("a", "b")]])
def test_p01_a_preference_that_can_not_be_met_does_not_delay_a_receiver(agents: list[AgentCapacity]) -> None:
    """The original offered only the preferred host, even without an agent, and the register check refused others."""
    assert firsts(schedule_receivers([WaitingReceiver(1, preferred_host="gone")], agents)) == {1: 1}


def test_a_receiver_of_one_host_runs_there_or_waits_and_precedes_preferences() -> None:
    agents = fleet("a", "b", slots=1)
    receivers = [
        WaitingReceiver(1, preferred_host="a"),
        WaitingReceiver(2, only_host="a"),
        WaitingReceiver(3, only_host="gone"),
    ]
    assert firsts(schedule_receivers(receivers, agents)) == {1: 2, 2: 1}
    assert reschedule_receiver(receivers[2], agents, []) == ()
    assert reschedule_receiver(receivers[1], agents, [PlacedReceiver(9, 1, ACTIVE, (1,))]) == (1,)


# -- P02: one alone --------------------------------------------------------------------------------------------------


def test_p02_p03_no_agents_no_candidates() -> None:
    assert reschedule_receiver(WaitingReceiver(0), [], []) == ()


def test_p02_the_preferred_host_comes_first() -> None:
    placed = [PlacedReceiver(1, 0, ACTIVE, (3,))]
    agents = [AgentCapacity(1, "a", MANY), AgentCapacity(2, "b", MANY), AgentCapacity(3, "c", MANY, 1)]
    assert reschedule_receiver(WaitingReceiver(0, preferred_host="c"), agents, placed) == (3, 1, 2)
    assert reschedule_receiver(WaitingReceiver(0, preferred_host="b"), agents, placed) == (2, 1)


def test_p02_all_idle_agents_if_there_are_any() -> None:
    placed = [PlacedReceiver(1, 0, ACTIVE, (1,)), PlacedReceiver(2, 0, SCHEDULED, (2, 3))]
    assert reschedule_receiver(WaitingReceiver(0), fleet("a", "b", "c", "d", "e"), placed) == (4, 5)


def test_p02_all_of_the_least_weight_if_none_is_idle() -> None:
    placed = [
        PlacedReceiver(1, 0, ACTIVE, (1,)),
        PlacedReceiver(2, 0, SCHEDULED, (2, 3)),
        PlacedReceiver(3, 0, SCHEDULED, (1, 3)),
        PlacedReceiver(4, 0, SCHEDULED, (4, 5)),
    ]
    # 1.5, 0.5, 1.0, 0.5, 0.5
    assert reschedule_receiver(WaitingReceiver(0, stream_id=9), fleet("a", "b", "c", "d", "e"), placed) == (2, 4, 5)


def test_p02_three_thirds_are_one_whole_weight() -> None:
    thirds = [PlacedReceiver(n, 0, SCHEDULED, (1, 3, 4)) for n in range(1, 4)]
    placed = [*thirds, PlacedReceiver(4, 0, ACTIVE, (2,)), PlacedReceiver(5, 0, ACTIVE, (3,))]
    assert reschedule_receiver(WaitingReceiver(0, stream_id=9), fleet("a", "b", "c"), placed) == (1, 2)


def test_p02_neither_an_inactive_receiver_nor_the_receiver_itself_nor_a_dead_agents_weighs() -> None:
    """In the original, the receiver's own weight counted, and so did weights on dead executors."""
    placed = [
        PlacedReceiver(0, 0, SCHEDULED, (1,)),
        PlacedReceiver(1, 0, INACTIVE, (2,)),
        PlacedReceiver(2, 0, ACTIVE, (99,)),
    ]
    assert reschedule_receiver(WaitingReceiver(0), fleet("a", "b"), placed) == (1, 2)


def test_p02_a_full_agent_is_no_candidate() -> None:
    agents = [AgentCapacity(1, "a", 1, 1), AgentCapacity(2, "b", 4, 3)]
    placed = [PlacedReceiver(n, 0, ACTIVE, (2,)) for n in range(1, 4)]
    assert reschedule_receiver(WaitingReceiver(0, preferred_host="a"), agents, placed) == (2,)


# -- what must hold for any fleet ------------------------------------------------------------------------------------

HOSTS = ["a", "b", "c", "d"]
agents = st.lists(st.tuples(st.sampled_from(HOSTS), st.integers(0, 5), st.integers(0, 5)), max_size=6).map(
    lambda rows: [AgentCapacity(n, host, slots, taken) for n, (host, slots, taken) in enumerate(rows, 1)]
)
hosts = st.none() | st.sampled_from([*HOSTS, "gone"])
receivers = st.lists(st.tuples(st.integers(1, 3), hosts, hosts), max_size=15).map(
    lambda rows: [WaitingReceiver(n, stream, wish, only) for n, (stream, wish, only) in enumerate(rows, 100)]
)


def placed_on(agents: Sequence[AgentCapacity]) -> list[PlacedReceiver]:
    """Return placed receivers that account for each agent's running ones."""
    takers = [agent.agent_id for agent in agents for _ in range(agent.running)]
    return [PlacedReceiver(1000 + n, n % 3, ACTIVE, (agent_id,)) for n, agent_id in enumerate(takers)]


def loads(agents: Sequence[AgentCapacity], plan: dict[int, int]) -> dict[int, int]:
    came = Counter(plan.values())
    return {agent.agent_id: agent.running + came[agent.agent_id] for agent in agents}


def one_by_one(receivers: Sequence[WaitingReceiver], agents: Sequence[AgentCapacity]) -> dict[int, int]:
    """Place the receivers one after the other with `reschedule_receiver`, as the tracker does it."""
    placed, plan = placed_on(agents), dict[int, int]()
    for receiver in receivers:
        now = [
            AgentCapacity(agent.agent_id, agent.host, agent.slots, loads(agents, plan)[agent.agent_id])
            for agent in agents
        ]
        for agent_id in reschedule_receiver(receiver, now, placed)[:1]:
            plan[receiver.receiver_id] = agent_id
            placed.append(PlacedReceiver(receiver.receiver_id, receiver.stream_id, SCHEDULED, (agent_id,)))
    return plan


def check(receivers: Sequence[WaitingReceiver], agents: Sequence[AgentCapacity], plan: dict[int, int]) -> None:
    by_id = {agent.agent_id: agent for agent in agents}
    # Only the given agents are used (so no dead or draining one), only waiting receivers are placed (so none moves).
    assert set(plan.values()) <= set(by_id)
    assert set(plan) <= {receiver.receiver_id for receiver in receivers}
    after = loads(agents, plan)
    assert all(after[agent.agent_id] <= max(agent.slots, agent.running) for agent in agents)
    for receiver in receivers:
        if receiver.receiver_id in plan:
            assert receiver.only_host in (None, by_id[plan[receiver.receiver_id]].host)
        else:
            # No receiver waits while a slot is free that it may have.
            allowed = [agent for agent in agents if receiver.only_host in (None, agent.host)]
            assert all(after[agent.agent_id] >= agent.slots for agent in allowed)


@given(receivers=receivers, agents=agents)
def test_p01_never_dead_never_over_slots_never_elsewhere_and_nobody_waits_beside_a_free_slot(
    receivers: list[WaitingReceiver], agents: list[AgentCapacity]
) -> None:
    plan = schedule_receivers(receivers, agents, placed_on(agents))
    check(receivers, agents, firsts(plan))
    free = {agent.agent_id for agent in agents if agent.running < agent.slots}
    assert {candidate for candidates in plan.values() for candidate in candidates} <= free


@given(receivers=receivers, agents=agents)
def test_p02_uses_only_free_slots_of_allowed_live_agents_and_leaves_none_free_while_a_receiver_waits(
    receivers: list[WaitingReceiver], agents: list[AgentCapacity]
) -> None:
    check(receivers, agents, one_by_one(receivers, agents))


@given(
    streams=st.lists(st.integers(1, 4), max_size=40).map(sorted),
    count=st.integers(1, 6),
    together=st.booleans(),
)
def test_w15_balance_within_one_of_all_receivers_and_of_each_stream(
    streams: list[int], count: int, *, together: bool
) -> None:
    """In the original, two receivers could end up on one executor and eight on another."""
    agents = fleet(*(f"h{n}" for n in range(count)))
    waiting = [WaitingReceiver(n, stream) for n, stream in enumerate(streams)]
    plan = firsts(schedule_receivers(waiting, agents)) if together else one_by_one(waiting, agents)
    after = loads(agents, plan)
    assert max(after.values()) - min(after.values()) <= 1
    for stream in set(streams):
        of_stream = loads(agents, {r: a for r, a in plan.items() if streams[r] == stream})
        assert max(of_stream.values()) - min(of_stream.values()) <= 1


@given(receivers=receivers, agents=agents, together=st.booleans())
def test_w15_who_is_free_to_go_anywhere_goes_where_the_fewest_are(
    receivers: list[WaitingReceiver], agents: list[AgentCapacity], *, together: bool
) -> None:
    free = [WaitingReceiver(receiver.receiver_id, receiver.stream_id) for receiver in receivers]
    plan = firsts(schedule_receivers(free, agents, placed_on(agents))) if together else one_by_one(free, agents)
    after = loads(agents, plan)
    for agent in agents:
        if after[agent.agent_id] < agent.slots:
            assert all(after[taker] <= after[agent.agent_id] + 1 for taker in plan.values())


def test_a_stream_is_spread_over_hosts_and_then_over_agents() -> None:
    """Two agents on one host: the stream's second receiver goes to the other host."""
    agents = fleet("a", "a", "b")
    waiting = [WaitingReceiver(1, stream_id=7), WaitingReceiver(2, stream_id=7)]
    assert firsts(schedule_receivers(waiting, agents)) == {1: 1, 2: 3}
    assert one_by_one(waiting, agents) == {1: 1, 2: 3}
