"""Makes rows of push requests to Loki, in JSON and in protobuf: each entry of a stream is a row, with its labels.

An entry that can't be a row refuses no other: it becomes a dead letter, which is a push request of this entry alone.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.messages import message_types, read_message
from receiver_runtime.receivers.http.requests.decompression import unsnapped
from receiver_runtime.receivers.http.requests.pushed import (
    MOST_REJECTED,
    PushedRows,
    PushRefusedError,
    RejectedRecord,
    header,
    media_type,
)
from receiver_runtime.receivers.http.requests.text_bodies import json_text
from receiver_runtime.receivers.http.rows import Rows, key_of_body

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
    from receiver_runtime.receivers.http.requests.pushed import Headers

JSON = "application/json"
PROTOBUF = "application/x-protobuf"
_TEXT = "text/plain; charset=utf-8"
_TIME = "timestamp"
_SECOND = 10**9
_MOST_LABELS_BYTES = 64 * 2**10  # of a stream's labels in protobuf: to read them takes a multiple of their memory
_CHECK_EVERY = 1024  # how many entries to read before the time is checked again
_MESSAGES = message_types(
    "forebay.loki",
    {
        "PushRequest": {"streams": (1, "repeated Stream")},
        "Stream": {"labels": (1, "bytes"), "entries": (2, "repeated Entry")},
        "Entry": {"timestamp": (1, "Timestamp"), "line": (2, "bytes"), "metadata": (3, "repeated Pair")},
        "Timestamp": {"seconds": (1, "int64"), "nanos": (2, "int32")},
        "Pair": {"name": (1, "bytes"), "value": (2, "bytes")},
    },
)
_PUSH = _MESSAGES["PushRequest"]
# Labels as Prometheus writes them: {job="web", instance="a\"b"}.
_LABEL = re.compile(rb'\s*([A-Za-z_][A-Za-z0-9_.:/-]*|"(?:[^"\\]|\\.)*")\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|$)', re.DOTALL)
_ESCAPE = re.compile(
    rb'\\(?:([abfnrtv\\"\'])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))', re.DOTALL
)
_PLAIN_ESCAPES = dict(zip(b"abfnrtv\\\"'", b"\a\b\f\n\r\t\v\\\"'", strict=True))


class _Entry(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Hold an entry in JSON."""

    time: str | int
    line: str
    metadata: dict[str, str] | None = None


class _Stream(msgspec.Struct, gc=False):
    stream: dict[str, str]
    values: list[_Entry]


class _Request(msgspec.Struct, gc=False):
    streams: list[_Stream]


class _RawStream(msgspec.Struct, gc=False):
    stream: msgspec.Raw
    values: list[msgspec.Raw]


class _RawRequest(msgspec.Struct, gc=False):
    streams: list[msgspec.Raw]


_REQUEST = msgspec.json.Decoder(_Request)
_RAW_REQUEST = msgspec.json.Decoder(_RawRequest)
_RAW_STREAM = msgspec.json.Decoder(_RawStream)
_LABELS = msgspec.json.Decoder(dict[str, str])
_ENTRY = msgspec.json.Decoder(_Entry)


class _NoEntryError(ValueError):
    """Signal why something is no entry; the message is for its sender."""

    def __init__(self, why: str, reason: DeadLetterReason = DeadLetterReason.UNPARSABLE) -> None:
        super().__init__(why)
        self.reason = reason


