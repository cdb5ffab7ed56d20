"""Reads an export request of OTLP in JSON, as a whole or level by level, from its bytes.

Protobuf's reader of JSON passes over what it does not know, takes what is no Base64, and numbers that are too large. A
part with such a value is none. It also takes fields by protobuf's own names (``log_records``): every check sees these
by OTLP's (``logRecords``). Loads ``opentelemetry-proto``.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from google.protobuf.json_format import ParseDict, ParseError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from forebay_contrib.opentelemetry.parting import legacy
from forebay_contrib.opentelemetry.signals import LOGS, Level
from receiver_runtime.receivers.http.requests.json_spans import UnknownSpansError, spans_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
    from google.protobuf.message import Message

    from forebay_contrib.opentelemetry.signals import Signal
    from receiver_runtime.receivers.http.requests.json_spans import Span

# A surrogate in JSON; two that are a pair are one character.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
#: Protobuf reports a wrong type by more than one kind of error.
WRONG = (ParseError, ValueError, TypeError, AttributeError, KeyError)
_DEEPEST = 100  # messages within each other, at most: protobuf's own limit
_UNDERSCORE = re.compile(r"_([a-z])")
_ANY = AnyValue.DESCRIPTOR.full_name


class Json:
    """Read export requests in JSON. See ``parting.Form``."""

    def __init__(self, signal: Signal = LOGS) -> None:
        self.signal = signal
        self._next = {level: as_in_otlp(name) for level, name in signal.fields.items()}

    def whole(self, body: bytes) -> Any:  # noqa: ANN401  one of three kinds of message
        """Read a request at once. Raises one of WRONG, or RecursionError."""
        return self.read(body, Level.REQUEST)

    def split(self, data: bytes, level: Level, check: Callable[[], None]) -> tuple[bytes, list[bytes]]:
        """Return an object without what is of the next level, and that. Raises UnknownSpansError."""
        if data.lstrip()[:1] != b"{":
            raise UnknownSpansError("it is no object")
        others, found = [], []
        for member in spans_of(data, check):
            if _name_of(member) == self._next[level] and member.value != b"null":
                found += [one.value for one in spans_of(member.value, check)]
            else:
                others.append(member.name + b":" + member.value)
        return b"{" + b",".join(others) + b"}", found

    def without_legacy(self, data: bytes, check: Callable[[], None]) -> tuple[bytes, bool]:
        """Return a resource without records of before OTLP 0.20, and whether it had such."""
        kept, has_legacy = [], False
        for member in spans_of(data, check):
            if _name_of(member) != self.signal.legacy:
                kept.append(member.name + b":" + member.value)
            elif b"".join(member.value.split()) not in {b"null", b"[]"}:
                has_legacy = True
        return b"{" + b",".join(kept) + b"}", has_legacy

    def read(self, data: bytes, level: Level) -> Message:
        """Read an object of this level. Raises one of WRONG, or RecursionError."""
        # As deep as it stands in a request: what is too deep there must be so alone, or no record would be at fault.
        outside = 2 * level
        text = data.decode()
        try:
            found = json.loads(
                "[" * outside + text + "]" * outside,
                object_pairs_hook=_members,
                parse_constant=_refuse_constant,
                parse_float=_finite,
            )
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, text, error.pos - outside) from None
        for _ in range(outside):
            [found] = found
        if _SURROGATE.search(data) is not None:
            # Protobuf's reader fails by a SystemError on half a surrogate pair, also in a name that it does not know.
            json.dumps(found, ensure_ascii=False).encode()
        if not isinstance(found, dict):
            raise TypeError("it is no object")
        if level is Level.REQUEST and found and self._next[level] not in found:
            # OTLP says to ignore unknown fields. Here nothing would be left, and the sender would be told of success.
            raise ValueError(f"of its fields, as {min(found)!r:.100}, none is {self._next[level]}")
        if level is Level.REQUEST:
            for one in found.get(self._next[level]) or ():
                self._check_legacy(one)
        elif level is Level.RESOURCE:
            self._check_legacy(found)
        kind = self.signal.kinds[level]
        _check(kind.DESCRIPTOR, found)
        message = kind()
        ParseDict(found, message, ignore_unknown_fields=True, max_recursion_depth=_DEEPEST - level)
        return message

    def _check_legacy(self, of_resource: Any) -> None:  # noqa: ANN401  whatever was sent
        if of_resource.get(self.signal.legacy):
            raise ValueError(legacy(self.signal))


def _name_of(member: Span) -> str:
    return as_in_otlp(json.loads(member.name))


def as_in_otlp(name: str) -> str:
    """Return a field's name as OTLP's JSON has it; protobuf's own is taken too."""
    return _UNDERSCORE.sub(lambda letter: letter[1].upper(), name) if "_" in name else name


def _members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises ValueError for a field that is there twice, under whichever of its names."""
    found: dict[str, Any] = {}
    for given, value in members:
        name = as_in_otlp(given)
        if name in found:
            raise ValueError(f"{given!r:.100} is there twice")
        found[name] = value
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON: send it as a string")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text:.100} is more than a double can be")
    return number


def _check(kind: Descriptor, given: Any) -> None:  # noqa: ANN401  whatever was sent
    """Raise ValueError for what protobuf's reader passes over, or takes as something else, also within its parts.

    Ids are converted to Base64, as protobuf's JSON has them; OTLP's are hexadecimal.
    """
    for name, value in given.items():
        field = _fields_of(kind).get(name)
        if field is None and kind.full_name == _ANY:
            raise ValueError(f"a value is of the kind {name!r:.100}, which is none")
        if field is None or value is None:
            continue
        if field.message_type is not None:
            for one in value if field.is_repeated else (value,):
                _check(field.message_type, one)
        elif field.enum_type is not None:
            _check_enum(name, field.enum_type, value)
        elif field.type == field.TYPE_BYTES and kind.full_name == _ANY:
            _check_base64(value)
        elif field.type == field.TYPE_BYTES and value:
            given[name] = base64.b64encode(_from_hex(name, value)).decode()


@cache
def _fields_of(kind: Descriptor) -> dict[str, FieldDescriptor]:
    return {field.json_name: field for field in kind.fields}


def _check_enum(name: str, kind: EnumDescriptor, value: object) -> None:
    is_cut = isinstance(value, float) and not value.is_integer()
    if is_cut or (isinstance(value, str) and value not in kind.values_by_name):
        raise ValueError(f"{name} is {value!r:.100}, which is none")


def _check_base64(text: str) -> None:
    try:
        # Protobuf's JSON may have the other alphabet, and no padding.
        plain = text.rstrip("=").translate(str.maketrans("-_", "+/"))
        if (
            base64.b64encode(base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)).decode().rstrip("=")
            == plain
        ):
            return
    except (binascii.Error, ValueError):
        pass
    raise ValueError(f"bytesValue is {text!r:.100}, which is not Base64")


def _from_hex(name: str, value: object) -> bytes:
    try:
        if isinstance(value, str):
            return binascii.unhexlify(value)
    except ValueError:
        pass
    raise ValueError(f"{name} is {str(value)[:64]!r}, which is not hexadecimal")
