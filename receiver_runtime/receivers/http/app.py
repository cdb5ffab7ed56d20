"""What is done with one request: who sends, how much, what it is, where it goes, and the answer.

Runs on the server's loop; what takes long goes to threads: large bodies, and apart from them what may wait for the
driver log or the disk, dead letters. Decides nothing about blocks: ``acknowledgement`` does, and for what is
answered before it is stored ``buffering``. Order of the checks: the cheapest first, and nothing is read of a
body that is not wanted.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qs

import structlog
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as StarletteRoute

from receiver_runtime.block_generator import GeneratorStateError
from receiver_runtime.block_handler import DeadLetter
from receiver_runtime.receivers.http import description
from receiver_runtime.receivers.http.acknowledgement import AcknowledgementClosedError, Waiting, batch_of
from receiver_runtime.receivers.http.bodies import ENCODINGS, decompressed
from receiver_runtime.receivers.http.cloud_events import permission
from receiver_runtime.receivers.http.pushed import MOST_REJECTED, Pushed, PushRefusedError, header
from receiver_runtime.receivers.http.records import Plain
from receiver_runtime.receivers.http.route import Answered, Refused, Reply, refuse_by_problem
from receiver_runtime.receivers.http.routes import STREAM_PATH

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from receiver_runtime.receiver import Receiver
    from receiver_runtime.receivers.http.acknowledgement import Acknowledgement
    from receiver_runtime.receivers.http.buffering import BufferedHandOver
    from receiver_runtime.receivers.http.pushed import Headers
    from receiver_runtime.receivers.http.route import Route
    from receiver_runtime.sources.http import Http

_log = structlog.get_logger(__name__)

T = TypeVar("T")

# A larger body is decompressed and parsed by a thread, so that the loop goes on meanwhile.
_PARSE_ON_LOOP_BYTES = 64 * 1024
_WORKERS = 2
# Of a body that is not wanted so much is read for so long, so that its sender comes to read the answer.
_UNWANTED_BYTES = 2**20
_UNWANTED_SECONDS = 1.0
# While a rate limit is in force, no more than this may wait for its permits.
_MOST_RATE_SECONDS = 1.0
_KEY = re.compile(r"[\x20-\x7e]{1,255}")
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)
_RETRY_SECONDS = 1
_AWAY_RETRY_SECONDS = 5
_ASKED = frozenset({"/health", "/ready", description.PATH})
_ACKS = frozenset({"registered", "buffered"})
#: Of the rate limiter: what it gives for a tenth of a second.
_PIECES_PER_SECOND = 10


class RefusedError(Exception):
    """A request is not taken."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.detail)
        self.refused = refused


def _refuse(status: int, detail: str, *, retry_after: int | None = None, **headers: str) -> RefusedError:
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return RefusedError(Refused(status, detail, retry_after, named))


def _buffer_full() -> RefusedError:
    detail = "the buffer is full: send again in a moment"
    return _refuse(HTTPStatus.TOO_MANY_REQUESTS, detail, retry_after=_RETRY_SECONDS)


