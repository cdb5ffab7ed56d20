"""Keep an HTTP server within reach: limits of its connections in number and time, and of its requests.

The tracker's server and Dagster's webserver have them.

A connection on which no request is being answered has a time limit, and is closed early if too many are open: the one
that has been quiet for longest, of the peer that has the most. So a few dozen idle connections don't block
``/health``, which is answered whatever other requests wait for. Knows nothing of the pages.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

    from starlette.types import ASGIApp, Receive, Scope, Send

MOST_CONNECTIONS = 64
_MOST_WITH_BUSY = 2 * MOST_CONNECTIONS  # the most connections while requests are being answered on all of them
_QUIET_SECONDS = 10.0  # how long no request may be answered on a connection, or its peer may read nothing


class BoundedProtocol(H11Protocol):
    """Serve one connection within the limits; see the module. Only uvicorn makes it, and calls it on its loop."""

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  uvicorn's own
        super().__init__(*arguments, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self.quiet_since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection; if too many are open, close another one, or this one."""
        super().connection_made(transport)
        self._be_quiet()
        is_too_many = len(self.connections) > MOST_CONNECTIONS
        if is_too_many and not self._close_a_quiet_one() and len(self.connections) > _MOST_WITH_BUSY:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the connection's timers."""
        self._disarm()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; from a whole head on, the connection is busy until its answer, or a WebSocket's and not ours."""
        super().data_received(data)
        if self.is_busy or self not in self.connections:
            self._disarm()

    def on_response_complete(self) -> None:
        """Limit the time until the next request. Called by uvicorn."""
        self._be_quiet()
        super().on_response_complete()
        if self.is_busy:
            self._disarm()

    def pause_writing(self) -> None:
        """Limit the time in which the peer reads nothing. Called by the transport when its buffer is full."""
        super().pause_writing()
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(_QUIET_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that the peer has read. Called by the transport."""
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    @property
    def is_busy(self) -> bool:
        """Return whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _be_quiet(self) -> None:
        self._disarm()
        self.quiet_since = self.loop.time()
        self._timer = self.loop.call_later(_QUIET_SECONDS, self.transport.abort)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_a_quiet_one(self) -> bool:
        """Close the connection that has been quiet for longest, of the peer with the most; return whether there is one.

        This connection, which has just come, is not closed.
        """
        quiet = [
            one
            for one in self.connections
            if isinstance(one, BoundedProtocol) and not (one is self or one.is_busy or one.transport.is_closing())
        ]
        if not quiet:
            return False
        [(peer, _)] = Counter(one.host for one in quiet).most_common(1)
        min((one for one in quiet if one.host == peer), key=lambda one: one.quiet_since).transport.abort()
        return True

    @property
    def host(self) -> str:
        """Return the peer's host."""
        return self.client[0] if self.client else ""


class RequestLimit:
    """Answer 503 to requests beyond ``most`` that are being answered, except on the paths that are always open."""

    def __init__(self, app: ASGIApp, *, most: int, always: str) -> None:
        self._app = app
        self._most = most
        self._always = always
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        if scope["type"] != "http" or scope["path"] == self._always:
            await self._app(scope, receive, send)
        elif self._requests >= self._most:
            busy = f"{self._most} requests are being answered: ask again in a moment\n"
            await PlainTextResponse(busy, 503, {"Retry-After": "1"})(scope, receive, send)
        else:
            self._requests += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._requests -= 1
