"""Limit rates by token buckets that take the permits of many records, and of their bytes, at once (C01, C02).

Two limits, records per second and bytes per second, apply together: a caller waits until both have enough permits, and
takes both in one step.

Permits arrive at the rate and accumulate for at most a tenth of a second. So in any span of ``t`` seconds at most
``rate * (t + 0.1) + 1`` records pass, if callers ask for at most ``piece`` at once. A caller that asks for more than
the bucket holds waits until all of its permits have arrived, and then takes them. Permits are always paid in advance,
so a new rate takes effect at once (the original's took effect on the next call but one).

Callers that ask for single records acquire permits in lots of 1 ms, if only records are limited: the next callers take
theirs from the lot, which costs a tenth of a visit to the buckets. A new rate takes back the rest of a lot.
"""

from __future__ import annotations

import math
import threading

from receiver_runtime.watching.clock import Clock

_BURST_SECONDS = 0.1
_LOT_SECONDS = 0.001


class _Bucket:
    """Hold permits of one kind; under the limiter's lock."""

    __slots__ = ("rate", "tokens")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.tokens = self.capacity

    @property
    def capacity(self) -> float:
        return 0.0 if self.rate == math.inf else max(1.0, self.rate * _BURST_SECONDS)

    @property
    def piece(self) -> float:
        return math.inf if self.rate == math.inf else max(1.0, math.floor(self.rate * _BURST_SECONDS))

    def refill(self, elapsed: float, wanted: int, given: int = 0) -> None:
        # While a caller collects permits, they may accumulate up to what it needs, not beyond. Permits given in a lot
        # may have been used just now, so they count against the capacity.
        if self.rate != math.inf:
            self.tokens = min(self.tokens + elapsed * self.rate, max(self.capacity - given, float(wanted)))

    def seconds_until(self, wanted: int) -> float:
        return 0.0 if self.rate == math.inf else (wanted - self.tokens) / self.rate

    def take(self, wanted: int) -> None:
        if self.rate != math.inf:
            self.tokens -= wanted

    def set_rate(self, rate: float) -> None:
        self.rate = rate
        self.tokens = min(self.tokens, self.capacity)


class RateLimiter:
    """Limit records and bytes per second. Any number of threads; each waits its turn.

    Args:
        rate: records per second at first; None while no rate is set, 0 means unlimited.
        initial_rate: applies while ``rate`` is None; None or 0 means unlimited.
        max_rate: no rate above this is ever used; None or 0 means no ceiling.
        max_bytes_rate: bytes per second; None or 0 means unlimited.
    """

    def __init__(
        self,
        rate: float | None = None,
        *,
        initial_rate: float | None = None,
        max_rate: float | None = None,
        max_bytes_rate: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or Clock()
        self._initial = _limit(initial_rate)
        self._ceiling = _limit(max_rate)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # One caller at a time collects permits; the others queue up on this lock.
        self._turn = threading.Lock()
        self._records = _Bucket(self._in_force(rate))
        self._bytes = _Bucket(_limit(max_bytes_rate))
        # Single permits that are paid for: how many there were when the buckets were last filled, and how many are
        # left.
        self._lot_given = 0
        self._lot = 0
        self._at = self._clock.monotonic()
        self._closed = False
        self._unlimited = self._has_no_limit()

    @property
    def rate(self) -> float | None:
        """Return the records per second now in force; None is unlimited."""
        with self._changed:
            return None if self._records.rate == math.inf or self._closed else self._records.rate

    def piece(self, records: int, nbytes: int) -> int:
        """Return how many of ``records``, of ``nbytes`` together, to hand on at once for an even flow; at least 1."""
        with self._changed:
            if self._closed:
                return records
            share = 1.0 if nbytes <= self._bytes.piece else self._bytes.piece / nbytes
            return max(1, int(min(records * share, self._records.piece)))

    def update_rate(self, rate: float | None) -> None:
        """Set a new rate, in records per second; callers that wait now continue at it.

        0 means unlimited, None the initial rate; neither exceeds the ceiling.
        """
        wanted = self._in_force(rate)
        with self._changed:
            if wanted == self._records.rate:
                return
            self._refill(0, 0)
            self._records.tokens += self._lot
            self._lot = self._lot_given = 0
            self._records.set_rate(wanted)
            self._unlimited = self._has_no_limit()
            self._changed.notify_all()

    def acquire(self, permits: int = 1, nbytes: int = 0) -> None:
        """Return when ``permits`` records, of ``nbytes`` together, may pass.

        Returns at once when there is no limit, or after ``close``.
        """
        if permits < 0 or nbytes < 0:
            raise ValueError(f"{permits} permits for {nbytes} bytes: ask for 0 or more")
        # Read without the lock: a caller that arrives while a limit is set might as well have arrived before it.
        if self._unlimited or (permits == 0 and nbytes == 0):
            return
        if permits == 1 and self._lot:
            with self._lock:
                if self._lot:
                    self._lot -= 1
                    return
        with self._turn, self._lock:
            self._refill(0, 0)
            while not self._closed and (wait := self._seconds_until(permits, nbytes)) > 0:
                self._clock.wait_on(self._changed, wait)
                self._refill(permits, nbytes)
            if not self._closed:
                self._records.take(permits)
                self._bytes.take(nbytes)
                if permits == 1:
                    self._make_lot()

    def _make_lot(self) -> None:
        """Pay for the next single permits too, as far as there are any, after one was taken. The lock is held."""
        if self._bytes.rate == math.inf and not self._lot:
            most = int(self._records.rate * _LOT_SECONDS) if self._records.rate != math.inf else 0
            self._lot = self._lot_given = max(0, min(most, int(self._records.tokens)))
            self._records.take(self._lot)

    def acquire_if_free(self, permits: int, nbytes: int) -> bool:
        """Do as ``acquire`` if that need not wait; else take nothing. Return whether the permits were taken."""
        if self._unlimited:
            return True
        if not self._turn.acquire(blocking=False):
            return False
        try:
            with self._changed:
                if self._closed:
                    return True
                self._refill(0, 0)
                if self._seconds_until(permits, nbytes) > 0:
                    return False
                self._records.take(permits)
                self._bytes.take(nbytes)
                return True
        finally:
            self._turn.release()

    def close(self) -> None:
        """Let everything pass: at a stop, what was already read is stored without delay."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def reopen(self) -> None:
        """Limit again, from empty buckets."""
        with self._changed:
            if self._closed:
                self._closed = False
                self._records.tokens = self._bytes.tokens = 0.0
                self._lot = self._lot_given = 0
                self._at = self._clock.monotonic()

    def _in_force(self, rate: float | None) -> float:
        return min(self._initial if rate is None else _limit(rate), self._ceiling)

    def _has_no_limit(self) -> bool:
        return self._records.rate == self._bytes.rate == math.inf

    def _seconds_until(self, permits: int, nbytes: int) -> float:
        return max(self._records.seconds_until(permits), self._bytes.seconds_until(nbytes))

    def _refill(self, permits: int, nbytes: int) -> None:
        now = self._clock.monotonic()
        elapsed, self._at = now - self._at, now
        self._records.refill(elapsed, permits, self._lot_given)
        # Permits of the lot that are used have been counted; those that are left may still be used.
        self._lot_given = self._lot
        self._bytes.refill(elapsed, nbytes)


def _limit(rate: float | None) -> float:
    if rate is None:
        return math.inf
    if math.isnan(rate) or rate < 0:
        raise ValueError(f"a rate of {rate} per second: give a positive number, or 0 for no limit")
    return rate or math.inf
