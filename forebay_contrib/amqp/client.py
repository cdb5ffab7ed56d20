"""Define pika's connection with one fix: it hands on each message, whatever its sender has put into its properties.

Properties that pika can't decode (a time after the year 9999, such as one in milliseconds; NaN; tables nested too
deep) end its connection. The message then comes again on the next one, forever, before all others. Pika also cuts the
fractions off numbers. So properties are decoded here, or the message is marked as undecodable.

Owns only the format of one kind of frame.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from pika import spec
from pika.adapters.select_connection import SelectConnection
from pika.frame import Header

if TYPE_CHECKING:
    from collections.abc import Callable

# The methods that we replace, and the fields that we read. If a newer pika named them differently, it would silently
# decode properties itself.
_METHODS = ("_read_frame",)
_FIELDS = ("_frame_buffer",)
_FRAME = struct.Struct(">BHL")
_CONTENT = struct.Struct(">HHQ")
# What decoding raises for bytes that are no properties.
_MALFORMED = (ValueError, LookupError, struct.error, RecursionError)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Seconds since 1970: the end of the year 9999, the latest time that Python can hold.
_LAST_SECOND = 253_402_300_799


class DecodedProperties(spec.BasicProperties):  # type: ignore[misc]
    """Hold a message's properties. If ``undecodable`` is true, they could not be decoded, and none are set."""

    undecodable: bool = False

    def decode(self, encoded: bytes, offset: int = 0) -> DecodedProperties:
        """Decode properties, whatever they contain; set ``undecodable`` if that fails."""
        try:
            found = _properties(encoded, offset)
        except _MALFORMED:
            self.undecodable = True
        else:
            for name, value in found.items():
                setattr(self, name, value)
        return self


