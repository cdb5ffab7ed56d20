"""Reads an export request of OTLP in protobuf, as a whole or level by level, from the wire format.

Protobuf refuses a whole message for one string in it that is not UTF-8, and of two values where one may be it keeps the
last without a word. So parts can be read alone, and a part with a value that would be lost is none. Loads
``opentelemetry-proto``. It must never change a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from forebay_contrib.opentelemetry.parting import legacy
from forebay_contrib.opentelemetry.signals import LOGS, Level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

    from forebay_contrib.opentelemetry.signals import Signal

# The numbers of the fields that hold the next level: resources of a request, scopes of a resource, records of a scope.
_NEXT_LEVEL = {Level.REQUEST: 1, Level.RESOURCE: 2, Level.SCOPE: 2}
_LEGACY = 1000
_MORE, _BITS = 0x80, 0x7F
_LONGEST_VARINT = 10


class Protobuf:
    """Read export requests in protobuf. See ``parting.Form``."""

    def __init__(self, signal: Signal = LOGS) -> None:
        self.signal = signal

    def whole(self, body: bytes) -> Any:  # noqa: ANN401  one of three kinds of message
        """Read a request at once. Raises DecodeError."""
        request = self.signal.kinds[Level.REQUEST].FromString(body)
        if request.ByteSize() != len(body):
            # Something is written in another way than protobuf's own, or is there twice.
            _check_once(request.DESCRIPTOR, body)
        for one in getattr(request, self.signal.fields[Level.REQUEST]):
            if any(field.field_number == _LEGACY for field in UnknownFieldSet(one)):
                raise DecodeError(legacy(self.signal))
        return request

    def split(self, data: bytes, level: Level, _: Callable[[], None]) -> tuple[bytes, list[bytes]]:
        """Return a message without what is of the next level, and that. Raises DecodeError."""
        others, found = [], []
        for field, start, begin, end in _fields(data):
            if field == _NEXT_LEVEL[level] and begin > start:
                found.append(data[begin:end])
            else:
                others.append(data[start:end])
        return b"".join(others), found

    def without_legacy(self, data: bytes, _: Callable[[], None]) -> tuple[bytes, bool]:
        """Return a resource without records of before OTLP 0.20, and whether it had such. Raises DecodeError."""
        kept = b"".join(data[start:end] for field, start, _, end in _fields(data) if field != _LEGACY)
        return kept, len(kept) < len(data)

    def read(self, data: bytes, level: Level) -> Message:
        """Read a message of this level. Raises DecodeError."""
        message = self.signal.kinds[level].FromString(data)
        _check_once(message.DESCRIPTOR, data)
        return message


def _check_once(kind: Descriptor, data: bytes) -> None:
    """Raise DecodeError if a field is there twice that can be there once, or two of which there can be one."""
    seen = set()
    for number, start, begin, end in _fields(data):
        field = kind.fields_by_number.get(number)
        if field is None:
            continue
        if not field.is_repeated:
            name = field.containing_oneof.name if field.containing_oneof else field.name
            if name in seen:
                raise DecodeError(f"{kind.name} has more than one {name}")
            seen.add(name)
        if field.message_type is not None and begin > start:
            _check_once(field.message_type, data[begin:end])


def _fields(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield each field's number, where it starts, where the content of one with a length begins, and where it ends."""
    at = 0
    while at < len(data):
        start = at
        key, at = _varint(data, at)
        begin = start
        # The wire type: a number, eight bytes, a length with as many bytes, or four bytes.
        match key & 7:
            case 0:
                _, at = _varint(data, at)
            case 1:
                at += 8
            case 2:
                size, begin = _varint(data, at)
                at = begin + size
            case 5:
                at += 4
            case kind:
                raise DecodeError(f"there is no wire type {kind}")
        if at > len(data):
            raise DecodeError("it is cut short")
        yield key >> 3, start, begin, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_LONGEST_VARINT):
        if at + place >= len(data):
            break
        octet = data[at + place]
        value |= (octet & _BITS) << 7 * place
        if not octet & _MORE:
            return value, at + place + 1
    raise DecodeError("a number has no end")
