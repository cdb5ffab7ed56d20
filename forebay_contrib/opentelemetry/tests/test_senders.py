"""Receive what other languages' SDKs and the Collector send, each as its makers publish it, to one endpoint."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from forebay_contrib.opentelemetry.tests.built_senders import program
from forebay_contrib.opentelemetry.tests.signal_receivers import Receivers, receivers
from forebay_contrib.opentelemetry.tests.test_signals import send_by_sdk
from tests.support.commands.run_program import run_program
from tests.support.machine.held_ports import held_port
from tests.support.servers.listening import started
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from pathlib import Path

# Installing and building takes minutes, once.
pytestmark = [pytest.mark.senders, pytest.mark.timeout(1800)]


def check(made: Receivers) -> None:
    # Java's SDK also sends metrics of its exporters.
    [log], [span], [point] = (
        [row for row in made.rows(one) if row["scope_name"] == "checkout"] for one in ("logs", "traces", "metrics")
    )
    assert (log["body"], span["name"], span["kind"]) == ("an order was placed", "order", "internal")
    assert (point["name"], point["type"], point["value_int"] or point["value"], point["is_monotonic"]) == (
        "orders",
        "sum",
        3,
        True,
    )
    assert {row["service_name"] for row in (log, span, point)} == {"shop"}
    assert span["end_time_unix_nano"] >= span["start_time_unix_nano"] > 0


@pytest.mark.parametrize(
    ("language", "protocol"),
    [
        *((language, protocol) for language in ("javascript", "go", "java") for protocol in ("grpc", "http/protobuf")),
        # The only one of them that has it.
        ("javascript", "http/json"),
    ],
)
def test_an_sdk_sends_each_signal(tmp_path: Path, language: str, protocol: str) -> None:
    with receivers(tmp_path) as made:
        port = made.grpc if protocol == "grpc" else made.http
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "60000",
            "OTEL_SERVICE_NAME": "shop",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_LOGS_EXPORTER": "otlp",
        }
        sent = run_program(program(language), env={**os.environ, **environment}, timeout=120)
        assert sent.returncode == 0, sent.stderr
        check(made)


@pytest.mark.parametrize(
    ("exporter", "settings"),
    [
        ("otlp", "endpoint: 127.0.0.1:{grpc}, tls: {{insecure: true}}, compression: gzip"),
        ("otlphttp", "endpoint: 'http://127.0.0.1:{http}', compression: zstd"),
        ("otlphttp", "endpoint: 'http://127.0.0.1:{http}', encoding: json"),
    ],
)
def test_the_collector_passes_each_signal_on(tmp_path: Path, exporter: str, settings: str) -> None:
    with receivers(tmp_path) as made, held_port() as port:
        own = settings.format(grpc=made.grpc, http=made.http)
        pipelines = "".join(
            f"    {name}: {{receivers: [otlp], exporters: [{exporter}]}}\n" for name in ("logs", "traces", "metrics")
        )
        (tmp_path / "collector.yaml").write_text(
            f"receivers: {{otlp: {{protocols: {{grpc: {{endpoint: '127.0.0.1:{port}'}}}}}}}}\n"
            f"exporters: {{{exporter}: {{{own}}}}}\n"
            f"service:\n  telemetry: {{metrics: {{level: none}}}}\n  pipelines:\n{pipelines}",
            encoding="utf-8",
        )
        command = [*program("collector"), "--config", f"file:{tmp_path / 'collector.yaml'}"]
        collector = started(command, ("127.0.0.1", port), tmp_path / "log")
        try:
            send_by_sdk(port, "grpc")
            eventually(lambda: len(made.rows("logs")) == 1, "the log record")
            eventually(lambda: len(made.rows("traces")) == 2, "the spans")
            eventually(lambda: len(made.rows("metrics")) == 3, "the points")
        finally:
            collector.send_signal(signal.SIGTERM)
            collector.wait(60)
        assert {row["service_name"] for one in made.by_signal for row in made.rows(one)} == {"shop"}
