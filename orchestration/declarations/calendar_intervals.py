"""Read intervals, slides and lengths of windows as people write them for a calendar: ``"1 day"``, ``"1 month"``.

Raises ValueError for what can't work; ``pipeline`` says where it was declared.
"""

from __future__ import annotations

from datetime import timedelta

from tracker_store.schema.batch_calendar import (
    BatchCalendar,
    Span,
    Unit,
    calendar_text,
    checked_interval,
    checked_zone,
    of_duration,
)


def span_of_text(value: object) -> Span | None:
    """Return what a value counts in days, weeks or months; None: it is another duration."""
    return calendar_text(value) if isinstance(value, str) else None


def fixed_duration(span: Span) -> timedelta | None:
    """Return days or weeks as multiples of 24 hours; None: only a calendar has them."""
    return span.nominal if span.unit in (Unit.DAY, Unit.WEEK) and span.weekday is None else None


def declared_calendar(span: Span | None, duration: timedelta | None, timezone: object) -> BatchCalendar | None:
    """Return the calendar of a pipeline; None: its batch times are multiples of its interval.

    It is declared by `span`, or by `duration`. Without a time zone, weeks that begin on a day and months are UTC's.
    """
    if timezone is None:
        return None if span is None or fixed_duration(span) is not None else BatchCalendar(span, "UTC")
    zone = checked_zone(timezone)
    return BatchCalendar(checked_interval(span or of_duration(duration or timedelta(0))), zone)
