"""Parses syslog messages into columns in bulk: vector code finds places in one buffer, without an object per message.

RFC 5424 and RFC 3164 are told apart message by message. A message that can't be read as either still becomes a row,
with its raw bytes and the reason in ``parse_error``: nothing is refused here. The rules are in
``forebay_contrib/syslog/README.md``. Knows no sockets and no framing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay_contrib.syslog.device_headers import FINER, MONTHS, NO_ZONE, read_device_headers
from receiver_runtime.record_formats.text_reader import behind_marks

if TYPE_CHECKING:
    from collections.abc import Sequence

Places = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]

_LARGEST_PRIORITY = 191
_NEWLINE, _RETURN = b"\n\r"
_SPACE, _COLON, _OPEN, _CLOSE, _LESS, _GREATER, _NIL = b" :[]<>-"
_CONTINUATION = 0x80  # the two highest bits of a byte that continues a UTF-8 character
_PADDING = 32  # zero bytes after the text: no code below looks further behind a message's last byte
_BSD_BYTES = 15  # the length of "Oct 11 22:14:15"
_SHORT_NAME, _SHORT_CAPITALS = 4, 7  # bytes: words up to these lengths may be part of the time
_BSD_SEPARATORS = ((3, _SPACE), (6, _SPACE), (9, _COLON), (12, _COLON))
_ISO = (
    r"^\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d"
    r"(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)$"
)
# Names, each with its value behind it; more spaces than one are taken, because nothing of them is lost.
_STRUCTURED_DATA = r'^(?P<sd>(?:\[[^\s=\]"]+(?: +[^\s=\]"]+="(?:[^"\\]|\\(?s:.))*")* *\])+)'
_UTC_MICROSECONDS = pa.timestamp("us", tz="UTC")


def _others(accepted: bytes) -> npt.NDArray[np.bool_]:
    table = np.ones(256, dtype=bool)
    table[np.frombuffer(accepted, dtype=np.uint8)] = False
    return table


_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
# By byte: whether it ends a host or a process, or an application, that vector code reads.
_NOT_IN_NAME = _others(_LETTERS + b"0123456789._-")
_NOT_IN_TAG = _others(_LETTERS + b"0123456789._-/()")

#: The values of ``parse_error``, by code. Where a message has several errors, the first of them is given.
NOT_UTF8, NO_PRIORITY, NO_HEADER, NO_TIME = "not UTF-8", "no priority", "no RFC 5424 header", "no such time"
UNKNOWN_HEADER, FINER_TIME = "unknown header", "a time finer than microseconds"
_ERRORS = (NOT_UTF8, NO_PRIORITY, NO_HEADER, NO_TIME, UNKNOWN_HEADER, FINER_TIME)


def parse(data: bytes, starts: Places, ends: Places, *, received_at: int, timezone: str) -> dict[str, Any]:
    """Return the columns of messages, by name.

    Args:
        data: the messages; octet counting puts them side by side, without a byte between them.
        starts: where each message begins.
        ends: where each message ends.
        received_at: microseconds since 1970. RFC 3164 times have no year: they get the year of this time, or the one
            next to it (see ``_year_of``).
        timezone: the zone of RFC 3164 times, which give none.
    """
    raw = _spans(data, starts, ends, kind=pa.binary())
    text, starts, ends, is_broken = _repaired(data, starts, ends)
    octets = np.zeros(len(text) + _PADDING, dtype=np.uint8)
    octets[: len(text)] = np.frombuffer(text, dtype=np.uint8)
    for _ in range(2):
        # Remove line ends from the text: rsyslog includes them in its count, others end datagrams with them.
        last = octets[np.maximum(ends - 1, 0)]
        ends = ends - ((ends > starts) & ((last == _NEWLINE) | (last == _RETURN) | (last == 0)))
    # Some senders begin a connection with a byte-order mark, which belongs to no message.
    starts = behind_marks(octets, starts, ends)
    made = _Messages(text, octets, starts, ends)
    priority, body = made.priorities()
    has_priority = priority >= 0
    is_new = has_priority & (octets[body] == ord("1")) & (octets[body + 1] == _SPACE) & (body + 1 < ends)
    header = made.header(body, is_new)
    old = made.old_header(body, has_priority & ~is_new, received_at)
    is_nil = is_new & (header.time.stops == header.time.starts + 1) & (octets[header.time.starts] == _NIL)
    iso = _Field(
        np.where(is_new, header.time.starts, old.iso.starts),
        np.where(is_new, header.time.stops, old.iso.stops),
        (header.time.there & ~is_nil) | old.iso.there,
    )
    local = _in_zone(old.time, old.has_time & (old.offset == NO_ZONE), timezone)
    iso_texts = made.strings(iso)
    timestamp = pc.coalesce(_parse_iso(iso_texts), _at_offset(old.time, old.offset, old.has_time), local)
    is_finer = old.is_finer | np.asarray(pc.fill_null(pc.match_substring_regex(iso_texts, rf"\.{FINER}"), False))  # noqa: FBT003
    bad_time = (iso.there | old.wants_time) & ~np.asarray(timestamp.is_valid())
    errors = [is_broken, ~has_priority, is_new & ~header.is_whole, bad_time, old.is_unknown, is_finer]
    value = pa.array(priority.astype(np.int32), mask=~has_priority)
    return {
        "received_at": pa.array(np.full(starts.size, received_at), pa.int64()).cast(_UTC_MICROSECONDS),
        "priority": value,
        "facility": pa.array((priority >> 3).astype(np.int32), mask=~has_priority),
        "severity": pa.array((priority & 7).astype(np.int32), mask=~has_priority),
        "version": pa.array(np.ones(starts.size, dtype=np.int32), mask=~header.is_whole),
        "timestamp": timestamp,
        "hostname": made.strings(_either(header.host, old.host)),
        "app_name": made.strings(_either(header.app, old.app)),
        "proc_id": made.strings(_either(header.process, old.process)),
        "msg_id": made.strings(header.message_id),
        "structured_data": made.strings(header.structured_data),
        "message": made.strings(_either(header.message, old.message)),
        "parse_error": _words(errors),
        "raw": raw,
    }


@dataclass(slots=True)
class _Field:
    """One part of each message, where it has one. Places where ``there`` is false mean nothing."""

    starts: Places
    stops: Places
    there: _Mask


@dataclass(slots=True)
class _Header:
    """Hold the RFC 5424 headers of some messages.

    A message with an incomplete header has none of its fields; all text after the priority is its message.
    """

    is_whole: _Mask
    time: _Field
    host: _Field
    app: _Field
    process: _Field
    message_id: _Field
    structured_data: _Field
    message: _Field


@dataclass(slots=True)
class _OldHeader:
    """Hold the RFC 3164 headers of some messages. Every part of one may be missing."""

    #: A time of RFC 3339 with a zone, which is read later.
    iso: _Field
    time: npt.NDArray[np.datetime64]
    #: The zone of ``time`` in minutes east of Greenwich, or ``NO_ZONE``.
    offset: Places
    #: Whether ``time`` is one that exists, and whether there is one that may not ("Feb 30 00:00:00").
    has_time: _Mask
    wants_time: _Mask
    #: Whether there is a time, and what stands around it is not known: then nothing is read, not even the time.
    is_unknown: _Mask
    #: Whether a time has more digits than microseconds.
    is_finer: _Mask
    host: _Field
    app: _Field
    process: _Field
    message: _Field


class _Messages:
    """Find the parts of messages that lie in one buffer."""

    def __init__(self, text: bytes, octets: npt.NDArray[np.uint8], starts: Places, ends: Places) -> None:
        self._text = text
        self._octets = octets
        self._starts = starts
        self._ends = ends
        # One more behind all text, which stands for "there is no other space".
        self._spaces = np.append(np.flatnonzero(octets[: len(text)] == _SPACE), len(text))
        self._name_ends = np.append(np.flatnonzero(_NOT_IN_NAME[octets[: len(text)]]), len(text))
        self._tag_ends = np.append(np.flatnonzero(_NOT_IN_TAG[octets[: len(text)]]), len(text))

    def strings(self, field: _Field) -> pa.Array:
        there = field.there
        starts = np.where(there, field.starts, self._starts)
        return _spans(self._text, starts, np.where(there, field.stops, starts), there=there)

    def priorities(self) -> tuple[Places, Places]:
        """Return each message's priority, -1 where it has none, and where its rest begins."""
        octets, at = self._octets, self._starts
        digits = [octets[at + place].astype(np.int64) - ord("0") for place in (1, 2, 3)]
        is_digit = [(digit >= 0) & (digit <= 9) for digit in digits]  # noqa: PLR2004  of a decimal digit
        value = np.full(at.size, -1)
        body = at.copy()
        so_far = np.zeros(at.size, dtype=np.int64)
        begun = (octets[at] == _LESS) & (at < self._ends)
        for place in range(3):
            begun = begun & is_digit[place]
            so_far = np.where(begun, so_far * 10 + digits[place], so_far)
            close = at + place + 2
            here = begun & (octets[close] == _GREATER) & (close < self._ends) & (so_far <= _LARGEST_PRIORITY)
            value = np.where(here, so_far, value)
            body = np.where(here, close + 1, body)
        return value, body

    def header(self, body: Places, is_new: _Mask) -> _Header:
        octets, ends = self._octets, self._ends
        first = np.searchsorted(self._spaces, body + 2)
        last = self._spaces.size - 1
        gaps = [np.minimum(self._spaces[np.minimum(first + n, last)], ends) for n in range(5)]
        begins = [body + 2, *(gap + 1 for gap in gaps)]
        whole = is_new & (gaps[4] < ends)
        for begin, gap in zip(begins, gaps, strict=False):
            whole = whole & (gap > begin)
        data_at = np.minimum(begins[5], ends)
        is_nil = octets[data_at] == _NIL
        data_end = np.where(is_nil, data_at + 1, data_at)
        has_data = whole & (octets[data_at] == _OPEN) & (data_at < ends)
        rows = np.flatnonzero(has_data)
        if rows.size:
            found = pc.extract_regex(_spans(self._text, data_at[rows], ends[rows]), _STRUCTURED_DATA)
            lengths = pc.fill_null(pc.binary_length(pc.struct_field(found, "sd")), 0).to_numpy()
            data_end[rows] += lengths
        whole = whole & (data_end > data_at) & (data_end <= ends)
        whole = whole & ((data_end == ends) | (octets[np.minimum(data_end, ends)] == _SPACE))
        text_at = np.minimum(data_end + 1, ends)
        text_at = np.where(whole, behind_marks(octets, text_at, ends), text_at)

        def part(number: int) -> _Field:
            nil = (gaps[number] == begins[number] + 1) & (octets[np.minimum(begins[number], ends)] == _NIL)
            return _Field(begins[number], gaps[number], whole & ~nil)

        return _Header(
            is_whole=whole,
            time=_Field(begins[0], gaps[0], whole),
            host=part(1),
            app=part(2),
            process=part(3),
            message_id=part(4),
            structured_data=_Field(data_at, data_end, whole & has_data),
            message=_Field(np.where(whole, text_at, body), ends, (whole & (data_end < ends)) | (is_new & ~whole)),
        )

    def old_header(self, body: Places, is_old: _Mask, received_at: int) -> _OldHeader:
        """Read ``TIME [HOST ]TAG:`` by vector code, where it can mean nothing else, and other headers as devices'."""
        octets, ends = self._octets, self._ends
        time, has_time, wants_time = self._bsd_times(body, is_old, received_at)
        # rsyslog and others write an RFC 3339 time into the old header: "2003-10-11T22:14:15.003Z".
        time_end = np.minimum(_next(self._spaces, body), ends)
        iso = is_old & ~wants_time & (time_end > body + _BSD_BYTES) & (octets[body + 4] == _NIL)
        rows = np.flatnonzero(iso)
        if rows.size:
            iso[rows] = pc.match_substring_regex(_spans(self._text, body[rows], time_end[rows]), _ISO)
        at = np.where(wants_time, body + _BSD_BYTES, time_end)
        plain = (iso | wants_time) & (at < ends) & (octets[np.minimum(at, ends)] == _SPACE)
        at = np.minimum(at + 1, ends)
        host_end = np.minimum(_next(self._name_ends, at), ends)
        has_host = octets[host_end] == _SPACE
        length = host_end - at
        is_capital = _is_upper(octets[at]) & _is_upper(octets[np.minimum(at + 1, ends)])
        plain &= ~has_host | (_is_letter(octets[at]) & (length > _SHORT_NAME))
        # A process id behind it says that a word of a few capitals is no zone.
        plain &= ~is_capital | (length > _SHORT_CAPITALS) | (octets[host_end] == _OPEN)
        tag_at = np.minimum(np.where(has_host, host_end + 1, at), ends)
        tag_end = np.minimum(_next(self._tag_ends, tag_at), ends)
        has_process = octets[tag_end] == _OPEN
        process_end = np.minimum(_next(self._name_ends, tag_end + 1), ends)
        colon = np.where(has_process, process_end + 1, tag_end)
        plain &= ~has_process | ((octets[process_end] == _CLOSE) & (process_end > tag_end + 1))
        plain &= (colon < ends) & (octets[np.minimum(colon, ends)] == _COLON) & _is_letter(octets[tag_at])
        plain &= (colon + 1 >= ends) | (octets[np.minimum(colon + 1, ends)] == _SPACE)
        header = _OldHeader(
            iso=_Field(body, time_end, iso & plain),
            time=time,
            offset=np.full(body.size, NO_ZONE),
            has_time=has_time & plain,
            wants_time=wants_time & plain,
            is_unknown=np.zeros(body.size, dtype=bool),
            is_finer=np.zeros(body.size, dtype=bool),
            host=_Field(at, host_end, plain & has_host),
            app=_Field(tag_at, tag_end, plain.copy()),
            process=_Field(tag_end + 1, process_end, plain & has_process),
            # Without a priority the whole line is the message.
            message=_Field(np.where(plain, np.minimum(colon + 2, ends), body), ends, is_old | (body == self._starts)),
        )
        rows = np.flatnonzero(is_old & ~plain & (body < ends))
        if rows.size:
            self._read_others(header, rows, body[rows], received_at)
        return header

    def _read_others(self, header: _OldHeader, rows: Places, base: Places, received_at: int) -> None:
        read = read_device_headers(_spans(self._text, base, self._ends[rows]), _years_of(received_at))
        header.time[rows], header.offset[rows] = read.time, read.offset
        header.has_time[rows], header.wants_time[rows] = read.has_time, read.wants_time
        header.is_unknown[rows], header.is_finer[rows] = read.unknown, read.is_finer
        for field, begin, end in (
            (header.host, read.host_at, read.host_end),
            (header.app, read.app_at, read.app_end),
            (header.process, read.process_at, read.process_end),
        ):
            field.starts[rows], field.stops[rows] = base + begin, base + end
            field.there[rows] = end > begin
        header.message.starts[rows] = base + read.message_at

    def _bsd_times(
        self, body: Places, is_old: _Mask, received_at: int
    ) -> tuple[npt.NDArray[np.datetime64], _Mask, _Mask]:
        """Return times like "Oct 11 22:14:15", without zone; where they exist; and where they at least look right."""
        octets = self._octets
        looks = is_old & (body + _BSD_BYTES <= self._ends)
        for place, octet in _BSD_SEPARATORS:
            looks = looks & (octets[body + place] == octet)
        code = octets[body].astype(np.int64) << 16 | octets[body + 1].astype(np.int64) << 8 | octets[body + 2]
        month = np.zeros(body.size, dtype=np.int64)
        for number, name in enumerate(MONTHS, start=1):
            month[code == int.from_bytes(name.encode(), "big")] = number
        looks = looks & (month > 0)

        def number_at(place: int) -> tuple[Places, _Mask]:
            tens = octets[body + place].astype(np.int64)
            tens = np.where(tens == _SPACE, 0, tens - ord("0"))
            ones = octets[body + place + 1].astype(np.int64) - ord("0")
            fits = (tens >= 0) & (tens <= 9) & (ones >= 0) & (ones <= 9)  # noqa: PLR2004  of decimal digits
            return tens * 10 + ones, fits

        (day, is_day), (hour, is_hour), (minute, is_minute), (second, is_second) = map(number_at, (4, 7, 10, 13))
        looks = looks & is_day & is_hour & is_minute & is_second
        month = np.where(looks, month, 1)
        day, hour = np.where(looks, day, 1), np.where(looks, hour, 0)
        year = _year_of(received_at, month)
        months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
        days = months.astype("datetime64[D]") + (day - 1)
        exists = looks & (days.astype("datetime64[M]") == months) & (day > 0)
        exists = exists & (hour < 24) & (minute < 60) & (second < 60)  # noqa: PLR2004  of a clock
        seconds = np.where(exists, hour * 3600 + minute * 60 + second, 0)
        return days.astype("datetime64[us]") + seconds.astype("timedelta64[s]"), exists, looks


