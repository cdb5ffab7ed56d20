"""uvicorn's protocol with limits of its own.

It limits a request's head in time and size, idle connections, peers that send many requests ahead of the answers, and
peers that read no answers. A connection on trial, beyond the limits that ``accepting`` counts, may ask one time whether
the server lives, and is refused otherwise. After a whole request, it reads no more from the connection until
that request is answered, except what came together with it. Answers keep their order, refusals too.

A request that came whole with its head may be taken directly (``DirectTaker``): then it has no task, and its answer is
one write. All others go to the application, which reads what follows a head with its own time limits.

Knows nothing of requests' contents.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.http.flow_control import FlowControl

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sized

    from receiver_runtime.receivers.http.requests.pushed import Headers

_MOST_HEAD_BYTES = 64 * 1024
_TRIAL_SECONDS = 2.0  # how long a connection on trial may take to ask, and then to read its answer
_ASKED_ON_TRIAL = re.compile(rb"[\r\n]*(?:GET|HEAD) /(?:health|ready)[ ?]")
_MOST_AHEAD = 1000  # requests behind the one that is being answered on its connection
_NEW_LINE = b"\r\n"
_CLOSE_AND_END = b"connection: close\r\n\r\n"
_END = b"\r\n\r\n"
# It begins with characters that have no case, which makes the search three times as fast.
_UPGRADE = re.compile(rb"\r\n(?:upgrade|http2-settings)[ \t]*:[^\r\n]*(?=\r\n)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Hold the limits of a server.

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


class DirectTaker(Protocol):
    """Take whole requests without a task."""

    #: The target of the requests that it may take, as it is in their first line.
    target: bytes

    def take(self, headers: Headers, body: bytes, exchange: Exchange) -> bool:
        """Take a POST of HTTP/1.1 and answer its exchange later, not at once; or change nothing, and return False.

        A request that is not taken goes to the application.
        """
        ...


class _NoWaiter:
    """Stand for the event of a request whose body no task waits for."""

    __slots__ = ()

    def set(self) -> None:
        """Do nothing."""


_NO_WAITER = _NoWaiter()


class Exchange:
    """Hold a request that was taken directly, until it is answered.

    It takes the place of uvicorn's own object for a request.
    """

    __slots__ = ("_protocol", "disconnected", "keep_alive", "message_event", "more_body", "response_complete")

    def __init__(self, protocol: LimitedProtocol, *, keep_alive: bool) -> None:
        self._protocol = protocol
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False
        # Its body is whole.
        self.more_body = False
        self.message_event = _NO_WAITER

    def answer(self, status_line: bytes, headers: bytes, content: bytes, *, close: bool = False) -> None:
        """Answer, unless the connection has ended.

        Args:
            status_line: with its newline.
            headers: those of the content, a line each, with their newlines.
            content: as long as the headers say.
            close: end the connection after the answer.
        """
        self.response_complete = True
        if self.disconnected:
            return
        protocol = self._protocol
        ends = close or not self.keep_alive
        between = _CLOSE_AND_END if ends else _NEW_LINE
        protocol.transport.write(b"".join((status_line, protocol.default_head(), headers, between, content)))
        if ends:
            protocol.transport.close()
        protocol.on_response_complete()


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

    limits: ClassVar[ConnectionLimits]
    direct: ClassVar[DirectTaker]

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
        # Whether a request that may be taken directly is being parsed, and the pieces of its body. Meanwhile uvicorn
        # does not know of it.
        self._may_be_direct = False
        self._pieces: list[bytes] = []

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
        # uvicorn's own beginning comes with the end of the head, if the request is not taken directly.
        self.url = b""
        self.expect_100_continue = False
        self.headers: list[tuple[bytes, bytes]] = []

    def on_headers_complete(self) -> None:
        """Note that the head was whole. Called by the parser."""
        self._in_head = False
        if len(self._queued()) >= _MOST_AHEAD:
            self._is_too_far_ahead = True
            # Ends parsing: uvicorn then asks for the refusal.
            raise OverflowError
        self._may_be_direct = (
            self.url == self.direct.target
            and not self.expect_100_continue
            and not self._is_under_way()
            and self.on_trial is None
            # The application waits until its peer reads.
            and not self.flow.write_paused
        )
        if not self._may_be_direct:
            self._begin()

    def _begin(self) -> None:
        """Let uvicorn have a request's head."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body. Called by the parser."""
        if self._may_be_direct:
            self._pieces.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that a request is whole. Called by the parser."""
        if self._may_be_direct:
            if self._take_directly():
                return
            self._go_to_application()
        super().on_message_complete()

    def _take_directly(self) -> bool:
        """Have the request taken without a task; return whether that was done."""
        parser = self.parser
        if parser.get_method() != b"POST" or parser.get_http_version() != "1.1" or parser.should_upgrade():
            return False
        exchange = Exchange(self, keep_alive=parser.should_keep_alive())
        pieces = self._pieces
        if not self.direct.take(self.headers, pieces[0] if len(pieces) == 1 else b"".join(pieces), exchange):
            return False
        self._turn = self.cycle = exchange
        self._may_be_direct = False
        pieces.clear()
        return True

    def _go_to_application(self) -> None:
        """Let uvicorn have the request that is being parsed, as far as it came."""
        self._may_be_direct = False
        pieces, self._pieces = self._pieces, []
        self._begin()
        for piece in pieces:
            super().on_body(piece)

    def default_head(self) -> bytes:
        """Return the headers that each answer has, a line each."""
        return _head_of(tuple(self.server_state.default_headers))

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that can't be parsed. Called by uvicorn.

        The refusal follows the answers of the requests under way: sent earlier, it would be taken for one of theirs.
        """
        del msg
        if self._may_be_direct:
            self._go_to_application()
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
            self._feed(data)
        elif self._in_head:
            # The head began behind another request's body.
            self._arm()
            self._late_bytes += len(data)
            self._feed(data)
            if not self._in_head:
                self._late_bytes = 0
                self._disarm()
            elif self._late_bytes > _MOST_HEAD_BYTES:
                self._end(_HEAD_TOO_LARGE)
        elif not self._head and not data.strip(_NEW_LINE):
            # Newlines before a request mean nothing.
            self._feed(data)
        else:
            self._gather(data)

    def _gather(self, data: bytes) -> None:
        """Gather the bytes of a head until it is whole, then parse it."""
        is_first = not self._head and self.on_trial is None
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
            self._feed(_without_upgrade(whole, end))
        elif is_first:
            self._disarm()
            self._arm()

    def _feed(self, data: bytes) -> None:
        super().data_received(data)
        if self._may_be_direct:
            # Its body is not whole yet.
            self._go_to_application()

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


@lru_cache(maxsize=4)
def _head_of(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return b"".join(b"%s: %s\r\n" % named for named in headers)


def limited_protocol(limits: ConnectionLimits, direct: DirectTaker) -> type[asyncio.Protocol]:
    """Return a protocol class with these limits, for uvicorn's configuration."""
    made: type[asyncio.Protocol] = type("LimitedProtocol", (LimitedProtocol,), {"limits": limits, "direct": direct})
    return made
