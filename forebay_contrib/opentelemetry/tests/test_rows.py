"""Compare rows of random requests with what plain code makes of the same messages, in protobuf and in JSON."""

from __future__ import annotations

import base64
import json
import math
import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from forebay_contrib.opentelemetry.columns import metrics
from forebay_contrib.opentelemetry.rows import parse_rows
from forebay_contrib.opentelemetry.signals import LOGS, METRICS, SIGNALS, TRACES, Level, Signal
from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
from receiver_runtime.receivers.http.requests.pushed import PushedRows, PushRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from google.protobuf.message import Message

PROTOBUF, JSON = b"application/x-protobuf", b"application/json"
_IDS = {"trace_id": 16, "span_id": 8, "parent_span_id": 8}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES = st.sampled_from([0, 1, 1_767_225_600_123_456_789, 2**63 - 1])
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


def parsed(
    signal: Signal,
    body: bytes,
    kind: bytes = PROTOBUF,
    *,
    most_bytes: int = 10**6,
    most_bytes_in_all: int = 10**8,
) -> PushedRows:
    headers = [(b"content-type", kind)]
    return parse_rows(signal, headers, body, most_bytes=most_bytes, most_bytes_in_all=most_bytes_in_all)


@st.composite
def values(draw: st.DrawFn, depth: int = 2) -> AnyValue:
    made = AnyValue()
    kinds = ["string_value", "bool_value", "int_value", "double_value", "bytes_value", None]
    match draw(st.sampled_from([*kinds, "array_value", "kvlist_value"] if depth else kinds)):
        case "string_value":
            made.string_value = draw(_TEXT)
        case "bool_value":
            made.bool_value = draw(st.booleans())
        case "int_value":
            made.int_value = draw(st.integers(-(2**63), 2**63 - 1))
        case "double_value":
            made.double_value = draw(st.floats())
        case "bytes_value":
            made.bytes_value = draw(st.binary(max_size=3))
        case "array_value":
            made.array_value.values.extend(draw(st.lists(values(depth - 1), max_size=2)))
            made.array_value.SetInParent()
        case "kvlist_value":
            made.kvlist_value.values.extend(draw(attributes(depth - 1)))
            made.kvlist_value.SetInParent()
    return made


@st.composite
def attributes(draw: st.DrawFn, depth: int = 2) -> list[KeyValue]:
    keys = draw(st.lists(_TEXT, max_size=2, unique=True))
    return [KeyValue(key=key, value=draw(values(depth))) for key in keys]


@st.composite
def messages(draw: st.DrawFn, kind: type[Message]) -> Any:  # noqa: ANN401  any message
    """Return a message with any of its fields set, as a row can have it."""
    if kind is KeyValue:
        raise AssertionError("a list of them has distinct keys")
    made = kind()
    done: set[str] = set()
    for field in kind.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        is_choice = oneof is not None and len(oneof.fields) > 1
        if field.name in _OUTSIDE or (is_choice and oneof.name in done) or not (is_choice or draw(st.booleans())):
            continue
        if is_choice and field is not oneof.fields[-1] and draw(st.booleans()):
            continue
        if is_choice:
            done.add(oneof.name)
        _set(draw, made, field)
    return made


# Not in a row: see the page.
_OUTSIDE = frozenset({"entity_refs"})


def _set(draw: st.DrawFn, made: Any, field: Any) -> None:  # noqa: ANN401  any message and field
    name = field.name
    if field.message_type is not None:
        kind = field.message_type._concrete_class
        if kind is KeyValue:
            getattr(made, name).extend(draw(attributes()))
        elif kind is AnyValue:
            getattr(made, name).CopyFrom(draw(values()))
        elif field.is_repeated:
            getattr(made, name).extend(draw(st.lists(messages(kind), max_size=3)))
        else:
            getattr(made, name).CopyFrom(draw(messages(kind)))
            getattr(made, name).SetInParent()
        return
    one: st.SearchStrategy[Any]
    if field.enum_type is not None:
        one = st.integers(0, len(field.enum_type.values) - 1)
    elif name in _IDS:
        one = st.sampled_from([b"", bytes(range(_IDS[name]))])
    elif name.endswith("unix_nano"):
        one = _TIMES
    else:
        one = {
            field.TYPE_STRING: _TEXT,
            field.TYPE_BOOL: st.booleans(),
            field.TYPE_DOUBLE: st.floats(),
            field.TYPE_FIXED64: st.integers(0, 2**63 - 1),
            field.TYPE_SFIXED64: st.integers(-(2**63), 2**63 - 1),
            field.TYPE_UINT64: st.integers(0, 2**63 - 1),
            field.TYPE_UINT32: st.integers(0, 2**32 - 1),
            field.TYPE_FIXED32: st.integers(0, 2**32 - 1),
            field.TYPE_SINT32: st.integers(-(2**31), 2**31 - 1),
        }[field.type]
    if field.is_repeated:
        getattr(made, name).extend(draw(st.lists(one, max_size=3)))
    else:
        setattr(made, name, draw(one))


