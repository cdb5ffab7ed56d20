"""Decide how long to wait before a request is sent again. Pure: it never waits."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

_FIRST_SECONDS = 0.1
_MOST_SECONDS = 30.0
_MOST_DOUBLINGS = 16


@dataclass(slots=True)
class Backoff:
    """Count failures in a row; each doubles the wait, up to 30 s, with jitter, so that senders do not come together."""

    failures: int = 0
    source: random.Random = field(default_factory=random.Random)

    def next_seconds(self, retry_after: float | None = None) -> float:
        """Return the next wait in seconds, at least what the receiver asked for."""
        longest = min(_MOST_SECONDS, _FIRST_SECONDS * 2 ** min(self.failures, _MOST_DOUBLINGS))
        self.failures += 1
        return (retry_after or 0.0) + self.source.uniform(longest / 2, longest)

    def reset(self) -> None:
        """Note that a request was answered well."""
        self.failures = 0
