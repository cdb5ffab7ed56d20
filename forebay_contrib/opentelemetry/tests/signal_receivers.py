"""Run the receivers of several signals at the same addresses, with everything real below them except the database."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]

from forebay_contrib.opentelemetry.declaration import Otlp, OtlpLogs, OtlpMetrics, OtlpTraces
from forebay_contrib.opentelemetry.signals import SIGNALS
from receiver_runtime.process.receiver_registry import make_receiver
from tests.support.machine.held_ports import held_port
from tests.unit.receiver_runtime.receivers.http.channels.channel_log import ChannelBlockLog
from tests.unit.receiver_runtime.receivers.http.http_client import Listening
from tests.unit.receiver_runtime.rig import rig
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

KINDS: Mapping[str, type[Otlp]] = {"logs": OtlpLogs, "traces": OtlpTraces, "metrics": OtlpMetrics}
SECONDS = 30.0


@dataclass
class Receivers:
    """Hold the receivers that run, by signal, and their ports."""

    http: int
    grpc: int
    by_signal: dict[str, Listening]

    def rows(self, signal: str) -> list[dict[str, Any]]:
        """Return the rows of a signal's registered blocks."""
        return self.by_signal[signal].rows()

    def call(self, signal: str, message: bytes, credentials: Any = None, **options: Any) -> bytes:  # noqa: ANN401  grpcio's
        """Export a message by gRPC, on its own connection, and return the answer."""
        [method] = (one.method for one in SIGNALS if one.name == signal)
        own = (("grpc.use_local_subchannel_pool", 1),)
        where = f"127.0.0.1:{self.grpc}"
        with (
            grpc.insecure_channel(where, own) if credentials is None else grpc.secure_channel(where, credentials, own)
        ) as channel:
            found: bytes = channel.unary_unary(method)(message, **{"timeout": SECONDS, **options})
            return found


@contextlib.contextmanager
def listening(root: Path, kind: type[Otlp], **fields: Any) -> Iterator[Listening]:  # noqa: ANN401  of the source
    """Run one receiver."""
    root.mkdir(parents=True)
    log = ChannelBlockLog()
    with rig(root, make_receiver(kind.model_validate(fields)), log=log, stream_name=kind.signal) as made:
        one = Listening(made, log)
        eventually(lambda: any(reason.startswith("listening on ") for reason in made.reporter.reasons), "listening")
        yield one


@contextlib.contextmanager
def receivers(root: Path, *signals: str, **fields: Any) -> Iterator[Receivers]:  # noqa: ANN401  of the source
    """Run receivers of these signals, or of all, at one pair of addresses."""
    with held_port() as http, held_port() as calls, contextlib.ExitStack() as stack:
        addresses = {"listen": f"127.0.0.1:{http}", "grpc": f"127.0.0.1:{calls}"}
        made = {
            signal: stack.enter_context(listening(root / signal, KINDS[signal], **addresses, **fields))
            for signal in signals or KINDS
        }
        yield Receivers(http, calls, made)
