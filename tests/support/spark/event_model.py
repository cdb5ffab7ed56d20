"""Say what outputs by event time must have of some batches, in plain Python: a record at a time, and no Spark.

Times are whole minutes. It is written from docs/how-to/event-time.md, and shares no code with the product.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, eq=False)
class Click:
    """A record: the user, the minute of its event time, or None, and how many pages."""

    user: str
    at: int | None
    pages: int


Session = list[Click]


@dataclass(frozen=True)
class Batch:
    """The records of one batch by receiver; `time`: a number that rises."""

    time: int
    clicks: Mapping[int, Sequence[Click]]

    def each(self) -> Iterator[Click]:
        for clicks in self.clicks.values():
            yield from clicks


@dataclass
class Watermark:
    """How far all receivers are. `idle`: one without a record for this many batches is not waited for."""

    lateness: int
    idle: int
    now: int | None = None
    latest: dict[int, int] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)

    def take(self, batch: Batch) -> None:
        """Move on by a batch."""
        for receiver, clicks in batch.clicks.items():
            times = [click.at for click in clicks if click.at is not None]
            if times:
                self.latest[receiver] = max([*times, self.latest.get(receiver, min(times))])
                self.seen[receiver] = batch.time
        active = [
            latest - self.lateness
            for receiver, latest in self.latest.items()
            if self.seen[receiver] + self.idle > batch.time
        ]
        if active:
            reached = min(active)
            self.now = reached if self.now is None else max(self.now, reached)

    def has_passed(self, time: int) -> bool:
        return self.now is not None and time <= self.now


@dataclass
class Windows:
    """Windows of one length: `table`, as a merging sink has them, `final`, as another one, and what was too late."""

    length: int
    slide: int
    watermark: Watermark
    table: Counter[tuple[str, int]] = field(default_factory=Counter)
    final: list[tuple[str, int, int]] = field(default_factory=list)
    late: list[tuple[str, int]] = field(default_factory=list)
    watermarks: list[int | None] = field(default_factory=list)
    late_counts: list[int] = field(default_factory=list)

    def take(self, batch: Batch) -> None:
        """Move on by a batch."""
        open_before = {key for key in self.table if not self.watermark.has_passed(key[1] + self.length)}
        late = 0
        for click in batch.each():
            user, pages = click.user, click.pages
            starts = [] if click.at is None else self._starts(click.at)
            timely = [start for start in starts if not self.watermark.has_passed(start + self.length)]
            for start in timely:
                self.table[user, start] += pages
                open_before.add((user, start))
            if not timely:
                late += 1
                self.late.append((user, pages))
        self.watermark.take(batch)
        self.final += [
            (user, start, self.table[user, start])
            for user, start in sorted(open_before)
            if self.watermark.has_passed(start + self.length)
        ]
        self.watermarks.append(self.watermark.now)
        self.late_counts.append(late)

    def _starts(self, at: int) -> list[int]:
        last = at - at % self.slide
        return [start for start in range(last, at - self.length, -self.slide) if start <= at < start + self.length]


@dataclass
class Sessions:
    """Sessions by user, as a merging sink has them: (user, start) to the end and the pages."""

    gap: int
    watermark: Watermark
    table: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    watermarks: list[int | None] = field(default_factory=list)
    late_counts: list[int] = field(default_factory=list)
    open: dict[str, list[Click]] = field(default_factory=dict)

    def take(self, batch: Batch) -> None:
        """Move on by a batch."""
        late = 0
        new: dict[str, list[Click]] = {}
        for click in batch.each():
            if click.at is None or self.watermark.has_passed(click.at + self.gap):
                late += 1
            else:
                new.setdefault(click.user, []).append(click)
        self.watermark.take(batch)
        for user in {*self.open, *new}:
            old, more = self.open.get(user, []), new.get(user, [])
            before = self._sessions(old)
            left: list[Click] = []
            for session in self._sessions([*old, *more]):
                begin, end = _at(session[0]), _at(session[-1]) + self.gap
                if not set(session).isdisjoint(more):
                    for taken in before:
                        if taken[0] in session:
                            del self.table[user, _at(taken[0])]
                    self.table[user, begin] = (end, sum(click.pages for click in session))
                if not self.watermark.has_passed(end):
                    left += session
            self.open[user] = left
        self.watermarks.append(self.watermark.now)
        self.late_counts.append(late)

    def _sessions(self, clicks: Sequence[Click]) -> list[Session]:
        found: list[Session] = []
        for click in sorted(clicks, key=_at):
            if found and _at(click) - _at(found[-1][-1]) < self.gap:
                found[-1].append(click)
            else:
                found.append([click])
        return found


def _at(click: Click) -> int:
    assert click.at is not None
    return click.at
