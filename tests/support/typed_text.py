"""Read one text as a value of a type, in plain Python: what readers of records in text must agree with."""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

DDL = (
    "text STRING, many BIGINT, small TINYINT, price DOUBLE, paid BOOLEAN, cost DECIMAL(7, 2), day DATE, at TIMESTAMP, "
    "local TIMESTAMP_NTZ"
)
NAMES = tuple(column.split()[0] for column in DDL.split(", ") if column[0].isalpha())
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[0-9]{2}(?::[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)?"


def _matched(pattern: str, text: str) -> str:
    if re.fullmatch(pattern, text) is None:
        raise ValueError(text)
    return text


def _integer(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(_matched("-?[0-9]+", text))
        if not -most <= value < most:
            raise ValueError(text)
        return value

    return read


def _double(text: str) -> float:
    value = float(_matched(_NUMBER, text))
    if value in {float("inf"), float("-inf")} or (value == 0 and re.match("[^eE]*[1-9]", text)):
        raise ValueError(text)
    return value


def _boolean(text: str) -> bool:
    return _matched("true|false", text.lower()) == "true"


def _cost(text: str) -> Decimal:
    try:
        value = Decimal(_matched(_NUMBER, text))
        made = value.quantize(Decimal("0.01"))
    except InvalidOperation as error:
        raise ValueError(text) from error
    if made != value or abs(made) >= 10**5:
        raise ValueError(text)
    return made


def _time(zone: str) -> Callable[[str], datetime]:
    def read(text: str) -> datetime:
        return datetime.fromisoformat(_matched(_DAY + zone, text))

    return read


READ: dict[str, Callable[[str], Any]] = {
    "text": str,
    "many": _integer(2**63),
    "small": _integer(2**7),
    "price": _double,
    "paid": _boolean,
    "cost": _cost,
    "day": lambda text: date.fromisoformat(_matched(_DAY, text)),
    "at": _time(rf"[T ]{_CLOCK}(?:Z|[+-][0-9]{{2}}(?::?[0-5][0-9])?)"),
    "local": _time(rf"(?:[T ]{_CLOCK})?"),
}

_times = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(datetime.isoformat)  # noqa: DTZ001  without a zone
_good: dict[str, st.SearchStrategy[str]] = {
    "text": st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6),
    "many": st.integers(-(2**63), 2**63 - 1).map(str),
    "small": st.integers(-128, 127).map(str),
    "price": st.floats(allow_nan=False, allow_infinity=False).map(repr),
    "paid": st.sampled_from(["true", "false", "True", "FALSE"]),
    "cost": st.decimals(-99999, 99999, places=2).map(str),
    "day": st.dates(date(1, 1, 1)).map(date.isoformat),
    "at": st.builds("{}{}".format, _times, st.sampled_from(["Z", "+01:00", "-0530", "+02"])),
    "local": _times.map(lambda text: text.replace("T", " ")),
}
ODD = [
    *("", "0x1F", "1", "0", "-0", "007", "+1", "1.0", "1.", ".5", "1e2", "1e400", "1e-400", "nan", "inf", "-Infinity"),
    *("9223372036854775808", "128", "-129", "123456.7", "1.005", "1.500", "yes", "t", "2026-02-30", "2026-13-01"),
    *("2026-01-02", "2026-01-02T03", "2026-01-02T03:04", "2026-01-02T03:04Z", "2026-01-02T24:00:00Z", "2026-01-02Z"),
    *("2026-01-02T03:04:60Z", "2026-01-02T03:04:05.1234567Z", "2026-01-02T03:04:05+25:00", "2026-01-02T03:04:05z"),
    *("2026-01-02t03:04:05Z", "2026-01-02T03:04:05,1Z", "20260102", " 1", "1 ", "1\u0661", "2026-02-30T00:00:00Z"),
    *("2026-01-02T03:04:05+01:60", "2026-01-02T03:04:05+1", "2026-01-02  03:04:05", "-2026-01-02", "02026-01-02"),
]


def texts(name: str) -> st.SearchStrategy[str]:
    """Return texts for a column: most of them are values of its type."""
    return _good[name] | _good[name] | st.sampled_from(ODD)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, str]:
    """Draw a text for each column: in most rows all are values."""
    if draw(st.booleans()):
        return {name: draw(_good[name]) for name in NAMES}
    return {name: draw(texts(name)) for name in NAMES}
