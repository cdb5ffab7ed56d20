"""Serve the tracker's HTTP: `/health`, `/ready`, `/metrics`, the status page and the original's JSON API (O01 to O03).

Every tracker serves it, whether it leads or not. This module only reads the driver log; ``http_writes`` has the
requests that change something. The server has its own connections and threads, so that no client delays a tick. A port
in use or an unavailable driver log ends neither server nor tracker.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from orchestration.dagster_instance.browser_token import BrowserToken
from orchestration.dagster_instance.http_connections import MOST_CONNECTIONS, BoundedProtocol, RequestLimit
from orchestration.status_page.routes import StatusPages
from orchestration.tracker.http.http_writes import ReplayDagster, Writes, has_write_token
from orchestration.tracker.http.listen_address import url
from orchestration.tracker.http.metrics import MAX_RECEIVERS, metrics_page
from orchestration.tracker.http.streaming_endpoints import StreamingEndpoints, json_answer
from orchestration.tracker.http.streaming_progress import StreamingProgress
from receiver_runtime.sources.fields.request_peer import asks_for_loopback
from receiver_runtime.sources.fields.request_target import unreadable_target
from tracker_store.connection.engine import connect
from tracker_store.connection.outage import SURVIVED, Outage
from tracker_store.host.code_in_force import CodeState
from tracker_store.receivers.leadership import read_leadership

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import Self

    import sqlalchemy as sa
    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from orchestration.tracker.http.listen_address import ListenAddress

# statement_timeout of the server's connections: a request must not occupy a thread and a connection for longer.
STATEMENT_TIMEOUT = "5s"
# Seconds until a port in use is tried again; doubled after each failure, up to the longest.
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0
STOP_SECONDS = 3.0
_GRACE_SECONDS = 1
# Paths that need no token: they only say whether the process lives.
_OPEN = ("/health", "/ready")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TrackerView:
    """Show the server the part of the tracker in its process that it may use. Safe to call from any thread."""

    name: str
    term: Callable[[], int | None]
    lease_ages: Callable[[], Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class PageContent:
    """Say what the pages have beside the driver log's figures."""

    #: The most receivers with samples of their own in /metrics.
    metrics_max_receivers: int = MAX_RECEIVERS
    #: Dagster's webserver, to which the status page has links.
    dagster_url: str | None = None
    code: Callable[[], CodeState] = CodeState
    #: Executes the replays that are requested here; None: they are refused.
    replay_dagster: ReplayDagster | None = None


class _HostGuard:
    """Let requests with the token pass; without a configured token, requests whose Host header names loopback.

    A browser gets the token's cookie by a link with `?token=TOKEN`. A POST passes: only the routes of ``http_writes``,
    which checks it, take one. The Host check stops DNS rebinding: no web page can read here through a host name that
    resolves to 127.0.0.1.
    """

    def __init__(self, app: ASGIApp, token: BrowserToken | None, write_token: str | None) -> None:
        self._app = app
        self._token = token
        self._write_token = write_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if self._token is not None and (link := self._token.link(scope)) is not None:
                await link(scope, receive, send)
                return
            scope["forebay.trusted"] = self._is_trusted(scope)
            if not scope["forebay.trusted"] and scope["path"] not in _OPEN and scope["method"] != "POST":
                await self._refusal()(scope, receive, send)
                return
            if (why := unreadable_target(scope)) is not None:
                await PlainTextResponse(f"{why}\n", 400)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_trusted(self, scope: Scope) -> bool:
        if has_write_token(scope, self._write_token):
            return True
        if self._token is not None:
            return self._token.is_sent(scope)
        return asks_for_loopback(scope["headers"])

    def _refusal(self) -> Response:
        if self._token is not None:
            return PlainTextResponse(
                "Open /status?token=TOKEN in a browser, or send Authorization: Bearer TOKEN (FOREBAY_TRACKER_TOKEN)\n",
                401,
                {"WWW-Authenticate": "Bearer"},
            )
        return PlainTextResponse(
            "Ask for 127.0.0.1 or localhost, or set FOREBAY_TRACKER_TOKEN and send it: Authorization: Bearer TOKEN\n",
            403,
        )


