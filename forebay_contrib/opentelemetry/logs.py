"""OpenTelemetry's logs over HTTP (OTLP/HTTP): makes one record of each log record of an export request.

Loads ``opentelemetry-proto``, the extra ``forebay[otlp]``. ``otlp_answers`` makes the answers.
"""

from __future__ import annotations

import base64
import binascii
import copy
import hashlib
import json
import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

from google.protobuf.json_format import ParseDict, ParseError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from forebay_contrib.opentelemetry.answers import JSON, PROTOBUF
from forebay_contrib.opentelemetry.protobuf import request_of
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
from receiver_runtime.receivers.http.requests.text_bodies import json_in_utf8

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    from receiver_runtime.receivers.http.requests.pushed import Headers

_TRACE_ID_BYTES = 16
_SPAN_ID_BYTES = 8
_MILLISECOND = 1_000_000
# A surrogate in JSON; two that are a pair are one character.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# Protobuf reports a wrong type by more than one kind of error.
_WRONG = (ParseError, ValueError, TypeError, AttributeError, KeyError)
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
    rejected: list[RejectedRecord] = []
    if kind == PROTOBUF:
        limits.check_protobuf(body)
        request, rejected = request_of(body, limits)
    elif kind == JSON:
        text = json_in_utf8(kind, charset, body)
        limits.check_json(text)
        request, rejected = _from_json(text, limits)
    else:
        raise PushRefusedError(415, f"the media type {kind!r} is not read here: send {PROTOBUF} or {JSON}")
    good: list[bytes] = []
    size = 0
    count = 0
    any_fine = False
    for of_resource in request.resource_logs:
        resource = _dumps(_resource(of_resource.resource, of_resource.schema_url))
        for of_scope in of_resource.scope_logs:
            scope = _dumps(_scope(of_scope.scope, of_scope.schema_url))
            for record in of_scope.log_records:
                count += 1
                if not count % _CHECK_EVERY:
                    limits.check()
                # Resource and scope are encoded once for all their records.
                data = f'{_dumps(_record(record))[:-1]},"resource":{resource},"scope":{scope}}}'.encode()
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


def _from_json(body: bytes, limits: ParsingLimits) -> tuple[ExportLogsServiceRequest, list[RejectedRecord]]:
    """Return the request, and the log records in it that are none: each of these refuses no other."""
    try:
        found = _loaded(body)
        try:
            return _parsed(found, may_be_halved=_SURROGATE.search(body) is not None), []
        except _WRONG as error:
            # The attempt has changed what it was given.
            found = _loaded(body)
            good, rejected = _parted(found, limits)
            if not good:
                raise
            try:
                return _parsed(found), rejected
            except _WRONG:
                raise error from None
    except RecursionError as error:
        raise PushRefusedError(400, "the JSON is nested too deeply: make it flatter") from error
    except _WRONG as error:
        raise PushRefusedError(400, f"the body is no ExportLogsServiceRequest in JSON ({error}): correct it") from error


def _loaded(body: bytes) -> Any:  # noqa: ANN401  whatever was sent
    return json.loads(body.decode(), parse_constant=_refuse_constant)


def _parsed(found: Any, *, may_be_halved: bool = True) -> ExportLogsServiceRequest:  # noqa: ANN401
    if may_be_halved:
        # Protobuf's reader fails by a SystemError on half a surrogate pair, also in a name that it does not know.
        json.dumps(found, ensure_ascii=False).encode()
    request = ExportLogsServiceRequest()
    ParseDict(_with_protobufs_ids(found), request, ignore_unknown_fields=True)
    return request


def _parted(found: Any, limits: ParsingLimits) -> tuple[int, list[RejectedRecord]]:  # noqa: ANN401
    """Take each log record that is none out of the request, and all of a resource or scope that is none itself.

    Return how many are left, and those that were taken out.
    """
    good, rejected = 0, []
    for of_resource in found.get("resourceLogs") or ():
        of_all = _json_fault({**of_resource, "scopeLogs": []})
        for of_scope in of_resource.get("scopeLogs") or ():
            of_some = of_all or _json_fault({"scopeLogs": [{**of_scope, "logRecords": []}]})
            kept = []
            for number, record in enumerate(of_scope.get("logRecords") or ()):
                if not number % _CHECK_EVERY:
                    limits.check()
                fault = of_some or _json_fault({"scopeLogs": [{"logRecords": [record]}]})
                if fault is None:
                    kept.append(record)
                else:
                    why = f"a log record is none in OTLP's JSON: {fault}"
                    rejected.append(RejectedRecord(json.dumps(record).encode(), DeadLetterReason.UNPARSABLE, why))
            good += len(kept)
            of_scope["logRecords"] = kept
            if of_some is not None:
                of_scope.clear()
        if of_all is not None:
            of_resource.clear()
    return good, rejected


def _json_fault(of_resource: dict[str, Any]) -> str | None:
    try:
        _parsed(copy.deepcopy({"resourceLogs": [of_resource]}))
    except _WRONG as error:
        return str(error)
    return None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON: send it as a string")


def _with_protobufs_ids(request: Any) -> Any:  # noqa: ANN401  whatever was sent
    """Convert ids to Base64, as protobuf's JSON has them; OTLP's JSON has them in hexadecimal."""
    if not isinstance(request, dict):
        raise TypeError("it is no object")
    if request and "resourceLogs" not in request:
        # OTLP says to ignore unknown fields. Here that would leave nothing, and the sender would be told of success.
        raise ValueError(f"of its fields, as {min(request)!r:.100}, none is resourceLogs")
    for of_resource in request.get("resourceLogs") or ():
        for of_scope in of_resource.get("scopeLogs") or ():
            for record in of_scope.get("logRecords") or ():
                for name in ("traceId", "spanId"):
                    if record.get(name):
                        record[name] = base64.b64encode(_from_hex(name, record[name])).decode()
    return request


def _from_hex(name: str, value: object) -> bytes:
    try:
        if isinstance(value, str):
            return binascii.unhexlify(value)
    except ValueError:
        pass
    raise ValueError(f"{name} is {str(value)[:64]!r}, which is not hexadecimal")


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
        "body": _value(record.body),
        "attributes": _attributes(record.attributes),
        "dropped_attributes_count": record.dropped_attributes_count,
        "trace_id": record.trace_id.hex() or None,
        "span_id": record.span_id.hex() or None,
        "flags": record.flags,
    }


def _resource(resource: Resource, schema_url: str) -> dict[str, object]:
    return {"attributes": _attributes(resource.attributes), "schema_url": schema_url or None}


def _scope(scope: InstrumentationScope, schema_url: str) -> dict[str, object]:
    return {
        "name": scope.name or None,
        "version": scope.version or None,
        "attributes": _attributes(scope.attributes),
        "schema_url": schema_url or None,
    }


def _attributes(attributes: Iterable[KeyValue]) -> dict[str, object]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: AnyValue) -> object:
    """Return a value as JSON has it: bytes as Base64, NaN and infinities as their names."""
    match kind := value.WhichOneof("value"):
        case "string_value" | "bool_value" | "int_value":
            return getattr(value, kind)
        case "double_value":
            return _number(value.double_value)
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case "array_value":
            return [_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return _attributes(value.kvlist_value.values)
        case _:
            return None


def _number(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
