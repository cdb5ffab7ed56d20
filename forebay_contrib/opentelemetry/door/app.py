"""Answer requests for each signal: those of the own one here, those of others by the receivers that have them."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from forebay_contrib.opentelemetry.door.siblings import SiblingGoneError
from forebay_contrib.opentelemetry.route import refuse
from forebay_contrib.opentelemetry.signals import SIGNALS
from receiver_runtime.receivers.http.requests.refusals import AWAY_RETRY_SECONDS
from receiver_runtime.receivers.http.requests.route import Refused

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from forebay_contrib.opentelemetry.door.siblings import Siblings
    from forebay_contrib.opentelemetry.signals import Signal

_KINDS = {"logs": "OtlpLogs", "traces": "OtlpTraces", "metrics": "OtlpMetrics"}


class OtlpApp:
    """Wrap the application of one signal's receiver; see the module."""

    def __init__(self, own: ASGIApp, signal: Signal, siblings: Siblings, *, listen: str) -> None:
        self._own = own
        self._siblings = siblings
        self._listen = listen
        self._others = {other.path: other for other in SIGNALS if other is not signal}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        other = self._others.get(scope.get("path", "").rstrip("/")) if scope["type"] == "http" else None
        if other is None:
            # Without a query: OTLP has none, and `ack=buffered` would answer before anything is registered.
            await self._own({**scope, "query_string": b""}, receive, send)
            return
        try:
            asked = await self._siblings.pass_on(other.name, scope, receive)
            status, headers, body = asked.status, asked.headers, asked.body
        except SiblingGoneError:
            status, headers, body = self._missing(other, scope)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _missing(self, other: Signal, scope: Any) -> tuple[int, list[tuple[bytes, bytes]], bytes]:  # noqa: ANN401
        detail = (
            f"no receiver of {other.name} is at this address now: send again; a stream takes them that is declared as "
            f"{_KINDS[other.name]}(listen={self._listen!r})"
        )
        refused = Refused(HTTPStatus.SERVICE_UNAVAILABLE, detail, AWAY_RETRY_SECONDS, [("connection", "close")])
        reply = refuse(scope["headers"], refused)
        headers = [("content-type", reply.content_type), ("content-length", str(len(reply.body))), *reply.headers]
        return reply.status, [(name.encode(), value.encode("latin-1")) for name, value in headers], reply.body