class _Pages:
    """Serve the endpoints. Each request runs in a thread of the server's pool, and may wait for the driver log."""

    def __init__(
        self,
        engine: sa.Engine,
        tracker: TrackerView,
        content: PageContent,
        *,
        clock: Callable[[], float],
        write_token: str | None,
    ) -> None:
        self._engine = engine
        self._tracker = tracker
        self._metrics_max_receivers = content.metrics_max_receivers
        self._progress = StreamingProgress(clock)
        self._streaming = StreamingEndpoints(self._connect, self._progress)
        self._outage = Outage("the tracker's HTTP server")
        self._outage_lock = threading.Lock()
        self._status = StatusPages(
            self._connect, tracker=tracker.name, dagster_url=content.dagster_url, code=content.code
        )
        find_batch = self._streaming.pipeline_and_batch
        self._writes = Writes(self._connect, find_batch, token=write_token, dagster=content.replay_dagster)
        self._write_token = write_token

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/metrics", self._metrics),
            *self._streaming.routes(),
            *self._status.routes(),
            *self._writes.routes(),
        ]

    def app(self, token: BrowserToken | None) -> ASGIApp:
        app = Starlette(
            routes=self.routes(),
            exception_handlers={
                HTTPException: self._refused,
                # Starlette looks up the handler of an exception's base classes too, so these two suffice.
                **dict.fromkeys(SURVIVED, self._unavailable),
            },
        )
        return RequestLimit(_HostGuard(app, token, self._write_token), most=MOST_CONNECTIONS, always="/health")

    def _unavailable(self, request: Request, error: Exception) -> Response:
        self._failed(error)
        if StatusPages.is_for(request.url.path):
            return self._status.problem("The driver log does not answer", f"No figures can be read: {error}", 503)
        return json_answer({"error": f"the driver log does not answer: {error}", "path": request.url.path}, 503)

    def _refused(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        if StatusPages.is_for(request.url.path):
            return self._status.problem("There is no such page", error.detail, error.status_code)
        answer = json_answer({"error": error.detail}, error.status_code)
        answer.headers.update(error.headers or {})
        return answer

    @contextmanager
    def _connect(self) -> Iterator[sa.Connection]:
        with connect(self._engine) as connection:
            yield connection
        with self._outage_lock:
            self._outage.answered()

    def _failed(self, error: Exception) -> None:
        with self._outage_lock:
            self._outage.failed(error)

    # -- about the process -------------------------------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        # On the loop: the threads may all be waiting for the driver log.
        term = self._tracker.term()
        body: dict[str, object] = {"status": "ok", "leading": term is not None, "term": term}
        if request.scope["forebay.trusted"]:
            body["name"] = self._tracker.name
        return json_answer(body)

    def _ready(self, request: Request) -> Response:
        trusted = request.scope["forebay.trusted"]
        try:
            with self._connect() as connection:
                leadership = read_leadership(connection)
        except SURVIVED as error:
            self._failed(error)
            # The reason names hosts and users, so only trusted clients get it.
            why = f"the driver log does not answer: {error}" if trusted else "the driver log does not answer"
            return json_answer({"status": "not ready", "reason": why}, 503)
        body: dict[str, object] = {"status": "ready", "leading": self._tracker.term() is not None}
        if trusted:
            body["leader"] = leadership.holder
        return json_answer(body)

    def _metrics(self, request: Request) -> Response:
        try:
            progress = self._progress.poll(self._connect)
        except SURVIVED as error:
            self._failed(error)
            progress = None
        page, content_type = metrics_page(
            progress,
            term=self._tracker.term(),
            lease_ages=self._tracker.lease_ages(),
            max_receivers=self._metrics_max_receivers,
            accept=request.headers.get("accept", ""),
        )
        return Response(page, media_type=content_type)


class TrackerHttpServer:
    """Serve HTTP in a thread, while the context is entered. `address_file` holds the server's URL meanwhile."""

    def __init__(
        self,
        engine: sa.Engine,
        tracker: TrackerView,
        address: ListenAddress,
        *,
        address_file: Path,
        content: PageContent | None = None,
        first_retry_seconds: float = FIRST_RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to serve.

        Args:
            engine: the driver log; used by this server only, with a short statement timeout.
            tracker: the tracker in the same process.
            address: where to listen, and what a client has to send.
            address_file: holds the URL while the server listens.
            content: what depends on the installation.
            first_retry_seconds: how long to wait before a port in use is tried the second time.
            clock: monotonic, in seconds.
        """
        pages = _Pages(engine, tracker, content or PageContent(), clock=clock, write_token=address.write_token)
        self.paths = [route.path for route in pages.routes() if isinstance(route, Route)]
        self._app = pages.app(
            None if address.token is None else BrowserToken(address.token, cookie=f"forebay_tracker_{address.port}")
        )
        self._address = address
        self._address_file = address_file
        self._first_retry_seconds = first_retry_seconds
        self._refused = 0
        self._stop = threading.Event()
        self._server: uvicorn.Server | None = None
        self._url: str | None = None
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def url(self) -> str | None:
        """Return the URL that it serves; None until it listens."""
        return self._url

    @property
    def refused(self) -> int:
        """Return how often its port was unavailable."""
        return self._refused

    @property
    def serves(self) -> bool:
        """Return whether its thread runs."""
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        listener = self._listen()
        if listener is None:
            return
        with listener:
            host, port = listener.getsockname()[:2]
            served = url(host, port)
            written = f"{served}\n"
            try:
                self._write(written)
                log.info("the tracker serves HTTP", url=served, token=self._address.token is not None)
                # Last, so that a caller that sees the URL here also finds it in the file.
                self._url = served
                self._serve(listener)
            except Exception:  # the tracker goes on without its HTTP server
                log.exception("the tracker's HTTP server has ended")
            finally:
                self._url = None
                self._forget(written)

    def _listen(self) -> socket.socket | None:
        """Return a listening socket, retrying until there is one; None when stopped before that."""
        delay = self._first_retry_seconds
        while not self._stop.is_set():
            try:
                return _listening(self._address)
            except OSError as error:
                self._refused += 1
                if self._refused == 1:
                    log.warning(
                        "the tracker can't serve HTTP yet, trying again: is another tracker on this port? "
                        "FOREBAY_TRACKER_HTTP names another",
                        address=url(self._address.host, self._address.port),
                        error=str(error),
                    )
                self._stop.wait(delay)
                delay = min(delay * 2, LONGEST_RETRY_SECONDS)
        return None

    def _serve(self, listener: socket.socket) -> None:
        config = uvicorn.Config(
            self._app,
            access_log=False,
            http=BoundedProtocol,
            lifespan="off",
            log_config=None,
            # Uvicorn would log each invalid request, and any account of the machine may send some.
            log_level="error",
            loop="asyncio",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            ws="none",
        )
        self._server = uvicorn.Server(config)
        if not self._stop.is_set():
            asyncio.run(self._server.serve(sockets=[listener]))

    def _write(self, text: str) -> None:
        try:
            self._address_file.parent.mkdir(parents=True, exist_ok=True)
            new = self._address_file.with_name(f"{self._address_file.name}.{os.getpid()}")
            new.write_text(text)
            new.replace(self._address_file)
        except OSError as error:
            log.warning("can't write down where the tracker serves", file=str(self._address_file), error=str(error))

    def _forget(self, text: str) -> None:
        try:
            # Another tracker with the same FOREBAY_HOME may have written its own URL there.
            if self._address_file.read_text() == text:
                self._address_file.unlink()
        except OSError:
            pass


def _listening(address: ListenAddress) -> socket.socket:
    infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, where = infos[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener
