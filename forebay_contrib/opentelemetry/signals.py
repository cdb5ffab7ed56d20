"""Define OTLP's three signals: what their export requests consist of, by level. Loads ``opentelemetry-proto``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics, ScopeMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message


class Level(IntEnum):
    """Name what a part of a request is."""

    REQUEST = 0
    RESOURCE = 1
    SCOPE = 2
    RECORD = 3


@dataclass(frozen=True, slots=True)
class Signal:
    """Say what one signal's requests consist of.

    ``kinds`` are the messages of each level, ``fields`` the names under which those of the next level are in them.
    ``legacy`` is the field of a resource that OTLP 0.20 removed. ``rejected`` is what its answers call the records that
    were not taken.
    """

    name: str
    noun: str
    kinds: Mapping[Level, type[Message]]
    fields: Mapping[Level, str]
    legacy: str
    service: str
    rejected: str

    @property
    def path(self) -> str:
        """Return the path of its requests over HTTP."""
        return f"/v1/{self.name}"

    @property
    def method(self) -> str:
        """Return the name of its method of gRPC."""
        return f"/opentelemetry.proto.collector.{self.service}/Export"


def _levels(*kinds: type[Message]) -> Mapping[Level, type[Message]]:
    return dict(zip(Level, kinds, strict=True))


def _fields(*names: str) -> Mapping[Level, str]:
    return dict(zip((Level.REQUEST, Level.RESOURCE, Level.SCOPE), names, strict=True))


LOGS = Signal(
    "logs",
    "log record",
    _levels(ExportLogsServiceRequest, ResourceLogs, ScopeLogs, LogRecord),
    _fields("resource_logs", "scope_logs", "log_records"),
    "instrumentationLibraryLogs",
    "logs.v1.LogsService",
    "rejectedLogRecords",
)
TRACES = Signal(
    "traces",
    "span",
    _levels(ExportTraceServiceRequest, ResourceSpans, ScopeSpans, Span),
    _fields("resource_spans", "scope_spans", "spans"),
    "instrumentationLibrarySpans",
    "trace.v1.TraceService",
    "rejectedSpans",
)
METRICS = Signal(
    "metrics",
    "metric",
    _levels(ExportMetricsServiceRequest, ResourceMetrics, ScopeMetrics, Metric),
    _fields("resource_metrics", "scope_metrics", "metrics"),
    "instrumentationLibraryMetrics",
    "metrics.v1.MetricsService",
    "rejectedDataPoints",
)
SIGNALS = (LOGS, TRACES, METRICS)