def _next(places: Places, at: Places) -> Places:
    """Return the first of ``places`` from each of ``at`` on."""
    found: Places = np.take(places, np.searchsorted(places, at), mode="clip")
    return found


def _is_upper(octets: npt.NDArray[np.uint8]) -> _Mask:
    return (octets >= ord("A")) & (octets <= ord("Z"))


def _is_letter(octets: npt.NDArray[np.uint8]) -> _Mask:
    return _is_upper(octets & ~np.uint8(0x20))


def _years_of(received_at: int) -> Places:
    """Return the year of a time without one, for each month from 1 on."""
    return _year_of(received_at, np.arange(len(MONTHS) + 1, dtype=np.int64))


def _year_of(received_at: int, month: Places) -> Places:
    """Return the year of times without one: this year, or last year for a month later than next month."""
    now = np.datetime64(received_at, "us").astype("datetime64[M]").astype(np.int64)
    this_year, this_month = 1970 + now // 12, now % 12 + 1
    year = np.where(month > this_month + 1, this_year - 1, this_year)
    # In December a sender's clock may be ahead, already in January of next year.
    return np.asarray(np.where((this_month == len(MONTHS)) & (month == 1), this_year + 1, year), dtype=np.int64)


def _parse_iso(texts: pa.Array) -> pa.Array:
    """Return RFC 3339 texts as times; null for other texts."""
    likely = pc.fill_null(pc.match_substring_regex(texts, _ISO), False)  # noqa: FBT003  Arrow's own
    texts = pc.if_else(likely, texts, None)
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    try:
        return texts.cast(_UTC_MICROSECONDS)
    except pa.ArrowInvalid:
        # At least one has a day that its month does not have.
        return pa.array([_parse_one(text) for text in texts], _UTC_MICROSECONDS)


def _parse_one(text: pa.Scalar) -> pa.Scalar | None:
    try:
        return text.cast(_UTC_MICROSECONDS)
    except pa.ArrowInvalid:
        return None


def _in_zone(times: npt.NDArray[np.datetime64], there: _Mask, timezone: str) -> pa.Array:
    local = pa.array(times, pa.timestamp("us"), mask=~there)
    zoned = pc.assume_timezone(local, timezone, ambiguous="earliest", nonexistent="earliest")
    return zoned.cast(_UTC_MICROSECONDS)


def _at_offset(times: npt.NDArray[np.datetime64], offset: Places, there: _Mask) -> pa.Array:
    has_zone = there & (offset != NO_ZONE)
    moved = times - np.where(has_zone, offset, 0).astype("timedelta64[m]")
    return pa.array(moved, pa.timestamp("us"), mask=~has_zone).cast(_UTC_MICROSECONDS)


def _either(first: _Field, second: _Field) -> _Field:
    """Return the first field where it is there, else the second."""
    return _Field(
        np.where(first.there, first.starts, second.starts),
        np.where(first.there, first.stops, second.stops),
        first.there | second.there,
    )


def _words(errors: Sequence[_Mask]) -> pa.Array:
    code = np.full(errors[0].size, -1)
    for number in reversed(range(len(errors))):
        code[errors[number]] = number
    return pa.array(_ERRORS, pa.string()).take(pa.array(np.maximum(code, 0), mask=code < 0))


