"""Read an export request of OTLP's logs in protobuf; if it is none as a whole, each log record apart from the others.

Protobuf refuses a whole message for one string in it that is not UTF-8, and an exporter drops what is refused. So the
bytes are taken apart at the level of log records, by the wire format. Loads ``opentelemetry-proto``. It must never
change a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError, RejectedRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits

# The numbers of the fields that hold the next level: resources of a request, scopes of a resource, records of a scope.
_RESOURCE_LOGS, _SCOPE_LOGS, _LOG_RECORDS = 1, 2, 2
_MORE, _BITS = 0x80, 0x7F
_LONGEST_VARINT = 10
_CHECK_EVERY = 256  # how many log records to read before the time is checked again

Read = TypeVar("Read", ResourceLogs, ScopeLogs, LogRecord)


def request_of(body: bytes, limits: ParsingLimits) -> tuple[ExportLogsServiceRequest, list[RejectedRecord]]:
    """Return the request, and the log records in it that are none: each of these refuses no other.

    Raises:
        ParsingStoppedError: the time is over, or the sender has left.
        PushRefusedError: 400, nothing in it is a log record.
    """
    try:
        return ExportLogsServiceRequest.FromString(body), []
    except DecodeError as error:
        try:
            request, rejected = _parted(body, limits)
        except DecodeError:
            request, rejected = ExportLogsServiceRequest(), []
        # Where no log record is the fault, it is somewhere that is not known here.
        if not request.resource_logs or not rejected:
            raise PushRefusedError(
                400, f"{len(body)} bytes are no ExportLogsServiceRequest in protobuf ({error}): send one"
            ) from error
        return request, rejected


def _parted(body: bytes, limits: ParsingLimits) -> tuple[ExportLogsServiceRequest, list[RejectedRecord]]:
    """Raise DecodeError if the bytes are no message at a level above log records."""
    request = ExportLogsServiceRequest()
    rejected: list[RejectedRecord] = []
    for of_resource in _split(body, _RESOURCE_LOGS)[1]:
        own, scopes = _split(of_resource, _SCOPE_LOGS)
        resource, fault = _read(ResourceLogs, own)
        for of_scope in scopes:
            scope_own, records = _split(of_scope, _LOG_RECORDS)
            scope, scope_fault = _read(ScopeLogs, scope_own)
            for number, data in enumerate(records):
                if not number % _CHECK_EVERY:
                    limits.check()
                record, why = _read(LogRecord, data)
                if (why := fault or scope_fault or why) is None:
                    scope.log_records.append(record)
                else:
                    why = f"a log record is none in protobuf: {why}"
                    rejected.append(RejectedRecord(data, DeadLetterReason.UNPARSABLE, why))
            if scope.log_records:
                resource.scope_logs.append(scope)
        if resource.scope_logs:
            request.resource_logs.append(resource)
    return request, rejected


def _read(kind: type[Read], data: bytes) -> tuple[Read, str | None]:
    try:
        return kind.FromString(data), None
    except DecodeError as error:
        return kind(), str(error)


def _split(data: bytes, number: int) -> tuple[bytes, list[bytes]]:
    """Return a message without its fields of this number, and those. Raises DecodeError."""
    others, found = [], []
    for field, start, begin, end in _fields(data):
        if field == number and begin > start:
            found.append(data[begin:end])
        else:
            others.append(data[start:end])
    return b"".join(others), found


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
