"""Test when a part of the tracker looks: at changes, while one may not be visible yet, and now and then."""

from __future__ import annotations

from orchestration.tracker.change_watch import FOLLOW_SECONDS, FULL_SCAN_SECONDS, ChangeWatch
from tracker_store.receivers.changes import Changes


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def looks(watch: ChangeWatch, counter: int, *, oldest_open: int = 50, first_unstarted: int = 50) -> bool:
    changes = Changes(counter, 0, oldest_open, first_unstarted)
    due = watch.is_due(counter, changes)
    if due:
        watch.scanned()
    return due


def settled(clock: Clock) -> ChangeWatch:
    """Return a watch that has seen counter 1, and that no transaction was open then."""
    watch = ChangeWatch(clock)
    assert looks(watch, 1)
    assert looks(watch, 1)
    assert not looks(watch, 1)
    return watch


def test_without_a_change_only_a_full_look_is_due() -> None:
    clock = Clock()
    watch = settled(clock)
    clock.now += FULL_SCAN_SECONDS - 1
    assert not looks(watch, 1)
    clock.now += 1
    assert looks(watch, 1)
    assert not looks(watch, 1)


def test_a_change_is_looked_at_until_every_transaction_that_was_open_has_ended() -> None:
    watch = settled(Clock())
    # The transaction that moved the counter is 60, and is not committed; 64 is another one.
    assert looks(watch, 2, oldest_open=60, first_unstarted=65)
    assert looks(watch, 2, oldest_open=60, first_unstarted=66)
    assert looks(watch, 2, oldest_open=64, first_unstarted=66)
    assert looks(watch, 2, oldest_open=65, first_unstarted=66), "it may have been committed since the last look"
    assert not looks(watch, 2, oldest_open=66, first_unstarted=66)


def test_a_transaction_that_stays_open_is_not_followed_for_ever_but_its_end_is_seen() -> None:
    clock = Clock()
    watch = settled(clock)
    assert looks(watch, 2, oldest_open=60, first_unstarted=65)
    clock.now += FOLLOW_SECONDS
    assert not looks(watch, 2, oldest_open=60, first_unstarted=70)
    assert looks(watch, 2, oldest_open=65, first_unstarted=70)
    assert not looks(watch, 2, oldest_open=70, first_unstarted=70)


def test_a_look_that_was_not_finished_is_made_again() -> None:
    watch = settled(Clock())
    changes = Changes(2, 0, 50, 50)
    assert watch.is_due(2, changes)
    assert looks(watch, 2)


def test_a_counter_that_goes_back_after_a_failover_is_a_change() -> None:
    assert looks(settled(Clock()), 0)


def test_a_part_can_ask_for_an_earlier_look() -> None:
    clock = Clock()
    watch = settled(clock)
    watch.scanned(2.0)
    clock.now += 1
    assert not looks(watch, 1)
    clock.now += 1
    assert looks(watch, 1)