def parse_push(headers: Headers, body: bytes, source: Http, limits: ParsingLimits) -> PushedRows:
    """Return a row for each entry.

    A request that is sent again has the same bytes, and Loki keeps one of two equal entries: so the hash of the body is
    the rows' key.

    Raises:
        ParsingStoppedError: the time is over, or the sender has left.
        PushRefusedError: 400, none is an entry; 413, there are too many, or they are too large together; 415 for a
            media type that is none of Loki's two.
    """
    kind, charset = media_type(header(headers, b"content-type"))
    if kind == JSON:
        text = json_text(kind, charset, body).body
        limits.check_json(text)
        made = _in_json(headers, text, source, limits)
    elif kind in {PROTOBUF, ""}:
        # What has a Content-Encoding is decompressed already.
        if header(headers, b"content-encoding") is None:
            body = unsnapped(body, most_bytes=source.max_body_bytes, limits=limits)
        made = _Rows(headers, source, limits)
        for stream in read_message(_PUSH, body, limits).streams:
            made.add_message(stream)
    else:
        raise PushRefusedError(415, f"the media type {kind!r} is not read here: send {JSON} or {PROTOBUF}")
    return made.pushed(key_of_body("loki", headers, body, source))


def _in_json(headers: Headers, text: bytes, source: Http, limits: ParsingLimits) -> _Rows:
    made = _Rows(headers, source, limits)
    try:
        text.decode()
        for stream in _REQUEST.decode(text).streams:
            labels = made.labels_of(stream.stream)
            for entry in stream.values:
                made.add(labels, str(entry.time), entry.line.encode(), entry.metadata or {})
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError, _NoEntryError):
        return _one_by_one(headers, text, source, limits)
    return made


def _one_by_one(headers: Headers, text: bytes, source: Http, limits: ParsingLimits) -> _Rows:
    made = _Rows(headers, source, limits)
    try:
        streams = _RAW_REQUEST.decode(text).streams
    except (msgspec.DecodeError, RecursionError) as error:
        raise PushRefusedError(400, f'body: {error}: send {{"streams": [...]}}') from error
    for stream in map(bytes, streams):
        try:
            stream.decode()
            raw = _RAW_STREAM.decode(stream)
            named = bytes(raw.stream)
            labels = made.labels_of(_LABELS.decode(named))
        except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
            made.reject(b'{"streams":[%b]}' % stream, _NoEntryError(f"a stream is none: {error}"))
            continue
        for one in map(bytes, raw.values):
            try:
                entry = _ENTRY.decode(one)
                made.add(labels, str(entry.time), entry.line.encode(), entry.metadata or {})
            except (msgspec.DecodeError, RecursionError, _NoEntryError) as error:
                wrong = error if isinstance(error, _NoEntryError) else _NoEntryError(f"an entry is none: {error}")
                made.reject(b'{"streams":[{"stream":%b,"values":[%b]}]}' % (named, one), wrong)
    return made