# -- the oracle: each row alone, from each message alone ---------------------------------------------------------------


def as_json(value: AnyValue) -> Any:  # noqa: ANN401  any value of JSON
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    held = getattr(value, kind)
    if kind == "array_value":
        return [as_json(one) for one in held.values]
    if kind == "kvlist_value":
        return {one.key: as_json(one.value) for one in held.values}
    if kind == "bytes_value":
        return base64.b64encode(held).decode()
    if kind == "double_value" and not math.isfinite(held):
        return MessageToDict(value)["doubleValue"]
    return held


def as_text(value: AnyValue) -> str | None:
    found = as_json(value)
    if found is None or isinstance(found, str):
        return found
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def as_map(found: Iterable[KeyValue]) -> list[tuple[str, str | None]]:
    return [(one.key, as_text(one.value)) for one in found]


def comparable(value: Any) -> Any:  # noqa: ANN401  whatever a row has
    """Return a value that equals another with the same bits, also where it is no number."""
    if isinstance(value, float):
        return struct.pack(">d", value) if not math.isnan(value) else "NaN"
    if isinstance(value, dict):
        return {name: comparable(one) for name, one in value.items()}
    return [comparable(one) for one in value] if isinstance(value, list) else value


def of_ids(message: Any, *names: str) -> dict[str, Any]:  # noqa: ANN401  any message
    return {name: getattr(message, name).hex() or None for name in names}


def log_row(one: Any) -> dict[str, Any]:  # noqa: ANN401  a record
    return {
        "time_unix_nano": one.time_unix_nano or None,
        "observed_time_unix_nano": one.observed_time_unix_nano or None,
        "severity_number": one.severity_number or None,
        "severity_text": one.severity_text or None,
        "event_name": one.event_name or None,
        "body": as_text(one.body),
        "attributes": as_map(one.attributes),
        "dropped_attributes_count": one.dropped_attributes_count,
        **of_ids(one, "trace_id", "span_id"),
        "flags": one.flags,
    }


def span_row(one: Any) -> dict[str, Any]:  # noqa: ANN401  a span
    start, end = one.start_time_unix_nano, one.end_time_unix_nano
    return {
        **of_ids(one, "trace_id", "span_id", "parent_span_id"),
        "trace_state": one.trace_state or None,
        "flags": one.flags,
        "name": one.name or None,
        "kind": one.SpanKind.Name(one.kind).removeprefix("SPAN_KIND_").lower(),
        "start_time_unix_nano": start or None,
        "end_time_unix_nano": end or None,
        "duration_nano": end - start if start and end else None,
        "status_code": one.status.StatusCode.Name(one.status.code).removeprefix("STATUS_CODE_").lower(),
        "status_message": one.status.message or None,
        "attributes": as_map(one.attributes),
        "dropped_attributes_count": one.dropped_attributes_count,
        "events": [
            {
                "time_unix_nano": event.time_unix_nano or None,
                "name": event.name or None,
                "attributes": as_map(event.attributes),
                "dropped_attributes_count": event.dropped_attributes_count,
            }
            for event in one.events
        ],
        "dropped_events_count": one.dropped_events_count,
        "links": [
            {
                **of_ids(link, "trace_id", "span_id"),
                "trace_state": link.trace_state or None,
                "attributes": as_map(link.attributes),
                "dropped_attributes_count": link.dropped_attributes_count,
                "flags": link.flags,
            }
            for link in one.links
        ],
        "dropped_links_count": one.dropped_links_count,
    }


def of_value(one: Any) -> dict[str, Any]:  # noqa: ANN401  a point or an exemplar
    kind = one.WhichOneof("value")
    whole = one.as_int if kind == "as_int" else None
    value = float(one.as_int) if kind == "as_int" else one.as_double if kind == "as_double" else None
    return {"value": value, "value_int": whole}


