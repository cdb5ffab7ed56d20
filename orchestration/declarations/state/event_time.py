"""Declares outputs by event time: which column has the time, how late a record may be, and its windows or join.

Owns these checks, which need neither Spark nor the driver log. It computes nothing
(``orchestration.batches.stateful.event_batch``). Names are those of Spark's and Flink's event time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.state.declared import OnStateFailure, State, checked_failure
from orchestration.state.state_schema import EXPIRES_AT
from receiver_runtime.sources.fields.units import MOST_DAYS, parse_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestration.declarations.sink import Sink
    from receiver_runtime.sources.records.declared import Records
    from receiver_runtime.sources.source import Source

#: The columns that a function finds beside those of the records.
WINDOW_START, WINDOW_END = "window_start", "window_end"
#: The column of late records that says at which watermark they came.
WATERMARK = "watermark"
How = Literal["inner", "left"]

# Windows that one record is in, and panes of one window: a batch has a row for each.
_MOST_WINDOWS = 10_000
_MICROSECOND = timedelta(microseconds=1)
_NO_TIME = timedelta(0)


class TimedStream(Protocol):
    """Be a stream, as ``orchestration.declarations.pipeline`` declares it, which imports this module."""

    name: str
    source: Source
    records: Records | None


class EventTime:
    """Declare an input whose records have a time of their own. Made by `Stream.by_event_time`."""

    def __init__(
        self,
        stream: TimedStream,
        column: str,
        *,
        lateness: str | timedelta,
        idle: str | timedelta,
        ahead: str | timedelta,
    ) -> None:
        where = f"event time of stream {stream.name!r}"
        if not isinstance(column, str) or not column.strip():
            raise DeclarationError(f"{where}: column={column!r}: name a column of TIMESTAMP, or write an expression")
        self.stream = stream
        self.column = column
        self.lateness = _duration(lateness, f"{where}: lateness", least=_NO_TIME)
        self.idle = _duration(idle, f"{where}: idle")
        self.ahead = _duration(ahead, f"{where}: ahead")

    def declaration(self) -> dict[str, Any]:
        """Return what `forebay apply` writes."""
        return {
            "stream": self.stream.name,
            "column": self.column,
            "lateness_ms": _milliseconds(self.lateness),
            "idle_ms": _milliseconds(self.idle),
            "ahead_ms": _milliseconds(self.ahead),
        }

    def __repr__(self) -> str:
        return f"EventTime({self.stream.name!r}, {self.column!r})"


class EventWindow:
    """Declare windows of one length by event time; they begin at multiples of `slide` since 1970, in UTC.

    With a `slide` shorter than the length, a record is in several windows.
    """

    def __init__(
        self,
        length: str | timedelta,
        *,
        slide: str | timedelta | None = None,
        on_failure: OnStateFailure = "halt",
    ) -> None:
        """Declare windows. `on_failure` is that of `State`. Raises DeclarationError."""
        self.length = _duration(length, "EventWindow: length")
        self.slide = self.length if slide is None else _duration(slide, "EventWindow: slide")
        if self.slide > self.length:
            raise DeclarationError(
                f"EventWindow({length!r}, slide={slide!r}): records between two windows would be in none: give a slide "
                "that is no longer than the window"
            )
        self._check_number(f"EventWindow({length!r}, slide={slide!r})")
        self.on_failure = checked_failure(on_failure)

    def _check_number(self, shown: str) -> None:
        if (windows := -(-self.length // self.slide)) > _MOST_WINDOWS:
            raise DeclarationError(
                f"{shown}: a record would be in {windows} windows, and may be in {_MOST_WINDOWS}: give a longer slide"
            )
        if (panes := self.length // self.pane) > _MOST_WINDOWS:
            raise DeclarationError(
                f"{shown}: windows begin and end at multiples of {self.pane}, of which a window has {panes}, and may "
                f"have {_MOST_WINDOWS}: give a slide that divides the length"
            )

    @property
    def pane(self) -> timedelta:
        """Return the length of the parts that windows are made of: each record is stored once, with its pane."""
        return math.gcd(self.length // _MICROSECOND, self.slide // _MICROSECOND) * _MICROSECOND

    def declaration(self) -> dict[str, Any]:
        """Return what `forebay apply` writes."""
        return {"length_ms": _milliseconds(self.length), "slide_ms": _milliseconds(self.slide)}

    def __repr__(self) -> str:
        return f"EventWindow({self.length}, slide={self.slide})"


class SessionWindow:
    """Declare sessions by event time: the records of one key of which none is `gap` or more after the one before.

    A session's end is `gap` after its last record.
    """

    def __init__(self, gap: str | timedelta, *, key: Sequence[str] | str, on_failure: OnStateFailure = "halt") -> None:
        """Declare sessions of the key's columns. `on_failure` is that of `State`. Raises DeclarationError."""
        self.gap = _duration(gap, "SessionWindow: gap")
        self.key = _columns(key, "SessionWindow: key")
        self.on_failure = checked_failure(on_failure)

    def declaration(self) -> dict[str, Any]:
        """Return what `forebay apply` writes."""
        return {"gap_ms": _milliseconds(self.gap), "key": list(self.key)}

    def __repr__(self) -> str:
        return f"SessionWindow({self.gap}, key={list(self.key)})"