class _Rows:
    """Gather the rows of entries, and what is none."""

    def __init__(self, headers: Headers, source: Http, limits: ParsingLimits) -> None:
        self._rows = Rows(headers, source)
        self._most_bytes = source.max_record_bytes
        self._limits = limits
        self._most_held = source.max_waiting_bytes
        # The bytes of all dead letters.
        self._held = 0
        self._rejected: list[RejectedRecord] = []

    def labels_of(self, labels: Mapping[str, str]) -> tuple[Sequence[str], Sequence[str], int]:
        """Return labels as the attributes that all entries of a stream have."""
        return self._rows.add_shared({f"labels.{name}": value for name, value in labels.items()})

    def add(
        self,
        labels: tuple[Sequence[str], Sequence[str], int],
        time: str,
        line: bytes,
        metadata: Mapping[str, str],
    ) -> None:
        """Add an entry. Raises _NoEntryError."""
        if not len(self._rows.bodies) % _CHECK_EVERY:
            self._limits.check()
        if len(line) > self._most_bytes:
            why = f"a line of {len(line)} bytes, max_record_bytes is {self._most_bytes}"
            raise _NoEntryError(why, DeadLetterReason.RECORD_TOO_LARGE)
        if not time.removeprefix("-").isdecimal() or not time.isascii():
            raise _NoEntryError(f"the time {time!r:.40} is no number of nanoseconds")
        self._rows.add(
            line,
            labels,
            [_TIME, *(f"metadata.{name}" for name in metadata)],
            [time, *metadata.values()],
        )

    def add_message(self, stream: Any) -> None:  # noqa: ANN401  a message
        """Add the entries of a stream in protobuf."""
        try:
            labels = self.labels_of(labels_in(stream.labels))
        except (ValueError, UnicodeDecodeError) as error:
            self._reject_message(stream, stream.entries, _NoEntryError(f"labels: {error}"))
            return
        for entry in stream.entries:
            at = entry.timestamp
            try:
                metadata = {pair.name.decode(): pair.value.decode() for pair in entry.metadata}
                self.add(labels, str(at.seconds * _SECOND + at.nanos), entry.line, metadata)
            except _NoEntryError as error:
                self._reject_message(stream, [entry], error)
            except UnicodeDecodeError as error:
                self._reject_message(stream, [entry], _NoEntryError(f"metadata: no UTF-8 at byte {error.start}"))

    def _reject_message(self, stream: Any, entries: Sequence[Any], error: _NoEntryError) -> None:  # noqa: ANN401
        alone = _PUSH()
        alone.streams.add(labels=stream.labels).entries.extend(entries)
        self.reject(alone.SerializeToString(), error)

    def reject(self, data: bytes, error: _NoEntryError) -> None:
        """Note what is no entry. Each has all labels of its stream, so the bytes are counted.

        Raises PushRefusedError: 400, there are too many; 413, they are too large together.
        """
        self._limits.check()
        self._held += len(data)
        if self._held > self._most_held:
            raise PushRefusedError(
                413,
                f"body: more than {self._most_held} bytes of entries that are none, each with its labels, which is "
                f"max_waiting_bytes; {error}: correct it, or send fewer at once",
            )
        self._rejected.append(RejectedRecord(data, error.reason, str(error)))
        if len(self._rejected) > MOST_REJECTED:
            raise PushRefusedError(400, f"body: more than {MOST_REJECTED} entries are none; {self._rejected[0].why}")

    def pushed(self, key: str | None) -> PushedRows:
        """Return the rows. Raises PushRefusedError: none is an entry."""
        if self._rejected and not self._rows.bodies:
            is_large = all(one.reason is DeadLetterReason.RECORD_TOO_LARGE for one in self._rejected)
            raise PushRefusedError(413 if is_large else 400, f"body: no entry is one; {self._rejected[0].why}")
        return PushedRows(self._rows.batch(_TEXT), key, self._rejected)


def labels_in(text: bytes) -> Mapping[str, str]:
    """Return the labels that a text in braces has. Raises ValueError."""
    if len(text) > _MOST_LABELS_BYTES:
        raise ValueError("they are longer than 64 KiB")
    inner = text.strip()
    if inner[:1] != b"{" or inner[-1:] != b"}":
        raise ValueError("they have no braces around them")
    inner = inner[1:-1].strip()
    found: dict[str, str] = {}
    at = 0
    while at < len(inner):
        match = _LABEL.match(inner, at)
        if match is None:
            raise ValueError(f'byte {at} begins no label, as job="web"')
        name = _unescaped(match[1][1:-1] if match[1][:1] == b'"' else match[1])
        if name in found:
            raise ValueError(f"{name!r:.100} is there twice")
        found[name] = _unescaped(match[2])
        at = match.end()
    return found


def _unescaped(text: bytes) -> str:
    return (_ESCAPE.sub(_character, text) if b"\\" in text else text).decode()


def _character(match: re.Match[bytes]) -> bytes:
    plain, byte, short, long, octal, other = match.groups()
    if plain:
        return bytes([_PLAIN_ESCAPES[plain[0]]])
    if byte or octal:
        number = int(byte, 16) if byte else int(octal, 8)
        if number > 0xFF:  # noqa: PLR2004  one byte
            raise ValueError(f"{match[0].decode()} is no byte")
        return bytes([number])
    if short or long:
        number = int(short or long, 16)
        if number > sys.maxunicode:
            raise ValueError(f"{match[0].decode()} is no character")
        # A half of a surrogate pair has no UTF-8, which is an error too.
        return chr(number).encode()
    raise ValueError(f"\\{other.decode(errors='replace')} is no escape")
