"""Write a map of MessagePack as the text of a JSON object.

Text in UTF-8 is text, whether MessagePack calls it text or bytes. A name that is there twice stays there twice. What
JSON can't hold is refused, and never replaced. Owns these rules, and no limits but those of size and depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from forebay_contrib.fluent_forward.scanning import EXTENSIONS, NIL, Head, head, is_array, is_map, is_text
from receiver_runtime.block_store.frames.frame import DeadLetterReason

_DECODE = msgspec.msgpack.Decoder().decode
_DECODE_MAP = msgspec.msgpack.Decoder(dict[str, Any]).decode
_ENCODE = msgspec.json.Encoder().encode
# A larger map is written value by value: objects of many small values take a hundred times the memory of their bytes.
_MOST_OBJECTS_BYTES = 2**16
_MOST_DEPTH = 200  # Python's own limit, 1000 calls, is of all that is under way
_SECOND = 10**9
_EVENT_TIME_TYPE, _TIMESTAMP_TYPE = 0x00, 0xFF
_EVENT_TIME_BYTES = 8

# The texts of the values of one byte: of those, a message may have most.
_TEXTS: dict[int, bytes] = {
    octet: _ENCODE(_DECODE(bytes([octet]))) for octet in (*range(0x81), 0x90, NIL, 0xC2, 0xC3, *range(0xE0, 0x100))
}


class NoRecordError(ValueError):
    """Signal why something is no record; the message is for people."""

    def __init__(self, why: str, reason: DeadLetterReason = DeadLetterReason.UNPARSABLE) -> None:
        super().__init__(why)
        self.reason = reason


@dataclass(slots=True)
class Effort:
    """Bound how many values of one message are read; those that are written one by one count twice.

    A million of either takes at most about 3 seconds.
    """

    most_values: int
    values: int = 0

    def spend(self, values: int) -> None:
        """Count values. Raises NoRecordError: these are too many, and are not counted."""
        if self.values + values > self.most_values:
            why = f"its message has more than {self.most_values} values: send smaller chunks"
            raise NoRecordError(why, DeadLetterReason.RECORD_TOO_LARGE)
        self.values += values


def json_of(data: bytes, begin: int, end: int, *, values: int, is_odd: bool, most_bytes: int, effort: Effort) -> bytes:
    """Return the JSON text of the map that is whole between these places.

    Args:
        values: how many values it consists of, as a scanner counted them.
        is_odd: whether a scanner found something in it that JSON may not have.
        most_bytes: of the text.
        effort: what may be spent on the whole message.

    Raises NoRecordError.
    """
    if not is_map(data[begin]):
        raise NoRecordError("the record is no map")
    if end - begin > most_bytes:
        raise NoRecordError(f"{end - begin} bytes, max_record_bytes is {most_bytes}", DeadLetterReason.RECORD_TOO_LARGE)
    effort.spend(values)
    text: bytes | bytearray | None = None
    if not is_odd and end - begin <= _MOST_OBJECTS_BYTES:
        try:
            record = _DECODE_MAP(data[begin:end])
            # A name that is there twice is once in the object.
            text = _ENCODE(record) if _values_in(record) == values else None
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
            # The slow way says what is wrong with it, if anything is.
            text = None
    if text is None:
        effort.spend(values)
        writer = _Writer(data, most_bytes)
        writer.write(begin, 0)
        text = writer.text
    if len(text) > most_bytes:
        raise NoRecordError(f"{len(text)} bytes, max_record_bytes is {most_bytes}", DeadLetterReason.RECORD_TOO_LARGE)
    return bytes(text)


def _values_in(value: dict[str, Any]) -> int:
    """Return how many values an object consists of, as it was sent, if no name was there twice."""
    count = 1 + 2 * len(value)
    for one in value.values():
        if type(one) is dict or type(one) is list:
            count += _nested_in(one)
    return count


def _nested_in(value: object) -> int:
    if type(value) is dict:
        return _values_in(value) - 1
    if type(value) is list:
        return len(value) + sum(_nested_in(one) for one in value)
    return 0


class _Writer:
    """Write a value, with all that it consists of, to ``text``."""

    def __init__(self, data: bytes, most_bytes: int) -> None:
        self._data = data
        self._most_bytes = most_bytes
        self.text = bytearray()

    def write(self, at: int, depth: int) -> int:
        """Write the value that begins here; return where it ends. Raises NoRecordError."""
        octet = self._data[at]
        if len(self.text) > self._most_bytes:
            why = f"more than {self._most_bytes} bytes as JSON, which is max_record_bytes"
            raise NoRecordError(why, DeadLetterReason.RECORD_TOO_LARGE)
        if text := _TEXTS.get(octet):
            self.text += text
            return at + 1
        found = head(self._data, at)
        assert found is not None  # it was scanned
        if is_map(octet) or is_array(octet):
            if depth == _MOST_DEPTH:
                raise NoRecordError(f"arrays and maps are nested more than {_MOST_DEPTH} deep")
            return self._write_array(found, depth) if is_array(octet) else self._write_map(found, depth)
        if is_text(octet):
            self._write_text(found)
        elif octet in EXTENSIONS:
            self.text += _number_of(time_of(self._data, found))
        else:
            self._write_scalar(at, found.end)
        return found.end

    def _write_array(self, found: Head, depth: int) -> int:
        at = found.begin
        self.text += b"["
        for number in range(found.values):
            if number:
                self.text += b","
            at = self.write(at, depth + 1)
        self.text += b"]"
        return at

    def _write_map(self, found: Head, depth: int) -> int:
        at = found.begin
        self.text += b"{"
        for number in range(found.values // 2):
            if number:
                self.text += b","
            at = self._write_name(at)
            self.text += b":"
            at = self.write(at, depth + 1)
        self.text += b"}"
        return at

    def _write_name(self, at: int) -> int:
        octet = self._data[at]
        found = head(self._data, at)
        assert found is not None  # it was scanned
        if is_text(octet):
            self._write_text(found)
            return found.end
        if is_map(octet) or is_array(octet) or octet in EXTENSIONS or octet == NIL:
            raise NoRecordError("a map has a name that is no text")
        self.text += b'"'
        self._write_scalar(at, found.end)
        self.text += b'"'
        return found.end

    def _write_text(self, found: Head) -> None:
        try:
            self.text += _ENCODE(self._data[found.begin : found.end].decode())
        except UnicodeDecodeError as error:
            raise NoRecordError(
                f"text or bytes that are no UTF-8, at byte {error.start} of {found.end - found.begin}",
                DeadLetterReason.INVALID_ENCODING,
            ) from None

    def _write_scalar(self, at: int, end: int) -> None:
        value = _DECODE(self._data[at:end])
        if type(value) is float and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124  NaN
            raise NoRecordError(f"the number {value}, which JSON has not")
        self.text += _ENCODE(value)


def time_of(data: bytes, found: Head) -> int:
    """Return the time that an extension holds: Fluentd's own, or MessagePack's; in nanoseconds since 1970.

    Raises NoRecordError: it holds something else.
    """
    kind, content = data[found.begin - 1], data[found.begin : found.end]
    whole = int.from_bytes(content, "big")
    if kind == _EVENT_TIME_TYPE and len(content) == _EVENT_TIME_BYTES:
        return (whole >> 32) * _SECOND + (whole & 0xFFFFFFFF)
    if kind == _TIMESTAMP_TYPE:
        match len(content):
            case 4:
                return whole * _SECOND
            case 8:
                return (whole & 0x3FFFFFFFF) * _SECOND + (whole >> 34)
            case 12:
                return int.from_bytes(content[4:], "big", signed=True) * _SECOND + int.from_bytes(content[:4], "big")
    raise NoRecordError(f"an extension of the type {kind if kind < 128 else kind - 256}, which JSON has not")  # noqa: PLR2004


def _number_of(nanoseconds: int) -> bytes:
    """Return seconds as a number of JSON."""
    seconds, rest = divmod(abs(nanoseconds), _SECOND)
    sign = "-" if nanoseconds < 0 else ""
    return f"{sign}{seconds}.{rest:09d}".encode() if rest else f"{sign}{seconds}".encode()
