"""Send all signals to one pair of addresses, by the SDK as it is and by hand, and read the registered rows."""

from __future__ import annotations

import gzip
import json
import ssl
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
import zstandard
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind, StatusCode
from opentelemetry.trace import Status as SpanStatus

from forebay_contrib.opentelemetry.declaration import OtlpLogs, OtlpTraces
from forebay_contrib.opentelemetry.tests.signal_receivers import Receivers, listening, receivers
from receiver_runtime.sources.fields.tcp import Tls
from tests.support.machine.held_ports import held_port
from tests.unit.receiver_runtime.receivers.certificates import Authority
from tests.unit.receiver_runtime.receivers.http.test_receiver import pause
from tests.unit.receiver_runtime.support import eventually
from tracker_store.schema.states import DesiredState, ReceiverState

PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}
TIME = 1_767_225_600_123_456_789
REQUESTS: dict[str, Any] = {
    "logs": ExportLogsServiceRequest,
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
}


def spans(*names: str, trace_id: bytes = b"t" * 16) -> bytes:
    made = ExportTraceServiceRequest()
    scope = made.resource_spans.add().scope_spans.add()
    for name in names:
        scope.spans.add(
            name=name, trace_id=trace_id, span_id=b"s" * 8, start_time_unix_nano=TIME, end_time_unix_nano=TIME
        )
    data: bytes = made.SerializeToString()
    return data


def of_each_signal() -> dict[str, bytes]:
    logs = ExportLogsServiceRequest()
    logs.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=TIME)
    metrics = ExportMetricsServiceRequest()
    point = metrics.resource_metrics.add().scope_metrics.add().metrics.add(name="m").gauge.data_points.add()
    point.time_unix_nano, point.as_int = TIME, 1
    return {"logs": logs.SerializeToString(), "traces": spans("a"), "metrics": metrics.SerializeToString()}


def send_by_sdk(port: int, how: str) -> None:
    """Send each signal by the SDK, to one endpoint."""
    resource = Resource.create({"service.name": "shop"})
    if how == "grpc":
        to: dict[str, Any] = {"endpoint": f"http://127.0.0.1:{port}", "timeout": 60}
        log, span, metric = GrpcLogExporter(**to), GrpcSpanExporter(**to), GrpcMetricExporter(**to)
    else:
        # What the SDK makes of the one address of OTEL_EXPORTER_OTLP_ENDPOINT.
        log, span, metric = (  # type: ignore[assignment]
            kind(endpoint=f"http://127.0.0.1:{port}/v1/{signal}", timeout=60)
            for kind, signal in (
                (OTLPLogExporter, "logs"),
                (OTLPSpanExporter, "traces"),
                (OTLPMetricExporter, "metrics"),
            )
        )
    logs = LoggerProvider(resource=resource)
    logs.add_log_record_processor(BatchLogRecordProcessor(log))
    logs.get_logger("checkout").emit(
        LogRecord(severity_number=SeverityNumber.INFO, body="an order was placed", attributes={"item": "tea"})
    )
    logs.shutdown()
    traces = TracerProvider(resource=resource)
    traces.add_span_processor(BatchSpanProcessor(span))
    tracer = traces.get_tracer("checkout", "1.2")
    with tracer.start_as_current_span("order", kind=SpanKind.SERVER) as outer:
        outer.set_status(SpanStatus(StatusCode.ERROR, "no tea"))
        with tracer.start_as_current_span("pay", links=[Link(outer.get_span_context(), {"why": "retry"})]) as inner:
            inner.add_event("charged", {"amount": 3})
    traces.shutdown()
    reader = PeriodicExportingMetricReader(metric, export_interval_millis=60_000)
    views = [View(instrument_name="size", aggregation=ExponentialBucketHistogramAggregation())]
    metrics = MeterProvider([reader], resource=resource, views=views)
    meter = metrics.get_meter("checkout")
    meter.create_counter("orders", unit="1").add(3, {"item": "tea"})
    meter.create_histogram("seconds", explicit_bucket_boundaries_advisory=[1.0]).record(0.5)
    meter.create_histogram("size").record(7)
    metrics.shutdown()