def _spans(
    data: bytes, starts: Places, stops: Places, *, there: _Mask | None = None, kind: pa.DataType | None = None
) -> pa.Array:
    """Return parts of a buffer as an array: each from its start to its stop, in order; null where not ``there``."""
    count = starts.size
    offsets = np.empty(2 * count, dtype=np.int32)
    offsets[0::2] = starts
    offsets[1::2] = stops
    both = pa.Array.from_buffers(
        kind or pa.string(), max(0, 2 * count - 1), [None, pa.py_buffer(offsets), pa.py_buffer(data)], null_count=0
    )
    return both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=None if there is None else ~there))


def _repaired(data: bytes, starts: Places, ends: Places) -> tuple[bytes, Places, Places, _Mask]:
    """Return the same as valid UTF-8, with U+FFFD for invalid bytes, and which messages were changed."""
    broken = np.zeros(starts.size, dtype=bool)
    if _is_utf8(data) and not _cuts_a_character(data, starts, ends):
        return data, starts, ends, broken
    parts: list[bytes] = []
    grown = np.zeros(starts.size, dtype=np.int64)
    done = 0
    places = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) >= 0x80)  # noqa: PLR2004  what is no ASCII
    # Bytes between two messages need no repair.
    rows = np.unique(np.searchsorted(ends, places, side="right"))
    for row in rows[rows < ends.size].tolist():
        start, end = int(starts[row]), int(ends[row])
        message = data[start:end]
        if not _is_utf8(message):
            fixed = message.decode("utf-8", "replace").encode()
            parts += [data[done:start], fixed]
            broken[row] = True
            grown[row] = len(fixed) - (end - start)
            done = end
    parts.append(data[done:])
    moved = np.cumsum(grown)
    return b"".join(parts), starts + moved - grown, ends + moved, broken


def _cuts_a_character(data: bytes, starts: Places, ends: Places) -> bool:
    """Return whether a message begins or ends inside a character; a sender's octet count may say so."""
    if data.isascii():
        return False
    octets = np.frombuffer(data + b"\0", dtype=np.uint8)
    return bool(np.any((octets[np.concatenate((starts, ends))] & 0xC0) == _CONTINUATION))


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
