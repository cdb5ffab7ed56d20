"""Say in plain Python what outputs by event time have after each batch: windows, sessions and pairs, one by one.

It knows all records that ever came, and looks at each of them in each batch. Times are microseconds since 1970.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class Record(NamedTuple):
    """A record: its number, its key, and its time."""

    number: int
    key: str | None
    at: int | None


#: A window's records, by its key (of a session), start and end.
Windows = dict[tuple[str | None, int, int], frozenset[int]]


@dataclass
class Clock:
    """The watermark of streams that each have one source, and are never idle."""

    lateness: int
    ahead: int
    streams: int = 1
    before: int | None = None
    after: int | None = None
    _newest: dict[int, int] = field(default_factory=dict)

    def advance(self, batches: Sequence[Sequence[Record]], batch_time: int) -> None:
        """Take what each stream has got."""
        self.before = self.after
        for stream, records in enumerate(batches):
            times = [at for _, _, at in records if at is not None and at <= batch_time + self.ahead]
            if times:
                self._newest[stream] = max([*times, self._newest.get(stream, times[0])])
        if len(self._newest) == self.streams:
            reached = min(self._newest.values()) - self.lateness
            self.after = reached if self.after is None else max(self.after, reached)

    def split(self, records: Iterable[Record], batch_time: int, last_ends: int) -> tuple[list[Record], list[Record]]:
        """Return the records that are in time, and those that are not; `last_ends`: how long after a record's time."""
        timely: list[Record] = []
        late: list[Record] = []
        for record in records:
            is_wrong = record.at is None or record.at > batch_time + self.ahead
            is_late = is_wrong or (self.before is not None and record.at + last_ends <= self.before)  # type: ignore[operator]
            (late if is_late else timely).append(record)
        return timely, late


def starts(at: int, length: int, slide: int) -> Iterator[int]:
    """Yield the starts of the windows that a time is in."""
    start = at // slide * slide
    while start + length > at:
        yield start
        start -= slide


@dataclass
class WindowModel:
    """Windows of one length."""

    length: int
    slide: int
    clock: Clock
    all: dict[tuple[str | None, int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    late: list[Record] = field(default_factory=list)
    touched: set[tuple[str | None, int, int]] = field(default_factory=set)

    def take(self, records: Iterable[Record], batch_time: int) -> None:
        """Take the records of a batch, after the clock has."""
        before = self.clock.before
        self.touched = set()
        self.late = []
        for record in records:
            if record.at is None or record.at > batch_time + self.clock.ahead:
                self.late.append(record)
                continue
            windows = [(None, start, start + self.length) for start in starts(record.at, self.length, self.slide)]
            open_ones = [window for window in windows if before is None or window[2] > before]
            for window in open_ones:
                self.all[window].add(record.number)
                self.touched.add(window)
            if not open_ones:
                self.late.append(record)

    def windows(self) -> Windows:
        """Return all windows so far."""
        return {window: frozenset(numbers) for window, numbers in self.all.items()}

    def final(self) -> Windows:
        """Return the windows that have become final in the last batch."""
        before, after = self.clock.before, self.clock.after
        return {
            window: numbers
            for window, numbers in self.windows().items()
            if after is not None and window[2] <= after and (before is None or window[2] > before)
        }


@dataclass
class SessionModel:
    """Sessions of each key."""

    gap: int
    clock: Clock
    late: list[Record] = field(default_factory=list)
    _live: list[Record] = field(default_factory=list)
    _closed: Windows = field(default_factory=dict)
    _final: Windows = field(default_factory=dict)

    def take(self, records: Iterable[Record], batch_time: int) -> None:
        """Take the records of a batch, after the clock has."""
        timely, self.late = self.clock.split(records, batch_time, self.gap)
        self._live += timely
        after = self.clock.after
        sessions = sessions_of(self._live, self.gap)
        self._final = {each: numbers for each, numbers in sessions.items() if after is not None and each[2] <= after}
        self._closed |= self._final
        gone = {number for numbers in self._final.values() for number in numbers}
        self._live = [record for record in self._live if record.number not in gone]

    def windows(self) -> Windows:
        """Return all sessions so far."""
        return {**self._closed, **sessions_of(self._live, self.gap)}

    def final(self) -> Windows:
        """Return the sessions that have become final in the last batch."""
        return self._final


def sessions_of(records: Iterable[Record], gap: int) -> Windows:
    """Return the sessions of some records."""
    by_key: dict[str | None, list[Record]] = defaultdict(list)
    for record in records:
        by_key[record.key].append(record)
    found: Windows = {}
    for key, of_key in by_key.items():
        session: list[Record] = []
        for record in sorted(of_key, key=lambda each: each.at or 0):
            assert record.at is not None
            if session and record.at - (session[-1].at or 0) >= gap:
                found[_session(key, session, gap)] = frozenset(each.number for each in session)
                session = []
            session.append(record)
        found[_session(key, session, gap)] = frozenset(each.number for each in session)
    return found


def _session(key: str | None, session: Sequence[Record], gap: int) -> tuple[str | None, int, int]:
    return key, session[0].at or 0, (session[-1].at or 0) + gap


@dataclass
class JoinModel:
    """Pairs of two streams; a pair with None is a left record alone."""

    least: int
    most: int
    clock: Clock
    keeps_left: bool
    late: list[tuple[int, Record]] = field(default_factory=list)
    pairs: set[tuple[int, int | None]] = field(default_factory=set)
    new: set[tuple[int, int | None]] = field(default_factory=set)
    _sides: tuple[list[Record], list[Record]] = field(default_factory=lambda: ([], []))

    def take(self, batches: Sequence[Iterable[Record]], batch_time: int) -> None:
        """Take the records of a batch of both streams, after the clock has."""
        self.late = []
        for place, (side, records) in enumerate(zip(self._sides, batches, strict=True)):
            timely, late = self.clock.split(records, batch_time, 1)
            side.extend(timely)
            self.late += [(place, record) for record in late]
        found: set[tuple[int, int | None]] = {
            (left.number, right.number)
            for left in self._sides[0]
            for right in self._sides[1]
            if self._matches(left, right)
        }
        after = self.clock.after
        if self.keeps_left and after is not None:
            matched = {left for left, _ in found}
            found |= {
                (left.number, None)
                for left in self._sides[0]
                if left.number not in matched and (left.at or 0) + self.most < after
            }
        self.new = found - self.pairs
        assert found >= self.pairs
        self.pairs = found

    def _matches(self, left: Record, right: Record) -> bool:
        if left.key is None or left.key != right.key or left.at is None or right.at is None:
            return False
        return self.least <= right.at - left.at <= self.most