class HttpApp:
    """One server's requests. ``draining`` is set by its owner; methods are the loop's."""

    def __init__(
        self,
        receiver: Receiver,
        source: Http,
        acknowledgement: Acknowledgement,
        buffering: BufferedHandOver,
        routes: Sequence[Route],
        *,
        tokens: Sequence[str],
    ) -> None:
        self._receiver = receiver
        self._supervisor = receiver.supervisor
        self._source = source
        self._acknowledgement = acknowledgement
        self._buffering = buffering
        self._description = description.describe(source, receiver.supervisor.stream_name, routes)
        self._tokens = [token.encode() for token in tokens]
        # Parsers never wait; the others do.
        self._parsers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="http parser")
        self._asiders = ThreadPoolExecutor(_WORKERS, thread_name_prefix="http dead letters")
        self.draining = asyncio.Event()
        # Dead letters of requests with keys, from when they are put aside until the request is registered.
        self._asides: dict[str, asyncio.Future[None]] = {}
        # Of bodies that are being read.
        self._body_bytes = 0
        # When what is waited for is given up: bodies, dead letters, registrations.
        self._timeouts: set[asyncio.Timeout] = set()
        self._open_requests = 0
        #: Set while no request is under way.
        self.quiet = asyncio.Event()
        self.quiet.set()
        by_path: dict[str, list[Route]] = {}
        for route in routes:
            by_path.setdefault(route.path, []).append(route)
        of_streams = by_path.get(STREAM_PATH, [])
        ordered = sorted(by_path, key=lambda path: "{" in path)
        # The one path that nearly all requests have, at hand: finding it takes as long as parsing a small record.
        self._own_path = STREAM_PATH.replace("{stream}", receiver.supervisor.stream_name)
        self._own_routes = by_path.get(self._own_path, []) + of_streams
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
                StarletteRoute("/{path:path}", _Endpoint(self, [])),
            ],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        if scope["type"] == "http" and scope["path"] == self._own_path:
            scope["path_params"] = {}
            await self.take(self._own_routes, scope, receive, send)
        else:
            await self._starlette(scope, receive, send)

    def close(self) -> None:
        """Let the threads go. The loop has ended."""
        for threads in (self._parsers, self._asiders):
            threads.shutdown(wait=False, cancel_futures=True)

    def give_up_waiting(self) -> None:
        """Refuse the requests whose bodies have not come whole, or whose records are not safe yet."""
        now = asyncio.get_running_loop().time()
        for timeout in self._timeouts:
            if not timeout.expired():
                timeout.reschedule(now)

    # -- what is asked about the receiver ----------------------------------------------------------------------------

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _: Request) -> Response:
        refused = self._not_now()
        if refused is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse(
            {"status": "not ready", "reason": refused.detail}, HTTPStatus.SERVICE_UNAVAILABLE, _retry_header(refused)
        )

    async def _describe(self, _: Request) -> Response:
        return JSONResponse(self._description)

    def _not_now(self) -> Refused | None:
        """Why nothing is taken for the time being."""
        if self.draining.is_set():
            detail = "the receiver is stopping: send again, to another receiver or in a moment"
            return Refused(HTTPStatus.SERVICE_UNAVAILABLE, detail, _RETRY_SECONDS, [("connection", "close")])
        if self._acknowledgement.oldest_seconds() > self._source.acknowledgement_timeout:
            detail = (
                "nothing has been registered for longer than acknowledgement_timeout "
                f"({self._source.acknowledgement_timeout:g} s): send again in a moment"
            )
            return Refused(HTTPStatus.SERVICE_UNAVAILABLE, detail, _AWAY_RETRY_SECONDS)
        return None

    def _too_much(self, nbytes: int) -> Refused | None:
        """Why so much more is not taken now: what waits already would wait longer."""
        waits = self._acknowledgement.waiting_bytes + self._body_bytes + self._buffering.waiting_bytes
        if waits and waits + nbytes > self._source.max_waiting_bytes:
            return Refused(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"requests with {waits} bytes are not answered yet, max_waiting_bytes is "
                f"{self._source.max_waiting_bytes}: send again in a moment",
                _RETRY_SECONDS,
            )
        records = self._acknowledgement.waiting_records
        # Of records, or of bytes, and then of records as large as these.
        rate = self._supervisor.block_path.piece(records, self._acknowledgement.waiting_bytes) * _PIECES_PER_SECOND
        if records > rate * _MOST_RATE_SECONDS:
            return Refused(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{records} records wait, at a rate limit of about {rate} a second: send more slowly",
                math.ceil(records / rate),
            )
        return None

    # -- one request -------------------------------------------------------------------------------------------------

    async def take(self, routes: Sequence[Route], scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers: Headers = scope["headers"]
        route = next((route for route in routes if route.matches(headers)), None)
        body = _Body(receive, headers)
        self._open_requests += 1
        self.quiet.clear()
        try:
            reply = await self._answer(route, scope, headers, body)
        except RefusedError as error:
            refused = error.refused
            await body.discard()
            reply = _with_retry((refuse_by_problem if route is None else route.refuse)(headers, refused), refused)
        except Exception:  # noqa: BLE001  answered as its sender reads it
            # A fault of ours; what was handed in goes on, and its sender may send it again.
            failed = Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "the request failed here: the receiver's log says why")
            reply = (refuse_by_problem if route is None else route.refuse)(headers, failed)
            _log.exception("a request failed", path=scope["path"])
        finally:
            self._open_requests -= 1
            if not self._open_requests:
                self.quiet.set()
        await _send(send, reply, close=not body.is_over or self.draining.is_set())

    async def _answer(self, route: Route | None, scope: Scope, headers: Headers, body: _Body) -> Reply:
        if (not_now := self._not_now()) is not None:
            raise RefusedError(not_now)
        route = self._expected(route, scope)
        if scope["method"] == "OPTIONS":
            return self._permit(headers)
        self._authorize(headers)
        _check_framing(headers)
        buffered = _is_buffered(scope["query_string"])
        try:
            key = _key_of(header(headers, b"idempotency-key"))
            encoding = header(headers, b"content-encoding")
        except PushRefusedError as error:
            raise _refuse(error.status, str(error)) from error
        if buffered and key is not None:
            raise _refuse(
                HTTPStatus.BAD_REQUEST,
                "Idempotency-Key: it is not kept with ack=buffered: leave out one of the two",
            )
        data = await self._read(body)
        try:
            parsed = await self._parse(route, headers, data, encoding)
        except PushRefusedError as error:
            if error.status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
                raise _refuse(error.status, str(error), accept_encoding=ENCODINGS) from error
            raise _refuse(error.status, str(error)) from error
        finally:
            # Until here: bodies wait for the threads, too.
            self._body_bytes -= len(data)
        waiting = self._waiting(parsed, scope["path"], headers, key)
        self._check_size(waiting, buffered=buffered)
        rejected, why = await self._put_aside(parsed, waiting)
        if not waiting.bodies:
            answered = Answered(0, 0, rejected, why, buffered)
        elif buffered:
            self._buffer(waiting)
            answered = Answered(len(waiting.bodies), 0, rejected, why, buffered=True)
        else:
            answered = await self._register(waiting, rejected, why)
        return route.answer(headers, answered)

    def _expected(self, route: Route | None, scope: Scope) -> Route:
        """The route, where path and method are ones that are taken here."""
        if route is None and scope["path"] in _ASKED:
            detail = f"method: {scope['method']} does nothing here: GET it"
            raise _refuse(HTTPStatus.METHOD_NOT_ALLOWED, detail, allow="GET, HEAD")
        if route is None:
            raise _refuse(HTTPStatus.NOT_FOUND, f"path: there is no {scope['path']}: POST to {self._path()}")
        if scope["method"] != "POST" and (scope["method"] != "OPTIONS" or not self._source.webhook_origins):
            detail = f"method: {scope['method']} does nothing here: POST records to {self._path()}"
            raise _refuse(HTTPStatus.METHOD_NOT_ALLOWED, detail, allow=self._methods())
        stream = scope["path_params"].get("stream")
        if stream is not None and self._supervisor.stream_name not in {"", stream}:
            raise _refuse(
                HTTPStatus.NOT_FOUND, f"path: there is no stream {stream!r} at this address: POST to {self._path()}"
            )
        return route

    def _path(self) -> str:
        return f"/v1/{self._supervisor.stream_name or '{stream}'}"

    def _methods(self) -> str:
        return "POST, OPTIONS" if self._source.webhook_origins else "POST"

    def _permit(self, headers: Headers) -> Reply:
        """Whether a web hook may send is said by headers; who may not is told nothing, as the specification has it."""
        try:
            granted = permission(headers, self._source.webhook_origins)
        except PushRefusedError as error:
            raise _refuse(error.status, str(error)) from error
        return Reply(HTTPStatus.OK, "application/json", b"{}", [("allow", self._methods()), *(granted or {}).items()])

    def _authorize(self, headers: Headers) -> None:
        if not self._tokens:
            return
        given = [value for name, value in headers if name == b"authorization"]
        match = _BEARER.fullmatch(given[0].decode("latin-1").strip()) if len(given) == 1 else None
        token = (match[1] if match else "").encode("latin-1")
        # All of them, whichever it is: how long it takes says nothing.
        matches = [hmac.compare_digest(token, known) for known in self._tokens]
        if not any(matches):
            what = "there is none" if not given else "the token is not one of this stream's"
            raise _refuse(
                HTTPStatus.UNAUTHORIZED,
                f"Authorization: {what}: send 'Authorization: Bearer TOKEN'",
                www_authenticate="Bearer" if not given else 'Bearer error="invalid_token"',
            )

    async def _read(self, body: _Body) -> bytes:
        """The body; it is counted in ``_body_bytes`` when it is returned."""
        most = self._source.max_body_bytes
        length = body.length
        if length is not None and length > most:
            raise _refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"body: {length} bytes, max_body_bytes is {most}: send less at once",
            )
        if (too_much := self._too_much(length or 0)) is not None:
            raise RefusedError(too_much)
        pieces: list[bytes] = []
        size = 0
        is_whole = False
        # What has come is counted, not what is promised: a body that never comes keeps nobody out.
        reading = asyncio.timeout(self._source.request_timeout)
        self._timeouts.add(reading)
        try:
            async with reading:
                while not body.is_over:
                    piece = await body.next()
                    size += len(piece)
                    self._body_bytes += len(piece)
                    pieces.append(piece)
                    if size > most:
                        raise _refuse(
                            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                            f"body: more than {most} bytes, which is max_body_bytes: send less at once",
                        )
                    if self._body_bytes > size and (too_much := self._too_much(0)) is not None:
                        raise RefusedError(too_much)
            if length not in {None, size}:
                raise _refuse(
                    HTTPStatus.BAD_REQUEST,
                    f"body: {size} bytes came, Content-Length is {length}: send it whole",
                    connection="close",
                )
            is_whole = True
        except TimeoutError:
            if (not_now := self._not_now()) is not None:
                raise RefusedError(not_now) from None
            raise _refuse(
                HTTPStatus.REQUEST_TIMEOUT,
                f"body: it was not whole after request_timeout ({self._source.request_timeout:g} s): send it faster, "
                "or less at once",
            ) from None
        finally:
            self._timeouts.discard(reading)
            if not is_whole:
                self._body_bytes -= size
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _parse(self, route: Route, headers: Headers, data: bytes, encoding: str | None) -> Pushed | Plain:
        def parse() -> Pushed | Plain:
            body = decompressed(data, encoding, most_bytes=self._source.max_body_bytes)
            return route.parse(headers, body, self._source)

        if len(data) <= _PARSE_ON_LOOP_BYTES and encoding is None:
            return parse()
        return await _in_thread(self._parsers, parse)

    def _check_size(self, waiting: Waiting, *, buffered: bool) -> None:
        """Of what is to wait now: decompressed, and with what each record has of the head, it may be much more."""
        most = self._source.max_waiting_bytes
        if waiting.beside_bodies > most:
            raise _refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"body: {len(waiting.bodies)} records, with {waiting.beside_bodies} bytes of what is kept beside their "
                f"bodies, max_waiting_bytes is {most}: send fewer at once, or shorter headers",
            )
        if (too_much := self._too_much(waiting.nbytes)) is not None:
            raise RefusedError(too_much)
        if buffered and not self._buffering.has_room(waiting.nbytes):
            # Before its dead letters are put aside, or each repeat of it would do that again.
            raise _buffer_full()

    def _waiting(self, parsed: Pushed | Plain, path: str, headers: Headers, key: str | None) -> Waiting:
        kept = self._kept(headers)
        now = time.time_ns() // 1000
        if isinstance(parsed, Plain):
            waiting = Waiting(
                parsed.bodies, path, now, content_type=parsed.content_type, request_key=key, request_attributes=kept
            )
        else:
            records = parsed.records
            waiting = Waiting(
                [record.body for record in records],
                path,
                now,
                content_types=[record.content_type for record in records],
                # A record's own key says more than its request's.
                request_key=None if any(record.key is not None for record in records) else key,
                keys=[record.key for record in records],
                ids=[key if record.id is None else record.id for record in records],
                attributes=[
                    {**(kept or {}), **(record.attributes or {})} if kept or record.attributes else None
                    for record in records
                ],
            )
        return waiting

    def _kept(self, headers: Headers) -> Mapping[str, str] | None:
        """The request's headers that the source keeps; those that came twice joined as HTTP has it."""
        if not self._source.headers:
            return None
        kept: dict[str, str] = {}
        for raw, value in headers:
            name = raw.decode("latin-1")
            if name in self._source.headers:
                text = value.decode("latin-1")
                kept[name] = f"{kept[name]}, {text}" if name in kept else text
        return kept or None

    async def _put_aside(self, parsed: Pushed | Plain, waiting: Waiting) -> tuple[int, str]:
        """Dead letters are durable and recorded before their request is answered; the first one's why.

        And before its records are, so that a request whose key is known has put its own aside already.
        """
        if not parsed.rejected:
            return 0, ""
        if len(parsed.rejected) > MOST_REJECTED:
            raise _refuse(
                HTTPStatus.BAD_REQUEST,
                f"body: {len(parsed.rejected)} can't be records, {MOST_REJECTED} are put aside at most; "
                f"{parsed.rejected[0].why}: correct it, or send less at once",
            )
        letters = [DeadLetter(one.reason, one.data) for one in parsed.rejected if one.data]
        key = waiting.only_key()

        def put_aside() -> None:
            if key is None or not self._supervisor.block_path.known_keys([key]):
                self._receiver.store_dead_letters(letters)

        async with self._in_time():
            if key is None:
                await _in_thread(self._asiders, put_aside)
            elif not await self._is_aside(key):
                job = asyncio.get_running_loop().run_in_executor(self._asiders, put_aside)
                self._asides[key] = job
                waiting.on_settled = partial(self._asides.pop, key, None)
                # Before any repeat of it goes on.
                job.add_done_callback(partial(self._on_aside, key))
                await job
        if not waiting.bodies and waiting.on_settled is not None:
            waiting.on_settled()
        return len(parsed.rejected), parsed.rejected[0].why

    async def _is_aside(self, key: str) -> bool:
        """Whether a request with this key that is not registered yet has put its dead letters aside."""
        while (earlier := self._asides.get(key)) is not None:
            await asyncio.wait([earlier])
            if self._asides.get(key) is earlier:
                return True
        return False

    def _on_aside(self, key: str, job: asyncio.Future[None]) -> None:
        if job.cancelled() or job.exception() is not None:
            self._asides.pop(key, None)

    async def _register(self, waiting: Waiting, rejected: int, why: str) -> Answered:
        async with self._in_time():
            stored = await self._acknowledgement.hand_in(waiting)
        return Answered(stored.added, stored.duplicates, rejected, why)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """What the driver log, or the disk, is to say within ``acknowledgement_timeout``."""
        seconds = self._source.acknowledgement_timeout
        timeout = asyncio.timeout(seconds)
        self._timeouts.add(timeout)
        try:
            async with timeout:
                yield
        except TimeoutError:
            if self.draining.is_set() and (not_now := self._not_now()) is not None:
                raise RefusedError(not_now) from None
            raise _refuse(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the records were not registered within acknowledgement_timeout ({seconds:g} s), and may be yet: send "
                "again with the same Idempotency-Key",
                retry_after=_AWAY_RETRY_SECONDS,
            ) from None
        except AcknowledgementClosedError as error:
            raise _refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error), retry_after=_RETRY_SECONDS) from error
        except Exception as error:
            # Fenced, say: another process has the receiver, or will have it.
            _log.warning("requests could not be registered", error=str(error))
            raise _refuse(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "this receiver can't register records any more, another takes over: send again",
                retry_after=_RETRY_SECONDS,
                connection="close",
            ) from error
        finally:
            self._timeouts.discard(timeout)

    def _buffer(self, waiting: Waiting) -> None:
        """To the block generator: a block of its own, which a successor's salvage registers."""
        try:
            taken = self._buffering.offer(batch_of([waiting]))
        except GeneratorStateError as error:
            raise _refuse(
                HTTPStatus.SERVICE_UNAVAILABLE, "the receiver is stopping: send again", retry_after=_RETRY_SECONDS
            ) from error
        if not taken:
            raise _buffer_full()