class TolerantConnection(SelectConnection):  # type: ignore[misc]
    """Hand on any message; see the module."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  as its parent's
        super().__init__(*arguments, **options)
        lacking = [name for name in _METHODS if not hasattr(SelectConnection, name)]
        lacking += [name for name in _FIELDS if not hasattr(self, name)]
        if lacking:
            message = (
                "This version of pika is another inside than the one that is known here: install pika 1.4. "
                f"It has no {', '.join(lacking)}."
            )
            raise ImportError(message)

    def _read_frame(self) -> Any:  # noqa: ANN401  as its parent's
        buffer = self._frame_buffer
        if len(buffer) >= _FRAME.size and buffer[0] == spec.FRAME_HEADER:
            _, channel, size = _FRAME.unpack_from(buffer)
            end = _FRAME.size + size + spec.FRAME_END_SIZE
            if end <= len(buffer) and buffer[end - 1] == spec.FRAME_END:
                of_class, _, body_size = _CONTENT.unpack_from(buffer, _FRAME.size)
                if of_class == spec.BasicProperties.INDEX:
                    properties = DecodedProperties().decode(buffer[_FRAME.size + _CONTENT.size : end - 1])
                    return end, Header(channel, body_size, properties)
        return super()._read_frame()


def _properties(encoded: bytes, at: int) -> dict[str, Any]:
    """Return the properties that are present, by name."""
    flags = shift = 0
    more = True
    while more:
        (word,) = struct.unpack_from(">H", encoded, at)
        at += 2
        flags |= word << shift
        shift += 16
        more = bool(word & 1)
    found: dict[str, Any] = {}
    for number, (name, read) in enumerate(_PROPERTIES):
        if flags & 1 << 15 - number:
            found[name], at = read(encoded, at)
    if at > len(encoded):
        raise ValueError(f"properties up to byte {at} of {len(encoded)}")
    return found


def _octet(encoded: bytes, at: int) -> tuple[int, int]:
    return encoded[at], at + 1


def _number(form: struct.Struct, encoded: bytes, at: int) -> tuple[Any, int]:
    return form.unpack_from(encoded, at)[0], at + form.size


def _raw(encoded: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(encoded):
        raise ValueError(f"a value up to byte {at + size} of {len(encoded)}")
    return bytes(encoded[at : at + size]), at + size


def _text_or_raw(encoded: bytes, at: int, size: int) -> tuple[str | bytes, int]:
    value, end = _raw(encoded, at, size)
    try:
        return value.decode(), end
    except UnicodeDecodeError:
        return value, end


def _short(encoded: bytes, at: int) -> tuple[str | bytes, int]:
    return _text_or_raw(encoded, at + 1, encoded[at])


def _long(encoded: bytes, at: int) -> tuple[str | bytes, int]:
    size, at = _number(_SIZE, encoded, at)
    return _text_or_raw(encoded, at, size)


def _bytes(encoded: bytes, at: int) -> tuple[bytes, int]:
    size, at = _number(_SIZE, encoded, at)
    return _raw(encoded, at, size)


def _flag(encoded: bytes, at: int) -> tuple[bool, int]:
    return bool(encoded[at]), at + 1


def _nothing(_: bytes, at: int) -> tuple[None, int]:
    return None, at


def _time(encoded: bytes, at: int) -> tuple[datetime | int, int]:
    """Return a time, or the number of seconds if it is after the latest time."""
    seconds, at = _number(_SECONDS, encoded, at)
    return (_EPOCH + timedelta(seconds=seconds) if seconds <= _LAST_SECOND else seconds), at


def _decimal(encoded: bytes, at: int) -> tuple[Decimal, int]:
    scale, unscaled = _DECIMAL.unpack_from(encoded, at)
    return Decimal(unscaled).scaleb(-scale), at + _DECIMAL.size


def _table(encoded: bytes, at: int) -> tuple[dict[str, Any], int]:
    """Return a table; bytes of names that are no text are escaped."""
    size, at = _number(_SIZE, encoded, at)
    end = at + size
    found = {}
    while at < end:
        name, at = _raw(encoded, at + 1, encoded[at])
        found[name.decode(errors="backslashreplace")], at = _value(encoded, at)
    return found, at


def _array(encoded: bytes, at: int) -> tuple[list[Any], int]:
    size, at = _number(_SIZE, encoded, at)
    end = at + size
    found = []
    while at < end:
        value, at = _value(encoded, at)
        found.append(value)
    return found, at


def _value(encoded: bytes, at: int) -> tuple[Any, int]:
    """Return a value, which begins with its type. Raises KeyError for a type that RabbitMQ does not know either."""
    return _KINDS[encoded[at : at + 1]](encoded, at + 1)


_SIZE = struct.Struct(">I")
_SECONDS = struct.Struct(">Q")
_DECIMAL = struct.Struct(">Bi")
_KINDS: dict[bytes, Callable[[bytes, int], tuple[Any, int]]] = {
    **{
        kind: partial(_number, struct.Struct(form))
        for kind, form in (
            (b"b", ">b"),
            (b"B", ">B"),
            (b"s", ">h"),
            (b"U", ">h"),
            (b"u", ">H"),
            (b"I", ">i"),
            (b"i", ">I"),
            (b"l", ">q"),
            (b"L", ">q"),
            (b"f", ">f"),
            (b"d", ">d"),
        )
    },
    b"t": _flag,
    b"V": _nothing,
    b"S": _long,
    b"x": _bytes,
    b"T": _time,
    b"D": _decimal,
    b"F": _table,
    b"A": _array,
}
# The properties, in the order of their flags.
_PROPERTIES: tuple[tuple[str, Callable[[bytes, int], tuple[Any, int]]], ...] = (
    ("content_type", _short),
    ("content_encoding", _short),
    ("headers", _table),
    ("delivery_mode", _octet),
    ("priority", _octet),
    ("correlation_id", _short),
    ("reply_to", _short),
    ("expiration", _short),
    ("message_id", _short),
    ("timestamp", partial(_number, _SECONDS)),
    ("type", _short),
    ("user_id", _short),
    ("app_id", _short),
    ("cluster_id", _short),
)
