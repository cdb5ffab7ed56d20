"""Turn messages of the Forward protocol into rows: each entry is one, with its tag, its time and its record as JSON.

An entry that can't be a row becomes a dead letter, which is a message of this entry alone, and refuses no other. A
message that is none becomes a dead letter as a whole. Owns these rules; knows no connection.
"""

from __future__ import annotations

import hashlib
import math
import struct
from array import array
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from forebay_contrib.fluent_forward.declaration import FluentForward
from forebay_contrib.fluent_forward.json_text import Effort, NoRecordError, json_of, time_of
from forebay_contrib.fluent_forward.messages import EntryScanner, MessageSplitter, plain_record_at, plain_time_at
from forebay_contrib.fluent_forward.scanning import (
    EXTENSIONS,
    NIL,
    NotMessagePackError,
    TooLongError,
    ValueScanner,
    array_of,
    head,
    is_array,
    is_map,
    is_text,
)
from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_path.records import schema_of
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.requests.decompression import decompressed
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay_contrib.fluent_forward.messages import Message

SCHEMA = schema_of(FluentForward.columns)
_SECOND = 10**9
_FIRST_TIME, _LAST_TIME = -(2**63), 2**63 - 1  # of a column of nanoseconds
_EVENT_TIME = struct.Struct(">II")
_ROW_BYTES = 100  # what a row counts for beside its texts
# More entries that are none make their message one dead letter.
_MOST_REJECTED = 10_000
_MOST_CHUNK_BYTES = 2**10
# How many values of a message are read: at least this many, and one for this many bytes that it may have. Senders'
# records have more bytes a value. But a small message that is compressed could have millions of values of one byte.
_LEAST_EFFORT, _BYTES_OF_EFFORT = 2**19, 2
# Heads of arrays of one, two and three values.
_ONE_VALUE, _TWO_VALUES, _THREE_VALUES = b"\x91", b"\x92", b"\x93"
_LEAST_VALUES, _MOST_VALUES = 2, 4
_MESSAGE_VALUES = 3  # without the option: tag, time and record
_NO_METADATA = b"{}"
_NIL_VALUE = bytes([NIL])
_ACK_HEAD = b"\x81\xa3ack"
_DECODE = msgspec.msgpack.Decoder().decode
_COMPRESSIONS = {"gzip", "zstd"}
_COMPRESSED = b"compressed"  # the option's name, which MessagePack holds as it is


class _Option(msgspec.Struct, gc=False):
    """Hold what a message says of itself. Its number of records (``size``) is never needed."""

    chunk: msgspec.Raw = msgspec.Raw(b"")
    compressed: str | None = None


_OPTION = msgspec.msgpack.Decoder(_Option | None)


