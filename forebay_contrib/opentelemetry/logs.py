"""OpenTelemetry's logs over HTTP (OTLP/HTTP): makes one record of each log record of an export request.

Loads ``opentelemetry-proto``, the extra ``forebay[otlp]``. ``otlp_answers`` makes the answers.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs

from forebay_contrib.opentelemetry.answers import JSON, PROTOBUF
from forebay_contrib.opentelemetry.json_form import WRONG, Json
from forebay_contrib.opentelemetry.parting import Form, parted
from forebay_contrib.opentelemetry.protobuf import Protobuf
from forebay_contrib.opentelemetry.values import attributes_of, dumps, plain
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.requests.parsing_limits import UNLIMITED, ParsingLimits
from receiver_runtime.receivers.http.requests.pushed import (
    Pushed,
    PushedRecord,
    PushRefusedError,
    RejectedRecord,
    header,
    media_type,
)
from receiver_runtime.receivers.http.requests.text_bodies import json_text

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    from receiver_runtime.receivers.http.requests.pushed import Headers

_TRACE_ID_BYTES = 16
_SPAN_ID_BYTES = 8
_MILLISECOND = 1_000_000
_WRONG = (*WRONG, DecodeError)
_CHECK_EVERY = 256  # how many log records to encode before the time is checked again


def parse_logs(
    headers: Headers, body: bytes, *, most_bytes: int, most_bytes_in_all: int, limits: ParsingLimits = UNLIMITED
) -> Pushed:
    """Return the log records of an export request. A record that is too large, or has an invalid id, is rejected alone.

    A request that is sent again has the same bytes. So the hash of these is the records' key, if at least one of their
    times is finer than a millisecond: then no two different requests have the same bytes by chance. An
    ``Idempotency-Key`` is better, and replaces it.

    Args:
        headers: the request's headers.
        body: the request's body, decompressed.
        most_bytes: the limit of one record, as it will be stored.
        most_bytes_in_all: the limit of all records together. Each is stored with its resource and scope, which the
            request has only once.
        limits: how many values the body may have, and until when it may be parsed.

    Raises:
        ParsingStoppedError: the time is over, or the sender has left.
        PushRefusedError: 400 for an invalid request, 413 for too much in all, 415 for a media type that is none of
            OTLP's two.
    """
    kind, charset = media_type(header(headers, b"content-type"))
    if kind == PROTOBUF:
        limits.check_protobuf(body)
        return _parsed(headers, body, kind, Protobuf(), most_bytes, most_bytes_in_all, limits)
    if kind != JSON:
        raise PushRefusedError(415, f"the media type {kind!r} is not read here: send {PROTOBUF} or {JSON}")
    text = json_text(kind, charset, body)
    limits.check_json(text.body)
    found = _parsed(headers, text.body, kind, Json(), most_bytes, most_bytes_in_all, limits)
    return replace(found, rejected=text.as_sent(found.rejected)) if found.rejected else found


def _parsed(
    headers: Headers,
    body: bytes,
    kind: str,
    form: Form,
    most_bytes: int,
    most_bytes_in_all: int,
    limits: ParsingLimits,
) -> Pushed:
    try:
        return _records(headers, body, form.whole(body), [], most_bytes, most_bytes_in_all, limits)
    except (*_WRONG, RecursionError) as error:
        if isinstance(error, PushRefusedError):
            raise
        try:
            request, rejected = parted(body, form, limits, wrong=_WRONG, check=_check)
        except (*_WRONG, RecursionError):
            request, rejected = ExportLogsServiceRequest(), []
        # Where no log record is the fault, it is somewhere that is not known here.
        if not rejected:
            why = "the JSON is nested too deeply" if isinstance(error, RecursionError) else error
            raise PushRefusedError(
                400, f"{len(body)} bytes are no ExportLogsServiceRequest of the type {kind} ({why}): correct it"
            ) from error
        return _records(headers, body, request, rejected, most_bytes, most_bytes_in_all, limits)


def _records(
    headers: Headers,
    body: bytes,
    request: ExportLogsServiceRequest,
    rejected: list[RejectedRecord],
    most_bytes: int,
    most_bytes_in_all: int,
    limits: ParsingLimits,
) -> Pushed:
    good: list[bytes] = []
    size = 0
    count = 0
    any_fine = False
    for of_resource in request.resource_logs:
        resource = dumps(_resource(of_resource.resource, of_resource.schema_url))
        for of_scope in of_resource.scope_logs:
            scope = dumps(_scope(of_scope.scope, of_scope.schema_url))
            for record in of_scope.log_records:
                count += 1
                if not count % _CHECK_EVERY:
                    limits.check()
                # Resource and scope are encoded once for all their records.
                data = f'{dumps(_record(record))[:-1]},"resource":{resource},"scope":{scope}}}'.encode()
                size += len(data)
                if size > most_bytes_in_all:
                    raise PushRefusedError(
                        413,
                        f"body: more than {most_bytes_in_all} bytes of log records, each with its resource and scope, "
                        "which is max_waiting_bytes: export fewer at once",
                    )
                fault = _fault(record, len(data), most_bytes)
                if fault is None:
                    good.append(data)
                    any_fine = any_fine or _is_fine(record)
                else:
                    rejected.append(RejectedRecord(data, *fault))
    has_key = any_fine and header(headers, b"idempotency-key") is None
    key = f"otlp {hashlib.sha256(body).hexdigest()}" if has_key else None
    return Pushed([PushedRecord(data, JSON, key) for data in good], rejected)


def _check(message: object) -> None:
    """Raise ValueError for a part that can't be a record's JSON as it is."""
    if isinstance(message, LogRecord):
        _record(message)
    elif isinstance(message, ScopeLogs):
        _scope(message.scope, message.schema_url)
    elif isinstance(message, ResourceLogs):
        _resource(message.resource, message.schema_url)


def _is_fine(record: LogRecord) -> bool:
    return bool(record.time_unix_nano % _MILLISECOND or record.observed_time_unix_nano % _MILLISECOND)


def _fault(record: LogRecord, size: int, most_bytes: int) -> tuple[DeadLetterReason, str] | None:
    if len(record.trace_id) not in {0, _TRACE_ID_BYTES}:
        why = f"a trace_id has {len(record.trace_id)} bytes: it has {_TRACE_ID_BYTES}, or none"
        return DeadLetterReason.UNPARSABLE, why
    if len(record.span_id) not in {0, _SPAN_ID_BYTES}:
        why = f"a span_id has {len(record.span_id)} bytes: it has {_SPAN_ID_BYTES}, or none"
        return DeadLetterReason.UNPARSABLE, why
    if size > most_bytes:
        why = f"a log record is {size} bytes in JSON: max_record_bytes is {most_bytes}"
        return DeadLetterReason.RECORD_TOO_LARGE, why
    return None


def _record(record: LogRecord) -> dict[str, object]:
    return {
        "time_unix_nano": record.time_unix_nano or None,
        "observed_time_unix_nano": record.observed_time_unix_nano or None,
        "severity_number": int(record.severity_number) or None,
        "severity_text": record.severity_text or None,
        "event_name": record.event_name or None,
        "body": plain(record.body),
        "attributes": attributes_of(record.attributes),
        "dropped_attributes_count": record.dropped_attributes_count,
        "trace_id": record.trace_id.hex() or None,
        "span_id": record.span_id.hex() or None,
        "flags": record.flags,
    }


def _resource(resource: Resource, schema_url: str) -> dict[str, object]:
    return {"attributes": attributes_of(resource.attributes), "schema_url": schema_url or None}


def _scope(scope: InstrumentationScope, schema_url: str) -> dict[str, object]:
    return {
        "name": scope.name or None,
        "version": scope.version or None,
        "attributes": attributes_of(scope.attributes),
        "schema_url": schema_url or None,
    }
