"""Makes rows of requests to Splunk's HTTP Event Collector: events, one JSON object behind the other, and raw lines.

The usual request is decoded at once. If anything in it is wrong, its objects are found by their braces, and each is
read alone: an object that is no event becomes a dead letter, and refuses no other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.requests.parsing_limits import outside_strings
from receiver_runtime.receivers.http.requests.pushed import (
    MOST_REJECTED,
    PushedRows,
    PushRefusedError,
    RejectedRecord,
    header,
    media_type,
)
from receiver_runtime.receivers.http.requests.records import parse_plain
from receiver_runtime.receivers.http.requests.text_bodies import json_text
from receiver_runtime.receivers.http.rows import Rows, parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
    from receiver_runtime.receivers.http.requests.pushed import Headers

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_NAMES = ("time", "host", "source", "sourcetype", "index")
_BLANKS = b" \t\r\n"
_QUOTE = b'"'
_STARTS_NUMBER = frozenset(b"-0123456789")
_CHECK_EVERY = 1024  # how many events to read before the time is checked again
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"{")], _STEPS[list(b"}")] = 1, -1
# How the Event Collector calls what is wrong with an event; the answer's code is told by it.
NO_EVENT = "Event field is required"
BLANK_EVENT = "Event field cannot be blank"
NO_DATA = "No data"


class _Event(msgspec.Struct, gc=False):
    """Hold an event as it was sent."""

    event: msgspec.Raw = msgspec.Raw(b"")
    time: msgspec.Raw = msgspec.Raw(b"")
    host: str | None = None
    source: str | None = None
    sourcetype: str | None = None
    index: str | None = None
    fields: msgspec.Raw = msgspec.Raw(b"")


_EVENTS = msgspec.json.Decoder(_Event)
_STRING = msgspec.json.Decoder(str)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)


class _NoEventError(ValueError):
    """Signal why an object is no event; the message is for its sender."""

    def __init__(self, why: str, reason: DeadLetterReason = DeadLetterReason.UNPARSABLE) -> None:
        super().__init__(why)
        self.reason = reason


def parse_events(headers: Headers, body: bytes, source: Http, limits: ParsingLimits) -> PushedRows:
    """Return a row for each event.

    Raises:
        ParsingStoppedError: the time is over, or the sender has left.
        PushRefusedError: 400, none is an event; 413, there are too many, or they are too large together; 415 for a
            charset that is not known here.
    """
    text = json_text(*media_type(header(headers, b"content-type")), body)
    found = _events(headers, text.body.strip(_BLANKS), source, limits)
    return replace(found, rejected=text.as_sent(found.rejected)) if found.rejected else found


def _events(headers: Headers, body: bytes, source: Http, limits: ParsingLimits) -> PushedRows:
    """Return a row for each event of a text in UTF-8."""
    if not body:
        raise PushRefusedError(400, f"{NO_DATA}: send at least one event")
    limits.check_json(body)
    made = _Rows(headers, source)
    try:
        body.decode()
        for number, event in enumerate(_EVENTS.decode_lines(body)):
            if not number % _CHECK_EVERY:
                limits.check()
            made.add(event)
        return PushedRows(made.batch())
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError, _NoEventError):
        return _one_by_one(_Rows(headers, source), body, limits)


def _one_by_one(made: _Rows, body: bytes, limits: ParsingLimits) -> PushedRows:
    rejected: list[RejectedRecord] = []
    objects = _objects(body, limits)
    for number, one in enumerate(objects):
        if not number % _CHECK_EVERY:
            limits.check()
        try:
            one.decode()
            made.add(_EVENTS.decode(one))
        except _NoEventError as error:
            rejected.append(RejectedRecord(one, error.reason, f"event {number}: {error}"))
        except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
            rejected.append(RejectedRecord(one, DeadLetterReason.UNPARSABLE, f"event {number}: {error}"))
        if len(rejected) > MOST_REJECTED:
            break
    if not made.rows.bodies or len(rejected) > MOST_REJECTED:
        is_large = all(one.reason is DeadLetterReason.RECORD_TOO_LARGE for one in rejected)
        raise PushRefusedError(413 if is_large else 400, f"{rejected[0].why}: correct it, none of them is kept")
    return PushedRows(made.batch(), rejected=rejected)


def _objects(body: bytes, limits: ParsingLimits) -> Sequence[bytes]:
    """Return the objects that a body has, one behind the other. Raises PushRefusedError: 400, it has something else."""
    octets, outside = outside_strings(body)
    depth = np.cumsum(_STEPS[octets] * outside, dtype=np.int32)
    ends = np.flatnonzero((depth == 0) & outside & (octets == ord("}"))) + 1
    if not ends.size or ends[-1] != len(body) or depth.min() < 0:
        raise PushRefusedError(400, "body: its braces do not show where an event ends: send JSON objects")
    limits.check_elements(ends.size)
    begins = [0, *ends[:-1].tolist()]
    return [body[begin:end].strip(_BLANKS) for begin, end in zip(begins, ends.tolist(), strict=True)]


class _Rows:
    """Gather the rows of events."""

    def __init__(self, headers: Headers, source: Http) -> None:
        self.rows = Rows(headers, source)
        self._most_bytes = source.max_record_bytes
        self._types: list[str] = []
        # What nearly all events of a request have in common.
        self._shared: dict[tuple[str | None, ...], tuple[Sequence[str], Sequence[str], int]] = {}
        asked = parameters(headers)
        self._asked = {name: asked[name][-1] for name in _NAMES if name in asked}

    def add(self, event: _Event) -> None:
        """Add an event. Raises _NoEventError."""
        value = bytes(event.event)
        is_text = value[:1] == _QUOTE
        body = _STRING.decode(value).encode() if is_text else value
        if not value or value == b"null":
            raise _NoEventError(NO_EVENT)
        if not body:
            raise _NoEventError(BLANK_EVENT)
        if len(body) > self._most_bytes:
            why = f"{len(body)} bytes, max_record_bytes is {self._most_bytes}"
            raise _NoEventError(why, DeadLetterReason.RECORD_TOO_LARGE)
        own: list[str] = []
        values: list[str] = []
        if (time := bytes(event.time)) and time != b"null":
            own.append("time")
            values.append(_time(time))
        if fields := bytes(event.fields):
            for name, field in (_FIELDS.decode(fields) or {}).items():
                own.append(f"fields.{name}")
                values.append(_text(bytes(field)))
        places = (
            event.host,
            event.source,
            event.sourcetype,
            event.index,
            "time" if values and own[0] == "time" else "",
        )
        shared = self._shared.get(places)
        if shared is None:
            shared = self._shared[places] = self.rows.add_shared(self._placed(places))
        self.rows.add(body, shared, own, values)
        self._types.append(_TEXT if is_text else _JSON)

    def _placed(self, places: tuple[str | None, ...]) -> dict[str, str]:
        """Return what an event says of its place, and where it does not, the request's parameters."""
        *named, time = places
        given = {name: value for name, value in zip(_NAMES[1:], named, strict=True) if value is not None}
        asked = {name: value for name, value in self._asked.items() if name != time}
        return {**asked, **given}

    def batch(self) -> pa.RecordBatch:
        """Return the rows as a batch."""
        return self.rows.batch(self._types)


def _time(value: bytes) -> str:
    if value[0] not in _STARTS_NUMBER and value[:1] != _QUOTE:
        raise _NoEventError(f"time: {value[:40].decode(errors='replace')} is no number")
    return _text(value)


def _text(value: bytes) -> str:
    """Return a JSON string's characters, and any other value as it was sent."""
    return _STRING.decode(value) if value[:1] == _QUOTE else value.decode()


def parse_raw(headers: Headers, body: bytes, source: Http, limits: ParsingLimits) -> PushedRows:
    """Return a row for each line that is not blank. Raises as ``parse_events``."""
    found = parse_plain(headers, body, most_bytes=source.max_record_bytes, form="lines", limits=limits)
    rows = Rows(headers, source)
    asked = parameters(headers)
    attributes = {name: asked[name][-1] for name in _NAMES if name in asked}
    if isinstance(found.bodies, pa.Array):
        batch = rows.batch_of(found.bodies, _TEXT, attributes)
    else:
        shared = rows.add_shared(attributes)
        for line in found.bodies:
            rows.add(line, shared)
        batch = rows.batch(_TEXT)
    return PushedRows(batch, rejected=found.rejected)
