"""uvicorn's protocol with limits of its own.

It limits a request's head in time and size, idle connections, peers that send many requests ahead of the answers, and
peers that read no answers. A connection on trial, beyond the limits that ``accepting`` counts, may ask one time whether
the server lives, and is refused otherwise. After a whole request, it reads no more from the connection until
that request is answered, except what came together with it. Answers keep their order, refusals too.

Knows nothing of requests' contents. The application reads what follows a head, with its own time limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.http.flow_control import FlowControl

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sized

_MOST_HEAD_BYTES = 64 * 1024
_TRIAL_SECONDS = 2.0  # how long a connection on trial may take to ask, and then to read its answer
_ASKED_ON_TRIAL = re.compile(rb"[\r\n]*(?:GET|HEAD) /(?:health|ready)[ ?]")
_MOST_AHEAD = 1000  # requests behind the one that is being answered on its connection
_NEW_LINE = b"\r\n"
_END = b"\r\n\r\n"
_UPGRADE = re.compile(rb"(?<=\r\n)(?:upgrade|http2-settings)[ \t]*:[^\r\n]*\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a server.

    Args:
        head_seconds: from a head's first byte to its last.
        idle_seconds: from a connection's beginning to its first byte; also for how long its peer may read nothing of
            the answers.
        on_refused: called with the peer of each connection beyond the limit, and which limit that is.
        on_invalid: called with the peer that sent bytes that are no request.
    """

    head_seconds: float
    idle_seconds: float
    on_invalid: Callable[[str], None]
    on_refused: Callable[[str, str], None]


def _problem(status: str, detail: str, *, again: bool = True) -> bytes:
    body = f'{{"type":"about:blank","title":"{status[4:]}","status":{status[:3]},"detail":"{detail}"}}'.encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\ncontent-length: {len(body)}\r\n"
    retry = "retry-after: 1\r\n" if again else ""
    return f"{head}{retry}connection: close\r\n\r\n".encode() + body


_FULL = _problem(
    "503 Service Unavailable",
    "max_connections, or those of one peer, are open: send again in a moment, or on an open connection",
)
_HEAD_TOO_LARGE = _problem("431 Request Header Fields Too Large", "the head is larger than 64 KiB: send fewer headers")
_HEAD_TOO_SLOW = _problem("408 Request Timeout", "the head was not whole in time: send it faster")


_TOO_FAR_AHEAD = _problem(
    "503 Service Unavailable", f"more than {_MOST_AHEAD} requests wait on this connection: read their answers first"
)
_INVALID = _problem("400 Bad Request", "this is no HTTP/1.1 request: correct it", again=False)


class _TooFarAheadError(Exception):
    """Ends parsing on a connection."""


