from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver_runtime.rate_limiter import RateLimiter
from tests.unit.receiver_runtime.support import ManualClock, advance_until, eventually


class SelfWinding:
    """A clock that moves on by itself whenever somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait_on(self, condition: threading.Condition, seconds: float | None) -> None:
        assert seconds is not None
        # Never less than a clock can show, so that rounding can't stand still.
        self.now += max(seconds, 1e-6)


def acquire(limiter: RateLimiter, permits: int, passed: threading.Event) -> None:
    limiter.acquire(permits)
    passed.set()


@given(
    rate=st.floats(0.5, 1e6),
    steps=st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 2)), min_size=1, max_size=40),
)
def test_no_span_lets_more_through_than_rate_and_burst(rate: float, steps: list[tuple[int, float]]) -> None:
    clock = SelfWinding()
    limiter = RateLimiter(rate, clock=clock)
    passed: list[tuple[float, int]] = []
    for permits, pause in steps:
        limiter.acquire(permits)
        passed.append((clock.now, permits))
        clock.now += pause
    burst = max(1.0, rate * 0.1)
    for first in range(len(passed)):
        total = 0
        for at, permits in passed[first:]:
            total += permits
            # The first of a span may have been paid for before it.
            span = at - passed[first][0]
            assert total - passed[first][1] <= rate * span + burst + 1e-6 * rate + 1e-6


@given(rate=st.floats(100, 1e6), share=st.floats(0.005, 0.1))
@settings(max_examples=50, deadline=None)
def test_the_mean_rate_over_ten_seconds_is_the_rate_set(rate: float, share: float) -> None:
    permits = max(1, int(rate * share))
    clock = SelfWinding()
    limiter = RateLimiter(rate, clock=clock)
    total = 0
    while clock.now < 10:
        limiter.acquire(permits)
        total += permits
    assert total == pytest.approx(rate * clock.now, rel=0.03)


@pytest.mark.parametrize("rate", [None, 0, 0.0])
def test_c02_none_and_0_are_unlimited(rate: float | None) -> None:
    clock = SelfWinding()
    limiter = RateLimiter(rate, clock=clock)
    limiter.acquire(10**9)
    assert clock.now == 0
    assert (limiter.rate, limiter.largest_piece) == (None, None)


@pytest.mark.parametrize("rate", [-1, math.nan])
def test_c02_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="give a positive number"):
        RateLimiter(rate)
    with pytest.raises(ValueError, match="give a positive number"):
        RateLimiter().update_rate(rate)


def test_c01_no_rate_goes_above_the_ceiling() -> None:
    limiter = RateLimiter(500, max_rate=100)
    assert limiter.rate == 100
    limiter.update_rate(50)
    assert limiter.rate == 50
    limiter.update_rate(None)
    assert limiter.rate == 100


def test_c01_a_new_rate_takes_effect_at_once_for_who_waits() -> None:
    clock = ManualClock()
    limiter = RateLimiter(0.001, clock=clock)
    limiter.acquire(1)
    passed = threading.Event()
    thread = threading.Thread(target=acquire, args=(limiter, 100, passed))
    thread.start()
    clock.advance(1)
    assert not passed.is_set()
    limiter.update_rate(1000)
    assert not passed.is_set()
    clock.advance(0.11)
    eventually(passed.is_set)
    thread.join()


def test_going_unlimited_frees_who_waits() -> None:
    limiter = RateLimiter(0.001, clock=ManualClock())
    limiter.acquire(1)
    thread = threading.Thread(target=limiter.acquire, args=(5,))
    thread.start()
    limiter.update_rate(0)
    thread.join(20)
    assert not thread.is_alive()


def test_close_lets_everything_through_and_reopen_limits_again() -> None:
    clock = ManualClock()
    limiter = RateLimiter(1, clock=clock)
    limiter.acquire(1)
    waiting = threading.Thread(target=limiter.acquire, args=(10**6,))
    waiting.start()
    limiter.close()
    waiting.join(20)
    assert not waiting.is_alive()
    limiter.acquire(10**9)
    limiter.reopen()
    assert limiter.rate == 1
    blocked = threading.Event()
    thread = threading.Thread(target=acquire, args=(limiter, 1, blocked))
    thread.start()
    assert not blocked.wait(0.05)
    clock.advance(1.01)
    eventually(blocked.is_set)
    thread.join()


def test_two_takers_share_the_rate() -> None:
    clock = ManualClock()
    limiter = RateLimiter(10, clock=clock)
    taken = [0, 0]

    def take(which: int) -> None:
        for _ in range(50):
            limiter.acquire(1)
            taken[which] += 1

    threads = [threading.Thread(target=take, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    passed = advance_until(clock, lambda: sum(taken) >= 45)
    assert min(taken) > 0
    assert sum(taken) <= 10 * passed + 2
    limiter.close()
    for thread in threads:
        thread.join()


def test_a_piece_is_a_tenth_of_a_second() -> None:
    assert RateLimiter(10_000).largest_piece == 1000
    assert RateLimiter(3).largest_piece == 1