@dataclass(frozen=True, slots=True)
class Limits:
    """Hold the bounds of a message, in bytes: when decompressed, of each record, and of all its rows."""

    message: int
    record: int
    rows: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Say where a message came from, and when, in microseconds."""

    sender: str
    received_at: int


@dataclass(slots=True)
class Rows:
    """Gather rows, column by column, and what is none."""

    #: What rows of one message have in common, and how many rows that are.
    tags: list[str] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    #: In nanoseconds.
    times: array[int] = field(default_factory=lambda: array("q"))
    #: The places of the rows without a time.
    timeless: list[int] = field(default_factory=list)
    #: JSON.
    records: list[bytes] = field(default_factory=list)
    #: JSON that rows have beside their records, by their places.
    metadata: dict[int, bytes] = field(default_factory=dict)
    letters: list[DeadLetter] = field(default_factory=list)
    #: What the rows, and what is none, count for.
    nbytes: int = 0

    def extend(self, rows: Rows) -> None:
        """Add rows."""
        first = len(self.records)
        self.tags += rows.tags
        self.origins += rows.origins
        self.counts += rows.counts
        self.times += rows.times
        self.timeless += [first + place for place in rows.timeless]
        self.records += rows.records
        self.metadata.update({first + place: text for place, text in rows.metadata.items()})
        self.letters += rows.letters
        self.nbytes += rows.nbytes

    def batch(self) -> pa.RecordBatch:
        """Return the rows as a batch."""
        count = len(self.records)
        missing = np.zeros(count, np.bool_)
        missing[self.timeless] = True
        times = pa.array(np.frombuffer(self.times, np.int64), mask=missing)
        groups = np.repeat(np.arange(len(self.counts)), self.counts)
        received = np.array([origin.received_at for origin in self.origins], np.int64)
        metadata = [self.metadata.get(place) for place in range(count)] if self.metadata else [None] * count
        return pa.RecordBatch.from_arrays(
            [
                pa.array(self.tags, pa.string()).take(groups),
                times.cast(pa.timestamp("ns", "UTC")).cast(SCHEMA.field("time").type, safe=False),
                times,
                pa.array(self.records, pa.string()),
                pa.array(metadata, pa.string()),
                pa.array([origin.sender for origin in self.origins], pa.string()).take(groups),
                pa.array(received[groups], SCHEMA.field("received_at").type),
            ],
            schema=SCHEMA,
        )


@dataclass(slots=True)
class Parsed:
    """Hold what a message holds."""

    rows: Rows
    #: What acknowledges the message, if its sender asks for it.
    ack: bytes | None = None
    #: The message's key: its chunk's id, and the digest of its content.
    key: str | None = None
    #: An error that no message should cause; the message is a dead letter.
    fault: Exception | None = None


def may_be_compressed(message: Message) -> bool:
    """Return whether a message may hold more than its bytes: the option names a compression."""
    return message.entries is None and _COMPRESSED in message.data


def parse(message: Message, origin: Origin, limits: Limits) -> Parsed:
    """Return the rows of a message. What can't be a row is a dead letter.

    Raises MemoryError alone: a sender that sends the message again may find memory.
    """
    parsed = Parsed(Rows())
    try:
        _Reader(message.data, limits, parsed).read(message.entries)
    except NoRecordError as error:
        parsed.rows = _aside(message.data, error)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  a sender that is not answered would send the message for ever
        parsed.rows, parsed.fault = (
            _aside(message.data, NoRecordError(f"the receiver failed to parse it: {error!r}")),
            error,
        )
    parsed.rows.origins = [origin] * len(parsed.rows.tags)
    return parsed


def _aside(data: bytes, error: NoRecordError) -> Rows:
    """Return a whole message as one dead letter."""
    return Rows(letters=[DeadLetter(error.reason, data, why=str(error))], nbytes=len(data) + _ROW_BYTES)


def judge_letters(source: FluentForward, reason: str, letters: Sequence[bytes]) -> Mapping[int, str]:
    """Return why dead letters are no records, by their places; see ``Source.refusals``.

    A record that was read is JSON, so what is ``unparsable`` was refused here.
    """
    if reason != DeadLetterReason.UNPARSABLE.label:
        return {}
    limits = Limits(source.max_message_bytes, source.max_record_bytes, source.max_waiting_bytes)
    return dict(enumerate(_why_refused(letter, limits) for letter in letters))


def _why_refused(letter: bytes, limits: Limits) -> str:
    splitter = MessageSplitter(limits.message)
    splitter.take(letter)
    try:
        message = splitter.next_message()
    except (NotMessagePackError, TooLongError) as error:
        return f"it is no message of the Forward protocol: {error}"
    found = [] if message is None else parse(message, Origin("", 0), limits).rows.letters
    return found[0].why if found else "it is no whole message of the Forward protocol"


class _Reader:
    """Read one message into ``parsed``."""

    def __init__(self, data: bytes, limits: Limits, parsed: Parsed) -> None:
        self._data = data
        self._limits = limits
        self._parsed = parsed
        self._rows = parsed.rows
        self._effort = Effort(max(_LEAST_EFFORT, limits.message // _BYTES_OF_EFFORT))
        #: The tag, as it was sent.
        self._tag = b""

    def read(self, entries: EntryScanner | None) -> None:
        """Read it all. Raises NoRecordError: it is no message."""
        data = self._data
        places = _places_of(data, entries)
        first, second = data[places[0]], data[places[1]]
        is_packed = is_text(second)
        values = 2 if is_packed or entries is not None else _MESSAGE_VALUES
        if len(places) - 1 not in {values, values + 1}:
            raise NoRecordError("no message of the Forward protocol: give a tag, and entries, or a time and a record")
        option = self._read_option(places[values:])
        self._tag = data[places[0] : places[1]]
        if not is_text(first):
            raise NoRecordError("the tag is no text")
        tag = _text_of(self._tag, "the tag")
        content = data[places[1] : places[values]]
        if is_packed:
            content = self._read_packed(content, option)
        elif entries is not None:
            self._read_entries(data, entries)
        else:
            self._read_one(places)
        if option.chunk:
            digest = hashlib.blake2b(self._tag, digest_size=16)
            digest.update(content)
            self._parsed.key = f"{_chunk_of(bytes(option.chunk))}@{digest.hexdigest()}"
        if self._rows.records:
            self._rows.tags, self._rows.counts = [tag], [len(self._rows.records)]

    def _read_option(self, places: Sequence[int]) -> _Option:
        if len(places) == 1:
            return _Option()
        begin, end = places
        try:
            option = _OPTION.decode(self._data[begin:end]) or _Option()
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise NoRecordError(f"the option is no map, or has a value of another type: {error}") from None
        if bytes(option.chunk) == _NIL_VALUE:
            option.chunk = msgspec.Raw(b"")
        chunk = bytes(option.chunk)
        if chunk and not (is_text(chunk[0]) and len(chunk) <= _MOST_CHUNK_BYTES):
            raise NoRecordError(f"the chunk is no text of at most {_MOST_CHUNK_BYTES} bytes: it can't be acknowledged")
        if chunk:
            self._parsed.ack = _ACK_HEAD + chunk
        return option

    def _read_packed(self, value: bytes, option: _Option) -> bytes:
        """Read entries that are one behind the other; return them."""
        found = head(value, 0)
        assert found is not None  # it was scanned
        content = value[found.begin : found.end]
        if option.compressed not in {None, "text"}:
            content = self._decompressed(content, option.compressed or "")
        entries = EntryScanner(len(content), 0)
        why = "it is cut off"
        try:
            while entries.at < len(content) and entries.scan(content):
                pass
        except TooLongError:
            # An entry that is longer than what is left.
            pass
        except NotMessagePackError as error:
            why = str(error)
        self._read_entries(content, entries)
        if rest := content[entries.ends[-1] if entries.ends else 0 :]:
            self._reject(rest, NoRecordError(f"the rest of the entries can't be read: {why}"), is_whole=False)
        return content

    def _decompressed(self, content: bytes, compression: str) -> bytes:
        if compression not in _COMPRESSIONS:
            raise NoRecordError(f"compressed: {shortened(compression, 40)!r} is not read here: send gzip or zstd")
        try:
            return decompressed(content, compression, most_bytes=self._limits.message)
        except PushRefusedError as error:
            if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                why = f"more than {self._limits.message} bytes when decompressed, which is max_message_bytes"
                raise NoRecordError(why, DeadLetterReason.RECORD_TOO_LARGE) from None
            raise NoRecordError(f"the entries are no whole {compression}") from error

    def _read_entries(self, data: bytes, entries: EntryScanner) -> None:
        begin = entries.begin
        for end, values, is_odd in zip(entries.ends, entries.values, entries.odd, strict=True):
            try:
                if values:
                    at = plain_record_at(data, begin)
                    seconds, nanoseconds = _EVENT_TIME.unpack_from(data, plain_time_at(begin, at))
                    text = self._json_of(data, at, end, values, is_odd=bool(is_odd))
                    self._add(seconds * _SECOND + nanoseconds, text)
                else:
                    self._read_entry(data, begin, end)
            except NoRecordError as error:
                self._reject(data[begin:end], error)
            begin = end

    def _read_entry(self, data: bytes, begin: int, end: int) -> None:
        """Read an entry whose time may have any form. Raises NoRecordError."""
        if not is_array(data[begin]):
            raise NoRecordError("an entry is no array of a time and a record")
        outer = array_of(data, begin)
        assert outer is not None  # it was scanned
        if outer.values != 2:  # noqa: PLR2004  a time and a record
            raise NoRecordError(f"an entry has {outer.values} values: give a time and a record")
        at, _, _ = _scanned(data, outer.begin, end)
        self._read_timed(data, outer.begin, at, end)

    def _read_one(self, places: Sequence[int]) -> None:
        """Read the entry of a message that has one. A dead letter of it is the message itself."""
        try:
            self._read_timed(self._data, places[1], places[2], places[3])
        except NoRecordError as error:
            self._reject(self._data[places[1] : places[3]], error, is_entry=False)

    def _read_timed(self, data: bytes, begin: int, middle: int, end: int) -> None:
        """Read a time and the record behind it. Raises NoRecordError."""
        metadata = b""
        if is_array(data[begin]):
            # Fluent Bit's form: the time, and what it knows beside the record.
            inner = array_of(data, begin)
            if inner is None or inner.values != 2:  # noqa: PLR2004  a time and a map
                raise NoRecordError("the time is an array of other than a time and a map")
            at, _, _ = _scanned(data, inner.begin, middle)
            time = _time_at(data, inner.begin, at)
            metadata = self._scanned_json_of(data, at, middle)
        else:
            time = _time_at(data, begin, middle)
        self._add(time, self._scanned_json_of(data, middle, end), metadata)

    def _scanned_json_of(self, data: bytes, begin: int, end: int) -> bytes:
        _, values, is_odd = _scanned(data, begin, end)
        return self._json_of(data, begin, end, values, is_odd=is_odd)

    def _json_of(self, data: bytes, begin: int, end: int, values: int, *, is_odd: bool) -> bytes:
        most_bytes = self._limits.record
        return json_of(data, begin, end, values=values, is_odd=is_odd, most_bytes=most_bytes, effort=self._effort)

    def _add(self, time: int | None, text: bytes, metadata: bytes = b"") -> None:
        rows = self._rows
        place = len(rows.records)
        if time is None:
            rows.timeless.append(place)
        rows.times.append(time or 0)
        if metadata and metadata != _NO_METADATA:
            rows.metadata[place] = metadata
        rows.records.append(text)
        self._grow(len(text) + len(metadata) + len(self._tag) + _ROW_BYTES)

    def _reject(self, value: bytes, error: NoRecordError, *, is_entry: bool = True, is_whole: bool = True) -> None:
        """Note what is no record: as a message of it alone, which can be sent again."""
        if len(self._rows.letters) == _MOST_REJECTED:
            raise NoRecordError(
                f"more than {_MOST_REJECTED} entries are none; the first one: {self._rows.letters[0].why}"
            )
        if not is_whole:
            # What is no MessagePack is put aside as it came.
            letter = value
        elif is_entry:
            letter = b"".join((_TWO_VALUES, self._tag, _ONE_VALUE, value))
        else:
            letter = b"".join((_THREE_VALUES, self._tag, value))
        self._rows.letters.append(DeadLetter(error.reason, letter, why=str(error)))
        self._grow(len(letter) + _ROW_BYTES)

    def _grow(self, nbytes: int) -> None:
        self._rows.nbytes += nbytes
        if self._rows.nbytes > self._limits.rows:
            raise NoRecordError(
                f"more than {self._limits.rows} bytes of rows, each with its tag, which is max_waiting_bytes",
                DeadLetterReason.RECORD_TOO_LARGE,
            )


def _places_of(data: bytes, entries: EntryScanner | None) -> Sequence[int]:
    """Return where each value of a message begins, and where the last one ends. Raises NoRecordError: it is none."""
    outer = array_of(data, 0)
    assert outer is not None  # it was scanned
    if not _LEAST_VALUES <= outer.values <= _MOST_VALUES:
        raise NoRecordError(f"no message of the Forward protocol: it has {outer.values} values")
    places = [outer.begin]
    for number in range(outer.values):
        if number == 1 and entries is not None:
            places.append(entries.ends[-1] if entries.ends else entries.begin)
        else:
            places.append(_scanned(data, places[-1], len(data))[0])
    return places


def _scanned(data: bytes, begin: int, end: int) -> tuple[int, int, bool]:
    """Return where a value ends that is whole, of how many values it consists, and whether it has anything odd."""
    scanner = ValueScanner(end, begin)
    scanner.begin()
    scanner.scan(data)
    return scanner.at, scanner.values, scanner.is_odd


def _text_of(value: bytes, what: str) -> str:
    found = head(value, 0)
    assert found is not None  # it was scanned
    try:
        return value[found.begin : found.end].decode()
    except UnicodeDecodeError as error:
        raise NoRecordError(f"{what} is no UTF-8 at byte {error.start}", DeadLetterReason.INVALID_ENCODING) from None


def _time_at(data: bytes, begin: int, end: int) -> int | None:
    """Return the time that a value is, in nanoseconds; None: it says none. Raises NoRecordError: it is no time."""
    octet = data[begin]
    if octet in EXTENSIONS:
        found = head(data, begin)
        assert found is not None  # it was scanned
        time = time_of(data, found)
    elif octet == NIL:
        return None
    else:
        value = None if is_text(octet) or is_map(octet) or is_array(octet) else _DECODE(data[begin:end])
        if type(value) is int:
            time = value * _SECOND
        elif type(value) is float and math.isfinite(value * _SECOND):
            time = round(value * _SECOND)
        else:
            raise NoRecordError("the time is none: give seconds since 1970, or an EventTime")
    if not _FIRST_TIME <= time <= _LAST_TIME:
        raise NoRecordError(f"the time {time // _SECOND} is no number of seconds since 1970")
    return time


def _chunk_of(value: bytes) -> str:
    found = head(value, 0)
    assert found is not None  # it was scanned
    chunk = value[found.begin : found.end]
    try:
        return chunk.decode()
    except UnicodeDecodeError:
        return chunk.hex()
