"""Remember in the driver log how far a source without positions of its own was read, to notice what is gone later.

A queue's or a group's state is the source's own. If that is deleted, expires or begins again while no receiver runs,
the receiver that starts next can't tell by the source alone. A mark says that it was there, and how far it was read. It
is kept as the origin of a partition whose name has its numbers; each kind says what they mean. This module must never
decide what is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracker_store.blocks.blocks import Position


class Positions(Protocol):
    """Keep positions of the stream. Each method waits until the driver log answers."""

    def all_of(self, source: str) -> Mapping[str, Position]:
        """Return the position of each partition of a source."""

    def open_partition(self, source: str, partition: str, start_offset: int) -> Position:
        """Record where a partition begins."""

    def forget(self, source: str, partitions: Sequence[str]) -> None:
        """Remove positions."""


class SourceMarks:
    """Hold the mark of one source of a stream, which all its receivers share. One thread at a time uses it.

    Args:
        source: its name, such as a group's and a stream's.
    """

    def __init__(self, positions: Positions, source: str) -> None:
        self._positions = positions
        self._source = f"mark of {source}"
        self._names: set[str] = set()

    def read(self) -> tuple[int, ...] | None:
        """Return the furthest mark, by its first number, then the next; None: the stream has not read this source."""
        self._names = set(self._positions.all_of(self._source))
        return max((tuple(map(int, name.split("/"))) for name in self._names), default=None)

    def note(self, mark: Sequence[int]) -> None:
        """Replace the mark, if it is another one. The new one is there before the old one is gone."""
        name = "/".join(map(str, mark))
        if self._names == {name}:
            return
        self._positions.open_partition(self._source, name, 0)
        gone = sorted(self._names - {name})
        if gone:
            self._positions.forget(self._source, gone)
        self._names = {name}
