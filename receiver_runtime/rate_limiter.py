"""Token buckets that take the permits of many records, and of their bytes, at once (C01, C02).

Two limits, records per second and bytes per second, hold together: who takes waits until both have what is asked for,
and takes both in one step.

Permits come in at the rate and collect for a tenth of a second at most. So in any span of ``t`` seconds no more than
``rate * (t + 0.1) + 1`` records pass, of takers that ask for at most ``piece`` at once. A taker of more than the bucket
holds waits until all of its permits have come in, and then takes them: what is paid is paid before, never after, so
that a new rate counts at once (the original's counted from the next but one).

Who takes one record at a time pays for a millisecond's worth of them at once, where only records are limited: the next
ones find theirs in that lot, which costs a tenth of a visit to the buckets. A new rate takes the rest of a lot back.
"""

from __future__ import annotations

import math
import threading

from receiver_runtime.clock import Clock, SystemClock

_BURST_SECONDS = 0.1
_LOT_SECONDS = 0.001


class _Bucket:
    """Permits of one kind; under the limiter's lock."""

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
        # While someone collects, permits may pile up to what he needs, not beyond. What was given in a lot may have
        # passed just now, so that it counts as if it were here.
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
    """Limits records and bytes per second. Any number of threads; each waits its turn.

    Args:
        rate: records per second to begin with; None while nobody has said anything, 0 means unlimited.
        initial_rate: what counts while ``rate`` is None; None or 0 means unlimited.
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
        self._clock = clock or SystemClock()
        self._initial = _limit(initial_rate)
        self._ceiling = _limit(max_rate)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # One taker at a time collects permits; the others queue up on this lock.
        self._turn = threading.Lock()
        self._records = _Bucket(self._in_force(rate))
        self._bytes = _Bucket(_limit(max_bytes_rate))
        # Single permits that are paid for: as many as there were when the buckets were last filled, and what is left.
        self._lot_given = 0
        self._lot = 0
        self._at = self._clock.monotonic()
        self._closed = False
        self._unlimited = self._has_no_limit()

    @property
    def rate(self) -> float | None:
        """Records per second now in force; None is unlimited."""
        with self._changed:
            return None if self._records.rate == math.inf or self._closed else self._records.rate

    def piece(self, records: int, nbytes: int) -> int:
        """How many of ``records``, of ``nbytes`` together, to hand on at once so that they flow evenly; at least 1."""
        with self._changed:
            if self._closed:
                return records
            share = 1.0 if nbytes <= self._bytes.piece else self._bytes.piece / nbytes
            return max(1, int(min(records * share, self._records.piece)))

    def update_rate(self, rate: float | None) -> None:
        """Set a new rate, in records per second; whoever waits now goes on by it.

        0 means unlimited, None the initial rate; either stays below the ceiling.
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
        # The first is read without the lock: who comes as a limit is set may have come just before.
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
        """With the lock held, after a single permit: pay for the next ones too, where they are there."""
        if self._bytes.rate == math.inf and not self._lot:
            most = int(self._records.rate * _LOT_SECONDS) if self._records.rate != math.inf else 0
            self._lot = self._lot_given = max(0, min(most, int(self._records.tokens)))
            self._records.take(self._lot)

    def acquire_if_free(self, permits: int, nbytes: int) -> bool:
        """As ``acquire``, if that is done without a wait; else take nothing. Says whether it was done."""
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
        # What is gone of it is counted; what is left still may pass.
        self._lot_given = self._lot
        self._bytes.refill(elapsed, nbytes)


def _limit(rate: float | None) -> float:
    if rate is None:
        return math.inf
    if math.isnan(rate) or rate < 0:
        raise ValueError(f"a rate of {rate} per second: give a positive number, or 0 for no limit")
    return rate or math.inf
