"""Keep what one receiver's source has that the receiver has not read, and which of that the driver log lacks.

This module owns the pace (a look costs a hundredth of its receiver's time at most), since when a record is unread, and
the difference to what was written. It writes nothing itself: ``lag_reports`` does, with the process's heartbeats. It
must never change what is read.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from tracker_store.receivers.source_lag import LagReport, Place, Unread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from receiver_runtime.watching.clock import Clock

_log = structlog.get_logger(__name__)

#: Seconds between two looks, at least; and how many times as long as the last look.
LOOK_SECONDS = 1.0
_LOOK_TIMES = 100
_RETRY_SECONDS = 30.0  # until the next look, after one that failed
# Most ends of a partition that are remembered with their times. Every second one is dropped when there are more: then
# the age of the oldest unread record is too low by a few hundredths at most.
_MOST_ENDS = 128


class SourceLag:
    """Hold one receiver's report under one claim. Any thread.

    Args:
        wall_clock: the time in seconds since 1970.
    """

    def __init__(self, receiver_id: int, clock: Clock, *, wall_clock: Callable[[], float] = time.time) -> None:
        self.receiver_id = receiver_id
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._next_at = 0.0
        self._arrivals: dict[Place, _Arrivals] = {}
        self._unread: Mapping[Place, Unread] | None = None
        # What the driver log has; None: what an earlier claim left there.
        self._written: dict[Place, Unread] | None = None
        #: How many records the client holds that are not handed on; None: unknown.
        self.fetched: int | None = None

    def look(self, find: Callable[[], Mapping[Place, Unread]], fetched: Callable[[], int] | None = None) -> None:
        """Call ``find`` for everything that is unread, if it is time to, and keep its answer in place of the last one.

        ``find`` names each place that the receiver reads, with nothing unread too. ``fetched`` returns how many records
        the client holds. If one of them fails, receiving goes on. One thread at a time calls this.
        """
        began = self._clock.monotonic()
        if began < self._next_at:
            return
        try:
            found = find()
            if fetched is not None:
                self.fetched = fetched()
        except Exception as error:  # noqa: BLE001  logged; a source that is away is noticed by the next read
            _log.warning("what the source has is not known now", receiver_id=self.receiver_id, error=repr(error))
            self._next_at = began + _RETRY_SECONDS
            return
        now = self._wall_clock()
        arrivals: dict[Place, _Arrivals] = {}
        unread: dict[Place, Unread] = {}
        for place, one in found.items():
            if not one.amount:
                # Its end is not written: it would change with each record, and says nothing.
                unread[place] = replace(one, end=None, oldest_at=None, read=None)
                arrivals[place] = _NOTHING_UNREAD
            elif one.end is None and one.read is None:
                unread[place] = one
            else:
                seen = self._arrivals.get(place)
                if seen is None or not seen.ends:
                    seen = _Arrivals(is_first=seen is None)
                arrivals[place] = seen
                unread[place] = replace(one, oldest_at=seen.note(one, now), read=None)
        self._arrivals = arrivals
        with self._lock:
            self._unread = unread
        ended = self._clock.monotonic()
        self._next_at = ended + max(LOOK_SECONDS, _LOOK_TIMES * (ended - began))

    def changes(self) -> LagReport | None:
        """Return what the driver log lacks; None: nothing."""
        with self._lock:
            unread = self._unread
        written = self._written
        if unread is None or unread == written:
            return None
        if written is None:
            return LagReport(self.receiver_id, whole=True, unread=unread)
        return LagReport(
            self.receiver_id,
            whole=False,
            unread={place: one for place, one in unread.items() if written.get(place) != one},
            gone=written.keys() - unread.keys(),
        )

    def note_written(self, report: LagReport) -> None:
        """Note that a report is recorded. The thread that asked for it calls this."""
        kept = {} if self._written is None else self._written
        self._written = {**{place: one for place, one in kept.items() if place not in report.gone}, **report.unread}


class _Arrivals:
    """Remember when a partition's end was first seen at which position."""

    __slots__ = ("ends", "is_first", "read_by_others", "said")

    def __init__(self, *, is_first: bool) -> None:
        self.ends: deque[tuple[int, float]] = deque()
        # The first end was there at the first look: its records are older.
        self.is_first = is_first
        self.read_by_others = 0
        # What the source has said of those.
        self.said: float | None = None

    def note(self, one: Unread, now: float) -> float:
        """Return when the oldest unread record came, at the latest."""
        end = one.end if one.end is not None else (one.read or 0) + one.amount + self.read_by_others
        if self.ends and self.ends[-1][0] > end:
            if one.end is None:
                # Fewer are unread than this receiver's reads explain.
                self.read_by_others += self.ends[-1][0] - end
                end = self.ends[-1][0]
            else:
                # Other records: the partition begins again.
                self.ends.clear()
                self.is_first, self.said = True, None
        position = end - one.amount
        if not self.ends or self.ends[-1][0] < end:
            self.ends.append((end, now))
        while self.ends[0][0] <= position:
            self.ends.popleft()
            self.is_first = False
        if len(self.ends) > _MOST_ENDS:
            self.ends = deque(end for number, end in enumerate(self.ends) if number % 2 == 0)
        at = self.ends[0][1]
        if not self.is_first:
            return at
        # What the source says of a later time is about records that came since.
        if one.oldest_at is not None and one.oldest_at <= at:
            self.said = one.oldest_at
        return at if self.said is None else self.said


_NOTHING_UNREAD = _Arrivals(is_first=False)
