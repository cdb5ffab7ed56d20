"""Find dead processes: those whose counter has not moved for the limit, on this process's own monotonic clock.

Clocks of two machines are never compared, and no clock that can be set is read, so a clock step expires nothing. A new
watch has seen nothing yet, so it waits the whole limit before it reports any process as dead. Time in which it could
not look does not count either: while the driver log was unavailable no process could raise its counter, and each gets
time to do so before it is reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Key = TypeVar("Key")

# Of the time between two looks, at most this share of the limit counts as time without progress.
_MOST_BETWEEN_LOOKS = 0.5


class CounterWatch(Generic[Key]):
    """Remember for each key since when its counter has not moved."""

    def __init__(self, limit_seconds: float, clock: Callable[[], float]) -> None:
        """Start without observations; `clock` is monotonic, in seconds."""
        self._limit = limit_seconds
        self._clock = clock
        self._polled_at = clock()
        # Seconds of observation so far: the time between looks, bounded as in `unmoved`.
        self._watched = 0.0
        self._seen: dict[Key, tuple[int, float]] = {}

    def unmoved(self, counters: Iterable[tuple[Key, int]]) -> list[tuple[Key, int]]:
        """Return those of `counters` that have not moved for the limit; forget keys that are no longer passed.

        Call it at least twice within the limit: of a longer pause only half the limit counts.
        """
        now = self._clock()
        self._watched += min(now - self._polled_at, self._limit * _MOST_BETWEEN_LOOKS)
        self._polled_at = now
        current: dict[Key, tuple[int, float]] = {}
        dead: list[tuple[Key, int]] = []
        for key, counter in counters:
            before = self._seen.get(key)
            since = before[1] if before is not None and before[0] == counter else self._watched
            current[key] = (counter, since)
            if self._watched - since >= self._limit:
                dead.append((key, counter))
        self._seen = current
        return dead

    def ages(self) -> dict[Key, float]:
        """Return the seconds for which each counter had not moved at the last look. Safe from any thread."""
        seen, watched = self._seen, self._watched
        return {key: max(0.0, watched - since) for key, (_, since) in seen.items()}
