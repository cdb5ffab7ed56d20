"""Read one line of statsd or DogStatsD by itself. The rules are here; ``reader`` reads most lines in bulk by them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import isfinite
from typing import TypeVar

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from tracker_store.long_texts import shortened

#: Counter, gauge, timer, histogram, distribution, meter; a set has texts in place of numbers.
NUMBER_TYPES = ("c", "g", "ms", "h", "d", "m")
SET = "s"
EVENT, CHECK = "_e", "_sc"
NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
#: The last second of the year 9999, the last that Spark has.
LAST_SECOND = 253_402_300_799
#: The longest line, in bytes: no datagram is longer. A longer one could have millions of values.
MOST_BYTES = 2**16
#: Digits of a time. More are no time before the year 10,000.
TIME = "[0-9]{1,12}"

_UNPARSABLE, _DOES_NOT_FIT = DeadLetterReason.UNPARSABLE, DeadLetterReason.DOES_NOT_FIT
_NUMBER = re.compile(NUMBER)
_TIME = re.compile(TIME)
_NOT_ZERO = re.compile(r"[^eE]*[1-9]")
_EVENT = re.compile(r"_e\{([0-9]{1,9}),([0-9]{1,9})\}:")
_STATUSES = ("0", "1", "2", "3")
Text = TypeVar("Text", str, bytes)
_LONGEST = 60  # characters of a part of a line in a reason


class NoLineError(ValueError):
    """Signal why a text is no line of statsd; the message is for people."""

    def __init__(self, reason: DeadLetterReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


@dataclass(slots=True)
class Line:
    """Hold the columns of a line; see the page."""

    name: str
    type: str
    value: float | None = None
    values: list[float] | None = None
    text: str | None = None
    sample_rate: float | None = None
    tags: list[tuple[str, str | None]] | None = None
    timestamp: int | None = None
    container: str | None = None
    other: str | None = None


@dataclass(slots=True)
class _Sections:
    """Gather what stands behind the value: each section once, and what is not known as it is."""

    letters: str
    found: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def add(self, section: str) -> None:
        """Take a section. Raises NoLineError if it comes again."""
        name = section[:1]
        if name not in {"@", "#", "T"}:
            name = section[:2]
        if name not in self.letters.split():
            self.others.append(section)
        elif name in self.found:
            raise NoLineError(_UNPARSABLE, f"a section {name} comes twice")
        else:
            self.found[name] = section[len(name) :]

    def fill(self, line: Line) -> Line:
        """Write what sections of every kind of line say into a line."""
        line.tags = tags_of(self.found.get("#", "")) or None
        line.container = self.found.get("c:") or None
        time = self.found.get("T", self.found.get("d:"))
        line.timestamp = None if time is None else _second(time)
        line.other = "|".join(self.others) if self.others else None
        return line


def parse(text: str) -> Line:
    """Return what a line says. Raises NoLineError."""
    if len(text) > MOST_BYTES or len(text.encode()) > MOST_BYTES:
        raise NoLineError(DeadLetterReason.RECORD_TOO_LARGE, f"more than {MOST_BYTES} bytes")
    if not text.strip():
        raise NoLineError(_UNPARSABLE, "it is empty")
    if "\n" in text:
        raise NoLineError(_UNPARSABLE, "it is several lines: read it by a source that cuts its records at lines")
    if text.startswith("_e{"):
        return _event(text)
    if text.startswith("_sc|"):
        return _check(text)
    return _metric(text)


def _metric(text: str) -> Line:
    name, colon, rest = text.partition(":")
    if not colon or not name or "|" in name:
        raise NoLineError(_UNPARSABLE, "no name and value with a colon between them, as name:1|c")
    value, *sections = rest.split("|")
    if not sections:
        raise NoLineError(_UNPARSABLE, "no type behind the value, as name:1|c")
    kind, *more = sections
    line = Line(name, kind, text=value)
    if not value:
        raise NoLineError(_UNPARSABLE, "no value between name and type, as name:1|c")
    if kind in NUMBER_TYPES:
        numbers = [_number(one) for one in value.split(":")]
        if len(numbers) > 1:
            line.values = numbers
        else:
            line.value = numbers[0]
    elif kind != SET:
        raise NoLineError(_UNPARSABLE, f"type {_short(kind)} is none of {', '.join((*NUMBER_TYPES, SET))}")
    found = _Sections("@ # c: T")
    for section in more:
        found.add(section)
    line.sample_rate = _rate(found.found.get("@", "1"))
    return found.fill(line)


def _event(text: str) -> Line:
    """Return an event. Its lengths count bytes; some clients count characters."""
    head = _EVENT.match(text)
    if head is None:
        raise NoLineError(_UNPARSABLE, "an event does not begin with its lengths, as _e{5,4}:title|text")
    sizes = int(head[1]), int(head[2])
    cut = _cut(text[head.end() :].encode(), *sizes)
    title, body, rest = map(bytes.decode, cut) if cut else _cut(text[head.end() :], *sizes) or (None, None, None)
    if title is None or body is None or rest is None:
        raise NoLineError(_UNPARSABLE, f"an event's title and text are not {sizes[0]} and {sizes[1]} bytes long")
    found = _Sections("# c: d:")
    for section in rest.split("|")[1:]:
        found.add(section)
    return found.fill(Line(title, EVENT, text=body))


def _cut(rest: Text, title: int, body: int) -> tuple[Text, Text, Text] | None:
    bar = "|" if isinstance(rest, str) else b"|"
    end = title + 1 + body
    if rest[title : title + 1] != bar or len(rest) < end or rest[end : end + 1] not in (bar, bar[:0]):
        return None
    return rest[:title], rest[title + 1 : end], rest[end:]


def _check(text: str) -> Line:
    _, name, *sections = text.split("|")
    if not name or not sections or sections[0] not in _STATUSES:
        raise NoLineError(_UNPARSABLE, "a service check has no name and status, 0 to 3, as _sc|name|0")
    found = _Sections("# c: d: m:")
    for section in sections[1:]:
        found.add(section)
    return found.fill(Line(name, CHECK, value=float(sections[0]), text=found.found.get("m:")))


def tags_of(text: str) -> list[tuple[str, str | None]]:
    """Return tags, each once. The values of one that comes again are joined by a comma, which no value has."""
    found: dict[str, str | None] = {}
    for tag in filter(None, text.split(",")):
        key, colon, value = tag.partition(":")
        if key in found:
            found[key] = f"{found[key] or ''},{value}"
        else:
            found[key] = value if colon else None
    return list(found.items())


def _number(text: str) -> float:
    if _NUMBER.fullmatch(text):
        number = float(text)
        if isfinite(number) and (number or not _NOT_ZERO.match(text)):
            return number
    raise NoLineError(_DOES_NOT_FIT, f"value {_short(text)} is no number")


def _rate(text: str) -> float:
    rate = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not 0 < rate <= 1:
        raise NoLineError(_DOES_NOT_FIT, f"sample rate {_short(text)} is not above 0 and at most 1")
    return rate


def _second(text: str) -> int:
    if not _TIME.fullmatch(text) or int(text) > LAST_SECOND:
        raise NoLineError(_DOES_NOT_FIT, f"time {_short(text)} is no number of seconds since 1970")
    return int(text)


def _short(text: str) -> str:
    return repr(shortened(text, _LONGEST))
