"""Boundaries in local time, held against `zoneinfo`: each wall-clock time of two days is looked at, by itself."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.searches import examples
from tracker_store.schema.batch_calendar import (
    BatchCalendar,
    DecidedTimes,
    Span,
    Unit,
    calendar_text,
    checked_interval,
    checked_zone,
    hour_begin,
    hour_end,
    of_duration,
    span_of,
)

BERLIN = "Europe/Berlin"
DAY, HOUR, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(seconds=1)
ZONES = sorted(available_timezones() - {"localtime", "Factory", "posixrules"})
FIRST, LAST = datetime(1970, 1, 3), datetime(2100, 1, 1)  # noqa: DTZ001  hypothesis adds the zone
STEPS_MS = [n * 60_000 for n in (5, 15, 30, 60, 90, 180, 360, 720)]
# Where clocks are set in other ways than by an hour at night.
ODD = [
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
    ("Pacific/Kwajalein", datetime(1993, 8, 21, 12, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(2027, 2, 7, 2, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(2027, 3, 14, 2, tzinfo=UTC)),
    ("Antarctica/Troll", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Antarctica/Troll", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/St_Johns", datetime(2006, 10, 29, 2, 31, tzinfo=UTC)),
    ("America/Sao_Paulo", datetime(2018, 11, 4, 3, tzinfo=UTC)),
    ("America/Havana", datetime(2026, 11, 1, 5, tzinfo=UTC)),
    ("Africa/Monrovia", datetime(1972, 1, 7, 0, 44, 30, tzinfo=UTC)),
    (BERLIN, datetime(2026, 3, 29, 1, tzinfo=UTC)),
    (BERLIN, datetime(2026, 10, 25, 1, tzinfo=UTC)),
]


def instants_of(zone: ZoneInfo, wall: datetime) -> list[datetime]:
    """Return each instant at which the clock shows `wall`, or, if it was passed over, the first one after that."""
    both = [wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)]
    shown = sorted({at for at in both if at.astimezone(zone).replace(tzinfo=None) == wall})
    if shown:
        return shown
    # Step by step: whatever finds it faster is what is tested.
    at = min(both)
    for step in (HOUR, timedelta(minutes=1), SECOND):
        while (at + step).astimezone(zone).replace(tzinfo=None) < wall:
            at += step
    return [at + SECOND]


def boundaries(zone: ZoneInfo, span: Span, around: datetime, days: int = 2) -> list[datetime]:
    today = around.astimezone(zone).date()
    found: set[datetime] = set()
    for day in (today + timedelta(days=n) for n in range(-days, days + 1)):
        midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001
        if span.unit is not Unit.TIME:
            if begins(span, day):
                found.add(instants_of(zone, midnight)[0])
            continue
        for n in range(DAY // span.nominal):
            found.update(instants_of(zone, midnight + n * span.nominal))
    return sorted(found)


def begins(span: Span, day: date) -> bool:
    if span.unit is Unit.MONTH:
        return day.day == 1 and ((day.year - 1970) * 12 + day.month - 1) % span.count == 0
    number = (day - date(1970, 1, 1)).days
    if span.unit is Unit.DAY:
        return number % span.count == 0
    assert span.weekday is not None
    first = next(n for n in range(7) if (date(1970, 1, 1) + timedelta(days=n)).weekday() == span.weekday)
    return (number - first) % (7 * span.count) == 0


times = st.datetimes(FIRST, LAST, timezones=st.just(UTC))
near_a_change = st.tuples(st.sampled_from(ODD), st.integers(-100_000, 100_000)).map(
    lambda it: (it[0][0], it[0][1] + it[1] * SECOND)
)
anywhere = st.one_of(st.tuples(st.sampled_from(ZONES), times), near_a_change)


@pytest.mark.search
@settings(max_examples=examples(400), deadline=None)
@given(where=anywhere, step=st.sampled_from(STEPS_MS))
@example(where=ODD[0], step=3_600_000)
@example(where=ODD[1], step=3_600_000)
@example(where=ODD[2], step=43_200_000)
@example(where=ODD[11], step=300_000)
def test_intervals_below_a_day_are_cut_by_the_wall_clock_of_any_zone(where: tuple[str, datetime], step: int) -> None:
    name, time = where
    calendar = BatchCalendar(Span(Unit.TIME, step), name)
    check(calendar, boundaries(ZoneInfo(name), calendar.interval, time), time)


@pytest.mark.search
@settings(max_examples=examples(400), deadline=None)
@given(
    where=anywhere,
    span=st.sampled_from(["1 day", "2 days", "10 days", "1 week on monday", "2 weeks on sunday", "1 month", "1 year"]),
)
@example(where=ODD[2], span="1 day")
@example(where=ODD[3], span="1 day")
@example(where=ODD[8], span="1 day")
@example(where=ODD[10], span="1 day")
def test_days_weeks_and_months_begin_at_midnight_in_any_zone(where: tuple[str, datetime], span: str) -> None:
    name, time = where
    calendar = BatchCalendar(span_of(span), name)
    days = calendar.interval.longest.days + 3
    check(calendar, boundaries(ZoneInfo(name), calendar.interval, time, days), time)


def check(calendar: BatchCalendar, expected: list[datetime], time: datetime) -> None:
    at = bisect_right(expected, time)
    assert calendar.newest_up_to(time) == expected[at - 1]
    assert calendar.next_after(time) == expected[at]
    for boundary in expected[at - 1 : at + 1]:
        assert calendar.is_boundary(boundary)
        assert calendar.newest_up_to(boundary) == boundary
        assert calendar.newest_up_to(boundary - timedelta(microseconds=1)) < boundary
        assert calendar.next_after(boundary - timedelta(microseconds=1)) == boundary
    first, last = expected[max(0, at - 20)], expected[min(len(expected) - 1, at + 20)]
    assert calendar.count(first, last) == sum(first < each <= last for each in expected)


@settings(max_examples=examples(400), deadline=None)
@given(where=anywhere, length=st.sampled_from(["1 day", "3 days", "2 weeks", "1 month"]), later=st.integers(1, 90_000))
def test_a_windows_begin_never_goes_back_and_is_a_boundary_at_midnight(
    where: tuple[str, datetime], length: str, later: int
) -> None:
    name, time = where
    span = span_of(length)
    days = BatchCalendar(span_of("1 month" if span.unit is Unit.MONTH else "1 day"), name)
    assert days.start_of_window(time, span) <= days.start_of_window(time + later * SECOND, span)
    assert days.start_of_window(time, span) < time <= days.start_of_window(time, span) + span.longest
    midnight = days.newest_up_to(time)
    begin = days.start_of_window(midnight, span)
    assert days.is_boundary(begin)
    units = span.count * (7 if span.unit is Unit.WEEK else 1)
    # A day that was passed over has no length.
    assert units - 1 <= days.count(begin, midnight) <= units


@settings(max_examples=examples(600), deadline=None)
@given(where=anywhere)
def test_an_hours_folder_has_all_times_that_show_it(where: tuple[str, datetime]) -> None:
    name, time = where
    zone = ZoneInfo(name)
    begin, end = hour_begin(zone, time), hour_end(zone, time)
    assert begin <= time < end
    shown = f"{time.astimezone(zone):%Y-%m-%d %H}"
    assert f"{begin.astimezone(zone):%Y-%m-%d %H}" == shown
    around = [time + n * timedelta(minutes=7) for n in range(-40, 40)]
    assert all(begin <= at < end for at in around if f"{at.astimezone(zone):%Y-%m-%d %H}" == shown)


def test_a_day_has_23_or_25_hours_when_it_has() -> None:
    days = BatchCalendar(span_of("1 day"), BERLIN)
    spring = days.next_after(datetime(2026, 3, 28, 12, tzinfo=UTC))
    autumn = days.next_after(datetime(2026, 10, 24, 12, tzinfo=UTC))
    assert (days.next_after(spring) - spring, days.next_after(autumn) - autumn) == (23 * HOUR, 25 * HOUR)
    hours = BatchCalendar(span_of("1h"), BERLIN)
    assert hours.count(spring, days.next_after(spring)) == 23
    assert hours.count(autumn, days.next_after(autumn)) == 25


def test_a_day_that_a_zone_passes_over_has_no_batch_of_its_own() -> None:
    days = BatchCalendar(span_of("1 day"), "Pacific/Apia")
    skipped = datetime(2011, 12, 30, 10, tzinfo=UTC)
    assert days.newest_up_to(skipped - SECOND) == skipped - DAY
    assert days.next_after(skipped - SECOND) == skipped
    assert days.next_after(skipped) == skipped + DAY
    # Two days back from there is one day of 24 hours.
    assert days.start_of_window(skipped, span_of("2 days")) == skipped - DAY


def test_each_step_of_a_second_is_counted_in_a_year() -> None:
    calendar = BatchCalendar(span_of("1s"), BERLIN)
    assert calendar.count(datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)) == 365 * 86_400


@pytest.mark.parametrize(
    ("text", "unit", "count", "weekday", "canonical"),
    [
        ("1 day", Unit.DAY, 1, None, "1 day"),
        ("2 days", Unit.DAY, 2, None, "2 days"),
        ("1 week on Monday", Unit.WEEK, 1, 0, "1 week on monday"),
        ("2 weeks on sundays", Unit.WEEK, 2, 6, "2 weeks on sunday"),
        ("1 month", Unit.MONTH, 1, None, "1 month"),
        ("1 year", Unit.MONTH, 12, None, "12 months"),
    ],
)
def test_texts_of_the_calendar(text: str, unit: Unit, count: int, weekday: int | None, canonical: str) -> None:
    span = calendar_text(text)
    assert span == Span(unit, count, weekday)
    assert span.text == canonical
    assert span_of(span.text) == span


@pytest.mark.parametrize("text", ["10s", "1d", "1.5 days", "day", "", "1 day late", "-1 day", "1 weekday"])
def test_other_texts_are_none_of_the_calendar(text: str) -> None:
    assert calendar_text(text) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 days", "longer than 0"),
        ("1 day on monday", "only weeks"),
        ("1 week on mondy", "did you mean monday"),
        ("1 week on x", "use one of monday"),
        ("99999 days", "36500 days"),
        ("101 years", "36500 days"),
    ],
)
def test_a_text_that_can_be_no_interval_says_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        calendar_text(text)


@pytest.mark.parametrize(
    ("span", "says"),
    [
        (Span(Unit.TIME, 7 * 3_600_000), "7h does not divide a day"),
        (Span(Unit.DAY, 7), "'1 week on monday'"),
        (Span(Unit.WEEK, 2), "'2 weeks on monday'"),
    ],
)
def test_an_interval_without_a_begin_of_its_own_is_refused(span: Span, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        checked_interval(span)
    with pytest.raises(ValueError, match="no whole number of days"):
        of_duration(36 * HOUR)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Europe/Berlim", "did you mean Europe/Berlin"),
        ("Europe", "is no time zone"),
        ("europe/berlin", "did you mean Europe/Berlin"),
        ("localtime", "is no time zone"),
        ("../etc/passwd", "is no time zone"),
        ("", "is no time zone"),
        (1, "is no name"),
    ],
)
def test_a_zone_that_no_host_knows_is_refused(name: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        checked_zone(name)
    assert checked_zone(BERLIN) == BERLIN


def test_what_is_a_multiple_of_what() -> None:
    def holds(of: str, by: str) -> bool:
        return span_of(of).is_multiple_of(span_of(by))

    assert holds("1 day", "1h")
    assert holds("2h", "1h")
    assert not holds("90m", "1h")
    assert not holds("1h", "1 day")
    assert holds("1 month", "1 day")
    assert not holds("1 month", "2 days")
    assert holds("2 weeks", "1 week on monday")
    assert holds("14 days", "1 week on monday")
    assert not holds("10 days", "1 week on monday")
    assert not holds("1 week on sunday", "1 week on monday")
    assert holds("3 months", "1 month")
    assert not holds("1 month", "1 week on monday")
    # Two days since 1970 begin on other days than a week.
    assert not holds("2 weeks on monday", "2 days")
    assert holds("2 weeks", "2 days")


def test_what_was_decided_is_read_as_it_was_written() -> None:
    decided = DecidedTimes({"1 day": True}, {"1 month": datetime(2026, 10, 31, 23, tzinfo=UTC)})
    assert DecidedTimes.of(decided.to_row()) == decided
    assert DecidedTimes.of(None) is None
