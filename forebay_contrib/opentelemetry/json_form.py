"""Reads an export request of OTLP's logs in JSON, as a whole or level by level, from its bytes.

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
from typing import TYPE_CHECKING, Any, NoReturn

from google.protobuf.json_format import ParseDict, ParseError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import SeverityNumber

from forebay_contrib.opentelemetry.parting import KINDS, LEGACY, Level, Message
from receiver_runtime.receivers.http.requests.json_spans import UnknownSpansError, spans_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from receiver_runtime.receivers.http.requests.json_spans import Span

# A surrogate in JSON; two that are a pair are one character.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
#: Protobuf reports a wrong type by more than one kind of error.
WRONG = (ParseError, ValueError, TypeError, AttributeError, KeyError)
_NEXT_LEVEL = {Level.REQUEST: "resourceLogs", Level.RESOURCE: "scopeLogs", Level.SCOPE: "logRecords"}
_LEGACY_LOGS = "instrumentationLibraryLogs"
_DEEPEST = 100  # messages within each other, at most: protobuf's own limit
_UNDERSCORE = re.compile(r"_([a-z])")
_KINDS = {field.json_name for field in AnyValue.DESCRIPTOR.fields}


class Json:
    """Read export requests in JSON. See ``parting.Form``."""

    def whole(self, body: bytes) -> ExportLogsServiceRequest:
        """Read a request at once. Raises one of WRONG, or RecursionError."""
        found = self.read(body, Level.REQUEST)
        assert isinstance(found, ExportLogsServiceRequest)
        return found

    def split(self, data: bytes, level: Level, check: Callable[[], None]) -> tuple[bytes, list[bytes]]:
        """Return an object without what is of the next level, and that. Raises UnknownSpansError."""
        if data.lstrip()[:1] != b"{":
            raise UnknownSpansError("it is no object")
        others, found = [], []
        for member in spans_of(data, check):
            if _name_of(member) == _NEXT_LEVEL[level] and member.value != b"null":
                found += [one.value for one in spans_of(member.value, check)]
            else:
                others.append(member.name + b":" + member.value)
        return b"{" + b",".join(others) + b"}", found

    def without_legacy(self, data: bytes, check: Callable[[], None]) -> tuple[bytes, bool]:
        """Return a resource without log records of before OTLP 0.20, and whether it had such."""
        kept, has_legacy = [], False
        for member in spans_of(data, check):
            if _name_of(member) != _LEGACY_LOGS:
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
        _CHECKS[level](found)
        message: Message = KINDS[level]()
        ParseDict(found, message, ignore_unknown_fields=True, max_recursion_depth=_DEEPEST - level)
        return message


def _name_of(member: Span) -> str:
    return _as_in_otlp(json.loads(member.name))


def _as_in_otlp(name: str) -> str:
    """Return a field's name as OTLP's JSON has it; protobuf's own is taken too."""
    return _UNDERSCORE.sub(lambda letter: letter[1].upper(), name) if "_" in name else name


def _members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises ValueError for a field that is there twice, under whichever of its names."""
    found: dict[str, Any] = {}
    for given, value in members:
        name = _as_in_otlp(given)
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


def _check_request(request: Any) -> None:  # noqa: ANN401  whatever was sent
    if request and "resourceLogs" not in request:
        # OTLP says to ignore unknown fields. Here that would leave nothing, and the sender would be told of success.
        raise ValueError(f"of its fields, as {min(request)!r:.100}, none is resourceLogs")
    for of_resource in request.get("resourceLogs") or ():
        _check_resource(of_resource)


def _check_resource(of_resource: Any) -> None:  # noqa: ANN401  as above
    if of_resource.get(_LEGACY_LOGS):
        raise ValueError(LEGACY)
    _check_attributes((of_resource.get("resource") or {}).get("attributes"))
    for of_scope in of_resource.get("scopeLogs") or ():
        _check_scope(of_scope)


def _check_scope(of_scope: Any) -> None:  # noqa: ANN401  as above
    _check_attributes((of_scope.get("scope") or {}).get("attributes"))
    for record in of_scope.get("logRecords") or ():
        _check_record(record)


def _check_record(record: Any) -> None:  # noqa: ANN401  as above
    """Check a log record, and convert its ids to Base64, as protobuf's JSON has them; OTLP's are hexadecimal."""
    _check_value(record.get("body"))
    _check_attributes(record.get("attributes"))
    severity = record.get("severityNumber")
    is_cut = isinstance(severity, float) and not severity.is_integer()
    if is_cut or (isinstance(severity, str) and severity not in SeverityNumber.keys()):  # noqa: SIM118  no mapping
        raise ValueError(f"severityNumber is {severity!r:.100}, which is none")
    for name in ("traceId", "spanId"):
        if record.get(name):
            record[name] = base64.b64encode(_from_hex(name, record[name])).decode()


_CHECKS: Mapping[Level, Callable[[Any], None]] = {
    Level.REQUEST: _check_request,
    Level.RESOURCE: _check_resource,
    Level.SCOPE: _check_scope,
    Level.RECORD: _check_record,
}


def _check_attributes(attributes: Any) -> None:  # noqa: ANN401  as above
    for attribute in attributes or ():
        _check_value(attribute.get("value"))


def _check_value(value: Any) -> None:  # noqa: ANN401  as above
    """Raise ValueError for what protobuf's reader passes over, or takes as something else."""
    for kind, held in (value or {}).items():
        if kind not in _KINDS:
            raise ValueError(f"a value is of the kind {kind!r:.100}, which is none")
        if kind == "bytesValue" and held is not None:
            _check_base64(held)
        elif kind == "arrayValue":
            for one in (held or {}).get("values") or ():
                _check_value(one)
        elif kind == "kvlistValue":
            _check_attributes((held or {}).get("values"))


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
