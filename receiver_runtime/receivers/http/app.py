"""Take each request through its checks to its records' hand-over, and answer it: the ASGI application.

It runs on the server's loop. Threads do what takes long: the body reader's parse large bodies, and others store dead
letters (``dead_letters``). The checks are in order of their
cost, the cheapest first, and it reads nothing of an unwanted body.

This module never makes blocks: ``acknowledgement`` does, and ``buffering`` for requests that are answered before their
records are stored.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import re
import time
from contextlib import asynccontextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import structlog
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as StarletteRoute

from receiver_runtime.block_path.generator_state import GeneratorStateError
from receiver_runtime.receivers.http import description
from receiver_runtime.receivers.http.acknowledgement import WaitingRequest, batch_of
from receiver_runtime.receivers.http.admission import Admission
from receiver_runtime.receivers.http.body_reader import BodyReader, RequestBody
from receiver_runtime.receivers.http.connections.deadlines import Deadlines
from receiver_runtime.receivers.http.dead_letters import RequestDeadLetters
from receiver_runtime.receivers.http.declaration import STREAM_PATH
from receiver_runtime.receivers.http.direct import DirectRequests
from receiver_runtime.receivers.http.requests.framing_checks import body_framing, check_framing
from receiver_runtime.receivers.http.requests.idempotency_key import key_of
from receiver_runtime.receivers.http.requests.peer_checks import check_origin, missing_host
from receiver_runtime.receivers.http.requests.pushed import Pushed, PushRefusedError, header, header_text
from receiver_runtime.receivers.http.requests.records import Plain
from receiver_runtime.receivers.http.requests.refusal_counts import RefusalCounts
from receiver_runtime.receivers.http.requests.refusals import (
    AWAY_RETRY_SECONDS,
    RETRY_SECONDS,
    RefusedError,
    refusal,
    release,
)
from receiver_runtime.receivers.http.requests.route import Answered, Refused, Reply, refuse_by_problem, with_retry
from receiver_runtime.receivers.http.requests.web_hooks import permission
from receiver_runtime.sources.fields.request_target import unreadable_target

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from receiver_runtime.receivers.http.acknowledgement import Acknowledgement
    from receiver_runtime.receivers.http.connections.buffering import BufferedHandOver
    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.receivers.http.requests.route import Route
    from receiver_runtime.supervisor.receiver import Receiver

    #: The parameters of a request's query, each with its values in order.
    Parameters = Mapping[str, Sequence[str]]

_log = structlog.get_logger(__name__)

_AUTHORIZATION = re.compile(rb"(bearer|basic) +(\S+)", re.IGNORECASE)
_ASKED = frozenset({"/health", "/ready", description.PATH})
_ACKS = frozenset({"registered", "buffered"})
_MOST_PARAMETERS = 100
_NO_PARAMETERS: Parameters = MappingProxyType({})


def _buffer_full() -> RefusedError:
    detail = "the buffer is full: send again in a moment"
    return refusal(HTTPStatus.TOO_MANY_REQUESTS, detail, retry_after=RETRY_SECONDS)


class HttpApp:
    """Answer a server's requests. The owner sets ``draining``; all methods except ``close`` belong to the loop."""

    def __init__(
        self,
        receiver: Receiver,
        source: Http,
        acknowledgement: Acknowledgement,
        buffering: BufferedHandOver,
        routes: Sequence[Route],
        *,
        tokens: Sequence[tuple[str, str]],
        is_paused: bool = False,
    ) -> None:
        self._receiver = receiver
        self._supervisor = receiver.supervisor
        self._source = source
        self.acknowledgement = acknowledgement
        self._buffering = buffering
        self._description = description.describe(source, receiver.supervisor.stream_name, routes)
        # Each token, and the scope of the keys that come with it.
        self._tokens = [(token.encode(), scope) for token, scope in tokens]
        self.draining = asyncio.Event()
        # The time limits of bodies, dead letters and registrations.
        self._deadlines = Deadlines()
        self.admission = Admission(
            source, self._supervisor, acknowledgement, buffering, self.draining, is_paused=is_paused
        )
        self._bodies = BodyReader(source, self.admission, self._deadlines)
        self._dead_letters = RequestDeadLetters(receiver, self.admission, self._in_time)
        self.refusals = RefusalCounts(receiver, asyncio.get_running_loop())
        self._open_requests = 0
        # The types of errors of Forebay's own that were logged with their place.
        self._logged_failures: set[type[Exception]] = set()
        #: Set while no request is being answered.
        self.quiet = asyncio.Event()
        self.quiet.set()
        by_path: dict[str, list[Route]] = {}
        for route in routes:
            by_path.setdefault(route.path, []).append(route)
        of_streams = by_path.get(STREAM_PATH, [])
        ordered = sorted(by_path, key=lambda path: "{" in path)
        # The path of nearly all requests, kept here because routing takes as long as parsing a small record.
        self._own_path = source.path_of(receiver.supervisor.stream_name)
        self._own_routes = by_path.get(self._own_path, []) + of_streams
        #: Takes the requests of that path that need no task.
        self.direct = DirectRequests(self, source, self._own_path, self._own_routes)
        self._starlette = Starlette(
            routes=[
                StarletteRoute("/health", self._health, methods=["GET"]),
                StarletteRoute("/ready", self._ready, methods=["GET"]),
                StarletteRoute(description.PATH, self._describe, methods=["GET"]),
                *(
                    StarletteRoute(
                        path,
                        _Endpoint(self, by_path[path] + ([] if path == STREAM_PATH else of_streams)),
                    )
                    for path in ordered
                ),
                # The same paths with a slash behind them: a client that is given an address often adds one.
                *(
                    StarletteRoute(
                        f"{path}/",
                        _Endpoint(self, by_path[path] + ([] if path == STREAM_PATH else of_streams)),
                    )
                    for path in ordered
                ),
                StarletteRoute("/{path:path}", _Endpoint(self, [])),
            ],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        if scope["type"] == "http" and (refused := missing_host(scope["headers"], scope["http_version"])) is not None:
            self.refusals.count(refused, scope["path"])
            await RequestBody(receive, body_framing(scope["headers"])).discard()
            await _send(send, refuse_by_problem(scope["headers"], refused), close=True)
        elif scope["type"] == "http" and scope["path"] == self._own_path:
            scope["path_params"] = {}
            await self.take(self._own_routes, scope, receive, send)
        else:
            await self._starlette(scope, receive, send)

    def close(self) -> None:
        """End the threads. The loop must have ended."""
        self.refusals.close()
        self._bodies.close()
        self._dead_letters.close()

    def give_up_waiting(self) -> None:
        """Refuse the requests whose bodies are not whole, or whose records are not registered yet."""
        self._deadlines.expire()

    # -- questions about the receiver --------------------------------------------------------------------------------

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _: Request) -> Response:
        refused = self.admission.check_ready()
        if refused is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse(
            {"status": "not ready", "reason": refused.detail}, HTTPStatus.SERVICE_UNAVAILABLE, _retry_header(refused)
        )

    async def _describe(self, _: Request) -> Response:
        return JSONResponse(self._description)

    # -- one request -------------------------------------------------------------------------------------------------

    async def take(self, routes: Sequence[Route], scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers: Headers = scope["headers"]
        route = next((route for route in routes if route.matches(headers)), None)
        body = RequestBody(receive, body_framing(headers))
        self.request_begins()
        try:
            reply = await self._answer(route, scope, headers, body)
        except RefusedError as error:
            refused = error.refused
            release(error)
            self.refusals.count(refused, scope["path"])
            await body.discard()
            reply = with_retry((refuse_by_problem if route is None else route.refuse)(headers, refused), refused)
        except Exception as error:  # noqa: BLE001  the sender is answered in its route's form
            # A fault of Forebay's. Records that were handed in are still registered, and the sender may send again.
            failed = Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "the request failed here: the receiver's log says why")
            reply = (refuse_by_problem if route is None else route.refuse)(headers, failed)
            self._report_failure(error)
            release(error)
        finally:
            self.request_ends()
        await _send(send, reply, close=not body.is_over or self.draining.is_set())

    def request_begins(self) -> None:
        """Count a request that is to be answered."""
        self._open_requests += 1
        self.quiet.clear()

    def request_ends(self) -> None:
        """Count a request no more, whose answer is known."""
        self._open_requests -= 1
        if not self._open_requests:
            self.quiet.set()

    def _report_failure(self, error: Exception) -> None:
        """Report a fault of Forebay's; log where it is at the first one of its type, as a sender may repeat it."""
        self._receiver.report_error("an HTTP request failed by a fault of Forebay's, and was answered 500", error)
        if type(error) not in self._logged_failures:
            self._logged_failures.add(type(error))
            _log.exception("a request failed")

    async def _answer(self, route: Route | None, scope: Scope, headers: Headers, body: RequestBody) -> Reply:
        if (not_now := self.admission.check_ready()) is not None:
            raise RefusedError(not_now)
        if (why := unreadable_target(scope)) is not None:
            raise refusal(HTTPStatus.BAD_REQUEST, why)
        route = self._expected(route, scope)
        if scope["method"] == "OPTIONS":
            return self._permit(headers)
        key_scope = self.authorize(headers)
        check_framing(headers)
        parameters = _parameters(scope["query_string"])
        buffered = _is_buffered(parameters)
        try:
            key = key_of(header(headers, b"idempotency-key"))
            encoding = header(headers, b"content-encoding")
        except PushRefusedError as error:
            raise refusal(error.status, str(error)) from error
        if buffered and key is not None:
            raise refusal(
                HTTPStatus.BAD_REQUEST,
                "Idempotency-Key: it is not kept with ack=buffered: leave out one of the two",
            )
        parsed = await self._bodies.read(body, route, headers, encoding)
        waiting = self.waiting_of(parsed, scope["path"], headers, key, key_scope, parameters)
        self.check_size(waiting, buffered=buffered)
        rejected, why = await self._dead_letters.store(parsed, waiting)
        if not waiting.bodies:
            answered = Answered(0, 0, rejected, why, buffered)
        elif buffered:
            self._buffer(waiting)
            answered = Answered(len(waiting.bodies), 0, rejected, why, buffered=True)
        else:
            answered = await self._register(waiting, rejected, why)
        return route.answer(headers, answered)

    def _expected(self, route: Route | None, scope: Scope) -> Route:
        """Return the route, or refuse the request where there is none for its path and method."""
        if route is None and scope["path"] in _ASKED:
            detail = f"method: {scope['method']} does nothing here: GET it"
            raise refusal(HTTPStatus.METHOD_NOT_ALLOWED, detail, allow="GET, HEAD")
        if route is None:
            raise refusal(HTTPStatus.NOT_FOUND, f"path: there is no {scope['path']}: POST to {self._path()}")
        if scope["method"] != "POST" and (scope["method"] != "OPTIONS" or not self._source.webhook_origins):
            detail = f"method: {scope['method']} does nothing here: POST records to {self._path()}"
            raise refusal(HTTPStatus.METHOD_NOT_ALLOWED, detail, allow=self._methods())
        stream = scope["path_params"].get("stream")
        if stream is not None and self._supervisor.stream_name not in {"", stream}:
            raise refusal(
                HTTPStatus.NOT_FOUND, f"path: there is no stream {stream!r} at this address: POST to {self._path()}"
            )
        return route

    def _path(self) -> str:
        return f"/v1/{self._supervisor.stream_name or '{stream}'}"

    def _methods(self) -> str:
        return "POST, OPTIONS" if self._source.webhook_origins else "POST"

    def _permit(self, headers: Headers) -> Reply:
        """Answer a web hook's question whether it may send: headers grant it, and their absence denies it."""
        try:
            granted = permission(headers, self._source.webhook_origins)
        except PushRefusedError as error:
            raise refusal(error.status, str(error)) from error
        return Reply(HTTPStatus.OK, "application/json", b"{}", [("allow", self._methods()), *(granted or {}).items()])

    def authorize(self, headers: Headers) -> str | None:
        """Return the scope of the request's keys: its token's, or None where there are no tokens."""
        if not self._tokens:
            check_origin(headers, self._source)
            return None
        given = [(name, value) for name, value in headers if name in (b"authorization", b"x-api-key")]
        token = _token_in(*given[0]) if len(given) == 1 else b""
        # Compare all tokens, so that the time that it takes tells nothing about them.
        scopes = [scope for known, scope in self._tokens if hmac.compare_digest(token, known)]
        if not scopes:
            what = "there is none" if not given else "the token is not one of this stream's"
            raise refusal(
                HTTPStatus.UNAUTHORIZED,
                f"Authorization: {what}: send 'Authorization: Bearer TOKEN', 'X-API-Key: TOKEN', or it as the password "
                "of Basic",
                www_authenticate="Bearer" if not given else 'Bearer error="invalid_token"',
            )
        return scopes[0]

    def check_size(self, waiting: WaitingRequest, *, buffered: bool) -> None:
        """Refuse records that have no room: they are larger decompressed, and each has its part of the head."""
        most = self._source.max_waiting_bytes
        if waiting.beside_bodies > most:
            raise refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"body: {len(waiting.bodies)} records, with {waiting.beside_bodies} bytes of what is kept beside their "
                f"bodies, max_waiting_bytes is {most}: send fewer at once, or shorter headers",
            )
        if (too_much := self.admission.check_room(waiting.nbytes)) is not None:
            raise RefusedError(too_much)
        if buffered and not self._buffering.has_room(waiting.nbytes):
            # Before the dead letters are stored, or each repeat of the request would store them again.
            raise _buffer_full()

    def waiting_of(
        self,
        parsed: Pushed | Plain,
        path: str,
        headers: Headers,
        key: str | None,
        key_scope: str | None,
        parameters: Parameters = _NO_PARAMETERS,
    ) -> WaitingRequest:
        """Return a parsed request's records as they are handed in."""
        kept = self._kept(headers, parameters)
        now = time.time_ns() // 1000
        if isinstance(parsed, Plain):
            waiting = WaitingRequest(
                parsed.bodies,
                path,
                now,
                content_type=parsed.content_type,
                request_key=key,
                key_scope=key_scope,
                request_attributes=kept,
            )
        else:
            records = parsed.records
            waiting = WaitingRequest(
                [record.body for record in records],
                path,
                now,
                content_types=[record.content_type for record in records],
                # A record's own key identifies it better than the request's key.
                request_key=None if any(record.key is not None for record in records) else key,
                keys=[record.key for record in records],
                key_scope=key_scope,
                ids=[key if record.id is None else record.id for record in records],
                attributes=[
                    {**(kept or {}), **(record.attributes or {})} if kept or record.attributes else None
                    for record in records
                ],
            )
        return waiting

    def _kept(self, headers: Headers, parameters: Parameters) -> Mapping[str, str] | None:
        """Return the headers and parameters that the source keeps; what came twice is joined, as HTTP defines it."""
        kept = {name: ", ".join(parameters[name]) for name in self._source.query_parameters if name in parameters}
        if not self._source.headers:
            return kept or None
        for raw, value in headers:
            name = raw.decode("latin-1")
            if name in self._source.headers:
                text = header_text(value)
                kept[name] = f"{kept[name]}, {text}" if name in kept else text
        return kept or None

    async def _register(self, waiting: WaitingRequest, rejected: int, why: str) -> Answered:
        async with self._in_time():
            stored = await self.acknowledgement.hand_in(waiting)
        return Answered(stored.added, stored.duplicates, rejected, why)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """Refuse the request where the block takes longer than ``acknowledgement_timeout``, or fails."""
        timeout = self._deadlines.create(self._source.acknowledgement_timeout)
        try:
            async with timeout:
                yield
        except Exception as error:
            raise self.not_registered(error) from error
        finally:
            self._deadlines.discard(timeout)

    def not_registered(self, error: BaseException) -> RefusedError:
        """Return the refusal of a request whose records this error keeps from being registered in time."""
        if isinstance(error, TimeoutError):
            if self.draining.is_set() and (not_now := self.admission.check_ready()) is not None:
                return RefusedError(not_now)
            return refusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the records were not registered within acknowledgement_timeout "
                f"({self._source.acknowledgement_timeout:g} s), and may be yet: send again with the same "
                "Idempotency-Key",
                retry_after=AWAY_RETRY_SECONDS,
            )
        if isinstance(error, RefusedError):
            return error
        # For example fenced: another process has the receiver, or will have it.
        _log.warning("requests could not be registered", error=str(error))
        return refusal(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "this receiver can't register records any more, another takes over: send again",
            retry_after=RETRY_SECONDS,
            connection="close",
        )

    def _buffer(self, waiting: WaitingRequest) -> None:
        """Hand the records to the block generator, as a block of their own that a successor's salvage registers."""
        try:
            taken = self._buffering.offer(batch_of([waiting]))
        except GeneratorStateError as error:
            raise refusal(
                HTTPStatus.SERVICE_UNAVAILABLE, "the receiver is stopping: send again", retry_after=RETRY_SECONDS
            ) from error
        if not taken:
            raise _buffer_full()


class _Endpoint:
    """Serve one path's routes as an ASGI application, for every method, so that all refusals look the same."""

    def __init__(self, app: HttpApp, routes: Sequence[Route]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app.take(self._routes, scope, receive, send)


def _token_in(name: bytes, value: bytes) -> bytes:
    """Return the token that a header of a request brings; nothing where it brings none."""
    if name == b"x-api-key":
        return value.strip()
    match = _AUTHORIZATION.fullmatch(value.strip())
    if match is None:
        return b""
    if match[1].lower() == b"bearer":
        return match[2]
    try:
        return base64.b64decode(match[2], validate=True).partition(b":")[2]
    except ValueError:
        return b""


def _parameters(query: bytes) -> Parameters:
    if not query:
        return _NO_PARAMETERS
    try:
        return parse_qs(query.decode(), keep_blank_values=True, max_num_fields=_MOST_PARAMETERS, errors="strict")
    except ValueError as error:
        raise refusal(
            HTTPStatus.BAD_REQUEST, f"query: it has more than {_MOST_PARAMETERS} parameters: send fewer"
        ) from error


def _is_buffered(parameters: Parameters) -> bool:
    [*earlier, ack] = parameters.get("ack", ["registered"])
    if earlier or ack not in _ACKS:
        raise refusal(HTTPStatus.BAD_REQUEST, f"ack: {ack!r} is no way to answer: use 'registered' or 'buffered'")
    return ack == "buffered"


def _retry_header(refused: Refused) -> dict[str, str]:
    return {} if refused.retry_after is None else {"retry-after": str(refused.retry_after)}


async def _send(send: Send, reply: Reply, *, close: bool) -> None:
    headers = [
        (b"content-type", reply.content_type.encode()),
        (b"content-length", b"%d" % len(reply.body)),
        *((name.encode(), value.encode("latin-1")) for name, value in reply.headers),
    ]
    if close and all(name != "connection" for name, _ in reply.headers):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": int(reply.status), "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
