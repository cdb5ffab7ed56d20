"""Define the receiver of one signal of OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from forebay_contrib.opentelemetry.door.server import OtlpServer
from forebay_contrib.opentelemetry.otlp_columns import LOG_COLUMNS, METRIC_COLUMNS, SPAN_COLUMNS
from forebay_contrib.opentelemetry.route import signal_route
from forebay_contrib.opentelemetry.signals import SIGNALS
from receiver_runtime.receivers.http.receiver import HttpReceiver

if TYPE_CHECKING:
    import socket

    from forebay_contrib.opentelemetry.declaration import Otlp
    from forebay_contrib.opentelemetry.otlp_columns import Columns


class _OtlpReceiver(HttpReceiver):
    """Listen for export requests, and acknowledge rows that are registered. See ``OtlpLogs``."""

    def __init__(self, source: Otlp) -> None:
        self._http = source.http()
        [signal] = (one for one in SIGNALS if one.name == source.signal)
        super().__init__(self._http, [signal_route(signal)])
        self._grpc = source.grpc

    def make_server(self, *, listener: socket.socket | None = None, is_paused: bool = False) -> OtlpServer:
        """Return a server; see ``HttpReceiver``."""
        return OtlpServer(self, self._http, self._routes, grpc=self._grpc, listener=listener, is_paused=is_paused)


class OtlpLogsReceiver(_OtlpReceiver):
    """Receive logs."""

    columns: ClassVar[Columns] = LOG_COLUMNS


class OtlpTracesReceiver(_OtlpReceiver):
    """Receive traces."""

    columns: ClassVar[Columns] = SPAN_COLUMNS


class OtlpMetricsReceiver(_OtlpReceiver):
    """Receive metrics."""

    columns: ClassVar[Columns] = METRIC_COLUMNS