def point_rows(metric: Any) -> list[dict[str, Any]]:  # noqa: ANN401, C901  a metric, of five types
    kind = metric.WhichOneof("data")
    data = getattr(metric, kind)
    found = []
    for one in data.data_points:
        row = {
            "name": metric.name or None,
            "description": metric.description or None,
            "unit": metric.unit or None,
            "type": kind,
            "metadata": as_map(metric.metadata),
            "start_time_unix_nano": one.start_time_unix_nano or None,
            "time_unix_nano": one.time_unix_nano or None,
            "attributes": as_map(one.attributes),
            "flags": one.flags,
        }
        if hasattr(data, "aggregation_temporality"):
            row["temporality"] = ("unspecified", "delta", "cumulative")[data.aggregation_temporality]
        if hasattr(data, "is_monotonic"):
            row["is_monotonic"] = data.is_monotonic
        if hasattr(one, "as_int"):
            row |= of_value(one)
        if hasattr(one, "count"):
            row["count"] = one.count
            row |= {name: getattr(one, name) if _is_set(one, name) else None for name in ("sum", "min", "max")}
        if hasattr(one, "explicit_bounds"):
            row |= {name: list(getattr(one, name)) for name in ("bucket_counts", "explicit_bounds")}
        if hasattr(one, "scale"):
            row |= {name: getattr(one, name) for name in ("scale", "zero_count", "zero_threshold")}
            for name in ("positive", "negative"):
                buckets = getattr(one, name)
                row[name] = {"offset": buckets.offset, "bucket_counts": list(buckets.bucket_counts)}
        if hasattr(one, "quantile_values"):
            row["quantiles"] = [{"quantile": each.quantile, "value": each.value} for each in one.quantile_values]
        if hasattr(one, "exemplars"):
            row["exemplars"] = [
                {
                    "time_unix_nano": each.time_unix_nano or None,
                    **of_value(each),
                    **of_ids(each, "trace_id", "span_id"),
                    "attributes": as_map(each.filtered_attributes),
                }
                for each in one.exemplars
            ]
        found.append(row)
    return found


def _is_set(one: Any, name: str) -> bool:  # noqa: ANN401  a point
    if not hasattr(one, name):
        return False
    return bool(one.DESCRIPTOR.fields_by_name[name].containing_oneof is None or one.HasField(name))


_ROWS: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "logs": lambda one: [log_row(one)],
    "traces": lambda one: [span_row(one)],
    "metrics": point_rows,
}


def expected(signal: Signal, request: Any) -> list[dict[str, Any]]:  # noqa: ANN401  a request
    found: list[dict[str, Any]] = []
    for of_resource in getattr(request, signal.fields[Level.REQUEST]):
        names = [as_text(one.value) for one in of_resource.resource.attributes if one.key == "service.name"]
        for of_scope in getattr(of_resource, signal.fields[Level.RESOURCE]):
            shared = {
                "service_name": names[0] if names else None,
                "resource_attributes": as_map(of_resource.resource.attributes),
                "resource_schema_url": of_resource.schema_url or None,
                "scope_name": of_scope.scope.name or None,
                "scope_version": of_scope.scope.version or None,
                "scope_attributes": as_map(of_scope.scope.attributes),
                "scope_schema_url": of_scope.schema_url or None,
            }
            for record in getattr(of_scope, signal.fields[Level.SCOPE]):
                found += [{**row, **shared} for row in _ROWS[signal.name](record)]
    return found


def given_rows(signal: Signal, pushed: PushedRows) -> list[dict[str, Any]]:
    """Return the rows without what follows from other columns, and without what their type of metric has not."""
    found: list[dict[str, Any]] = pushed.batch.to_pylist()
    for row in found:
        assert row.pop("received_at") is not None
        for part in (row, *row.get("events", ()), *(row.get("exemplars") or ())):
            for name in [name for name in part if name.endswith("time")]:
                nano, time = part[f"{name}_unix_nano"], part.pop(name)
                assert (None if time is None else (time - _EPOCH) // timedelta(microseconds=1)) == (
                    None if nano is None else nano // 1000
                )
    return found


