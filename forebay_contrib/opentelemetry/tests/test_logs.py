"""Check OTLP/HTTP logs, from requests to records and answers, with protobuf's own classes and those of the SDK."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import json_format
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from forebay_contrib.opentelemetry import answers as otlp_answers
from forebay_contrib.opentelemetry.json_form import Json, _members
from forebay_contrib.opentelemetry.logs import parse_logs
from forebay_contrib.opentelemetry.signals import Level
from receiver_runtime.receivers.http.requests.pushed import Pushed, PushRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

PROTOBUF = b"application/x-protobuf"
JSON = b"application/json"
TIME = 1_767_225_600_123_456_789
TRACE = "5b8efff798038103d269b633813fc60c"
SPAN = "eee19b7ec3c1b174"


def request(**changes: Any) -> ExportLogsServiceRequest:  # noqa: ANN401  fields of the record
    made = ExportLogsServiceRequest()
    of_resource = made.resource_logs.add()
    of_resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    of_resource.schema_url = "https://example.com/schema"
    of_scope = of_resource.scope_logs.add()
    of_scope.scope.name, of_scope.scope.version = "checkout", "1.2"
    fields: dict[str, Any] = {
        "time_unix_nano": TIME,
        "observed_time_unix_nano": TIME + 1,
        "severity_number": 9,
        "severity_text": "INFO",
        "body": AnyValue(string_value="grün"),
        "attributes": [KeyValue(key="user", value=AnyValue(int_value=2**53 + 1))],
        "trace_id": bytes.fromhex(TRACE),
        "span_id": bytes.fromhex(SPAN),
        "flags": 1,
        "event_name": "order",
    }
    of_scope.log_records.add(**{**fields, **changes})
    return made


def parsed(body: bytes, kind: bytes = PROTOBUF, *, most_bytes: int = 10_000) -> Pushed:
    return parse_logs([(b"content-type", kind)], body, most_bytes=most_bytes, most_bytes_in_all=100_000)


def only(body: bytes, kind: bytes = PROTOBUF) -> dict[str, Any]:
    [record] = parsed(body, kind).records
    assert record.body is not None
    found: dict[str, Any] = json.loads(record.body)
    return found


WHOLE = {
    "time_unix_nano": TIME,
    "observed_time_unix_nano": TIME + 1,
    "severity_number": 9,
    "severity_text": "INFO",
    "event_name": "order",
    "body": "grün",
    "attributes": {"user": 2**53 + 1},
    "dropped_attributes_count": 0,
    "trace_id": TRACE,
    "span_id": SPAN,
    "flags": 1,
    "resource": {"attributes": {"service.name": "shop"}, "schema_url": "https://example.com/schema"},
    "scope": {"name": "checkout", "version": "1.2", "attributes": {}, "schema_url": None},
}

OTLP_JSON = {
    "resourceLogs": [
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]},
            "schemaUrl": "https://example.com/schema",
            "scopeLogs": [
                {
                    "scope": {"name": "checkout", "version": "1.2"},
                    "logRecords": [
                        {
                            "timeUnixNano": str(TIME),
                            "observedTimeUnixNano": TIME + 1,
                            "severityNumber": 9,
                            "severityText": "INFO",
                            "eventName": "order",
                            "body": {"stringValue": "grün"},
                            "attributes": [{"key": "user", "value": {"intValue": str(2**53 + 1)}}],
                            "traceId": TRACE.upper(),
                            "spanId": SPAN,
                            "flags": 1,
                            "aFieldToCome": {"a": 1},
                        }
                    ],
                }
            ],
        }
    ]
}


def test_a_protobuf_record_keeps_every_field() -> None:
    assert only(request().SerializeToString()) == WHOLE


def test_a_json_record_gives_the_same() -> None:
    assert only(json.dumps(OTLP_JSON).encode(), JSON + b"; charset=utf-8") == WHOLE


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_mark_belongs_to_no_request(encoding: str) -> None:
    assert only(json.dumps(OTLP_JSON).encode(encoding), JSON) == WHOLE


def test_an_empty_record_has_all_fields() -> None:
    made = ExportLogsServiceRequest()
    made.resource_logs.add().scope_logs.add().log_records.add()
    record = only(made.SerializeToString())
    assert set(record) == set(WHOLE)
    assert {record[name] for name in ("time_unix_nano", "severity_number", "body", "trace_id")} == {None}


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
def test_an_empty_request_has_no_records(kind: bytes) -> None:
    assert parsed(b"" if kind == PROTOBUF else b"{}", kind) == Pushed([], [])


def test_values_of_each_type_are_converted() -> None:
    values = AnyValue()
    for value in (
        AnyValue(bool_value=True),
        AnyValue(double_value=1.5),
        AnyValue(double_value=float("nan")),
        AnyValue(double_value=float("-inf")),
        AnyValue(bytes_value=b"\xff\x00"),
        AnyValue(),
    ):
        values.array_value.values.append(value)
    values.array_value.values.add().kvlist_value.values.add(key="k").value.int_value = -1
    record = only(request(body=values).SerializeToString())
    assert record["body"] == [True, 1.5, "NaN", "-Infinity", "/wA=", None, {"k": -1}]


def test_records_of_several_resources_and_scopes_keep_theirs() -> None:
    made = request()
    made.resource_logs[0].scope_logs.add().log_records.add(severity_text="b")
    second = made.resource_logs.add()
    second.resource.attributes.add(key="service.name").value.string_value = "till"
    second.scope_logs.add().log_records.add(severity_text="c")
    records = [json.loads(record.body or b"") for record in parsed(made.SerializeToString()).records]
    assert [(r["severity_text"], r["resource"]["attributes"]["service.name"], r["scope"]["name"]) for r in records] == [
        ("INFO", "shop", "checkout"),
        ("b", "shop", None),
        ("c", "till", None),
    ]


def test_the_key_is_the_requests_bytes_if_a_time_is_fine_enough() -> None:
    first, same, other = (
        parsed(made.SerializeToString()).records[0].key for made in (request(), request(), request(flags=0))
    )
    assert first is not None
    assert first == same != other


def test_requests_that_may_be_equal_by_chance_have_no_key() -> None:
    coarse = {"time_unix_nano": TIME // 10**6 * 10**6, "observed_time_unix_nano": 0}
    assert parsed(request(**coarse).SerializeToString()).records[0].key is None


def test_the_server_handles_an_idempotency_key() -> None:
    headers = [(b"content-type", PROTOBUF), (b"idempotency-key", b"k")]
    assert (
        parse_logs(headers, request().SerializeToString(), most_bytes=10_000, most_bytes_in_all=10_000).records[0].key
        is None
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trace_id": b"short"}, "trace_id has 5 bytes"),
        ({"span_id": b"x" * 16}, "span_id has 16 bytes"),
        ({"body": AnyValue(string_value="y" * 2000)}, "max_record_bytes is 1000"),
    ],
)
def test_an_error_in_a_record_rejects_only_that_record(changes: dict[str, Any], words: str) -> None:
    made = request()
    made.MergeFrom(request(**changes))
    pushed = parsed(made.SerializeToString(), most_bytes=1000)
    [record], [rejected] = pushed.records, pushed.rejected
    assert json.loads(record.body or b"") == WHOLE
    assert words in rejected.why
    assert json.loads(rejected.data)["severity_text"] == "INFO"


def test_too_large_a_result_is_413() -> None:
    made = request()
    scope = made.resource_logs[0].scope_logs[0]
    for _ in range(1000):
        scope.log_records.add()
    with pytest.raises(PushRefusedError, match="max_waiting_bytes") as raised:
        parsed(made.SerializeToString())
    assert raised.value.status == 413


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (PROTOBUF, b"\xff\xff"),
        (PROTOBUF, request().SerializeToString()[:-1]),
        (JSON, b""),
        (JSON, b"[]"),
        (JSON, b'{"logs": []}'),
        (JSON, b"\xff"),
        (JSON, b'{"resourceLogs": 1}'),
        (JSON, b'{"a":' * 100_000),
    ],
)
def test_an_invalid_request_is_400(kind: bytes, body: bytes) -> None:
    with pytest.raises(PushRefusedError, match=r"ExportLogsServiceRequest|nested") as raised:
        parsed(body, kind)
    assert raised.value.status == 400


@pytest.mark.parametrize(
    "body",
    [
        rb'{"\ud800": 1, "resourceLogs": []}',
        rb'{"resourceLogs": [{"\uDFFF": 1}]}',
    ],
)
def test_half_a_surrogate_pair_outside_records_is_400(body: bytes) -> None:
    with pytest.raises(PushRefusedError, match="no ExportLogsServiceRequest of the type application/json") as refused:
        parsed(body, JSON)
    assert refused.value.status == 400
    # What is said of it can be written to any log.
    str(refused.value).encode()


@pytest.mark.parametrize(
    "record",
    [
        b"7",
        b'{"traceId": "xyz"}',
        b'{"traceId": 12}',
        b'{"traceId": "0102"}',
        b'{"flags": NaN}',
        b'{"flags": ' + b"9" * 5000 + b"}",
        b'{"timeUnixNano": "1e999999999"}',
        rb'{"body": {"stringValue": "\ud800x"}}',
        rb'{"severityText": "\udc00\ud800"}',
        b'{"severityText": "\xff"}',
    ],
)
def test_a_request_of_odd_records_alone_is_partly_taken(record: bytes) -> None:
    """Refused, its exporter would drop it, and there would be no copy."""
    found = parsed(b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [' + record + b"]}]}]}", JSON)
    assert found.records == []
    assert len(found.rejected) == 1
    assert record in found.rejected[0].data or b"0102" in record
    found.rejected[0].why.encode()


def test_a_record_that_is_none_of_its_charset_refuses_no_other() -> None:
    good, odd = (
        '{"body": {"stringValue": "ü'.encode("utf-16-le") + last + '"}}'.encode("utf-16-le")
        for last in (b"", b"\x00\xd8")
    )
    begin, between, end = (
        text.encode("utf-16-le") for text in ('{"resourceLogs": [{"scopeLogs": [{"logRecords": [', ", ", "]}]}]}")
    )
    kind = JSON + b"; charset=utf-16le"
    found = parsed(begin + odd + between + good + end, kind)
    assert [json.loads(record.body or b"")["body"] for record in found.records] == ["ü"]
    assert [one.data for one in found.rejected] == [odd]


def test_an_odd_resource_alone_is_put_aside() -> None:
    found = parsed(b'{"resourceLogs": [1]}', JSON)
    assert (found.records, [one.data for one in found.rejected]) == ([], [b"1"])


def test_a_whole_surrogate_pair_is_one_character() -> None:
    body = json.dumps(OTLP_JSON | {"\U0001f600": 1}).encode()
    assert b"\\ud83d\\ude00" in body
    assert only(body, JSON) == WHOLE


def test_another_media_type_is_415() -> None:
    with pytest.raises(PushRefusedError, match="application/x-protobuf or application/json") as raised:
        parsed(b"", b"text/plain")
    assert raised.value.status == 415


def deep(levels: int) -> bytes:
    """Encode a record's body of nested arrays as bytes, because protobuf's own classes refuse to make it."""
    made: bytes = AnyValue(string_value="x").SerializeToString()
    for field in [b"\x0a", b"\x2a"] * levels + [b"\x2a", b"\x12", b"\x12", b"\x0a"]:
        length, size = len(made), b""
        while length > 127:
            size += bytes([length & 127 | 128])
            length >>= 7
        made = field + size + bytes([length]) + made
    return made


def test_nested_values_are_taken_up_to_a_depth() -> None:
    assert only(deep(40))["body"] == json.loads("[" * 40 + '"x"' + "]" * 40)
    found = parsed(deep(400))
    assert (found.records, len(found.rejected)) == ([], 1)


@pytest.mark.parametrize("rejected", [0, 1, 200, 70_000])
def test_protobuf_reads_the_answer(rejected: int) -> None:
    expected = ExportLogsServiceResponse()
    if rejected:
        expected.partial_success.rejected_log_records = rejected
        expected.partial_success.error_message = "grün " * 100
    binary = otlp_answers.exported("application/x-protobuf", rejected=rejected, message="grün " * 100)
    assert ExportLogsServiceResponse.FromString(binary) == expected
    assert binary == expected.SerializeToString()
    text = otlp_answers.exported("application/json", rejected=rejected, message="grün " * 100)
    assert json_format.Parse(text, ExportLogsServiceResponse()) == expected


def test_an_error_is_a_status_message() -> None:
    expected = Status(message="grün")
    assert Status.FromString(otlp_answers.status("application/x-protobuf", "grün")) == expected
    assert json_format.Parse(otlp_answers.status("application/json", "grün"), Status()) == expected


ODD_IN_JSON = [
    b'{"body": {"stringValue": "ok\\ud83d"}}',
    b'{"body": {"stringValue": "caf\xe9"}}',
    b'{"body": {"intValue": "9223372036854775808"}}',
    b'{"body": {"intValue": ' + b"9" * 5000 + b"}}",
    b'{"body": {"doubleValue": NaN}}',
    b'{"body": {"doubleValue": 1e999}}',
    b'{"body": {"arrayValue": {"values": [null]}}}',
    b'{"body": ' + b'{"arrayValue": {"values": [' * 200 + b"{}" + b"]}}" * 200 + b"}",
    b'{"body": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"body": {"bytesValue": "%%%"}}',
    b'{"attributes": [{"key": "a", "value": {"arrayValue": {"values": [{"bytesValue": "AR"}]}}}]}',
    b'{"body": {"fooValue": 1}}',
    b'{"body": {"kvlistValue": {"values": [{"key": "a", "value": {"fooValue": null}}]}}}',
    b'{"body": {"stringValue": "a", "intValue": 1}}',
    b'{"body": {"stringValue": "a", "stringValue": "b"}}',
    b'{"attributes": [{"key": "a", "value": {}}, {"key": "a", "value": {"intValue": 1}}]}',
    b'{"body": {"kvlistValue": {"values": [{"key": "a"}, {"key": "a"}]}}}',
    b'{"severityNumber": "SEVERITY_NUMBER_FATAL5"}',
    b'{"severityNumber": 9.5}',
    b'{"attributes": [null]}',
    b'{"timeUnixNano": -1}',
    b'{"traceId": "xyz"}',
    b'{"traceId": 12}',
    b'{"body": }',
    b"7",
    b"null",
]


def _in_protobufs_names(body: bytes) -> bytes:
    return re.sub(
        rb'"[a-z]+[A-Z]\w*":', lambda name: re.sub(rb"[A-Z]", lambda one: b"_" + one[0].lower(), name[0]), body
    )


@pytest.mark.parametrize("spelt", [bytes, _in_protobufs_names], ids=["otlp", "protobuf"])
@pytest.mark.parametrize("odd", ODD_IN_JSON, ids=lambda odd: repr(odd[:40]))
def test_an_odd_log_record_in_json_refuses_no_other_and_is_kept_as_it_came(
    odd: bytes, spelt: Callable[[bytes], bytes]
) -> None:
    first, third = (b'{"timeUnixNano": "1767225600123456789", "body": {"stringValue": "%s"}}' % n for n in (b"1", b"3"))
    records = b"[%s ,\n%s , %s]" % (first, odd, third)
    body = b'{"resourceLogs": [{"resource": {"attributes": []}, "scopeLogs": [{"logRecords": %s}]}]}' % records
    found = parsed(spelt(body), JSON)
    assert [json.loads(record.body or b"")["body"] for record in found.records] == ["1", "3"]
    assert [one.data for one in found.rejected] == [spelt(odd)]


def test_a_request_in_protobufs_names_gives_the_same_records() -> None:
    body = json.dumps(OTLP_JSON).encode()
    assert _in_protobufs_names(body) != body
    assert only(_in_protobufs_names(body), JSON) == WHOLE


def test_a_field_under_both_of_its_names_is_none() -> None:
    record = b'{"severity_text": "a", "severityText": "b"}'
    found = parsed(b'{"resource_logs": [{"scope_logs": [{"log_records": [%s, {}]}]}]}' % record, JSON)
    assert (len(found.records), [one.data for one in found.rejected]) == (1, [record])


@pytest.mark.parametrize(
    "record",
    [
        b'{"severityNumber": 99}',
        b'{"severityNumber": "SEVERITY_NUMBER_FATAL4"}',
        b'{"body": {"bytesValue": "-_8"}}',
        b'{"body": {}, "attributes": [{"key": "a"}, {"key": "", "value": null}]}',
        b'{"more": {"fooValue": 1}}',
    ],
)
def test_what_the_records_json_can_hold_is_taken(record: bytes) -> None:
    found = parsed(b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [%s]}]}]}' % record, JSON)
    assert (len(found.records), found.rejected) == (1, [])


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


_BODY, _ATTRIBUTES = 5, 6
_A = _field(1, b"a")


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (_field(_BODY, b"\x0a\x01\xff"), "Error parsing"),
        (_field(_BODY, b"\x0a\x01a\x10\x01"), "more than one value"),
        (_field(_BODY, b"\x0a\x01a\x0a\x01b"), "more than one value"),
        (_field(_ATTRIBUTES, _A + _field(2, b"\x0a\x01a\x10\x01")), "more than one value"),
        (_field(_BODY, b"\x0a\x01a") * 2, "more than one body"),
        (_field(_BODY, b"\x7a\x01a"), "a kind that is not known"),
        (_field(_ATTRIBUTES, _A) * 2, "the attribute 'a' is there twice"),
    ],
)
def test_an_odd_log_record_in_protobuf_is_kept_as_it_came(odd: bytes, words: str) -> None:
    good = _field(_BODY, b"\x0a\x01x")
    records = b"".join(_field(2, record) for record in (good, odd, good))
    found = parsed(_field(1, _field(2, records)), PROTOBUF)
    assert [json.loads(record.body or b"")["body"] for record in found.records] == ["x", "x"]
    [rejected] = found.rejected
    assert rejected.data == odd
    assert words in rejected.why


def test_a_resource_that_does_not_show_its_records_is_kept_as_it_came() -> None:
    good = b'{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "a"}}]}]}'
    found = parsed(b'{"resourceLogs": [%s, [1], {"scopeLogs": 7}]}' % good, JSON)
    assert (len(found.records), [one.data for one in found.rejected]) == (1, [b"[1]", b'{"scopeLogs": 7}'])


def _resource_logs(kind: bytes, *parts: bytes) -> bytes:
    """Return a request of the resources of these fields."""
    if kind == JSON:
        return b'{"resourceLogs":[%s]}' % b",".join(parts)
    return b"".join(_field(1, part) for part in parts)


_OLD_LOGS = b'[{"logRecords":[{}]}]'


@pytest.mark.parametrize(
    ("kind", "attributes", "good", "old"),
    [
        (
            PROTOBUF,
            _field(1, _field(1, _A + _field(2, _field(1, b"b")))),
            _field(2, _field(2, _field(_BODY, _field(1, b"x")))),
            b"\xc2\x3e\x02\x12\x00",
        ),
        *(
            (
                JSON,
                b'"resource":{"attributes":[{"key":"a","value":{"stringValue":"b"}}]}',
                b'"scopeLogs":[{"logRecords":[{"body":{"stringValue":"x"}}]}]',
                b'"%s":%s' % (name, _OLD_LOGS),
            )
            for name in (b"instrumentationLibraryLogs", b"instrumentation_library_logs")
        ),
    ],
)
def test_log_records_in_a_field_that_otlp_has_no_more_are_kept_aside(
    kind: bytes, attributes: bytes, good: bytes, old: bytes
) -> None:
    def resource(*fields: bytes) -> bytes:
        return b"{%s}" % b",".join(fields) if kind == JSON else b"".join(fields)

    parts = [resource(attributes, old), resource(attributes, good), resource(attributes, old, good)]
    found = parsed(_resource_logs(kind, *parts), kind)
    records = [json.loads(record.body or b"") for record in found.records]
    assert [(one["body"], one["resource"]["attributes"]) for one in records] == [("x", {"a": "b"})] * 2
    # Without the log records that are taken.
    assert [one.data for one in found.rejected] == [resource(attributes, old)] * 2
    assert all("update the exporter" in one.why for one in found.rejected)


def test_a_field_by_both_of_its_names_is_there_twice() -> None:
    odd = b'{"severityText": "WARN", "severity_text": "INFO"}'
    found = parsed(b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [%s, {"severity_text": "INFO"}]}]}]}' % odd, JSON)
    assert (len(found.records), [one.data for one in found.rejected]) == (1, [odd])


def test_an_odd_resource_refuses_no_other() -> None:
    logs = [{"logRecords": [{"body": {"stringValue": "a"}}]}]
    odd = {"resource": {"attributes": 7}, "scopeLogs": logs}
    body = json.dumps({"resourceLogs": [odd, {"resource": {}, "scopeLogs": logs}]}).encode()
    found = parse_logs([(b"content-type", b"application/json")], body, most_bytes=10_000, most_bytes_in_all=10**6)
    assert (len(found.records), len(found.rejected)) == (1, 1)


BAD = b"BAD!"


def _broken(body: bytes) -> bytes:
    """Return a request whose strings with the mark are no UTF-8: only its bytes can be such."""
    return body.replace(BAD, b"\xff\xfe\xfd\xfc")


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=4), st.booleans())
def test_a_record_in_protobuf_that_is_none_refuses_no_other_and_is_kept(bad: list[list[bool]], unknown: bool) -> None:
    made = ExportLogsServiceRequest()
    number = 0
    for of_one in bad:
        scope = made.resource_logs.add().scope_logs.add()
        for is_bad in of_one:
            number += 1
            body = AnyValue(string_value=f"{number} BAD!" if is_bad else f"{number}")
            scope.log_records.add(time_unix_nano=TIME, body=body)
    # A field of a later version, of each wire type, is passed over.
    more = b"\xf8\x07\x05\xf9\x07" + bytes(8) + b"\xfa\x07\x02ab\xfd\x07" + bytes(4) if unknown else b""
    data = _broken(made.SerializeToString()) + more
    found = parsed(data)
    all_of_them = [is_bad for of_one in bad for is_bad in of_one]
    good = [str(n) for n, is_bad in enumerate(all_of_them, 1) if not is_bad]
    assert [json.loads(record.body or b"")["body"] for record in found.records] == good
    assert len(found.rejected) == sum(all_of_them)
    assert all(b"\xff\xfe\xfd\xfc" in one.data for one in found.rejected)


def test_a_resource_in_protobuf_that_is_none_refuses_no_other() -> None:
    bad, good = request(), request()
    bad.resource_logs[0].resource.attributes[0].value.string_value = "BAD!"
    bad.resource_logs[0].scope_logs[0].log_records.add(time_unix_nano=TIME)
    good.resource_logs[0].scope_logs.add().scope.name = "BAD!"
    good.resource_logs[0].scope_logs[1].log_records.add(time_unix_nano=TIME)
    found = parsed(_broken(bad.SerializeToString() + good.SerializeToString()))
    assert [json.loads(record.body or b"")["scope"]["name"] for record in found.records] == ["checkout"]
    assert len(found.rejected) == 3


@given(st.binary(max_size=60))
def test_any_bytes_behind_a_request_are_read_or_refused(more: bytes) -> None:
    with suppress(PushRefusedError):
        parsed(_broken(request(body=AnyValue(string_value="BAD!")).SerializeToString()) + more)


class Name(str):
    """Count how often names are compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("place", [0, 2500, 4999])
def test_a_name_that_is_there_twice_is_found_in_one_pass(place: int) -> None:
    names = [(Name(number), None) for number in range(5000)]
    Name.compared = 0
    with pytest.raises(ValueError, match=f"'{place}' is there twice"):
        _members([*names, (Name(place), None)])
    # Only names with the same hash are compared.
    assert Name.compared < 100


@pytest.mark.parametrize("level", list(Level))
def test_an_error_of_json_names_the_place_in_what_was_sent(level: Level) -> None:
    with pytest.raises(json.JSONDecodeError, match=r"column 7 \(char 6\)$"):
        Json().read(b'{"a": tru}', level)
