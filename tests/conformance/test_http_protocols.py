"""Send CloudEvents and OpenTelemetry logs through a real receiver, and read the registered blocks.

They are sent with curl, as in the pages of both, and with OpenTelemetry's own SDK.
"""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import (
    BatchLogRecordProcessor,
    LogRecordExporter,
    LogRecordExportResult,
)

from forebay.testing.receiver_processes import eventually
from forebay.testing.sources import stop
from receiver_runtime.receivers.http.declaration import Http
from tests.conformance.source_rig import SourceRig
from tests.support.commands.run_program import run_program
from tests.support.machine.held_ports import held_port

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

    from opentelemetry.sdk._logs import ReadableLogRecord

CONTRIB = Path(__file__).parents[2] / "forebay_contrib"
PAGES = [
    (CONTRIB / page).read_text(encoding="utf-8") for page in ("cloud_events/README.md", "opentelemetry/http-logs.md")
]


def blocks(language: str) -> list[str]:
    """Return the pages' code blocks in a language."""
    return [
        block for page in PAGES for block in re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ]


@pytest.fixture
def port() -> Iterator[int]:
    """Reserve one port, which each of a test's receivers uses in turn."""
    with held_port() as held:
        yield held


@pytest.fixture
def rig(database_url: str, tmp_path: Path, port: int) -> Iterator[SourceRig]:
    """Start a receiver at its own port, with what both pages declare of the stream ``orders``; it listens."""
    declared: dict[str, Any] = {}
    for block in blocks("python"):
        names: dict[str, Any] = {}
        exec(compile(block, "README.md", "exec"), names)
        declared |= names["orders"].source.model_dump(mode="json", exclude_unset=True)
    source = Http.model_validate({**declared, "listen": f"127.0.0.1:{port}"})
    made = SourceRig.make(database_url, tmp_path / "rig", source, stream="orders")
    try:
        start(made, port)
        yield made
    finally:
        made.close()
        print(made.logs()[-6000:])  # noqa: T201  shown if the test fails


def start(rig: SourceRig, port: int) -> subprocess.Popen[bytes]:
    process = rig.start()
    eventually(lambda: listens(port), "the receiver to listen")
    return process


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def shell(command: str, port: int) -> str:
    done = run_program(["/bin/bash", "-ec", command.replace("127.0.0.1:8080", f"127.0.0.1:{port}")])
    assert done.returncode == 0, done.stderr
    return done.stdout


def attributes(row: dict[str, Any]) -> dict[str, str]:
    return dict(row["attributes"])


def test_the_pages_cloud_events_come_once_each(rig: SourceRig, port: int) -> None:
    binary, structured, batch, handshake, _, _, described = blocks("sh")
    for command in (binary, structured, batch, batch, binary):
        shell(command, port)
    rows = rig.rows()
    assert [(row["id"], row["body"], row["content_type"]) for row in rows] == [
        ("1", b'{"item": "tea"}', "application/json"),
        ("2", b'{"item": "tea"}', "application/json"),
        ("3", b'{"item": "tea"}', "application/json"),
        ("4", b'{"item": "milk"}', "application/json"),
    ]
    assert {row["path"] for row in rows} == {"/v1/orders"}
    for row in rows:
        assert attributes(row) == {
            "ce-specversion": "1.0",
            "ce-id": row["id"],
            "ce-source": "/shop",
            "ce-type": "order.placed",
        }
    answer = shell(handshake, port).lower()
    assert "webhook-allowed-origin: events.example.com" in answer
    assert "webhook-allowed-rate: *" in answer
    channels = "/v1/orders/channels/{name}"
    found = set(json.loads(shell(described, port))["paths"])
    assert found == {"/v1/orders", channels, "/v1/logs", "/health", "/ready"}


def test_the_pages_logs_come_from_curl_and_from_the_sdk(rig: SourceRig, port: int) -> None:
    _, _, _, _, environment, posted, _ = blocks("sh")
    [program] = blocks("python sender")
    [expected] = blocks("json")
    for _ in range(2):
        # Send the same bytes twice, as a client does that got no answer.
        assert json.loads(shell(posted, port)) == {}
    # On a busy machine an answer may take longer than the 10 s after which the exporter drops records.
    shell(f"{environment}\nexport OTEL_EXPORTER_OTLP_LOGS_TIMEOUT=50\nexec {sys.executable} -c '{program}'", port)
    by_curl, by_sdk = rig.rows()
    assert json.loads(by_curl["body"]) == json.loads(expected)
    record = json.loads(by_sdk["body"])
    assert (record["body"], record["attributes"], record["severity_number"]) == (
        "an order was placed",
        {"item": "tea"},
        9,
    )
    assert record["resource"]["attributes"]["service.name"] == "shop"
    assert record["scope"]["name"] == "checkout"
    assert (by_sdk["content_type"], by_sdk["path"]) == ("application/json", "/v1/logs")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def post(port: int, path: str, body: bytes, headers: dict[str, str]) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
    finally:
        connection.close()


def request_with(*trace_ids: bytes) -> bytes:
    made = ExportLogsServiceRequest()
    scope = made.resource_logs.add().scope_logs.add()
    for number, trace_id in enumerate(trace_ids, start=1):
        scope.log_records.add(time_unix_nano=number, trace_id=trace_id)
    data: bytes = made.SerializeToString()
    return data


PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}


