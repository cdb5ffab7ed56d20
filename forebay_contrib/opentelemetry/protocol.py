"""Register OpenTelemetry's logs as a protocol. Loads the extra ``forebay[otlp]`` when a receiver takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.requests.protocol import HttpProtocol
from receiver_runtime.receivers.missing_client import missing_client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.receivers.http.requests.route import Route


class OpenTelemetry(HttpProtocol):
    """Takes logs by ``POST /v1/logs``. A stream that is itself called ``logs`` then takes nothing else."""

    def routes(self) -> Sequence[Route]:
        """See ``HttpProtocol``."""
        try:
            from forebay_contrib.opentelemetry.route import logs_route  # noqa: PLC0415  it loads an extra
        except ModuleNotFoundError as error:
            raise missing_client(
                error, "opentelemetry", "opentelemetry-proto", "otlp", "opentelemetry", "google"
            ) from error
        return [logs_route()]