def as_rows(signal: Signal, rows: list[dict[str, Any]]) -> list[Any]:
    if signal is METRICS:
        # Points of one type come together.
        rows = [{name: value for name, value in row.items() if value is not None} for row in rows]
        rows.sort(key=lambda row: ("gauge", "sum", "histogram", "exponential_histogram", "summary").index(row["type"]))
    return [comparable(row) for row in rows]


def in_otlp(value: Any, name: str = "") -> Any:  # noqa: ANN401  any value of JSON
    """Return protobuf's JSON as OTLP has it: ids are hexadecimal, enums are numbers."""
    if isinstance(value, dict):
        return {key: in_otlp(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [in_otlp(one, name) for one in value]
    return base64.b64decode(value).hex() if name in {"traceId", "spanId", "parentSpanId"} else value


@pytest.mark.search
@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
@given(data=st.data())
def test_rows_are_what_the_messages_say(signal: Signal, data: st.DataObject) -> None:
    request = data.draw(messages(signal.kinds[Level.REQUEST]))
    rows = as_rows(signal, expected(signal, request))
    taken = parsed(signal, request.SerializeToString())
    assert not taken.rejected
    assert as_rows(signal, given_rows(signal, taken)) == rows
    document = in_otlp(MessageToDict(request, use_integers_for_enums=True))
    if document and signal.fields[Level.REQUEST]:
        document["aFieldToCome"] = {"a": [1]}
    if getattr(request, signal.fields[Level.REQUEST]):
        taken = parsed(signal, json.dumps(document).encode(), JSON)
        assert not taken.rejected
        assert as_rows(signal, given_rows(signal, taken)) == rows


# -- one bad record among good ones ------------------------------------------------------------------------------------


def in_a_scope(signal: Signal, *records: Message) -> Any:  # noqa: ANN401  a request
    request = signal.kinds[Level.REQUEST]()
    scope = getattr(getattr(request, signal.fields[Level.REQUEST]).add(), signal.fields[Level.RESOURCE]).add()
    getattr(scope, signal.fields[Level.SCOPE]).extend(records)
    return request


def good(signal: Signal) -> Any:  # noqa: ANN401  a record
    made: Any = signal.kinds[Level.RECORD]()
    if signal is METRICS:
        made.name = "good"
        made.gauge.data_points.add(as_int=1, time_unix_nano=1)
    return made


def _twice(one: Any) -> None:  # noqa: ANN401  a record
    points = one.gauge.data_points[0] if hasattr(one, "gauge") else one
    points.attributes.add(key="a")
    points.attributes.add(key="a")


def _late(one: Any) -> None:  # noqa: ANN401  a record
    if hasattr(one, "gauge"):
        one.gauge.data_points[0].time_unix_nano = 2**63
    elif hasattr(one, "events"):
        one.events.add(time_unix_nano=2**63)
    else:
        one.time_unix_nano = 2**63


def _short_id(one: Any) -> None:  # noqa: ANN401  a record
    if hasattr(one, "gauge"):
        one.gauge.data_points[0].exemplars.add(span_id=b"short", as_int=1)
    elif hasattr(one, "links"):
        one.links.add(trace_id=b"short")
    else:
        one.trace_id = b"short"


def _nested(one: Any) -> None:  # noqa: ANN401  a record
    points = one.gauge.data_points[0] if hasattr(one, "gauge") else one
    inner = points.attributes.add(key="m").value.kvlist_value.values
    inner.add(key="a")
    inner.add(key="a")


@pytest.mark.parametrize("spoil", [_twice, _late, _short_id, _nested])
@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_a_bad_record_is_a_dead_letter_as_it_was_sent_and_the_others_are_rows(signal: Signal, spoil: Any) -> None:  # noqa: ANN401
    bad = good(signal)
    spoil(bad)
    request = in_a_scope(signal, good(signal), bad, good(signal))
    for kind, body in (
        (PROTOBUF, request.SerializeToString()),
        (JSON, json.dumps(in_otlp(MessageToDict(request))).encode()),
    ):
        taken = parsed(signal, body, kind)
        assert taken.batch.num_rows == 2
        [letter] = taken.rejected
        assert letter.data in body
        assert signal.noun in letter.why


def test_a_metric_without_data_and_a_buckets_count_that_is_too_large_are_dead_letters() -> None:
    bad = good(METRICS)
    bad.histogram.data_points.add(bucket_counts=[2**63])
    request = in_a_scope(METRICS, good(METRICS), METRICS.kinds[Level.RECORD](name="nothing"), bad)
    taken = parsed(METRICS, request.SerializeToString())
    assert (taken.batch.num_rows, len(taken.rejected)) == (1, 2)


def test_a_resource_that_would_be_repeated_in_too_many_rows_is_refused() -> None:
    request = in_a_scope(TRACES, *[good(TRACES) for _ in range(1000)])
    request.resource_spans[0].resource.attributes.add(key="k").value.string_value = "x" * 10_000
    body = request.SerializeToString()
    assert parsed(TRACES, body).batch.num_rows == 1000
    with pytest.raises(PushRefusedError, match="max_waiting_bytes") as error:
        parsed(TRACES, body, most_bytes_in_all=1_000_000)
    assert error.value.status == 413


@pytest.mark.parametrize("level", ["resource_spans", "scope_spans"])
def test_a_schema_that_would_be_repeated_in_too_many_rows_is_refused(level: str) -> None:
    request = in_a_scope(TRACES, *[good(TRACES) for _ in range(1000)])
    [resource] = request.resource_spans
    (resource if level == "resource_spans" else resource.scope_spans[0]).schema_url = "x" * 10_000
    with pytest.raises(PushRefusedError, match="max_waiting_bytes") as error:
        parsed(TRACES, request.SerializeToString(), most_bytes_in_all=1_000_000)
    assert error.value.status == 413


@pytest.mark.parametrize("is_taken_apart", [False, True])
def test_a_metric_that_would_be_repeated_in_too_many_rows_is_refused_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch, *, is_taken_apart: bool
) -> None:
    metric = METRICS.kinds[Level.RECORD](name="m", description="x" * 2**16)
    for _ in range(1000):
        metric.gauge.data_points.add(as_int=1)
    body = in_a_scope(METRICS, metric, METRICS.kinds[Level.RECORD](name="nothing")).SerializeToString()
    made: list[object] = []
    monkeypatch.setattr(metrics, "_points", lambda *given: made.append(given))
    with pytest.raises(PushRefusedError, match="max_waiting_bytes") as error:
        parsed(METRICS, body, most_bytes=len(body) - is_taken_apart, most_bytes_in_all=2**20)
    assert (error.value.status, made) == (413, [])


@pytest.mark.parametrize(
    ("body", "kind", "why"),
    [
        (b"\x0a\x05", PROTOBUF, "are no ExportLogsServiceRequest"),
        (b'{"resourceSpans": []}', JSON, "none is resourceLogs"),
        (b"{}", b"text/plain", "is not read here"),
    ],
)
def test_what_is_no_request_is_refused(body: bytes, kind: bytes, why: str) -> None:
    with pytest.raises(PushRefusedError, match=why):
        parsed(LOGS, body, kind)


def test_the_key_is_the_bytes_where_a_time_is_fine() -> None:
    record = good(LOGS)
    record.time_unix_nano = 1
    fine, coarse = in_a_scope(LOGS, record).SerializeToString(), in_a_scope(LOGS, good(LOGS)).SerializeToString()
    assert parsed(LOGS, fine).key == parsed(LOGS, fine).key != parsed(LOGS, fine + coarse).key
    assert parsed(LOGS, coarse).key is None
    with_key = [(b"content-type", PROTOBUF), (b"idempotency-key", b"k")]
    assert parse_rows(LOGS, with_key, fine, most_bytes=100, most_bytes_in_all=1000).key is None


@pytest.mark.parametrize("tag", [b"\x4a", b"\x5a", b"\x6a", b"\x3a", b"\x12"])
def test_very_many_tiny_messages_are_refused_before_they_are_read(tag: bytes) -> None:
    limits = ParsingLimits(most_values=999)
    headers = [(b"content-type", PROTOBUF)]
    with pytest.raises(PushRefusedError, match="messages in protobuf, max_body_values is 999") as error:
        parse_rows(TRACES, headers, (tag + b"\x00") * 1000, most_bytes=10_000, most_bytes_in_all=10_000, limits=limits)
    assert error.value.status == 413
    span = good(TRACES)
    span.name = "JobZ:Rb" * 1000
    body = in_a_scope(TRACES, span).SerializeToString()
    limits = ParsingLimits(most_values=999)
    assert parse_rows(TRACES, headers, body, most_bytes=10_000, most_bytes_in_all=20_000, limits=limits).batch.num_rows
