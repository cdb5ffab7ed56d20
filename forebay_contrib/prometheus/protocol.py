"""Register Prometheus' remote-write as a protocol: its paths, and the answers that its senders know."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.requests.protocol import HttpProtocol
from receiver_runtime.receivers.http.requests.route import Described, Reply, Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.receivers.http.requests.route import Refused

_PATHS = {"/api/v1/write": "remoteWrite", "/api/v1/push": "remoteWriteToo"}
_TEXT = "text/plain; charset=utf-8"
# Prometheus drops what is answered with a status below 500, also 429 unless `retry_on_http_429` is set.
_PASSES = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


class RemoteWrite(HttpProtocol):
    """Takes samples at ``/api/v1/write``."""

    def routes(self) -> Sequence[Route]:
        """See ``HttpProtocol``."""
        from forebay_contrib.prometheus.write import parse_write  # noqa: PLC0415  it loads protobuf

        return [
            Route(path, _is_any, parse_write, _described(operation), refuse=_refuse)
            for path, operation in _PATHS.items()
        ]


def _described(operation: str) -> Described:
    return Described(
        {"application/x-protobuf": {"type": "string", "format": "binary"}},
        operation=operation,
        summary="Prometheus remote-write, 1.0 and 2.0: write samples.",
        refused={"text/plain": {"type": "string"}},
        status=HTTPStatus.NO_CONTENT,
    )


def _is_any(_: Headers) -> bool:
    return True


def _refuse(_: Headers, refused: Refused) -> Reply:
    status = HTTPStatus.SERVICE_UNAVAILABLE if refused.status in _PASSES else refused.status
    return Reply(status, _TEXT, f"{refused.detail}\n".encode(), refused.headers)