class EventJoin:
    """Declare a join of two inputs by key and event time: pairs of which the second record's time is in a range.

    The range is from the first record's time plus the first of `between` to that plus the second one, both included.
    Each pair is in the result of one batch, the one in which its later record comes.
    """

    def __init__(
        self,
        on: Sequence[str] | str,
        *,
        between: tuple[str | timedelta, str | timedelta],
        how: How = "inner",
        on_failure: OnStateFailure = "halt",
    ) -> None:
        """Declare a join.

        Args:
            on: the columns that both inputs have, and that are equal in a pair; a null equals nothing.
            between: how much later the second record is than the first, at least and at most, as `("-5m", "1h")`.
            how: "inner", or "left": a record of the first input that gets no pair comes once, with null for the second,
                when the watermark has passed the range.
            on_failure: that of `State`.

        Raises:
            DeclarationError: a value can't work.
        """
        self.on = _columns(on, "EventJoin: on")
        if not isinstance(between, tuple) or len(between) != 2:  # noqa: PLR2004
            raise DeclarationError(f'EventJoin: between={between!r}: give two durations, as between=("-5m", "1h")')
        self.least, self.most = (_signed(each, "EventJoin: between") for each in between)
        if self.least > self.most:
            raise DeclarationError(f"EventJoin: between={between!r}: the first must not be longer than the second")
        if how not in get_args(How):
            raise DeclarationError(f"EventJoin: how={how!r} must be one of {', '.join(get_args(How))}")
        self.how: How = how
        self.on_failure = checked_failure(on_failure)

    def declaration(self) -> dict[str, Any]:
        """Return what `forebay apply` writes."""
        return {
            "on": list(self.on),
            "least_ms": _milliseconds(self.least),
            "most_ms": _milliseconds(self.most),
            "how": self.how,
        }

    def __repr__(self) -> str:
        return f"EventJoin({list(self.on)}, between=({self.least}, {self.most}))"


EventKind = EventWindow | SessionWindow | EventJoin


@dataclass(frozen=True, slots=True)
class EventOutput:
    """Hold what makes an output one by event time.

    Attributes:
        times: the inputs with an event time, by their place among the output's inputs.
        kind: the windows or the join.
        state: the user's own state, of keys in windows; None: the records of windows that are not final are kept.
        updates: whether the sink takes the rows of a window again when the window has got a record; else it gets them
            once, when the window is final.
        only_late: whether the result is the records that are too late.
    """

    times: dict[int, EventTime] = field(hash=False)
    kind: EventKind
    state: State | None
    updates: bool
    only_late: bool = False

    @property
    def identity(self) -> tuple[str, ...]:
        """Return the columns that say which window a row of the result belongs to; none for a join."""
        if isinstance(self.kind, EventJoin):
            return ()
        return (*(self.kind.key if isinstance(self.kind, SessionWindow) else ()), WINDOW_START)

    def declaration(self) -> dict[str, Any]:
        """Return what `forebay apply` writes: for people, and for status."""
        return {
            "inputs": [time.declaration() for time in self.times.values()],
            "emits": "late records" if self.only_late else "updates" if self.updates else "final",
        }


class EventState(State):
    """Declare the state of an output by event time, whose columns are those of its records, or of the user's state."""

    def __init__(self, kind: EventKind, times: Sequence[EventTime], own: State | None) -> None:
        """Take the windows or the join, the inputs' times, and the user's own state."""
        if own is None:
            super().__init__("key0 STRING", f"{EXPIRES_AT} TIMESTAMP", on_failure=kind.on_failure)
        else:
            key = ", ".join([f"{WINDOW_START} TIMESTAMP", *(f"`{name}` {each}" for name, each in own.schema.key)])
            value = ", ".join([*(f"`{name}` {each}" for name, each in own.schema.value), f"{EXPIRES_AT} TIMESTAMP"])
            super().__init__(key, value, on_failure=own.on_failure, buckets=own.buckets, version=own.version)
            self.migrate = own.migrate
        self.own = own
        self._made_of = {
            **kind.declaration(),
            "times": [[time.stream.name, time.column] for time in times],
        }

    def declaration(self) -> dict[str, Any]:
        """Return what `forebay apply` writes. `made_of`: with another one, the stored state would be wrong."""
        found = super().declaration()
        return {**found, **({} if self.own is not None else {"key": [], "value": []}), "made_of": self._made_of}