class _Flow(FlowControl):
    """Resume reading when uvicorn says so, unless the protocol holds it back."""

    def __init__(self, transport: asyncio.Transport, holds_back: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._holds_back = holds_back

    def resume_reading(self) -> None:
        if not self._holds_back():
            super().resume_reading()


class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Serve one connection. Each server has a subclass of this with its limits."""

    limits: ClassVar[Limits]

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  uvicorn's own
        super().__init__(*arguments, **named)
        self.on_closed: Callable[[], object] | None = None
        self.on_trial: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Runs while the peer has answers to read.
        self._unread_timer: asyncio.TimerHandle | None = None
        self._head = b""
        # Whether the parser is within a head, and how many bytes of that came after the answer to the last request.
        self._in_head = False
        self._late_bytes = 0
        self._is_refused = False
        self._is_too_far_ahead = False
        # The refusal of what came last, sent after all other answers; from then on nothing more is read.
        self._refusal = b""
        # The request that is being answered, which uvicorn forgets when another one comes behind it.
        self._turn: Any = None
        # Whether the peer has closed its side for sending.
        self._is_half_closed = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take the connection; on trial only for a moment."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self._holds_back)
        if self.on_trial is None:
            self._timer = self.loop.call_later(self.limits.idle_seconds, self._end, b"")
        else:
            self._timer = self.loop.call_later(_TRIAL_SECONDS, self._refuse_on_trial, self.on_trial)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the connection's timers."""
        self._disarm()
        self._cancel_unread_timer()
        self._stop_writing()
        super().connection_lost(exc)
        if self.on_closed is not None:
            on_closed, self.on_closed = self.on_closed, None
            on_closed()

    def on_message_begin(self) -> None:
        """Note that a head begins. Called by the parser."""
        self._in_head = True
        if self._is_under_way():
            self.flow.pause_reading()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Note that the head was whole. Called by the parser."""
        self._in_head = False
        if len(self._queued()) >= _MOST_AHEAD:
            self._is_too_far_ahead = True
            raise _TooFarAheadError
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that can't be parsed. Called by uvicorn.

        The refusal follows the answers of the requests under way: sent earlier, it would be taken for one of theirs.
        """
        del msg
        self.limits.on_invalid(self._peer())
        refusal = _TOO_FAR_AHEAD if self._is_too_far_ahead else _INVALID
        if self._queued() if self._is_broken() else self._is_under_way():
            self._refusal = refusal
            self.flow.pause_reading()
        else:
            self._end(refusal)

    def on_response_complete(self) -> None:
        """Continue with the next request, if there is one. Called when a request has been answered."""
        if self._refusal and len(self._queued()) <= self._is_broken():
            self._end(self._refusal)
            return
        super().on_response_complete()
        if self.on_trial is not None or (self._is_half_closed and not self._is_under_way()):
            self.transport.close()
        if self.transport.is_closing():
            self._limit_unread_time()
        elif self._in_head:
            # The next head began before this answer: limit its time from now on.
            self._arm()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was idle for too long. Called by uvicorn."""
        super().timeout_keep_alive_handler()
        self._limit_unread_time()

    def pause_writing(self) -> None:
        """Limit the time in which the peer reads nothing. Called by the transport when its buffer is full."""
        super().pause_writing()
        self._limit_unread_time()

    def resume_writing(self) -> None:
        """Note that the peer has read. Called by the transport."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._cancel_unread_timer()

    def eof_received(self) -> bool:
        """Return whether the connection stays open: a peer that has sent a whole request may still read the answer."""
        self._is_half_closed = self.scheme == "http" and self._is_under_way() and not self._is_broken()
        return self._is_half_closed and not self._in_head

    def data_received(self, data: bytes) -> None:
        """Take bytes from the transport. Limit the time and size of a head, not of a body; parse a head when whole."""
        if self._is_refused or self._refusal or self.transport.is_closing():
            return
        if self._is_under_way():
            super().data_received(data)
        elif self._in_head:
            # The head began behind another request's body.
            self._arm()
            self._late_bytes += len(data)
            super().data_received(data)
            if not self._in_head:
                self._late_bytes = 0
                self._disarm()
            elif self._late_bytes > _MOST_HEAD_BYTES:
                self._end(_HEAD_TOO_LARGE)
        elif not self._head and not data.strip(_NEW_LINE):
            # Newlines before a request mean nothing.
            super().data_received(data)
        else:
            self._gather(data)

    def _gather(self, data: bytes) -> None:
        """Gather the bytes of a head until it is whole, then parse it."""
        if not self._head and self.on_trial is None:
            self._disarm()
            self._arm()
        searched = max(0, len(self._head) - len(_END) + 1)
        self._head = self._head + data if self._head else data
        begin = len(self._head) - len(self._head.lstrip(_NEW_LINE))
        end = self._head.find(_END, max(begin, searched))
        if (len(self._head) if end < 0 else end) > _MOST_HEAD_BYTES:
            self._end(_HEAD_TOO_LARGE)
        elif end >= 0 and self.on_trial is not None and not _ASKED_ON_TRIAL.match(self._head):
            self._refuse_on_trial(self.on_trial)
        elif end >= 0:
            self._disarm()
            whole, self._head = self._head, b""
            if self.on_trial is not None:
                # Only this one question is answered, whatever comes behind it.
                whole = whole[: end + len(_END)]
                self._is_refused = True
            super().data_received(_without_upgrade(whole, end))

    def _peer(self) -> str:
        peer = self.transport.get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if peer else "?"

    def _refuse_on_trial(self, why: str) -> None:
        """Refuse a connection that may not send. Its sender may still send: give it a moment to read the answer."""
        self._is_refused = True
        self.limits.on_refused(self._peer(), why)
        self._disarm()
        self.transport.write(_FULL)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._timer = self.loop.call_later(_TRIAL_SECONDS, self.transport.abort)
        else:
            self._end(b"")

    def _is_under_way(self) -> bool:
        """Return whether a request is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _is_broken(self) -> bool:
        """Return whether the last request is not answered yet and its body is not whole."""
        return self._is_under_way() and bool(self.cycle.more_body)

    def _queued(self) -> Sized:
        """Return the requests behind the one that is being answered."""
        return getattr(self, "pipeline", ())

    def _holds_back(self) -> bool:
        return bool(self._refusal) or bool(self._queued()) or (self._in_head and self._is_under_way())

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:  # noqa: ANN401  uvicorn's own
        self._turn = cycle
        super()._start_asgi_task(cycle, app)

    def _stop_writing(self) -> None:
        if self._turn is not None and not self._turn.response_complete:
            self._turn.disconnected = True
            # What waits for the end of the connection is woken.
            self._turn.message_event.set()

    def _limit_unread_time(self) -> None:
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(self.limits.idle_seconds, self._give_up)

    def _give_up(self) -> None:
        self._stop_writing()
        self.transport.abort()

    def _cancel_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.limits.head_seconds, self._end, _HEAD_TOO_SLOW)

    def _end(self, answer: bytes) -> None:
        self._disarm()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()
            self._limit_unread_time()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _without_upgrade(data: bytes, end: int) -> bytes:
    """Return a request without its offer of another protocol. A server may ignore such offers (RFC 9110, 7.8).

    The parser does not ignore them: it would leave the body out, and take what follows for another request.
    """
    if _UPGRADE.search(data, 0, end + len(_END)) is None:
        return data
    return _UPGRADE.sub(b"", data[: end + len(_END)]) + data[end + len(_END) :]


def limited_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Return a protocol class with these limits, for uvicorn's configuration."""
    made: type[asyncio.Protocol] = type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})
    return made
