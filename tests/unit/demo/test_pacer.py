"""Check the replay's pace, on a clock that the test moves."""

from __future__ import annotations

import pytest

from forebay.demo.replay_server import Pacer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lines_fall_due_at_the_rate() -> None:
    clock = Clock()
    pacer = Pacer(1000, clock=clock)
    total = 0
    for _ in range(100):
        clock.now += 0.05
        due = pacer.due(10_000)
        pacer.sent(due)
        total += due
    assert total == pytest.approx(5000, abs=1)


def test_a_stall_is_not_made_up_in_one_burst() -> None:
    clock = Clock()
    pacer = Pacer(1000, clock=clock, burst_seconds=0.5)
    clock.now += 60
    assert pacer.due(10_000) == 500


def test_a_new_reader_starts_with_nothing_owed() -> None:
    clock = Clock()
    pacer = Pacer(1000, clock=clock)
    clock.now += 10
    pacer.restart()
    assert pacer.due(10_000) == 0


def test_rate_zero_is_no_limit() -> None:
    pacer = Pacer(0, clock=Clock())
    assert pacer.due(123) == 123
    assert pacer.pause() == 0.0


def test_a_slow_rate_still_sends_single_lines() -> None:
    clock = Clock()
    pacer = Pacer(0.5, clock=clock)
    clock.now += 1.9
    assert pacer.due(10) == 0
    clock.now += 0.2
    assert pacer.due(10) == 1


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="0 \\(no limit\\) or more"):
        Pacer(-1)