async def _in_thread(threads: ThreadPoolExecutor, action: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, action)


class _Endpoint:
    """A path's routes as an ASGI application: whatever the method, so that each is answered alike."""

    def __init__(self, app: HttpApp, routes: Sequence[Route]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app.take(self._routes, scope, receive, send)


class _Body:
    """What is left of a request's body."""

    def __init__(self, receive: Receive, headers: Headers) -> None:
        self._receive = receive
        self.is_over = False
        self.length: int | None = None
        self._is_asked_for = True
        is_chunked = False
        for name, value in headers:
            if name == b"content-length" and value.isdigit():
                self.length = int(value)
            elif name == b"transfer-encoding":
                is_chunked = True
            elif name == b"expect":
                # The sender waits until it is told to go on.
                self._is_asked_for = False
        if self.length is None and not is_chunked:
            self.length = 0
        if self.length == 0:
            self.is_over = True

    async def next(self) -> bytes:
        """The next piece, perhaps empty."""
        self._is_asked_for = True
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.is_over = True
            raise _refuse(HTTPStatus.BAD_REQUEST, "body: the connection ended in its midst: send it whole")
        self.is_over = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    async def discard(self) -> None:
        """Read what comes of an unwanted body, a little, so that its sender comes to read the answer."""
        if not self._is_asked_for or (self.length or 0) > _UNWANTED_BYTES:
            return
        size = 0
        try:
            async with asyncio.timeout(_UNWANTED_SECONDS):
                while not self.is_over and size <= _UNWANTED_BYTES:
                    size += len(await self.next())
        except (TimeoutError, RefusedError):
            return


def _check_framing(headers: Headers) -> None:
    """What would have the parser and us disagree about where a body ends."""
    for name, value in headers:
        if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise _refuse(
                HTTPStatus.NOT_IMPLEMENTED,
                f"Transfer-Encoding: {value.decode('latin-1')!r:.100} is not read here: send chunked alone, and "
                "compress by Content-Encoding",
                connection="close",
            )
        if name == b"upgrade":
            # Taken out of every request but pipelined ones (``connections``).
            raise _refuse(
                HTTPStatus.BAD_REQUEST,
                "Upgrade: no other protocol is spoken here: leave it out, or await each answer",
                connection="close",
            )


def _is_buffered(query: bytes) -> bool:
    if not query:
        return False
    asked = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    for name in asked:
        if name != "ack":
            raise _refuse(HTTPStatus.BAD_REQUEST, f"{name}: there is no such parameter: leave it out, or use ack")
    [*earlier, ack] = asked.get("ack", ["registered"])
    if earlier or ack not in _ACKS:
        raise _refuse(HTTPStatus.BAD_REQUEST, f"ack: {ack!r} is no way to answer: use 'registered' or 'buffered'")
    return ack == "buffered"


def _key_of(given: str | None) -> str | None:
    """A request's key; with quotes, as the draft of the header has it, or without, as most send it."""
    if given is None:
        return None
    key = given[1:-1] if len(given) > 1 and given[0] == given[-1] == '"' else given
    if not _KEY.fullmatch(key):
        raise _refuse(
            HTTPStatus.BAD_REQUEST, f"Idempotency-Key: {given!r:.100} is no key: send 1 to 255 printable characters"
        )
    return key


def _retry_header(refused: Refused) -> dict[str, str]:
    return {} if refused.retry_after is None else {"retry-after": str(refused.retry_after)}


def _with_retry(reply: Reply, refused: Refused) -> Reply:
    if refused.retry_after is None:
        return reply
    more = (*reply.headers, ("retry-after", str(refused.retry_after)))
    return Reply(reply.status, reply.content_type, reply.body, more)


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
