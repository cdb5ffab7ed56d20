"""How long a failed batch waits for its next attempt: one place for all who may record the failure."""

from __future__ import annotations

from datetime import timedelta

FIRST = timedelta(seconds=2)
LONGEST = timedelta(minutes=5)


def retry_delay(attempt: int) -> timedelta:
    """The backoff after attempt number `attempt` (from 1) failed: doubling, bounded."""
    # The exponent is bounded too: a timedelta overflows long before an attempt's number does.
    return min(FIRST * (1 << min(attempt - 1, 16)), LONGEST)
