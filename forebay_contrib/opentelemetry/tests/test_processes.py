"""Run the receivers of two signals in processes of their own, at one pair of addresses, and kill one of them."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from forebay.testing.receiver_processes import eventually
from forebay.testing.source_rig import make_rigs
from forebay_contrib.opentelemetry.declaration import OtlpLogs, OtlpTraces
from tests.support.machine.held_ports import held_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Collected(SpanExporter):
    """Keep finished spans."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Take spans."""
        self.spans += spans
        return SpanExportResult.SUCCESS


def spans(*names: str) -> list[ReadableSpan]:
    collected = Collected()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(collected))
    for name in names:
        provider.get_tracer("t").start_span(name).end()
    return collected.spans


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_each_row_comes_once_whichever_process_takes_it_and_dies(database_url: str, tmp_path: Path) -> None:
    with held_port() as http, held_port() as calls, make_rigs(database_url, tmp_path) as make:
        addresses = {"listen": f"127.0.0.1:{http}", "grpc": f"127.0.0.1:{calls}"}
        traces, logs = make(OtlpTraces(**addresses)), make(OtlpLogs(**addresses))
        logs.start()
        eventually(lambda: listens(http), "the port of the logs")
        first = traces.start()
        names = [f"s{number}" for number in range(12)]
        for number, name in enumerate(names):
            if number == len(names) // 2:
                # From now on every connection is the other process's, which has nowhere to pass spans on to.
                first.send_signal(signal.SIGKILL)
                first.wait(30)
                traces.start(assignment=2)
            # A new connection each, to whichever process the kernel chooses. The exporters wait and send again.
            exporter: SpanExporter = (
                OTLPSpanExporter(f"http://127.0.0.1:{http}/v1/traces", timeout=60)
                if number % 2
                else GrpcSpanExporter(f"http://127.0.0.1:{calls}", timeout=60)
            )
            assert exporter.export(spans(name)) is SpanExportResult.SUCCESS
            exporter.shutdown()
        assert sorted(row["name"] for row in traces.rows()) == sorted(names)
        assert logs.rows() == []
