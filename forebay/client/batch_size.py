"""Decide how many records and bytes the next request has: fewer if one did not get through, then more again. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Hold what a request has at most, and for how many seconds a record waits for others."""

    records: int
    bytes: int
    linger: float


class BatchSize:
    """Hold the size of the next request."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        # As far as the receiver is known to take.
        self._most_bytes = limits.bytes
        #: Bytes of the next request, at most; one record may have more.
        self.bytes = limits.bytes
        # Some record before this index is refused by itself: a request takes half of those before it.
        self._refused_before: int | None = None

    @property
    def is_searching(self) -> bool:
        """Return whether a record is searched that is refused by itself."""
        return self._refused_before is not None

    def end_from(self, index: int) -> int:
        """Return the index behind the last record of a request that begins at an index."""
        if self._refused_before is None:
            return index + self._limits.records
        return index + max(1, (self._refused_before - index) // 2)

    def on_refused(self, end: int) -> None:
        """Note that a request of several records before an index was refused."""
        self._refused_before = min(self._refused_before or end, end)

    def on_too_large(self, size: int) -> None:
        """Note that a request of several records is larger than the receiver takes, wherever its records are."""
        self._refused_before = None
        self.bytes = self._most_bytes = max(1, size // 2)

    def on_no_answer(self, size: int) -> None:
        """Note that a request was not answered: it may be too much for its time, or for what is in between."""
        self.bytes = max(1, min(self.bytes, size) // 2)

    def on_taken(self) -> None:
        """Note that a request was taken."""
        self.bytes = min(self._most_bytes, self.bytes * 5 // 4 + 1)

    def on_moved(self, index: int) -> None:
        """Note that all before an index are registered."""
        if self._refused_before is not None and index >= self._refused_before:
            self._refused_before = None

    def on_set_aside(self) -> None:
        """Note that the record was found."""
        self._refused_before = None
