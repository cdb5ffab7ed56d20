"""Liveness: pure decisions."""

from __future__ import annotations

from orchestration.tracker.liveness import CounterWatch


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