@pytest.mark.parametrize("how", ["http", "grpc"])
def test_the_sdk_sends_each_signal_to_one_endpoint(tmp_path: Path, how: str) -> None:
    with receivers(tmp_path) as made:
        send_by_sdk(made.http if how == "http" else made.grpc, how)
        [log] = made.rows("logs")
        assert (log["body"], dict(log["attributes"]), log["severity_number"]) == (
            "an order was placed",
            {"item": "tea"},
            9,
        )
        inner, outer = made.rows("traces")
        assert (outer["name"], outer["kind"], outer["status_code"], outer["status_message"]) == (
            "order",
            "server",
            "error",
            "no tea",
        )
        assert (inner["parent_span_id"], inner["trace_id"]) == (outer["span_id"], outer["trace_id"])
        [event], [link] = inner["events"], inner["links"]
        assert (event["name"], dict(event["attributes"])) == ("charged", {"amount": "3"})
        assert (link["span_id"], dict(link["attributes"])) == (outer["span_id"], {"why": "retry"})
        assert outer["duration_nano"] == outer["end_time_unix_nano"] - outer["start_time_unix_nano"] > 0
        counter, histogram, exponential = sorted(made.rows("metrics"), key=lambda row: row["name"])
        assert (counter["name"], counter["type"], counter["value_int"], counter["is_monotonic"]) == (
            "orders",
            "sum",
            3,
            True,
        )
        assert counter["temporality"] == "cumulative"
        assert (histogram["bucket_counts"], histogram["explicit_bounds"], histogram["sum"]) == ([1, 0], [1.0], 0.5)
        assert (exponential["type"], exponential["count"]) == ("exponential_histogram", 1)
        assert sum(exponential["positive"]["bucket_counts"]) == 1
        for row in (log, inner, counter):
            assert (row["service_name"], row["scope_name"]) == ("shop", "checkout")


def test_each_connection_takes_each_signal(tmp_path: Path) -> None:
    """The kernel spreads connections: with many, each receiver has some that bring other signals."""
    bodies = of_each_signal()
    with receivers(tmp_path) as made:
        any_one = made.by_signal["logs"]
        for _ in range(12):
            connection = any_one.connect()
            for signal, body in bodies.items():
                assert any_one.post(body, PROTOBUF, path=f"/v1/{signal}", on=connection).status == 200
            connection.close()
            for signal, body in bodies.items():
                assert made.call(signal, body) == b""
        # The same bytes are one request that was sent again.
        assert {signal: len(made.rows(signal)) for signal in bodies} == dict.fromkeys(bodies, 1)
        large = spans(*["x" * 1000] * 300)
        for _ in range(8):
            assert (
                any_one.post(gzip.compress(large), {**PROTOBUF, "Content-Encoding": "gzip"}, path="/v1/traces").status
                == 200
            )
        zstd = zstandard.compress(large)
        assert any_one.post(zstd, {**PROTOBUF, "Content-Encoding": "zstd"}, path="/v1/traces/").status == 200
        assert made.call("traces", large, compression=grpc.Compression.Gzip) == b""
        assert len(made.rows("traces")) == 301


def test_what_is_bad_is_counted_and_the_rest_is_taken(tmp_path: Path) -> None:
    good = ExportTraceServiceRequest.FromString(spans("good", "bad"))
    good.resource_spans[0].scope_spans[0].spans[1].span_id = b"short"
    body = good.SerializeToString()
    with receivers(tmp_path, "traces") as made:
        traces = made.by_signal["traces"]
        answered = ExportTraceServiceResponse.FromString(made.call("traces", body)).partial_success
        assert answered.rejected_spans == 1
        assert "an id has 5 bytes" in answered.error_message
        as_json = json.dumps(
            {
                "resourceSpans": [
                    {"scopeSpans": [{"spans": [{"name": "j", "spanId": "EEE19B7EC3C1B174"}, {"spanId": "zz"}]}]}
                ]
            }
        )
        said = traces.post(as_json.encode(), JSON, path="/v1/traces")
        assert said.status == 200
        assert said.json()["partialSuccess"]["rejectedSpans"] == "1"
        assert [row["name"] for row in made.rows("traces")] == ["good", "j"]
        assert made.rows("traces")[1]["span_id"] == "eee19b7ec3c1b174"
        letters = [data for _, _, data in traces.rig.dead_letters()]
        assert letters == [good.resource_spans[0].scope_spans[0].spans[1].SerializeToString(), b'{"spanId": "zz"}']


def refused(made: Receivers, signal: str, message: bytes, **options: Any) -> tuple[grpc.StatusCode, Status]:  # noqa: ANN401
    with pytest.raises(grpc.RpcError) as error:
        made.call(signal, message, **options)
    metadata = dict(error.value.trailing_metadata())
    status = Status.FromString(metadata.get("grpc-status-details-bin", b""))
    return error.value.code(), status


def test_a_signal_without_a_receiver_is_to_be_sent_again(tmp_path: Path) -> None:
    with receivers(tmp_path, "logs", "traces") as made:
        for _ in range(4):
            answer = made.by_signal["logs"].post(of_each_signal()["metrics"], PROTOBUF, path="/v1/metrics")
            assert (answer.status, "OtlpMetrics" in Status.FromString(answer.body).message) == (503, True)
            assert int(answer.headers["retry-after"]) >= 1
        code, status = refused(made, "metrics", of_each_signal()["metrics"])
        assert code == grpc.StatusCode.UNAVAILABLE
        info = RetryInfo()
        assert status.details[0].Unpack(info)
        assert info.retry_delay.seconds >= 1