def event_output(
    where: str, times: dict[int, EventTime], kind: EventKind | None, state: State | None, sink: Sink
) -> EventOutput:
    """Return what makes an output one by event time. Raises DeclarationError."""
    if kind is None:
        raise DeclarationError(
            f"{where} reads by event time, and has neither windows nor a join: give window=EventWindow('5m'), "
            "window=SessionWindow('30m', key=…) or join=EventJoin(…)"
        )
    if not times:
        raise DeclarationError(
            f"{where}: {kind!r} needs the event time: give inputs=[STREAM.by_event_time('at', lateness='10m')]"
        )
    needed = 2 if isinstance(kind, EventJoin) else 1
    if len(times) != needed:
        raise DeclarationError(f"{where}: {kind!r} takes {needed} input(s) by event time, and {len(times)} are given")
    if isinstance(kind, EventJoin) and [*times] != [0, 1]:
        raise DeclarationError(f"{where}: {kind!r}: the two inputs that are joined come first in inputs=[…]")
    _check_state(where, kind, state)
    found = EventOutput(times, kind, state, updates=False)
    mode = getattr(sink, "mode", "append")
    if mode == "overwrite":
        raise DeclarationError(
            f"{where}: a batch has the windows or pairs that have changed, and mode='overwrite' would drop all others: "
            "say mode='merge' with key=…, or mode='append', for windows once they are final"
        )
    if not found.identity:
        return found
    if sink.replaces(found.identity):
        return EventOutput(times, kind, state, updates=True)
    if mode == "merge":
        raise DeclarationError(
            f"{where}: its sink keeps one row for each key, and {', '.join(found.identity)} must be in it, else rows "
            f"of one window replace those of another: give key=[{', '.join(map(repr, found.identity))}, …]"
        )
    return found


def _check_state(where: str, kind: EventKind, state: State | None) -> None:
    if state is None:
        return
    if kind.on_failure != "halt":
        raise DeclarationError(f"{where}: on_failure= of {kind!r}: its state says it, as State(…, on_failure='skip')")
    if not isinstance(kind, EventWindow):
        raise DeclarationError(
            f"{where}: {kind!r} keeps the records themselves: leave out state=, or use window=EventWindow(…)"
        )
    taken = {name.casefold() for name in state.schema.names} & {WINDOW_START, WINDOW_END, EXPIRES_AT}
    if taken or state.ttl is not None:
        what = "ttl" if not taken else min(taken)
        raise DeclarationError(
            f"{where}: its state has {what}, and a key of a window lives until its window is final: leave it out"
        )
    if state.keys is not None or state.initial is not None:
        raise DeclarationError(f"{where}: a state of windows takes neither keys= nor initial=: leave them out")


def _columns(value: Sequence[str] | str, where: str) -> tuple[str, ...]:
    columns = (value,) if isinstance(value, str) else tuple(value)
    if not columns or not all(isinstance(name, str) and name for name in columns) or len({*columns}) != len(columns):
        raise DeclarationError(f"{where}={value!r}: give names of columns, and none twice")
    return columns


def _signed(value: str | timedelta, where: str) -> timedelta:
    if isinstance(value, str) and value.lstrip().startswith("-"):
        return -_duration(value.lstrip()[1:], where, least=_NO_TIME)
    if isinstance(value, timedelta) and value < _NO_TIME:
        return -_duration(-value, where, least=_NO_TIME)
    return _duration(value, where, least=_NO_TIME)


def _duration(value: str | timedelta, where: str, *, least: timedelta = timedelta(milliseconds=1)) -> timedelta:
    try:
        duration = value if isinstance(value, timedelta) else timedelta(seconds=parse_duration(value))
    except ValueError as error:
        raise DeclarationError(f"{where}={value!r}: {error}") from error
    if duration > timedelta(days=MOST_DAYS):
        raise DeclarationError(f"{where}={value!r} is longer than {MOST_DAYS} days: give less")
    if duration < least or duration % timedelta(milliseconds=1):
        at_least = "not be negative" if not least else "be longer than 0"
        raise DeclarationError(f"{where}={value!r} must {at_least}, in whole milliseconds")
    return duration


def _milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)
