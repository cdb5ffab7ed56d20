"""Compute the boundaries of batches in local time: which instants end an interval of a pipeline with a time zone.

The only module that knows a zone's rules; SQL gets instants from here, and checks their order and that they have come.
Rules:

- An interval below a day is cut by the wall clock: at each whole multiple since local midnight. In an hour that comes
  twice, both count. Multiples that a clock set forward passes over come together, at the first instant after the gap.
- An interval of days, weeks or months is cut at local midnights. A midnight that comes twice counts the first time. One
  that is passed over is the first instant of that day; a day that is passed over whole has no length.
- A window of days or months begins as many days or months before; within a day or month as much time after that
  one's begin, and never after its end.

Pure: it keeps nothing, and reads nothing but the zones' rules (``zoneinfo``: the host's, or else PyPI's ``tzdata``).
"""

from __future__ import annotations

import re
from calendar import day_name
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self
from zoneinfo import ZoneInfo, available_timezones

from tracker_store.close_names import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  the wall clock's: a local time without its zone
_FIRST_DAY = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_MILLISECOND = timedelta(milliseconds=1)
_DAY = timedelta(days=1)
_MONTHS = 12
# A day, or several, may be longer or shorter than 24 hours each: by a clock that is set by up to 24 hours, and twice.
_LONGER = timedelta(hours=49)
_MOST_MONTHS = 1200
_WEEKDAYS = tuple(name.lower() for name in day_name)
_CALENDAR_TEXT = re.compile(
    r"\s*(\d{1,5})\s*(day|week|month|year)s?(?:\s+on\s+([a-z]+?)s?)?\s*", re.IGNORECASE | re.ASCII
)
_SIZES = {"h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_TIME_TEXT = re.compile(r"(\d+)(h|m|s|ms)", re.ASCII)
# A host's own settings, which differ from host to host, and a place-holder.
_NO_ZONES = frozenset({"localtime", "posixrules", "Factory"})


class Unit(StrEnum):
    """Name what an interval, a slide or a window's length counts in."""

    TIME = "time"  # milliseconds, below a day
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Span:
    """Hold an interval, a slide or a length: `count` of `unit`. `weekday` (0: Monday) is where weeks begin."""

    unit: Unit
    count: int
    weekday: int | None = None

    @property
    def text(self) -> str:
        """Return the span in the one form that the driver log has of it, and that people see."""
        if self.unit is Unit.TIME:
            unit, size = next(each for each in _SIZES.items() if self.count % each[1] == 0)
            return f"{self.count // size}{unit}"
        on = "" if self.weekday is None else f" on {_WEEKDAYS[self.weekday]}"
        return f"{self.count} {self.unit.value}{'' if self.count == 1 else 's'}{on}"

    @property
    def nominal(self) -> timedelta:
        """Return its length on a usual day, week or month."""
        if self.unit is Unit.TIME:
            return self.count * _MILLISECOND
        if self.unit is Unit.MONTH:
            return timedelta(days=round(self.count * 365.2425 / _MONTHS))
        return timedelta(days=self.count * (7 if self.unit is Unit.WEEK else 1))

    @property
    def longest(self) -> timedelta:
        """Return a length that it never exceeds."""
        if self.unit is Unit.TIME:
            return self.nominal
        if self.unit is Unit.MONTH:
            # An hour more, so that a month and 31 days stay two lengths.
            return timedelta(days=31 * self.count, hours=1) + _LONGER
        return self.nominal + _LONGER

    def is_multiple_of(self, other: Span) -> bool:
        """Return whether every boundary of this span, or the begin of this length, is a boundary of `other`."""
        if other.unit is Unit.TIME:
            return self.unit is not Unit.TIME or self.count % other.count == 0
        if self.unit is Unit.TIME:
            return False
        if other.unit is Unit.DAY and other.count == 1:
            return True
        if self.unit is Unit.WEEK and other.unit is Unit.WEEK:
            return self.count % other.count == 0 and self.weekday in (None, other.weekday)
        days = {Unit.DAY: 1, Unit.WEEK: 7}
        if self.unit in days and other.unit in days:
            # As a length: days and weeks have no begin of their own.
            return self.weekday is None and (self.count * days[self.unit]) % (other.count * days[other.unit]) == 0
        return self.unit is other.unit and self.count % other.count == 0


def calendar_text(text: str) -> Span | None:
    """Return the span of a text as ``"1 day"``, ``"2 weeks on monday"`` or ``"1 month"``; None: it is no such text.

    Raises ValueError, which says what is valid.
    """
    found = _CALENDAR_TEXT.fullmatch(text)
    if found is None:
        return None
    count, unit, day = int(found[1]), found[2].lower(), (found[3] or "").lower()
    if not count:
        raise ValueError(f"{text!r} must be longer than 0")
    if day and unit != "week":
        raise ValueError(f"{text!r}: only weeks begin on a day, as '1 week on monday'")
    if day and day not in _WEEKDAYS:
        hint = did_you_mean(day, _WEEKDAYS) or f"use one of {', '.join(_WEEKDAYS)}"
        raise ValueError(f"{text!r}: {day!r} is no day: {hint}")
    if unit == "year":
        unit, count = "month", count * _MONTHS
    span = Span(Unit(unit), count, _WEEKDAYS.index(day) if day else None)
    if span.nominal > timedelta(days=36_500) or (span.unit is Unit.MONTH and count > _MOST_MONTHS):
        raise ValueError(f"{text!r} is longer than 36500 days: give less")
    return span


def span_of(text: str) -> Span:
    """Return the span of a text as the driver log has it: `Span.text`."""
    if (found := _TIME_TEXT.fullmatch(text)) is not None:
        return Span(Unit.TIME, int(found[1]) * _SIZES[found[2]])
    span = calendar_text(text)
    if span is None:
        raise ValueError(f"{text!r} is no interval")
    return span


def of_duration(duration: timedelta) -> Span:
    """Return a duration as a calendar has it: below a day by the wall clock, else as days. Raises ValueError."""
    if duration < _DAY:
        return Span(Unit.TIME, duration // _MILLISECOND)
    if duration % _DAY:
        raise ValueError(f"{duration} is longer than a day and no whole number of days, and days begin at midnight")
    return Span(Unit.DAY, duration // _DAY)


def checked_interval(span: Span) -> Span:
    """Return the span if it can cut time by a calendar. Raises ValueError, which says how to fix it."""
    if span.unit is Unit.TIME and (not span.count or _DAY % span.nominal):
        raise ValueError(
            f"{span.text} does not divide a day: by the wall clock it begins again at each midnight, so give one that "
            "does, as '10s', '15m' or '6h'"
        )
    weeks, rest = (span.count, 0) if span.unit is Unit.WEEK else divmod(span.count, 7)
    if span.unit in (Unit.DAY, Unit.WEEK) and not rest and span.weekday is None:
        raise ValueError(f"say on which day a week begins: '{weeks} week{'' if weeks == 1 else 's'} on monday'")
    return span


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name. Raises ValueError if this host does not know it."""
    try:
        return ZoneInfo(name)
    # A folder of zones, as "Europe", is an OSError; ZoneInfoNotFoundError is a KeyError.
    except (KeyError, OSError, ValueError):
        raise ValueError(_unknown(name)) from None


def _unknown(name: str) -> str:
    known = available_timezones() - _NO_ZONES
    other = "give an IANA name, as 'Europe/Berlin'"
    if not known:
        other = "no zone is known here: install the package tzdata, from PyPI or of the system"
    return f"{name!r} is no time zone that this host knows: {did_you_mean(name, known) or other}"


def checked_zone(name: object) -> str:
    """Return the name of a zone in its one spelling. Raises ValueError."""
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is no name of a time zone: give an IANA name, as 'Europe/Berlin'")  # noqa: TRY004
    # Where file names have no case, "europe/berlin" is found too; no other host would find it.
    if name not in available_timezones() - _NO_ZONES:
        raise ValueError(_unknown(name))
    return name


@dataclass(frozen=True, slots=True)
class BatchCalendar:
    """Hold the boundaries of one interval in one zone. Times that it takes and returns are aware; it returns UTC."""

    interval: Span
    timezone: str

    @classmethod
    def of(cls, declared: Mapping[str, Any] | None) -> Self | None:
        """Read a pipeline's `calendar` as declared; None: its batch times are multiples of its interval."""
        return None if declared is None else cls(span_of(declared["interval"]), declared["timezone"])

    def declaration(self) -> dict[str, str]:
        """Return what `forebay apply` writes."""
        return {"interval": self.interval.text, "timezone": self.timezone}

    def every(self, interval: str) -> BatchCalendar:
        """Return the calendar of another interval, as `Span.text`, in the same zone."""
        return BatchCalendar(span_of(interval), self.timezone)

    def next_after(self, time: datetime) -> datetime:
        """Return the first boundary after `time`."""
        zone, at = zone_of(self.timezone), time.astimezone(UTC)
        if self.interval.unit is Unit.TIME:
            return _next_by_clock(zone, at, self.interval.nominal)
        period = self._period(at, zone) - 1
        while (begin := _midnight(zone, self._day(period))) <= at:
            period += 1
        return begin

    def newest_up_to(self, time: datetime) -> datetime:
        """Return the last boundary that is not after `time`."""
        zone, at = zone_of(self.timezone), time.astimezone(UTC)
        if self.interval.unit is Unit.TIME:
            return _newest_by_clock(zone, at, self.interval.nominal)
        period = self._period(at, zone) + 1
        while (begin := _midnight(zone, self._day(period))) > at:
            period -= 1
        return begin

    def is_boundary(self, time: datetime) -> bool:
        """Return whether an interval ends at `time`."""
        return self.newest_up_to(time) == time

    def count(self, after: datetime, upto: datetime) -> int:
        """Return the number of boundaries after `after` and up to `upto`, in a step for each day or boundary."""
        found = 0
        if self.interval.unit is not Unit.TIME:
            while (after := self.next_after(after)) <= upto:
                found += 1
            return found
        zone, step = zone_of(self.timezone), self.interval.nominal
        after = after.astimezone(UTC)
        while after < upto:
            end, offset = min(upto, after + _DAY), _offset(zone, after)
            change = None if _offset(zone, end) == offset else _change(zone, after, end)
            last = end if change is None else change - _MICROSECOND
            found += _wall(last, offset) // step - _wall(after, offset) // step
            if change is not None:
                found += _is_cut(zone, change, offset, step)
            after = end if change is None else change
        return found

    def start_of_window(self, time: datetime, length: Span) -> datetime:
        """Return the instant after which a window of `length` begins that ends at `time`. It never goes back."""
        if length.unit is Unit.TIME:
            return time - length.nominal
        zone, at = zone_of(self.timezone), time.astimezone(UTC)
        months = length.unit is Unit.MONTH
        unit = BatchCalendar(Span(Unit.MONTH if months else Unit.DAY, 1), self.timezone)
        count = length.count * (7 if length.unit is Unit.WEEK else 1)
        period = unit._period(at, zone) + 1
        while (begin := _midnight(zone, unit._day(period))) > at:
            period -= 1
        first = _midnight(zone, unit._day(period - count))
        return min(first + (at - begin), _midnight(zone, unit._day(period - count + 1)))

    def _period(self, at: datetime, zone: ZoneInfo) -> int:
        """Return the number of the period that the wall clock's date at `at` lies in."""
        day = at.astimezone(zone).date()
        if self.interval.unit is Unit.MONTH:
            return ((day.year - _FIRST_DAY.year) * _MONTHS + day.month - 1) // self.interval.count
        return ((day - _FIRST_DAY).days - self._first_weekday) // self._days

    def _day(self, period: int) -> date:
        """Return the first day of a period."""
        if self.interval.unit is Unit.MONTH:
            years, month = divmod(period * self.interval.count, _MONTHS)
            return date(_FIRST_DAY.year + years, month + 1, 1)
        return _FIRST_DAY + timedelta(days=self._first_weekday + period * self._days)

    @property
    def _days(self) -> int:
        return self.interval.count * (7 if self.interval.unit is Unit.WEEK else 1)

    @property
    def _first_weekday(self) -> int:
        """Return the days from 1970-01-01 to the first begin of a week."""
        return 0 if self.interval.weekday is None else (self.interval.weekday - _FIRST_DAY.weekday()) % 7


def shown_calendar(declared: Mapping[str, Any] | None) -> str | None:
    """Return a pipeline's interval with its zone, for people; None: it has no calendar."""
    return None if declared is None else f"{span_of(declared['interval']).text}, {declared['timezone']}"


@dataclass(frozen=True, slots=True)
class DecidedTimes:
    """Hold what was decided with a batch by its pipeline's calendar, so that no other rules ever change it.

    `slides`: whether each slide ends at its time. `starts`: after which instant a window of each length begins.
    """

    slides: Mapping[str, bool]
    starts: Mapping[str, datetime]

    @classmethod
    def of(cls, stored: Mapping[str, Any] | None) -> Self | None:
        """Read a batch's column `calendar`; None: it was made without one."""
        if stored is None:
            return None
        return cls(stored["slides"], {name: datetime.fromisoformat(at) for name, at in stored["starts"].items()})

    def to_row(self) -> dict[str, Any]:
        """Return what the column has."""
        return {"slides": dict(self.slides), "starts": {name: at.isoformat() for name, at in self.starts.items()}}


def hour_begin(zone: ZoneInfo, time: datetime) -> datetime:
    """Return the first instant at which the wall clock shows the hour that it shows at `time`."""
    wall = time.astimezone(zone).replace(minute=0, second=0, microsecond=0, tzinfo=None)
    return first_instant(zone, wall)


def hour_end(zone: ZoneInfo, time: datetime) -> datetime:
    """Return the instant from which on the wall clock never shows that hour of its date again."""
    wall = time.astimezone(zone).replace(minute=0, second=0, microsecond=0, tzinfo=None) + timedelta(hours=1)
    later = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    # In a gap the two are in the other order, and the clock has passed the hour with the gap.
    return max(later, first_instant(zone, wall))


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    offset = at.astimezone(zone).utcoffset()
    return timedelta(0) if offset is None else offset


def _wall(at: datetime, offset: timedelta) -> timedelta:
    """Return what the wall clock shows, since 1970 by itself."""
    return at - _EPOCH + offset


def _change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Return the first instant with another offset than `before`; the offset at `after` is another one."""
    offset, low, high = _offset(zone, before), 0, (after - before) // _MICROSECOND
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, before + middle * _MICROSECOND) == offset:
            low = middle
        else:
            high = middle
    return before + high * _MICROSECOND


def _is_cut(zone: ZoneInfo, change: datetime, before: timedelta, step: timedelta) -> bool:
    """Return whether an interval of `step` ends where the clock is set: on a multiple, or past one."""
    old, new = _wall(change, before), _wall(change, _offset(zone, change))
    return not new % step or (new > old and new // step > (old - _MICROSECOND) // step)


def _next_by_clock(zone: ZoneInfo, at: datetime, step: timedelta) -> datetime:
    while True:
        offset = _offset(zone, at)
        candidate = at + step - _wall(at, offset) % step
        if _offset(zone, candidate) == offset:
            return candidate
        change = _change(zone, at, candidate)
        if _is_cut(zone, change, offset, step):
            return change
        at = change


def _newest_by_clock(zone: ZoneInfo, at: datetime, step: timedelta) -> datetime:
    while True:
        offset = _offset(zone, at)
        candidate = at - _wall(at, offset) % step
        before = _offset(zone, candidate)
        if before == offset:
            return candidate
        change = _change(zone, candidate, at)
        if _is_cut(zone, change, before, step):
            return change
        at = change - _MICROSECOND


def _midnight(zone: ZoneInfo, day: date) -> datetime:
    """Return the first instant of a local day, or of the one after it where that day is passed over."""
    return first_instant(zone, datetime(day.year, day.month, day.day))  # noqa: DTZ001  the wall clock's


def first_instant(zone: ZoneInfo, wall: datetime) -> datetime:
    """Return the first instant at which the wall clock shows `wall`, or the first one after it was passed over."""
    # Of a time that comes twice, fold 0 is the first; of one that is passed over, it lies after the gap.
    first = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) == wall:
        return first
    return _change(zone, wall.replace(tzinfo=zone, fold=1).astimezone(UTC), first)
