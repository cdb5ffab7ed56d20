"""Turn values into text for the status page: times in UTC, durations, sizes, and the tone of a state.

Pure. What it returns is plain text: the templates escape it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTHING = "–"  # noqa: RUF001  the sign for a value that there is not
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_THOUSAND = 1000
_MINUTE = 60
_HOUR = 3600
_DAY = 86_400
_TEN = 10

# The word always stands beside the colour. "busy": it moves on by itself; "warn": it waits for something; "bad": a
# person has to look.
_TONES: Mapping[str, str] = MappingProxyType(
    {
        "ACTIVE": "good",
        "COMPLETED": "good",
        "SUCCEEDED": "good",
        "COMMITTED": "good",
        "RUNNING": "busy",
        "SCHEDULED": "busy",
        "ALLOCATED": "busy",
        "STOPPING": "warn",
        "STOPPED": "warn",
        "PAUSED": "warn",
        "INACTIVE": "warn",
        "BLOCKED": "warn",
        "LOST": "warn",
        "DISCARDED": "warn",
        "DRAINING": "warn",
        "FAILED": "bad",
        "degraded": "bad",
        "QUARANTINED": "bad",
        "HALTED": "bad",
    }
)


def tone(state: str) -> str:
    """Return the tone of a state: good, busy, warn, bad, or plain for one of a later version."""
    return _TONES.get(state, "plain")


def milliseconds(at: datetime) -> int:
    """Return a time in milliseconds since 1970: a batch's number in addresses, as in the JSON API."""
    return (at - _EPOCH) // _MILLISECOND


def time_of(number: int) -> datetime:
    """Return the time of `milliseconds`. Raises OverflowError."""
    return _EPOCH + number * _MILLISECOND


def moment(at: datetime | None) -> str:
    """Return a time to the second, and to the millisecond if it has any."""
    if at is None:
        return NOTHING
    at = at.astimezone(UTC)
    part = at.microsecond // _THOUSAND
    return f"{at:%Y-%m-%d %H:%M:%S}" + (f".{part:03d}" if part else "")


def second(at: datetime | None) -> str:
    """Return a time to the second."""
    return NOTHING if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def count(value: float | None) -> str:
    """Return a whole number with separators."""
    return NOTHING if value is None else f"{round(value):,}"


def rate(value: float | None) -> str:
    """Return a number per second: small ones with a decimal place."""
    if value is None:
        return NOTHING
    return f"{value:.1f}" if 0 < value < _TEN else f"{value:,.0f}"


def span(value: timedelta | float | None) -> str:
    """Return a duration, given as such or in seconds, in its two largest units."""
    if value is None:
        return NOTHING
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    if seconds < 0.9995:  # noqa: PLR2004  what would be shown as 1000 ms
        return f"{sign}{seconds * _THOUSAND:.0f} ms"
    if seconds < 9.95:  # noqa: PLR2004  what would be shown as 10.0 s
        return f"{sign}{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, below, lesser in ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min"), (_MINUTE, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{sign}{whole // unit} {name}" + (f" {rest} {lesser}" if rest else "")
    return f"{sign}{whole} s"


def since(at: datetime | None, now: datetime) -> str:
    """Return how long ago a time is; a time that clocks see in the future is now."""
    return NOTHING if at is None else span(max(now - at, timedelta(0)))


def size(value: int | None) -> str:
    """Return a number of bytes in binary units."""
    if value is None:
        return NOTHING
    if value < 1024:  # noqa: PLR2004
        return f"{value} B"
    shown = float(value)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        shown /= 1024
        if shown < 999.5 or unit == "TiB":  # noqa: PLR2004  at most three digits
            break
    return f"{shown:.1f} {unit}" if shown < _TEN else f"{shown:,.0f} {unit}"
