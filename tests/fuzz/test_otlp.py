"""Fuzz OpenTelemetry's signals, in protobuf and in JSON, and the answers to them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from google.protobuf.json_format import Parse
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

from forebay_contrib.opentelemetry.answers import JSON, PROTOBUF, exported, status
from forebay_contrib.opentelemetry.json_form import WRONG, Json
from forebay_contrib.opentelemetry.logs import parse_logs
from forebay_contrib.opentelemetry.rows import parse_rows
from forebay_contrib.opentelemetry.signals import LOGS, METRICS, SIGNALS, TRACES
from receiver_runtime.receivers.http.requests.pushed import Pushed, PushedRows
from tests.fuzz.http_bodies import MOST_BYTES, check_taken, limits, refused
from tests.fuzz.target import fuzzed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay_contrib.opentelemetry.signals import Signal

_MOST_IN_ALL = 200_000
_VALUES = (
    *({"stringValue": "caf\u00e9"}, {"intValue": "-9223372036854775808"}, {"doubleValue": "NaN"}, {"doubleValue": 1.5}),
    *({"boolValue": True}, {"bytesValue": "AP8="}, {"arrayValue": {"values": [{"intValue": 1}, {}]}}),
    {"kvlistValue": {"values": [{"key": "k", "value": {"stringValue": "v"}}]}},
)
_RECORD = {
    "timeUnixNano": "1700000000000000001",
    "severityNumber": 9,
    "severityText": "INFO",
    "body": {"stringValue": "hello"},
    "attributes": [{"key": f"k{n}", "value": value} for n, value in enumerate(_VALUES)],
    "flags": 1,
}
_IDS = {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174"}


def _request(*records: Mapping[str, object]) -> bytes:
    scope = {"scope": {"name": "s", "version": "1"}, "logRecords": list(records)}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "x"}}]}
    return json.dumps({"resourceLogs": [{"resource": resource, "scopeLogs": [scope], "schemaUrl": "u"}]}).encode()


_IN_JSON = [_request(_RECORD), _request({**_RECORD, **_IDS}, {}), _request(), b"{}"]
_IN_PROTOBUF = [
    Parse(text, ExportLogsServiceRequest()).SerializeToString() for text in (_request(_RECORD), _request({}, {}), b"{}")
]
_DEEP = b'{"arrayValue":{"values":[' * 400


def _taken(kind: str, body: bytes) -> Pushed | None:
    headers = [(b"content-type", kind.encode())]
    found = refused(parse_logs, headers, body, most_bytes=MOST_BYTES, most_bytes_in_all=_MOST_IN_ALL, limits=limits())
    if found is None:
        return None
    assert isinstance(found, Pushed)
    # An empty log record takes two bytes.
    check_taken(headers, found, max(1, len(body)))
    bodies = _bodies(found)
    assert sum(map(len, bodies)) + sum(len(one.data) for one in found.rejected) <= _MOST_IN_ALL
    for record in bodies:
        assert len(record) <= MOST_BYTES
        assert isinstance(json.loads(record), dict)
    return found


def _bodies(pushed: Pushed) -> Sequence[bytes]:
    return [record.body or b"" for record in pushed.records]


@fuzzed(
    "otlp_json",
    valid=_IN_JSON,
    words=[
        b'"\\ud800"',
        b'"\\ud83d\\ude00"',
        b'{"key":"k","value":{}}',
        b'"resourceLogs":',
        b"null",
        b"[]",
        b"{}",
        b"1e999",
        b'"1e999"',
        b'"Infinity"',
        b'"zz"',
        b"1.5",
        b"true",
        b'"traceId":"00"',
        b'"bytesValue":"!"',
        *_IN_JSON,
    ],
    attacks=[
        _request({"attributes": [{"key": "\ud800", "value": {"stringValue": "x"}}]}),
        _IN_JSON[0].replace(b'{"stringValue": "hello"}', _DEEP),
        b'{"resourceLogs":[' + b"{}," * 9000 + b"{}]}",
        b'{"' + b"x" * 50_000 + b'":1}',
    ],
)
def test_json_is_taken_or_refused_and_gives_the_same_as_protobuf(body: bytes) -> None:
    found = _taken(JSON, body)
    if found is None:
        return
    try:
        request = Json().whole(body)
    except (*WRONG, RecursionError):
        # Its log records are read apart, and those that are none are kept.
        assert found.rejected
        assert all(one.data in body for one in found.rejected)
        return
    same = _taken(PROTOBUF, request.SerializeToString())
    assert same is not None
    assert _bodies(same) == _bodies(found)


@fuzzed(
    "otlp_protobuf",
    valid=_IN_PROTOBUF,
    words=[b"\x0a\x00", b"\x12\x00", b"\x12\x02", b"\x2a\x04", b"\xff" * 9 + b"\x01", *_IN_PROTOBUF],
    attacks=[b"\x0a\x02\x12\x00" * 9000, b"\x0a\x7f" * 9000, bytes([0x0A, 100]) * 300],
)
def test_protobuf_is_taken_or_refused(body: bytes) -> None:
    found = _taken(PROTOBUF, body)
    if found is not None:
        try:
            again = ExportLogsServiceRequest.FromString(body)
        except DecodeError:
            # Its log records are read apart, and those that are none are kept.
            assert found.rejected
            return
        assert len(found.records) + len(found.rejected) == sum(
            len(scope.log_records) for resource in again.resource_logs for scope in resource.scope_logs
        )


_SPAN = {
    "name": "order",
    "kind": 2,
    "startTimeUnixNano": "1700000000000000001",
    "status": {"code": 2, "message": "no"},
    "attributes": _RECORD["attributes"],
    "events": [{"name": "e", "timeUnixNano": "1", "attributes": [{"key": "a", "value": {"boolValue": True}}]}],
    "links": [{**_IDS, "attributes": []}],
    **_IDS,
}
_POINT = {"timeUnixNano": "1", "exemplars": [{"asInt": "1", "filteredAttributes": [], **_IDS}]}
_METRICS = [
    {"name": "g", "gauge": {"dataPoints": [{**_POINT, "asInt": "-1"}]}},
    {
        "name": "s",
        "sum": {"isMonotonic": True, "aggregationTemporality": 2, "dataPoints": [{**_POINT, "asDouble": 1.5}]},
    },
    {"name": "h", "histogram": {"dataPoints": [{**_POINT, "bucketCounts": ["1", "2"], "explicitBounds": [1]}]}},
    {"exponentialHistogram": {"dataPoints": [{"positive": {"offset": 1, "bucketCounts": ["1"]}, "scale": -1}]}},
    {"summary": {"dataPoints": [{"count": "1", "quantileValues": [{"quantile": 0.5, "value": "NaN"}]}]}},
]
_TREES = {
    LOGS.name: json.loads(_request(_RECORD, _IDS)),
    TRACES.name: {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "s"}, "spans": [_SPAN, {}]}]}]},
    METRICS.name: {"resourceMetrics": [{"resource": {}, "scopeMetrics": [{"metrics": _METRICS}]}]},
}
_TREES_IN_JSON = [json.dumps(tree).encode() for tree in _TREES.values()]


def _rows_of(signal: Signal, kind: str, body: bytes) -> PushedRows | None:
    headers = [(b"content-type", kind.encode())]
    found = refused(
        parse_rows, signal, headers, body, most_bytes=MOST_BYTES, most_bytes_in_all=_MOST_IN_ALL, limits=limits()
    )
    if found is None:
        return None
    assert isinstance(found, PushedRows)
    check_taken(headers, found, max(1, len(body)))
    assert all(one.data in body for one in found.rejected)
    return found


@fuzzed(
    "otlp_rows_json",
    valid=_TREES_IN_JSON,
    words=[b'"\\ud800"', b"null", b"[]", b"{}", b"1e999", b'"zz"', b"1.5", b'"9223372036854775808"', *_TREES_IN_JSON],
    attacks=[_TREES_IN_JSON[1].replace(b'{"boolValue": true}', _DEEP)],
)
def test_json_of_a_signal_is_rows_or_refused_and_gives_the_same_as_protobuf(body: bytes) -> None:
    for signal in SIGNALS:
        found = _rows_of(signal, JSON, body)
        if found is None or found.rejected:
            continue
        same = _rows_of(signal, PROTOBUF, Json(signal).whole(body).SerializeToString())
        assert same is not None
        assert same.batch.drop_columns("received_at").equals(found.batch.drop_columns("received_at")) or _has_nan(body)


def _has_nan(body: bytes) -> bool:
    return b"NaN" in body


@fuzzed(
    "otlp_rows_protobuf",
    valid=[Json(signal).whole(json.dumps(_TREES[signal.name]).encode()).SerializeToString() for signal in SIGNALS],
    words=[b"\x0a\x00", b"\x12\x00", b"\x12\x02", b"\x2a\x04", b"\xff" * 9 + b"\x01"],
    attacks=[b"\x0a\x02\x12\x00" * 9000, b"\x0a\x7f" * 9000, bytes([0x0A, 100]) * 300],
)
def test_protobuf_of_a_signal_is_rows_or_refused(body: bytes) -> None:
    for signal in SIGNALS:
        _rows_of(signal, PROTOBUF, body)


@fuzzed("otlp_answer", valid=[b"a log record is 9000 bytes in JSON", b""], attacks=[b"x" * 1200])
def test_each_answer_can_be_read(data: bytes) -> None:
    message = data.decode("utf-8", "replace")
    rejected = 1 + len(data) ** 3
    read = ExportLogsServiceResponse.FromString(exported(PROTOBUF, rejected=rejected, message=message))
    assert read.partial_success.rejected_log_records == rejected
    assert read.partial_success.error_message == message
    in_json = Parse(exported(JSON, rejected=rejected, message=message), ExportLogsServiceResponse())
    assert in_json == read
    assert json.loads(status(JSON, message)) == {"message": message}
    assert status(PROTOBUF, message).endswith(message.encode())
