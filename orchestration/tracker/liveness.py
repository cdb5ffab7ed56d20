"""Who is dead: a counter that has not moved for the limit, on this process's own monotonic clock.

No clock of two machines is compared and no clock that can be set is read, so a stepped clock expires nothing. A
watch that is new has seen nothing yet: it waits the whole limit before it says that anyone is dead. Nor does time
count in which it could not look: when the driver log was away nobody could raise a counter, and everybody has to be
given the time to do it before anyone is accused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Key = TypeVar("Key")

# Between two looks at most this share of the limit counts as time in which a counter stood still.
_MOST_BETWEEN_LOOKS = 0.5


class CounterWatch(Generic[Key]):
    """Remembers, for each key, since when its counter has stood still."""

    def __init__(self, limit_seconds: float, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._limit = limit_seconds
        self._clock = clock
        self._looked_at = clock()
        # Seconds of which this watch knows what the counters did.
        self._watched = 0.0
        self._seen: dict[Key, tuple[int, float]] = {}

    def unmoved(self, counters: Iterable[tuple[Key, int]]) -> list[tuple[Key, int]]:
        """Those of `counters` that have stood still for the limit; keys that are no longer named are forgotten.

        To be asked at least twice within the limit: of a longer pause only half the limit counts.
        """
        now = self._clock()
        self._watched += min(now - self._looked_at, self._limit * _MOST_BETWEEN_LOOKS)
        self._looked_at = now
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
        """Seconds for which each counter had stood still at the last look. From any thread."""
        seen, watched = self._seen, self._watched
        return {key: max(0.0, watched - since) for key, (_, since) in seen.items()}
