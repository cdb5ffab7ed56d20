from __future__ import annotations

import itertools
import math
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver_runtime.block_path.load.rate_limiter import RateLimiter
from receiver_runtime.watching.clock import Clock
from tests.support.polling import joined
from tests.unit.receiver_runtime.support import ManualClock, advance_until, eventually


class SelfWinding(Clock):
    """A clock that moves by the waiting time whenever a thread waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait_on(self, condition: threading.Condition, seconds: float | None) -> None:
        assert seconds is not None
        # Move at least a microsecond: a smaller step would be lost in rounding, and the clock would stand still.
        self.now += max(seconds, 1e-6)


def acquire(limiter: RateLimiter, permits: int, passed: threading.Event) -> None:
    limiter.acquire(permits)
    passed.set()


def total_within(passed: list[tuple[float, int]], first: int, last: int) -> int:
    return sum(permits for _, permits in passed[first : last + 1])


@given(
    rate=st.floats(0.5, 1e6),
    steps=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 2)), min_size=1, max_size=40),
)
def test_any_window_lets_through_at_most_the_rate_and_a_tenth_of_a_second(
    rate: float, steps: list[tuple[float, float]]
) -> None:
    clock = SelfWinding()
    limiter = RateLimiter(rate, clock=clock)
    passed: list[tuple[float, int]] = []
    for share, pause in steps:
        permits = max(1, int(limiter.piece(10**9, 0) * share))
        limiter.acquire(permits)
        passed.append((clock.now, permits))
        clock.now += pause
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            seconds = passed[last][0] - passed[first][0]
            assert total_within(passed, first, last) <= rate * (seconds + 0.1) + 1 + 1e-6 * rate


@given(
    rate=st.floats(0.5, 1e6),
    steps=st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 2)), min_size=1, max_size=40),
)
def test_permits_beyond_the_bucket_were_waited_for_before(rate: float, steps: list[tuple[int, float]]) -> None:
    clock = SelfWinding()
    limiter = RateLimiter(rate, clock=clock)
    passed: list[tuple[float, int]] = []
    for permits, pause in steps:
        limiter.acquire(permits)
        passed.append((clock.now, permits))
        clock.now += pause
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            # The first permits of a window were paid for before it.
            seconds = passed[last][0] - passed[first][0]
            later = total_within(passed, first, last) - passed[first][1]
            assert later <= rate * (seconds + 0.1) + 1 + 1e-6 * rate


@given(
    rate=st.floats(10, 1e6),
    bytes_rate=st.floats(1000, 1e9),
    steps=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 3000), st.floats(0, 0.5)), min_size=1, max_size=40),
)
def test_both_limits_hold_together(rate: float, bytes_rate: float, steps: list[tuple[int, int, float]]) -> None:
    clock = SelfWinding()
    limiter = RateLimiter(rate, max_bytes_rate=bytes_rate, clock=clock)
    start = clock.now
    records = nbytes = 0
    for permits, size, pause in steps:
        limiter.acquire(permits, permits * size)
        records += permits
        nbytes += permits * size
        seconds = clock.now - start
        assert records <= rate * (seconds + 0.1) + 1 + 1e-6 * rate
        assert nbytes <= bytes_rate * (seconds + 0.1) + 1 + 1e-6 * bytes_rate
        clock.now += pause


def test_the_lower_of_the_two_limits_decides() -> None:
    clock = SelfWinding()
    limiter = RateLimiter(1000, max_bytes_rate=10_000, clock=clock)
    for _ in range(1000):
        limiter.acquire(1, 100)
    assert clock.now == pytest.approx(10, rel=0.03)
    before = clock.now
    for _ in range(10_000):
        limiter.acquire(1, 1)
    assert clock.now - before == pytest.approx(10, rel=0.03)


RATES = [100, 1000, 10_000, 100_000, 1_000_000]


def mean_rate(rate: float, permits: int, seconds: float) -> float:
    """Return the mean rate over `seconds`, starting with a full bucket."""
    clock = SelfWinding()
    limiter = RateLimiter(rate, clock=clock)
    total = 0
    while clock.now < seconds:
        limiter.acquire(permits)
        total += permits
    return total / clock.now


@pytest.mark.parametrize("rate", RATES)
def test_c01_within_3_percent_of_the_rate_one_by_one(rate: float) -> None:
    # A full bucket at the start holds a tenth of a second's permits: the shorter the time, the more that counts.
    seconds = min(10.0, 200_000 / rate)
    assert mean_rate(rate, 1, seconds) * seconds - rate * 0.1 == pytest.approx(rate * seconds, rel=0.005, abs=2)
    assert seconds < 10 or mean_rate(rate, 1, seconds) == pytest.approx(rate, rel=0.03)


@given(rate=st.floats(100, 1e6), share=st.floats(0.005, 0.25))
@settings(max_examples=50, deadline=None)
def test_c01_within_3_percent_of_any_rate_over_ten_seconds(rate: float, share: float) -> None:
    assert mean_rate(rate, max(1, int(rate * share)), 10) == pytest.approx(rate, rel=0.03)


@given(
    rates=st.lists(st.tuples(st.floats(100, 1e6), st.floats(0.5, 3)), min_size=2, max_size=10),
    share=st.floats(0.005, 0.1),
)
@settings(max_examples=50, deadline=None)
def test_c01_within_3_percent_of_rates_that_change(rates: list[tuple[float, float]], share: float) -> None:
    clock = SelfWinding()
    limiter = RateLimiter(rates[0][0], clock=clock)
    limiter.acquire(limiter.piece(10**9, 0))
    for rate, seconds in rates:
        limiter.update_rate(rate)
        began, total, tokens = clock.now, 0, max(1.0, 0.1 * rate)
        permits = max(1, int(rate * share))
        while clock.now - began < seconds:
            limiter.acquire(permits)
            total += permits
        expected = rate * (clock.now - began)
        # The permits collected under the last rate are at most a tenth of a second's at this one.
        assert expected * 0.97 - permits <= total <= expected * 1.03 + tokens


@pytest.mark.parametrize("rate", [1001, 2000, 1_000_000])
def test_w17_rates_above_1000_work(rate: float) -> None:
    assert mean_rate(rate, 1, 0.2) > rate


def test_c01_no_rate_means_the_initial_rate_and_0_means_only_the_ceiling() -> None:
    limiter = RateLimiter(initial_rate=50, max_rate=100)
    assert limiter.rate == 50
    limiter.update_rate(0)
    assert limiter.rate == 100
    limiter.update_rate(None)
    assert limiter.rate == 50
    assert RateLimiter(initial_rate=500, max_rate=100).rate == 100
    assert RateLimiter(initial_rate=0).rate is None


def test_the_limit_in_bytes_is_lifted_by_close_and_applies_again_after_reopen() -> None:
    clock = SelfWinding()
    limiter = RateLimiter(max_bytes_rate=100, clock=clock)
    limiter.close()
    limiter.acquire(1, 10**6)
    assert (clock.now, limiter.piece(7, 10**6)) == (0, 7)
    limiter.reopen()
    limiter.acquire(1, 100)
    assert clock.now == pytest.approx(1, rel=0.01)
    with pytest.raises(ValueError, match="ask for 0 or more"):
        limiter.acquire(1, -1)


@pytest.mark.parametrize("rate", [None, 0, 0.0])
def test_c02_none_and_0_are_unlimited(rate: float | None) -> None:
    clock = SelfWinding()
    limiter = RateLimiter(rate, clock=clock)
    limiter.acquire(10**9, 10**12)
    assert clock.now == 0
    assert (limiter.rate, limiter.piece(10**9, 10**12)) == (None, 10**9)


@pytest.mark.parametrize("rate", [-1, math.nan])
def test_c02_an_invalid_rate_is_refused(rate: float) -> None:
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
    joined(thread)


def test_removing_the_limit_frees_waiting_callers() -> None:
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
    joined(thread)


def test_two_takers_share_the_rate() -> None:
    clock = ManualClock()
    limiter = RateLimiter(10, clock=clock)
    taken = [0, 0]
    enough = threading.Event()

    def take(which: int) -> None:
        while not enough.is_set():
            limiter.acquire(1)
            taken[which] += 1

    threads = [threading.Thread(target=take, args=(which,), daemon=True) for which in (0, 1)]
    for thread in threads:
        thread.start()
    # A busy machine may let one of them begin late.
    passed = advance_until(clock, lambda: sum(taken) >= 45 and min(taken) >= 5)
    assert sum(taken) <= 10 * passed + 2
    enough.set()
    limiter.close()
    for thread in threads:
        joined(thread)


def test_a_piece_is_a_tenth_of_a_second_of_either_limit() -> None:
    assert RateLimiter(10_000).piece(10**6, 10**8) == 1000
    assert RateLimiter(3).piece(10, 1000) == 1
    assert RateLimiter(10_000).piece(10, 1000) == 10
    assert RateLimiter(max_bytes_rate=1000).piece(10, 200) == 5
    assert RateLimiter(20, max_bytes_rate=1000).piece(10, 200) == 2
    assert RateLimiter(20, max_bytes_rate=1).piece(10, 200) == 1


class WouldWaitError(Exception):
    """Raised when a limiter would make its caller wait."""


class ImpatientClock(ManualClock):
    def wait_on(self, condition: threading.Condition, seconds: float | None) -> None:
        raise WouldWaitError


def _pass_at_once(limiter: RateLimiter) -> int:
    for passed in itertools.count():
        try:
            limiter.acquire()
        except WouldWaitError:
            return passed
    raise AssertionError("unreachable")


@pytest.mark.parametrize("before", [1, 5, 11, 500])
def test_c01_single_permits_that_are_paid_for_together_pass_no_more_than_a_full_bucket(before: int) -> None:
    clock = ImpatientClock()
    limiter = RateLimiter(10_000, clock=clock)
    for _ in range(before):
        limiter.acquire()
    clock.advance(60)
    # What is left of the last batch of permits is part of the bucket, not added to it.
    assert 980 <= _pass_at_once(limiter) <= 1_000
    clock.advance(0.05)
    assert 499 <= _pass_at_once(limiter) <= 500
    clock.advance(60)
    limiter.acquire(1_000)
    assert _pass_at_once(limiter) == 0


def test_c01_a_new_rate_takes_back_what_was_paid_for_and_not_used() -> None:
    clock = ImpatientClock()
    limiter = RateLimiter(100_000, clock=clock)
    limiter.acquire()
    limiter.update_rate(10)
    assert _pass_at_once(limiter) == 1


def test_c01_unused_permits_are_gone_when_a_closed_limiter_opens_again() -> None:
    clock = ImpatientClock()
    limiter = RateLimiter(100_000, clock=clock)
    limiter.acquire()
    limiter.close()
    limiter.reopen()
    assert _pass_at_once(limiter) == 0