def test_nothing_is_answered_before_it_is_registered(tmp_path: Path) -> None:
    with receivers(tmp_path, "traces", acknowledgement_timeout="300ms") as made:
        traces = made.by_signal["traces"]
        traces.log.away = True
        assert traces.post(spans("a"), PROTOBUF, path="/v1/traces?ack=buffered").status == 503
        eventually(lambda: traces.ask("GET", "/ready").status == 503, "not ready")
        code, status = refused(made, "traces", spans("b"))
        assert (code, status.code, len(status.details)) == (grpc.StatusCode.UNAVAILABLE, 14, 1)
        assert traces.rows() == []
        traces.log.away = False


def test_calls_are_checked_as_requests_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "abc")
    with receivers(tmp_path, tokens="env:A_TOKEN", max_body_bytes="64KiB", max_record_bytes="1KiB") as made:
        for signal in REQUESTS:
            code, status = refused(made, signal, b"")
            assert (code, "Bearer TOKEN" in status.message, len(status.details)) == (
                grpc.StatusCode.UNAUTHENTICATED,
                True,
                0,
            )
        token = {"metadata": (("authorization", "Bearer abc"),)}
        assert made.call("metrics", of_each_signal()["metrics"], **token) == b""
        code, status = refused(made, "traces", b"\x0a\x7f", **token)
        assert (code, "no ExportTraceServiceRequest" in status.message) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            code, _ = refused(made, "traces", spans("x" * 2**17), compression=compression, **token)
            assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        answered = ExportTraceServiceResponse.FromString(made.call("traces", spans("x" * 2000, "b"), **token))
        assert "max_record_bytes is 1024" in answered.partial_success.error_message
        assert [row["name"] for row in made.rows("traces")] == ["b"]


def test_a_receiver_that_ends_costs_its_own_signal_only(tmp_path: Path) -> None:
    bodies = of_each_signal()
    with held_port() as port, listening(tmp_path / "t", OtlpTraces, listen=f"127.0.0.1:{port}") as traces:
        for turn in range(2):
            with listening(tmp_path / f"l{turn}", OtlpLogs, listen=f"127.0.0.1:{port}"):
                for _ in range(4):
                    assert traces.post(bodies["logs"], PROTOBUF, path="/v1/logs").status == 200
            for _ in range(4):
                assert traces.post(bodies["logs"], PROTOBUF, path="/v1/logs").status == 503
                assert traces.post(bodies["traces"], PROTOBUF, path="/v1/traces").status == 200


def test_tls_is_that_of_both_addresses_and_ends_where_a_request_comes(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate = authority.issue("127.0.0.1")
    tls = Tls(certificate_file=certificate.certificate_file, key_file=certificate.key_file, ca_file=authority.ca_file)
    own = authority.issue("sender")
    trusted, key, chain = (Path(file).read_bytes() for file in (authority.ca_file, own.key_file, own.certificate_file))
    context = ssl.create_default_context(cafile=authority.ca_file)
    context.load_cert_chain(own.certificate_file, own.key_file)
    bodies = of_each_signal()
    with receivers(tmp_path / "receivers", "logs", "traces", tls=tls) as made:
        for _ in range(4):
            for signal in ("logs", "traces"):
                one = made.by_signal[signal]
                one.context = context
                assert one.post(bodies[signal], PROTOBUF, path=f"/v1/{signal}").status == 200
                assert made.call(signal, bodies[signal], grpc.ssl_channel_credentials(trusted, key, chain)) == b""
        for credentials in (None, grpc.ssl_channel_credentials(trusted)):
            with pytest.raises(grpc.RpcError):
                made.call("logs", bodies["logs"], credentials, timeout=5)


def test_a_pause_of_one_signal_is_no_pause_of_the_others(tmp_path: Path) -> None:
    bodies = of_each_signal()
    with receivers(tmp_path, "logs", "traces") as made:
        logs, traces = made.by_signal["logs"], made.by_signal["traces"]
        pause(logs, DesiredState.PAUSED, ReceiverState.PAUSED)
        for _ in range(6):
            assert logs.post(bodies["traces"], PROTOBUF, path="/v1/traces").status == 200
            assert traces.post(bodies["logs"], PROTOBUF, path="/v1/logs").status == 503
        assert refused(made, "logs", bodies["logs"])[0] == grpc.StatusCode.UNAVAILABLE
        pause(logs, DesiredState.RUNNING, ReceiverState.ACTIVE)
        eventually(lambda: traces.post(bodies["logs"], PROTOBUF, path="/v1/logs").status == 200)
        assert len(made.rows("logs")) == len(made.rows("traces")) == 1
