"""Compute how long to wait before a retry: doubled each time, bounded, with jitter."""

from __future__ import annotations

import random

from receiver_runtime.watching.progress import LONGEST_PAUSE_SECONDS

_STORE_FIRST_DELAY = 0.1  # seconds


class Backoff:
    """Hold a series of delays. One thread at a time.

    Args:
        first: the first delay, in seconds.
        longest: no delay is longer, in seconds.
        jitter: each delay is shortened by a random share, at most this, so that many callers do not retry at once.
        source: of randomness, in [0, 1).
    """

    def __init__(
        self, first: float, longest: float, *, jitter: float = 0.1, source: random.Random | None = None
    ) -> None:
        if not 0 <= first <= longest:
            raise ValueError(f"a first delay of {first} s and a longest of {longest} s: order them")
        self._first = first
        self._longest = longest
        self._jitter = jitter
        self._random = source or random.Random()  # noqa: S311  spreads load, keeps no secret
        self._failures = 0

    @property
    def failures(self) -> int:
        """Return how many delays were taken since the last ``reset``."""
        return self._failures

    def next_delay(self) -> float:
        """Count one more failure; return how long to wait now, in seconds."""
        # The exponent is bounded too: 2.0 ** 1100 overflows.
        delay = min(self._first * 2.0 ** min(self._failures, 60), self._longest)
        self._failures += 1
        return delay * (1.0 - self._jitter * self._random.random())

    def reset(self) -> None:
        """Start again from the first delay, after a success."""
        self._failures = 0


def store_backoff() -> Backoff:
    """Return the delays between attempts to store something: however long the disk was full, the last one is short.

    So everything is acknowledged within a minute after the disk has room again.
    """
    return Backoff(_STORE_FIRST_DELAY, LONGEST_PAUSE_SECONDS)
