"""A token bucket that takes the permits of many records at once (C01, C02).

Permits come in at the rate and collect for a tenth of a second at most, so that in any span of ``t`` seconds no more
than ``rate * (t + 0.1) + 1`` records pass. A taker of more than the bucket holds waits until all of its permits have
come in, and then takes them: what is paid is paid before, never after, so that a new rate counts at once.
"""

from __future__ import annotations

import math
import threading

from receiver_runtime.clock import Clock, SystemClock

_BURST_SECONDS = 0.1


class RateLimiter:
    """Limits records per second. Any number of threads; each waits its turn.

    Args:
        rate: records per second to begin with; None or 0 means unlimited.
        max_rate: no rate above this is ever used; None or 0 means no ceiling.
    """

    def __init__(self, rate: float | None = None, *, max_rate: float | None = None, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._ceiling = _limit(max_rate)
        self._changed = threading.Condition()
        # One taker at a time collects permits; the others queue up on this lock.
        self._turn = threading.Lock()
        self._rate = min(_limit(rate), self._ceiling)
        self._tokens = self._capacity()
        self._at = self._clock.monotonic()
        self._closed = False

    @property
    def rate(self) -> float | None:
        """Records per second now in force; None is unlimited."""
        with self._changed:
            return None if self._rate == math.inf or self._closed else self._rate

    @property
    def largest_piece(self) -> int | None:
        """How many records to hand on at once so that they flow evenly; None where there is no limit."""
        rate = self.rate
        return None if rate is None else max(1, int(rate * _BURST_SECONDS))

    def update_rate(self, rate: float | None) -> None:
        """Set a new rate, in records per second; whoever waits now goes on by it. None or 0 means unlimited."""
        wanted = min(_limit(rate), self._ceiling)
        with self._changed:
            if wanted == self._rate:
                return
            self._refill()
            self._rate = wanted
            self._tokens = min(self._tokens, self._capacity())
            self._changed.notify_all()

    def acquire(self, permits: int = 1) -> None:
        """Return when ``permits`` records may pass. Returns at once when there is no limit, or after ``close``."""
        if permits < 0:
            raise ValueError(f"{permits} permits: ask for 0 or more")
        if permits == 0:
            return
        with self._turn, self._changed:
            self._refill()
            # While someone collects, permits may pile up to what he needs, not beyond.
            while not self._closed and self._rate != math.inf and self._tokens < permits:
                missing = (permits - self._tokens) / self._rate
                self._clock.wait_on(self._changed, missing)
                self._refill(permits)
            if not self._closed and self._rate != math.inf:
                self._tokens -= permits

    def close(self) -> None:
        """Let everything pass: at a stop, what was already read is stored without delay."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def reopen(self) -> None:
        """Limit again, from an empty bucket."""
        with self._changed:
            if self._closed:
                self._closed = False
                self._tokens = 0.0
                self._at = self._clock.monotonic()

    def _capacity(self) -> float:
        return 0.0 if self._rate == math.inf else max(1.0, self._rate * _BURST_SECONDS)

    def _refill(self, at_least: int = 0) -> None:
        now = self._clock.monotonic()
        elapsed, self._at = now - self._at, now
        if self._rate != math.inf:
            self._tokens = min(self._tokens + elapsed * self._rate, max(self._capacity(), float(at_least)))


def _limit(rate: float | None) -> float:
    if rate is None:
        return math.inf
    if math.isnan(rate) or rate < 0:
        raise ValueError(f"a rate of {rate} records per second: give a positive number, or 0 for no limit")
    return rate or math.inf
