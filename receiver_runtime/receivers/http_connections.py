"""uvicorn's protocol with limits of its own: connections, a request's head in time and size, idle connections.

Knows nothing of requests' contents. What comes after a head is the application's, with its own time limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn.protocols.http.auto import AutoHTTPProtocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_MOST_HEAD_BYTES = 64 * 1024
_NEW_LINE = b"\r\n"
_END = b"\r\n\r\n"
_UPGRADE = re.compile(rb"(?<=\r\n)(?:upgrade|http2-settings)[ \t]*:[^\r\n]*\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a server.

    Args:
        connections: at once.
        head_seconds: from a head's first byte to its last.
        idle_seconds: from a connection's beginning to its first byte.
        on_refused: told of the peer of each connection beyond the limit.
    """

    connections: int
    head_seconds: float
    idle_seconds: float
    on_refused: Callable[[str], None]


def _problem(status: str, detail: str) -> bytes:
    body = f'{{"type":"about:blank","title":"{status[4:]}","status":{status[:3]},"detail":"{detail}"}}'.encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\ncontent-length: {len(body)}\r\n"
    return (head + "retry-after: 1\r\nconnection: close\r\n\r\n").encode() + body


_FULL = _problem(
    "503 Service Unavailable", "max_connections are open: send again in a moment, or on an open connection"
)
_HEAD_TOO_LARGE = _problem("431 Request Header Fields Too Large", "the head is larger than 64 KiB: send fewer headers")
_HEAD_TOO_SLOW = _problem("408 Request Timeout", "the head was not whole in time: send it faster")


class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """One connection. A server has a child of this with its limits."""

    limits: ClassVar[Limits]

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  uvicorn's own
        super().__init__(*arguments, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._head = b""
        # Whether the parser is in the midst of a head, and how much of it came late.
        self._in_head = False
        self._late_bytes = 0
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Let it in, or not."""
        if len(self.connections) >= self.limits.connections:
            self._is_refused = True
            self.transport = transport
            peer = transport.get_extra_info("peername")
            transport.write(_FULL)
            transport.close()
            self.limits.on_refused(f"{peer[0]}:{peer[1]}" if peer else "?")
            return
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.limits.idle_seconds, self._end, b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """Its timer goes with it."""
        self._disarm()
        if not self._is_refused:
            super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Of the parser: a head begins."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Of the parser: it was whole."""
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Time and size of a head are limited; a body's are not, here. A head is parsed when it is whole."""
        if self._is_refused or self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            super().data_received(data)
        elif self._in_head:
            # Its beginning came behind another request's body.
            self._arm()
            self._late_bytes += len(data)
            super().data_received(data)
            if not self._in_head:
                self._late_bytes = 0
                self._disarm()
            elif self._late_bytes > _MOST_HEAD_BYTES:
                self._end(_HEAD_TOO_LARGE)
        elif not self._head and not data.strip(_NEW_LINE):
            # Before a request they mean nothing.
            super().data_received(data)
        else:
            self._gather(data)

    def _gather(self, data: bytes) -> None:
        """Of a head, until it is whole."""
        if not self._head:
            self._disarm()
            self._arm()
        searched = max(0, len(self._head) - len(_END) + 1)
        self._head = self._head + data if self._head else data
        begin = len(self._head) - len(self._head.lstrip(_NEW_LINE))
        end = self._head.find(_END, max(begin, searched))
        if (len(self._head) if end < 0 else end) > _MOST_HEAD_BYTES:
            self._end(_HEAD_TOO_LARGE)
        elif end >= 0:
            self._disarm()
            whole, self._head = self._head, b""
            super().data_received(_without_upgrade(whole, end))

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.limits.head_seconds, self._end, _HEAD_TOO_SLOW)

    def _end(self, answer: bytes) -> None:
        self._disarm()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _without_upgrade(data: bytes, end: int) -> bytes:
    """A request as one that offers no other protocol: we speak none, and may take no notice (RFC 9110, 7.8).

    The parser does: it would leave the body out, and take what comes next for another request.
    """
    if _UPGRADE.search(data, 0, end + len(_END)) is None:
        return data
    return _UPGRADE.sub(b"", data[: end + len(_END)]) + data[end + len(_END) :]


def limited_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """A class of protocols with these limits, as uvicorn takes it."""
    made: type[asyncio.Protocol] = type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})
    return made
