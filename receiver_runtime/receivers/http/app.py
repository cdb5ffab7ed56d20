"""Take each request through its checks to its records' hand-over, and answer it: the ASGI application.

It runs on the server's loop. Threads do what takes long: the body reader's parse large bodies, and others store dead
letters (``dead_letters``). The checks, of which ``intake`` has some, are in order of their cost, the cheapest first,
and it reads nothing of an unwanted body.

This module never makes blocks: ``acknowledgement`` does, and ``buffering`` for requests that are answered before their
records are stored.
"""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import structlog
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as StarletteRoute

from receiver_runtime.receivers.http import description
from receiver_runtime.receivers.http.body_reader import BodyReader, RequestBody
from receiver_runtime.receivers.http.channels.channel import check_other_ways, place_of
from receiver_runtime.receivers.http.channels.endpoint import CHANNEL_PATHS, ChannelPositions
from receiver_runtime.receivers.http.dead_letters import RequestDeadLetters
from receiver_runtime.receivers.http.declaration import STREAM_PATH
from receiver_runtime.receivers.http.direct import DirectRequests
from receiver_runtime.receivers.http.intake import NO_PARAMETERS
from receiver_runtime.receivers.http.requests.framing_checks import body_framing, check_framing
from receiver_runtime.receivers.http.requests.peer_checks import missing_host
from receiver_runtime.receivers.http.requests.pushed import TARGET_PATH, TARGET_QUERY, PushRefusedError, header
from receiver_runtime.receivers.http.requests.refusal_counts import RefusalCounts
from receiver_runtime.receivers.http.requests.refusals import RefusedError, refusal, release
from receiver_runtime.receivers.http.requests.route import (
    Answered,
    AnsweredRows,
    Refused,
    Reply,
    refuse_by_problem,
    with_position,
    with_retry,
)
from receiver_runtime.receivers.http.requests.web_hooks import permission
from receiver_runtime.sources.fields.request_target import unreadable_target

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from receiver_runtime.receivers.http.acknowledgement import WaitingRequest
    from receiver_runtime.receivers.http.channels.channel import Place
    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.intake import Intake, Parameters
    from receiver_runtime.receivers.http.requests.pushed import Headers, Pushed, PushedRows
    from receiver_runtime.receivers.http.requests.records import Plain
    from receiver_runtime.receivers.http.requests.route import Route
    from receiver_runtime.supervisor.receiver import Receiver

    Answerer = Callable[[Scope, Headers, RequestBody], Awaitable[Reply]]

_log = structlog.get_logger(__name__)

_ASKED = frozenset({"/health", "/ready", description.PATH})
_ACKS = frozenset({"registered", "buffered"})
_MOST_PARAMETERS = 100
# As which a channel's records come if a sender is free to choose.
_LINES: Headers = [(b"content-type", b"application/x-ndjson")]


