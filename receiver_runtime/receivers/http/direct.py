"""Takes small requests to the hand-over of their records without a task, which most requests need not have.

A request is taken directly if it came whole and nothing has to be refused, awaited or put aside before its records are
handed in. Until then nothing is changed. So every other request goes to the application, which checks it again and
refuses it: this module has no checks of its own, and gives no answer that the application would not give.

Requests wait for their registration in the order in which they came, so that one timer is enough for all.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.acknowledgement import Stored
from receiver_runtime.receivers.http.body_reader import PARSE_ON_LOOP_BYTES
from receiver_runtime.receivers.http.channels.channel import (
    CHANNEL_HEADER,
    OFFSET_HEADER,
    check_other_ways,
    place_of,
)
from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
from receiver_runtime.receivers.http.requests.refusals import RefusedError
from receiver_runtime.receivers.http.requests.route import Answered, Reply, answer_json, with_position, with_retry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.receivers.http.acknowledgement import WaitingRequest
    from receiver_runtime.receivers.http.connections.connections import Exchange
    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.intake import Intake
    from receiver_runtime.receivers.http.requests.pushed import Headers, Pushed, PushedRows
    from receiver_runtime.receivers.http.requests.records import Plain
    from receiver_runtime.receivers.http.requests.route import Route

# Bytes up to which a body is taken directly: as much as one read brings. Above ``PARSE_ON_LOOP_BYTES`` only what is
# parsed at once.
_MOST_AT_ONCE = 2**18
# With one of these a request's head needs a check, or its body a step, that only the application has.
_NOT_DIRECT = frozenset({b"transfer-encoding", b"upgrade", b"expect", b"content-encoding", b"origin"})
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_OK = _STATUS_LINES[HTTPStatus.OK]


class DirectRequests:
    """Take requests from a server's connections; see the module. Its methods belong to the loop.

    Args:
        intake: has the checks.
        source: the limits.
        path: of the requests.
        routes: of that path.
    """

    def __init__(self, intake: Intake, source: Http, path: str, routes: Sequence[Route]) -> None:
        self._intake = intake
        self._source = source
        self._path = path
        self._routes = routes
        #: Only a path that is written as it is: all others, and those with parameters, are the application's.
        self.target = path.encode()
        self._most_bytes = min(_MOST_AT_ONCE, source.max_body_bytes)
        self._loop = asyncio.get_running_loop()
        # The requests that wait for their registration, in order.
        self._open: dict[WaitingRequest, tuple[Exchange, Route, Headers]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def take(self, headers: Headers, body: bytes, exchange: Exchange) -> bool:
        """Take a request, or change nothing and return False; see ``connections.DirectTaker``."""
        names = dict(headers).keys()
        if (
            len(names) != len(headers)
            or b"host" not in names
            or not _NOT_DIRECT.isdisjoint(names)
            or len(body) > self._most_bytes
        ):
            return False
        try:
            made = self._made(
                headers,
                body,
                has_key=self._intake.key_header in names,
                of_channel=CHANNEL_HEADER in names or OFFSET_HEADER in names,
            )
        except Exception:  # noqa: BLE001  the application meets the same, and answers the sender
            return False
        if made is None:
            return False
        route, waiting = made
        waiting.on_answered = self._on_answered
        self._open[waiting] = (exchange, route, headers)
        self._intake.request_begins()
        self._intake.acknowledgement.hand_in(waiting)
        if self._timer is None:
            self._timer = self._loop.call_later(self._source.acknowledgement_timeout, self._expire)
        return True

    def _made(
        self, headers: Headers, body: bytes, *, has_key: bool, of_channel: bool
    ) -> tuple[Route, WaitingRequest] | None:
        intake = self._intake
        if intake.admission.check_ready() is not None or intake.admission.check_room(len(body)) is not None:
            return None
        for route in self._routes:
            if route.matches(headers):
                break
        else:
            return None
        key_scope = intake.authorize(headers)
        place = None
        if of_channel:
            check_other_ways(has_key=has_key, key_from=self._source.key_from, buffered=False)
            place = place_of(headers, key_scope)
        if (signed := intake.signed(headers, b"")) is not None:
            signed.check(body)
        key = intake.key_of(headers) if has_key else None
        parsed = self._parsed(route, headers, body)
        if parsed is None or isinstance(parsed, Reply) or parsed.rejected:
            return None
        waiting = intake.waiting_of(parsed, self._path, headers, key, key_scope)
        if place is not None:
            intake.in_channel(waiting, place, ())
        if not waiting.bodies:
            return None
        intake.check_size(waiting, buffered=False)
        return route, waiting

    def _parsed(self, route: Route, headers: Headers, body: bytes) -> Pushed | PushedRows | Plain | Reply | None:
        if len(body) > PARSE_ON_LOOP_BYTES:
            return None if route.parse_at_once is None else route.parse_at_once(headers, body, self._source)
        limits = ParsingLimits(most_values=self._source.max_body_values, seconds=self._source.parse_timeout)
        return route.parse(headers, body, self._source, limits)

    def _on_answered(self, waiting: WaitingRequest, outcome: Stored | BaseException) -> None:
        found = self._open.pop(waiting, None)
        if found is None:
            # It was refused when its time was over.
            return
        exchange, route, headers = found
        if isinstance(outcome, Stored):
            try:
                answered = self._intake.answered(outcome)
            except RefusedError as error:
                self._refuse(exchange, route, headers, error)
                return
            headers_and_content = (
                _counts_at(outcome.added, outcome.duplicates, outcome.position)
                if route.answer is answer_json and not answered.rejected
                else _written(with_position(route.answer(headers, answered), answered))
            )
            self._intake.request_ends()
            exchange.answer(_OK, *headers_and_content, close=self._intake.draining.is_set())
        else:
            self._refuse(exchange, route, headers, outcome)

    def _refuse(self, exchange: Exchange, route: Route, headers: Headers, error: BaseException) -> None:
        refused = self._intake.not_registered(error).refused
        reply = with_retry(route.refuse(headers, refused), refused)
        self._intake.request_ends()
        # `answer` writes that header, and ends the connection.
        others = [(name, value) for name, value in reply.headers if name != "connection"]
        closes = self._intake.draining.is_set() or len(others) < len(reply.headers)
        exchange.answer(_STATUS_LINES[reply.status], *_written(replace(reply, headers=others)), close=closes)

    def _expire(self) -> None:
        """Refuse the requests that have waited for longer than the time limit."""
        self._timer = None
        seconds = self._source.acknowledgement_timeout
        begun_before = time.monotonic() - seconds
        for waiting in list(self._open):
            if waiting.since > begun_before:
                self._timer = self._loop.call_later(waiting.since - begun_before, self._expire)
                return
            self._refuse(*self._open.pop(waiting), TimeoutError())


def _counts_at(records: int, duplicates: int, position: int | None) -> tuple[bytes, bytes]:
    head, content = _counts(records, duplicates)
    return (head if position is None else b"%sforebay-offset: %d\r\n" % (head, position)), content


@lru_cache(maxsize=1024)
def _counts(records: int, duplicates: int) -> tuple[bytes, bytes]:
    return _written(answer_json((), Answered(records, duplicates)))


def _written(reply: Reply) -> tuple[bytes, bytes]:
    """Return an answer's headers, a line each, and its content."""
    more = "".join(f"{name}: {value}\r\n" for name, value in reply.headers)
    head = f"content-type: {reply.content_type}\r\ncontent-length: {len(reply.body)}\r\n{more}"
    return head.encode("latin-1"), reply.body
