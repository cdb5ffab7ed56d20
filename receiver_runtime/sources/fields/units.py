"""Parse sizes and durations as people write them, with the unit in the value (``"16MiB"``, ``"200ms"``)."""

from __future__ import annotations

import math
import re

_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
#: The longest duration: dates that are this far from now are still dates in Python and in Postgres.
MOST_DAYS = 36_500
_BYTES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}


def parse_duration(value: object) -> float:
    """Return a duration in seconds, from ``"200ms"``, ``"2s"``, ``"1m"``, ``"1h"``, ``"7d"`` or a number of seconds.

    Raises:
        ValueError: not of that form, or longer than 36,500 days; the message says what is valid.
    """
    seconds = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(min(value, 1e18)) if value >= 0 else math.nan
    elif isinstance(value, str) and (match := _NUMBER_AND_UNIT.fullmatch(value)) and match[2] in _SECONDS:
        seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > MOST_DAYS * _SECONDS["d"]:
        raise ValueError(f"{value!r} is longer than {MOST_DAYS} days: give less")
    if not math.isnan(seconds):
        return seconds
    raise ValueError(f"{value!r} is no duration: write a number with a unit, one of {', '.join(_SECONDS)}, as '200ms'")


def parse_bytes(value: object) -> int:
    """Return a size in bytes, from ``"16MiB"``, ``"64KB"`` or a whole number of bytes.

    Raises:
        ValueError: not of that form, or not a whole number of bytes; the message says what is valid.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and (match := _NUMBER_AND_UNIT.fullmatch(value)):
        size = float(match[1]) * _BYTES.get(match[2] or "B", math.nan)
        if size.is_integer():
            return int(size)
    raise ValueError(f"{value!r} is no size: write a number with a unit, one of {', '.join(_BYTES)}, as '16MiB'")


def duration_text(seconds: float) -> str:
    """Return a duration as `parse_duration` takes it, in the largest unit that keeps it exact: ``"14d"``, ``"1m"``."""
    for unit in ("d", "h", "m", "s"):
        count = seconds / _SECONDS[unit]
        if count >= 1 and count.is_integer():
            return f"{count:.0f}{unit}"
    return f"{seconds * 1000:g}ms" if 0 < seconds < 1 else f"{seconds:g}s"
