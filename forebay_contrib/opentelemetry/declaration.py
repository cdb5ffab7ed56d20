"""OpenTelemetry: logs, traces and metrics of SDKs and Collectors (OTLP), over HTTP and gRPC, each signal a stream.

Declarations and their checks; ``forebay_contrib.opentelemetry.door`` listens, and needs the extra ``forebay[otlp]``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from forebay_contrib.opentelemetry.otlp_columns import LOG_COLUMNS, METRIC_COLUMNS, SPAN_COLUMNS
from receiver_runtime.receivers.http.declaration import Http, HttpServer
from receiver_runtime.receivers.missing_client import missing_client
from receiver_runtime.sources.fields.tcp import parse_listen
from receiver_runtime.sources.source import Guarantee

if TYPE_CHECKING:
    from collections.abc import Sequence


class OtlpHttp(Http):
    """Be the ``Http`` source as which a signal's requests are taken. Never declared: ``Otlp.http`` makes it."""

    own_path: str

    def path_of(self, stream: str) -> str:  # noqa: ARG002  OTLP has its own paths
        """Return the path of the signal."""
        return self.own_path

    @property
    def address_terms(self) -> str:
        """Return what receivers of all signals at the address declare alike: how senders reach it and what they show.

        The kernel gives a connection to any of these receivers. Secrets are references here.
        """
        return self.model_dump_json(include={"listen", "tls", "tokens"})


class Otlp(HttpServer):
    """Declare what the three kinds share."""

    #: The name of the signal, as its path has it.
    signal: ClassVar[str]
    no_record: ClassVar[str] = "its records have columns already. Leave out records="
    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE_DEDUPLICATED
    needs_extra: ClassVar[str | None] = "otlp"

    grpc: str | None = None

    @field_validator("grpc")
    @classmethod
    def _check_grpc(cls, grpc: str | None) -> str | None:
        if grpc is not None:
            parse_listen(grpc)
        return grpc

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.grpc is not None and self.grpc == self.listen and parse_listen(self.listen)[1]:
            raise ValueError(f"grpc: {self.grpc!r} is the address of HTTP: give gRPC a port of its own, as 4317")
        return self

    def http(self) -> OtlpHttp:
        """Return the HTTP source as which its requests are taken."""
        fields = {name: getattr(self, name) for name in HttpServer.model_fields if name != "kind"}
        return OtlpHttp(**fields, own_path=f"/v1/{self.signal}", protocols=())

    def load(self) -> type:
        """Import the receiver's class. Raises SourceError if the extra is not installed."""
        try:
            for module in ("opentelemetry.proto", "grpc") if self.grpc is not None else ("opentelemetry.proto",):
                importlib.import_module(module)
            return super().load()
        except ModuleNotFoundError as error:
            raise missing_client(
                error, self.kind, "opentelemetry-proto and grpcio", "otlp", "opentelemetry", "google", "grpc"
            ) from error

    @property
    def address(self) -> str:
        """Return where it listens."""
        http = self.http().address
        return http if self.grpc is None else f"{http} and gRPC at {self.grpc}"

    @property
    def address_part(self) -> str:
        """Return the signal: each has receivers of its own at one address. A port that the system chooses has one."""
        return self.signal if parse_listen(self.listen)[1] else ""

    @property
    def address_terms(self) -> str:
        """Return what all signals at the address declare alike; see ``OtlpHttp``."""
        return self.http().address_terms

    @property
    def further_addresses(self) -> Sequence[str]:
        """Return the address of gRPC."""
        return () if self.grpc is None else (self.grpc,)

    def path_of(self, stream: str) -> str | None:  # noqa: ARG002  OTLP has its own paths
        """Return None: the path has the signal's name, and not the stream's."""
        return None


_ARGS = """
    **At least once, deduplicated**: a request is answered when the block that holds its rows is registered. An exporter
    that got no answer sends the same bytes again, and they are stored once.

    Streams of the other signals may have the same addresses, with the same ``tls`` and ``tokens``, so that programs
    need one endpoint: what comes for another signal is passed on to that stream's receiver on this host.

    Args:
        listen: the address of OTLP/HTTP, as ``"0.0.0.0:4318"``; port 0 takes any that is free, and is never shared.
        grpc: the address of OTLP/gRPC, as ``"0.0.0.0:4317"``. None by default: gRPC is not taken.
        tokens: tokens, by reference (``EnvVar("NAME")``, ``"env:NAME"``, ``"file:/PATH"``): a request must bring one of
            them, as ``Authorization: Bearer TOKEN`` or ``X-API-Key: TOKEN``; in gRPC as metadata. Each entry is one
            sender, and holds a token, or several, one per line. None by default: anyone may send.
        tls: a ``Tls`` with ``certificate_file`` and ``key_file``, for both addresses; no TLS by default.
        max_body_bytes: the largest request, after decompression.
        max_body_values: the most values or messages in one request. They are counted before parsing.
        max_record_bytes: a longer record becomes a dead letter.
        max_connections: at most this many HTTP connections, and as many calls of gRPC, at once.
        max_connections_per_peer: at most this many HTTP connections from one peer; by default four fifths of
            ``max_connections``.
        max_waiting_bytes: at most this many bytes of requests wait for an answer; further requests are refused, to be
            sent again. A request whose rows would take more, each with its resource, scope and metric, is refused for
            good.
        head_timeout: how long a request's head, and a TLS handshake, may take.
        request_timeout: how long its body may take after that.
        parse_timeout: how long a whole body may wait to be parsed, and take to be parsed.
        idle_timeout: how long an HTTP connection may stay open without a request.
        acknowledgement_timeout: how long a request waits for its block to be registered. Then it is refused, to be sent
            again.
    """


class OtlpLogs(Otlp):
    __doc__ = f"Takes the logs of OpenTelemetry SDKs and Collectors (OTLP); one row per log record.\n{_ARGS}"

    columns: ClassVar[tuple[tuple[str, str], ...]] = LOG_COLUMNS
    signal: ClassVar[str] = "logs"
    receiver_class: ClassVar[str] = "forebay_contrib.opentelemetry.door.receiver:OtlpLogsReceiver"

    kind: Literal["otlp_logs"] = "otlp_logs"


class OtlpTraces(Otlp):
    __doc__ = f"Takes the traces of OpenTelemetry SDKs and Collectors (OTLP); one row per span.\n{_ARGS}"

    columns: ClassVar[tuple[tuple[str, str], ...]] = SPAN_COLUMNS
    signal: ClassVar[str] = "traces"
    receiver_class: ClassVar[str] = "forebay_contrib.opentelemetry.door.receiver:OtlpTracesReceiver"

    kind: Literal["otlp_traces"] = "otlp_traces"


class OtlpMetrics(Otlp):
    __doc__ = f"Takes the metrics of OpenTelemetry SDKs and Collectors (OTLP); one row per data point.\n{_ARGS}"

    columns: ClassVar[tuple[tuple[str, str], ...]] = METRIC_COLUMNS
    signal: ClassVar[str] = "metrics"
    receiver_class: ClassVar[str] = "forebay_contrib.opentelemetry.door.receiver:OtlpMetricsReceiver"

    kind: Literal["otlp_metrics"] = "otlp_metrics"