class HttpApp:
    """Answer a server's requests. All methods except ``close`` belong to the loop."""

    def __init__(self, receiver: Receiver, source: Http, intake: Intake, routes: Sequence[Route]) -> None:
        self._receiver = receiver
        self._supervisor = supervisor = receiver.supervisor
        self._source = source
        self._intake = intake
        records = supervisor.block_path.rows.records
        self._description = description.describe(source, supervisor.stream_name, routes, records)
        self._bodies = BodyReader(source, intake.admission, intake.deadlines)
        self._dead_letters = RequestDeadLetters(receiver, intake.admission, intake.in_time)
        self._channels = ChannelPositions(source, supervisor, intake, self._check_position)
        self.refusals = RefusalCounts(receiver, asyncio.get_running_loop())
        # The types of errors of Forebay's own that were logged with their place.
        self._logged_failures: set[type[Exception]] = set()
        by_path: dict[str, list[Route]] = {}
        for route in routes:
            by_path.setdefault(route.path, []).append(route)
        of_streams = by_path.get(STREAM_PATH, [])
        ordered = sorted(by_path, key=lambda path: "{" in path)
        # The path of nearly all requests, kept here because routing takes as long as parsing a small record.
        self._own_path = source.path_of(receiver.supervisor.stream_name)
        self._own_routes = by_path.get(self._own_path, []) + of_streams
        #: Takes the requests of that path that need no task.
        self.direct = DirectRequests(intake, source, self._own_path, self._own_routes)
        self._starlette = Starlette(
            routes=[
                StarletteRoute("/health", self._health, methods=["GET"]),
                StarletteRoute("/ready", self._ready, methods=["GET"]),
                StarletteRoute(description.PATH, self._describe, methods=["GET"]),
                *(StarletteRoute(path, _ChannelEndpoint(self, self._channels)) for path in CHANNEL_PATHS),
                *(
                    StarletteRoute(
                        address, _Endpoint(self, by_path[path] + ([] if path == STREAM_PATH else of_streams))
                    )
                    for path in ordered
                    # With a slash behind it too: a client that is given an address often adds one.
                    for address in (path, f"{path}/")
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
        self._channels.close()

    # -- questions about the receiver --------------------------------------------------------------------------------

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _: Request) -> Response:
        refused = self._intake.admission.check_ready()
        if refused is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse(
            {"status": "not ready", "reason": refused.detail}, HTTPStatus.SERVICE_UNAVAILABLE, _retry_header(refused)
        )

    async def _describe(self, _: Request) -> Response:
        return JSONResponse(self._description)

    # -- one request -------------------------------------------------------------------------------------------------

    async def take(self, routes: Sequence[Route], scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of records."""
        route = next((route for route in routes if route.matches(scope["headers"])), None)
        await self.reply(partial(self._answer, route), scope, receive, send, route=route)

    async def reply(
        self, answer: Answerer, scope: Scope, receive: Receive, send: Send, *, route: Route | None = None
    ) -> None:
        """Answer a request with what ``answer`` returns, or the refusal that it raises, in the route's form."""
        headers: Headers = scope["headers"]
        body = RequestBody(receive, body_framing(headers))
        self._intake.request_begins()
        try:
            reply = await answer(scope, headers, body)
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
            self._intake.request_ends()
        await _send(send, reply, close=not body.is_over or self._intake.draining.is_set())

    def _report_failure(self, error: Exception) -> None:
        """Report a fault of Forebay's; log where it is at the first one of its type, as a sender may repeat it."""
        self._receiver.report_error("an HTTP request failed by a fault of Forebay's, and was answered 500", error)
        if type(error) not in self._logged_failures:
            self._logged_failures.add(type(error))
            _log.exception("a request failed")

    async def _answer(self, route: Route | None, scope: Scope, headers: Headers, body: RequestBody) -> Reply:
        if (not_now := self._intake.admission.check_ready()) is not None:
            raise RefusedError(not_now)
        if (why := unreadable_target(scope)) is not None:
            raise refusal(HTTPStatus.BAD_REQUEST, why)
        route = self._expected(route, scope)
        if scope["method"] == "OPTIONS":
            return self._permit(route, headers)
        if scope["method"] == "GET" and "GET" not in route.methods:
            return self._answer_get(route, headers, scope["query_string"])
        key_scope = self._intake.authorize(headers)
        check_framing(headers)
        parameters = _parameters(scope["query_string"])
        buffered = _is_buffered(parameters)
        try:
            signed = self._intake.signed(headers, scope["query_string"])
            key = self._intake.key_of(headers)
            place = place_of(headers, key_scope)
            encoding = header(headers, b"content-encoding")
        except PushRefusedError as error:
            raise refusal(error.status, str(error)) from error
        if buffered and (key is not None or self._source.key_from is not None):
            name = self._source.key_from or "Idempotency-Key"
            raise refusal(
                HTTPStatus.BAD_REQUEST, f"{name}: a key is not kept with ack=buffered: leave out one of the two"
            )
        if place is not None:
            self._check_channel(route, has_key=key is not None, buffered=buffered)
        # In a channel they have offsets, and a refusal would come again for ever.
        parsed = await self._bodies.read(body, route, headers, encoding, signed, may_lack_records=place is not None)
        if isinstance(parsed, Reply):
            return parsed
        waiting = self._intake.waiting_of(parsed, scope["path"], headers, key, key_scope, parameters)
        if place is not None:
            return await self._answer_channel(route, headers, parsed, waiting, place)
        return await self._answer_records(route, headers, parsed, waiting, buffered=buffered)

    async def _answer_records(
        self,
        route: Route,
        headers: Headers,
        parsed: Pushed | PushedRows | Plain,
        waiting: WaitingRequest,
        *,
        buffered: bool,
    ) -> Reply:
        self._intake.check_size(waiting, buffered=buffered)
        own_answer = parsed.answer if isinstance(parsed, AnsweredRows) else None
        rejected, why = await self._dead_letters.store(parsed, waiting)
        if not waiting.bodies:
            answered = Answered(0, 0, rejected, why, buffered)
        elif buffered:
            self._intake.buffer(waiting)
            answered = Answered(len(waiting.bodies), 0, rejected, why, buffered=True)
        else:
            stored = await self._intake.register(waiting)
            answered = self._intake.answered(stored, rejected, why, may_refuse=own_answer is None)
        return route.answer(headers, answered) if own_answer is None else own_answer(answered)

    def _check_channel(self, route: Route, *, has_key: bool, buffered: bool) -> None:
        """Refuse a request of a channel that can't be one: it has keys, or its route's senders know no channels."""
        if route.path != STREAM_PATH:
            raise self._no_channels(route.path)
        check_other_ways(has_key=has_key, key_from=self._source.key_from, buffered=buffered)

    def _check_position(self) -> None:
        """Refuse the question for a channel's position where each request of the channel would be refused."""
        route = next((route for route in self._own_routes if route.matches(_LINES)), None)
        if route is None:
            raise self._no_channels(self._path())
        self._check_channel(route, has_key=False, buffered=False)

    def _no_channels(self, path: str) -> RefusedError:
        elsewhere = "" if path == self._path() else f", or POST to {self._path()}"
        return refusal(HTTPStatus.BAD_REQUEST, f"{path} takes no channels: send without Forebay-Channel{elsewhere}")

    async def _answer_channel(
        self,
        route: Route,
        headers: Headers,
        parsed: Pushed | PushedRows | Plain,
        waiting: WaitingRequest,
        place: Place,
    ) -> Reply:
        self._intake.in_channel(waiting, place, parsed.rejected)
        self._intake.check_size(waiting, buffered=False)
        stored = await self._intake.register(waiting)
        why = parsed.rejected[0].why if parsed.rejected else ""
        answered = self._intake.answered(stored, len(parsed.rejected), why)
        return with_position(route.answer(headers, answered), answered)

    def _expected(self, route: Route | None, scope: Scope) -> Route:
        """Return the route, or refuse the request where there is none for its path and method."""
        if route is None and scope["path"] in _ASKED:
            detail = f"method: {scope['method']} does nothing here: GET it"
            raise refusal(HTTPStatus.METHOD_NOT_ALLOWED, detail, allow="GET, HEAD")
        if route is None:
            raise refusal(HTTPStatus.NOT_FOUND, f"path: there is no {scope['path']}: POST to {self._path()}")
        if scope["method"] not in (methods := self._methods(route)):
            detail = f"method: {scope['method']} does nothing here: POST records to {self._path()}"
            raise refusal(HTTPStatus.METHOD_NOT_ALLOWED, detail, allow=", ".join(methods))
        stream = scope["path_params"].get("stream")
        if stream is not None and self._supervisor.stream_name not in {"", stream}:
            raise refusal(
                HTTPStatus.NOT_FOUND, f"path: there is no stream {stream!r} at this address: POST to {self._path()}"
            )
        return route

    def _path(self) -> str:
        return self._source.path_of(self._supervisor.stream_name or "{stream}")

    def _methods(self, route: Route) -> Sequence[str]:
        asked = ["GET"] if route.answer_get is not None else []
        return [*route.methods, *(["OPTIONS"] if self._source.webhook_origins else []), *asked]

    def _answer_get(self, route: Route, headers: Headers, query: bytes) -> Reply:
        """Answer a sender that asks whether this address is right."""
        try:
            reply = None if route.answer_get is None else route.answer_get(headers, query, self._source)
        except PushRefusedError as error:
            raise refusal(error.status, str(error)) from error
        if reply is None:
            raise refusal(HTTPStatus.BAD_REQUEST, f"query: it asks nothing: POST records to {self._path()}")
        return reply

    def _permit(self, route: Route, headers: Headers) -> Reply:
        """Answer a web hook's question whether it may send: headers grant it, and their absence denies it."""
        try:
            granted = permission(headers, self._source.webhook_origins)
        except PushRefusedError as error:
            raise refusal(error.status, str(error)) from error
        return Reply(
            HTTPStatus.OK,
            "application/json",
            b"{}",
            [("allow", ", ".join(self._methods(route))), *(granted or {}).items()],
        )


class _Endpoint:
    """Serve one path's routes as an ASGI application, for every method, so that all refusals look the same."""

    def __init__(self, app: HttpApp, routes: Sequence[Route]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = [(TARGET_PATH, scope["path"].encode(errors="replace")), (TARGET_QUERY, scope["query_string"])]
        scope["headers"] = [*scope["headers"], *target]
        await self._app.take(self._routes, scope, receive, send)


class _ChannelEndpoint:
    """Serve the positions of channels as an ASGI application, for every method."""

    def __init__(self, app: HttpApp, channels: ChannelPositions) -> None:
        self._app = app
        self._channels = channels

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app.reply(self._channels.answer, scope, receive, send)


def _parameters(query: bytes) -> Parameters:
    if not query:
        return NO_PARAMETERS
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
    of_content = [
        (b"content-type", reply.content_type.encode()),
        (b"content-length", b"%d" % len(reply.body)),
    ]
    headers = [
        *(of_content if reply.status != HTTPStatus.NO_CONTENT else ()),
        *((name.encode(), value.encode("latin-1")) for name, value in reply.headers),
    ]
    if close and all(name != "connection" for name, _ in reply.headers):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": int(reply.status), "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
