"""Who is dead: a counter that has not moved for the limit, on this process's own monotonic clock.

No clock of two machines is compared and no clock that can be set is read, so a stepped clock expires nothing. A
watch that is new has seen nothing yet: it waits the whole limit before it says that anyone is dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Key = TypeVar("Key")


class CounterWatch(Generic[Key]):
    """Remembers, for each key, since when its counter has stood still."""

    def __init__(self, limit_seconds: float, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._limit = limit_seconds
        self._clock = clock
        self._seen: dict[Key, tuple[int, float]] = {}

    def unmoved(self, counters: Iterable[tuple[Key, int]]) -> list[tuple[Key, int]]:
        """Those of `counters` that have stood still for the limit; keys that are no longer named are forgotten."""
        now = self._clock()
        current: dict[Key, tuple[int, float]] = {}
        dead: list[tuple[Key, int]] = []
        for key, counter in counters:
            before = self._seen.get(key)
            since = before[1] if before is not None and before[0] == counter else now
            current[key] = (counter, since)
            if now - since >= self._limit:
                dead.append((key, counter))
        self._seen = current
        return dead
