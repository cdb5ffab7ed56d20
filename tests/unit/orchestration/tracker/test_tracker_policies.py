"""Check the pure decisions about liveness."""

from __future__ import annotations

from orchestration.tracker.liveness import CounterWatch
from tests.support.clock import Clock


def test_a_counter_is_dead_once_it_stands_still_for_the_limit() -> None:
    clock = Clock()
    watch: CounterWatch[str] = CounterWatch(10, clock)
    assert watch.unmoved([("a", 5), ("b", 1)]) == []
    clock.now = 5.0
    assert watch.unmoved([("a", 5), ("b", 2)]) == []
    clock.now = 9.9
    assert watch.unmoved([("a", 5), ("b", 2)]) == []
    clock.now = 10.0
    assert watch.unmoved([("a", 5), ("b", 2)]) == [("a", 5)]


def test_a_new_watch_declares_nothing_dead() -> None:
    clock = Clock()
    clock.now = 1e9
    assert CounterWatch[str](10, clock).unmoved([("a", 5)]) == []


def test_a_counter_that_goes_back_counts_as_moved() -> None:
    """A restored database has a lower counter, which its process has raised since."""
    clock = Clock()
    watch: CounterWatch[str] = CounterWatch(10, clock)
    watch.unmoved([("a", 5)])
    clock.now = 20
    assert watch.unmoved([("a", 4)]) == []


def test_time_without_looks_does_not_count() -> None:
    """When the driver log was unavailable for a minute, no process could raise its counter: each gets time to do so."""
    clock = Clock()
    watch: CounterWatch[str] = CounterWatch(10, clock)
    watch.unmoved([("a", 5)])
    clock.now = 4.0
    assert watch.unmoved([("a", 5)]) == []
    clock.now = 64.0
    assert watch.unmoved([("a", 5)]) == []
    clock.now = 65.0
    assert watch.unmoved([("a", 5)]) == [("a", 5)]
