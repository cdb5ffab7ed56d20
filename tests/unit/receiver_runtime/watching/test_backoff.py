from __future__ import annotations

import random

import pytest

from receiver_runtime.watching.backoff import Backoff


def test_delays_double_up_to_the_longest_and_start_over_after_a_reset() -> None:
    backoff = Backoff(1, 5, jitter=0)
    assert [backoff.next_delay() for _ in range(5)] == [1, 2, 4, 5, 5]
    assert backoff.failures == 5
    backoff.reset()
    assert backoff.next_delay() == 1


def test_jitter_only_shortens_delays() -> None:
    backoff = Backoff(1, 1, jitter=0.5, source=random.Random(1))
    delays = [backoff.next_delay() for _ in range(100)]
    assert 0.5 <= min(delays) < 0.6
    assert 0.9 < max(delays) <= 1


def test_many_failures_do_not_overflow() -> None:
    backoff = Backoff(1, 9, jitter=0)
    for _ in range(3000):
        assert backoff.next_delay() <= 9


def test_the_delays_must_be_ordered() -> None:
    with pytest.raises(ValueError, match="order them"):
        Backoff(2, 1)
