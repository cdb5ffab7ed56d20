"""Placement and liveness: pure decisions (P01; notes, point 30)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestration.tracker.liveness import CounterWatch
from orchestration.tracker.scheduling_policy import AgentCapacity, schedule_receivers

agents = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=6).map(
    lambda pairs: [AgentCapacity(n, f"h{n}", slots, running) for n, (slots, running) in enumerate(pairs)]
)


@given(receivers=st.lists(st.integers(1, 99), unique=True, max_size=20), fleet=agents)
def test_p01_never_over_slots_never_an_unknown_agent_and_nobody_waits_beside_a_free_slot(
    receivers: list[int], fleet: list[AgentCapacity]
) -> None:
    plan = schedule_receivers(receivers, fleet)
    placed = {agent.agent_id: agent.running + list(plan.values()).count(agent.agent_id) for agent in fleet}
    assert set(plan) <= set(receivers)
    assert all(placed[agent.agent_id] <= max(agent.slots, agent.running) for agent in fleet)
    if len(plan) < len(receivers):
        assert all(placed[agent.agent_id] >= agent.slots for agent in fleet)


@given(receivers=st.integers(0, 30), hosts=st.integers(1, 6))
def test_p01_balance_within_one(receivers: int, hosts: int) -> None:
    plan = schedule_receivers(range(receivers), [AgentCapacity(n, "h", 100, 0) for n in range(hosts)])
    loads = [list(plan.values()).count(n) for n in range(hosts)]
    assert max(loads) - min(loads) <= 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_counter_that_stands_still_for_the_limit_is_dead_and_not_before() -> None:
    clock = Clock()
    watch: CounterWatch[str] = CounterWatch(10, clock)
    assert watch.unmoved([("a", 5), ("b", 1)]) == []
    clock.now = 5.0
    assert watch.unmoved([("a", 5), ("b", 2)]) == []
    clock.now = 9.9
    assert watch.unmoved([("a", 5), ("b", 2)]) == []
    clock.now = 10.0
    assert watch.unmoved([("a", 5), ("b", 2)]) == [("a", 5)]


def test_a_watch_that_is_new_accuses_nobody() -> None:
    clock = Clock()
    clock.now = 1e9
    assert CounterWatch[str](10, clock).unmoved([("a", 5)]) == []


def test_a_counter_that_goes_back_has_moved() -> None:
    """A restored database: the counter is lower, and someone raised it."""
    clock = Clock()
    watch: CounterWatch[str] = CounterWatch(10, clock)
    watch.unmoved([("a", 5)])
    clock.now = 20
    assert watch.unmoved([("a", 4)]) == []


def test_time_in_which_nobody_could_look_accuses_nobody() -> None:
    """The driver log was away for a minute: nobody could raise a counter, and each gets the time to."""
    clock = Clock()
    watch: CounterWatch[str] = CounterWatch(10, clock)
    watch.unmoved([("a", 5)])
    clock.now = 4.0
    assert watch.unmoved([("a", 5)]) == []
    clock.now = 64.0
    assert watch.unmoved([("a", 5)]) == []
    clock.now = 65.0
    assert watch.unmoved([("a", 5)]) == [("a", 5)]