def test_logs_are_answered_as_otlp_specifies(rig: SourceRig, port: int) -> None:
    """Check that the body of every answer is OTLP's own message in the request's media type."""
    good, bad = request_with(b"x" * 16), request_with(b"y" * 16, b"short")
    taken = post(port, "/v1/logs", gzip.compress(good), {**PROTOBUF, "content-encoding": "gzip"})
    assert (taken.status, taken.headers["content-type"], taken.body) == (200, "application/x-protobuf", b"")
    partial = post(port, "/v1/logs", bad, PROTOBUF)
    said = ExportLogsServiceResponse.FromString(partial.body).partial_success
    assert (partial.status, said.rejected_log_records) == (200, 1)
    assert "a trace_id has 5 bytes" in said.error_message
    empty = post(port, "/v1/logs", b"{}", JSON)
    assert (empty.status, empty.headers["content-type"], empty.body) == (200, "application/json", b"{}")
    for body, headers, status, words in (
        (b"\xff", PROTOBUF, 400, "no ExportLogsServiceRequest"),
        (good, {**PROTOBUF, "content-encoding": "gzip"}, 400, "gzip"),
        (good, {**PROTOBUF, "content-encoding": "compress"}, 415, "compress"),
        (b"x", {**PROTOBUF, "content-length": str(2**30)}, 413, "max_body_bytes"),
    ):
        refused = post(port, "/v1/logs", body, headers)
        assert (refused.status, refused.headers["content-type"]) == (status, "application/x-protobuf")
        assert words in Status.FromString(refused.body).message
    other = post(port, "/v1/logs", b"x", {"content-type": "text/plain"})
    assert (other.status, other.headers["content-type"]) == (415, "application/json")
    assert "application/x-protobuf" in json.loads(other.body)["message"]
    for path in ("/v1/traces", "/v1/metrics"):
        assert post(port, path, b"", PROTOBUF).status == 404
    rows = [json.loads(row["body"]) for row in rig.rows()]
    assert [row["trace_id"] for row in rows] == [b"x".hex() * 16, b"y".hex() * 16]
    assert [reason for (reason,) in rig.execute("SELECT reason FROM forebay.dead_letters")] == ["unparsable"]


def test_invalid_events_are_refused_with_problem_details(rig: SourceRig, port: int) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/a", "type": ""}
    kind = {"content-type": "application/cloudevents-batch+json"}
    bad = post(port, "/v1/orders", json.dumps(event).encode(), {"content-type": "application/cloudevents+json"})
    assert (bad.status, bad.headers["content-type"]) == (400, "application/problem+json")
    assert json.loads(bad.body) == {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": "the attribute type is missing or empty: every event has one",
    }
    assert post(port, "/v1/orders", b"", {"content-type": "application/cloudevents+avro"}).status == 415
    assert json.loads(post(port, "/v1/orders", b"[]", kind).body) == {"records": 0, "duplicates": 0}
    assert rig.rows() == []
    # In a batch it refuses no other.
    taken = post(port, "/v1/orders", json.dumps([event, {**event, "type": "t"}]).encode(), kind)
    assert (taken.status, json.loads(taken.body)["dead_letters"]) == (200, 1)
    assert [row["id"] for row in rig.rows()] == ["1"]
    assert [reason for (reason,) in rig.execute("SELECT reason FROM forebay.dead_letters")] == ["unparsable"]


class Counting(LogRecordExporter):
    """The SDK's exporter, and the records that it reported as exported."""

    def __init__(self, inner: OTLPLogExporter) -> None:
        self._inner = inner
        self.exported: list[int] = []
        self.given_up: list[int] = []

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        result = self._inner.export(batch)
        numbers = [int(record.log_record.body) for record in batch]  # type: ignore[arg-type]
        (self.exported if result is LogRecordExportResult.SUCCESS else self.given_up).extend(numbers)
        return result

    def force_flush(self, timeout_millis: int = 10_000) -> bool:
        return self._inner.force_flush(timeout_millis)

    def shutdown(self) -> None:
        self._inner.shutdown()  # type: ignore[no-untyped-call]


def sender(port: int, exporter: Counting, numbers: Iterator[int], done: threading.Event) -> threading.Thread:
    """Start a thread that logs one number at a time until `done`, then flushes."""

    def run() -> None:
        provider = LoggerProvider(shutdown_on_exit=False)
        provider.add_log_record_processor(
            BatchLogRecordProcessor(
                exporter, schedule_delay_millis=20, max_export_batch_size=50, max_queue_size=100_000
            )
        )
        logger = provider.get_logger("numbers")
        for number in numbers:
            logger.emit(LogRecord(body=str(number), severity_number=SeverityNumber.INFO))
            # Records that queue up while the receiver is down are sent in about the same time once it is back.
            if done.wait(0.005):
                break
        provider.force_flush(60_000)
        provider.shutdown()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def await_more(rig: SourceRig) -> None:
    before = rig.registered()
    eventually(lambda: rig.registered() > before + 300, "300 records more")


def exporter_to(port: int) -> Counting:
    return Counting(
        OTLPLogExporter(endpoint=f"http://127.0.0.1:{port}/v1/logs", compression=Compression.Gzip, timeout=60)
    )


def test_r05_what_the_sdk_exported_is_there_once_through_a_kill(rig: SourceRig, port: int) -> None:
    """Kill the receiver; the SDK's retries repeat what was in flight, and the key deduplicates what was stored."""
    exporters = [exporter_to(port) for _ in range(3)]
    done = threading.Event()
    threads = [
        sender(port, exporter, iter(range(n * 10**6, (n + 1) * 10**6)), done) for n, exporter in enumerate(exporters)
    ]
    await_more(rig)
    rig.processes[-1].kill()
    rig.processes[-1].wait(60)
    start(rig, port)
    await_more(rig)
    done.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    stop(rig.processes[-1])
    exported = [number for exporter in exporters for number in exporter.exported]
    assert exported
    assert [number for exporter in exporters for number in exporter.given_up] == []
    came = sorted(int(json.loads(row["body"])["body"]) for row in rig.rows())
    assert came == sorted(exported)
    assert rig.failed_checks() == []
