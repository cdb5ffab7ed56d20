"""Serve the tracker's HTTP: `/health`, `/ready`, `/metrics`, the status page and the original's JSON API (O01 to O03).

Every tracker serves it, whether it leads or not. This module only reads the driver log; ``http_writes`` has the
requests that change something. The server has its own connections and threads, so that no client delays a tick. A port
in use or an unavailable driver log ends neither server nor tracker.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from orchestration.dagster_instance.browser_token import BrowserToken
from orchestration.dagster_instance.http_connections import MOST_CONNECTIONS, BoundedProtocol, RequestLimit
from orchestration.status_page.routes import StatusPages
from orchestration.tracker.http import streaming_api as api
from orchestration.tracker.http.http_writes import ReplayDagster, Writes, has_write_token
from orchestration.tracker.http.listen_address import url
from orchestration.tracker.http.metrics import MAX_RECEIVERS, metrics_page
from orchestration.tracker.http.streaming_progress import RETAINED_BATCHES, StreamingProgress
from receiver_runtime.sources.fields.loopback import host_name, is_written_as_loopback
from tracker_store.batches.batch_outputs import newest_output_failures
from tracker_store.connection.engine import connect
from tracker_store.connection.outage import SURVIVED, Outage
from tracker_store.receivers.leadership import read_leadership
from tracker_store.reports import streaming_statistics as store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    import sqlalchemy as sa
    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from orchestration.tracker.http.listen_address import ListenAddress
    from tracker_store.reports.streaming_statistics import WatchedBatch, WatchedPipeline

# statement_timeout of the server's connections: a request must not occupy a thread and a connection for longer.
STATEMENT_TIMEOUT = "5s"
# Seconds until a port in use is tried again; doubled after each failure, up to the longest.
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0
STOP_SECONDS = 3.0
_GRACE_SECONDS = 1
_API = "/api/v1/applications"
# Paths that need no token: they only say whether the process lives.
_OPEN = ("/health", "/ready")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TrackerView:
    """Show the server the part of the tracker in its process that it may use. Safe to call from any thread."""

    name: str
    term: Callable[[], int | None]
    lease_ages: Callable[[], Mapping[int, float]]


def _json(content: object, status_code: int = 200) -> Response:
    return Response(json.dumps(content, indent=2) + "\n", status_code, media_type="application/json")


def _not_found(what: str) -> HTTPException:
    return HTTPException(404, what)


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
            if (unnamed := _unnamed(scope)) is not None:
                await unnamed(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_trusted(self, scope: Scope) -> bool:
        if has_write_token(scope, self._write_token):
            return True
        if self._token is not None:
            return self._token.is_sent(scope)
        headers = {name.lower(): value for name, value in scope["headers"]}
        return is_written_as_loopback(host_name(headers.get(b"host", b"").decode("latin-1")))

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


def _unnamed(scope: Scope) -> Response | None:
    """Return the answer to a path or a query with a NUL, which no name of the driver log has and Postgres refuses."""
    if "\0" in scope["path"]:
        return PlainTextResponse("there is no such path: it has a NUL character\n", 404)
    if b"\0" in unquote_to_bytes(scope["query_string"]):
        return PlainTextResponse("the query has a NUL character: leave it out\n", 400)
    return None


class _Pages:
    """Serve the endpoints. Each request runs in a thread of the server's pool, and may wait for the driver log."""

    def __init__(
        self,
        engine: sa.Engine,
        tracker: TrackerView,
        clock: Callable[[], float],
        metrics_max_receivers: int,
        dagster_url: str | None,
        replay_dagster: ReplayDagster | None,
        write_token: str | None,
    ) -> None:
        self._engine = engine
        self._tracker = tracker
        self._metrics_max_receivers = metrics_max_receivers
        self._progress = StreamingProgress(clock)
        self._outage = Outage("the tracker's HTTP server")
        self._outage_lock = threading.Lock()
        self._status = StatusPages(self._connect, tracker=tracker.name, dagster_url=dagster_url)
        self._writes = Writes(self._connect, self._pipeline_and_batch, token=write_token, dagster=replay_dagster)
        self._write_token = write_token

    def routes(self) -> list[BaseRoute]:
        streaming = f"{_API}/{{pipeline}}/streaming"
        return [
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/metrics", self._metrics),
            Route(_API, self._applications),
            Route(f"{_API}/{{pipeline}}", self._application),
            Route(f"{streaming}/statistics", self._statistics),
            Route(f"{streaming}/receivers", self._receivers),
            Route(f"{streaming}/receivers/{{receiver}}", self._receiver),
            Route(f"{streaming}/batches", self._batches),
            Route(f"{streaming}/batches/{{batch}}", self._batch),
            Route(f"{streaming}/batches/{{batch}}/operations", self._operations),
            Route(f"{streaming}/batches/{{batch}}/operations/{{operation}}", self._operation),
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
        return _json({"error": f"the driver log does not answer: {error}", "path": request.url.path}, 503)

    def _refused(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        if StatusPages.is_for(request.url.path):
            return self._status.problem("There is no such page", error.detail, error.status_code)
        answer = _json({"error": error.detail}, error.status_code)
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
        return _json(body)

    def _ready(self, request: Request) -> Response:
        trusted = request.scope["forebay.trusted"]
        try:
            with self._connect() as connection:
                leadership = read_leadership(connection)
        except SURVIVED as error:
            self._failed(error)
            # The reason names hosts and users, so only trusted clients get it.
            why = f"the driver log does not answer: {error}" if trusted else "the driver log does not answer"
            return _json({"status": "not ready", "reason": why}, 503)
        body: dict[str, object] = {"status": "ready", "leading": self._tracker.term() is not None}
        if trusted:
            body["leader"] = leadership.holder
        return _json(body)

    def _metrics(self, request: Request) -> Response:
        try:
            progress = self._progress.look(self._connect)
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

    # -- the original's REST endpoints -------------------------------------------------------------------------------

    @staticmethod
    def _pipeline(connection: sa.Connection, request: Request) -> WatchedPipeline:
        name = request.path_params["pipeline"]
        for pipeline in store.watched_pipelines(connection):
            if pipeline.name == name:
                return pipeline
        raise _not_found(f"unknown app: there is no pipeline {name!r}; see {_API}")

    def _applications(self, request: Request) -> Response:
        del request
        now = datetime.now(UTC)
        with self._connect() as connection:
            return _json([api.application(pipeline, now) for pipeline in store.watched_pipelines(connection)])

    def _application(self, request: Request) -> Response:
        with self._connect() as connection:
            return _json(api.application(self._pipeline(connection, request), datetime.now(UTC)))

    def _statistics(self, request: Request) -> Response:
        progress = self._progress.look(self._connect)
        with self._connect() as connection:
            pipeline = self._pipeline(connection, request)
            found = [each for each in progress.pipelines if each.pipeline.pipeline_id == pipeline.pipeline_id]
            if not found:
                raise HTTPException(503, f"pipeline {pipeline.name!r} was applied just now: ask again")
            retained = store.newest_batches(connection, pipeline.pipeline_id, limit=RETAINED_BATCHES)
            receivers = store.watched_receivers(connection, pipeline.stream_ids)
        return _json(api.statistics(found[0], retained, receivers))

    def _receivers(self, request: Request) -> Response:
        with self._connect() as connection:
            return _json(self._receiver_infos(connection, request, None))

    def _receiver(self, request: Request) -> Response:
        receiver_id = _number(request, "receiver")
        with self._connect() as connection:
            found = self._receiver_infos(connection, request, receiver_id)
        if not found:
            raise _not_found(f"unknown receiver: {receiver_id}")
        return _json(found[0])

    def _receiver_infos(
        self, connection: sa.Connection, request: Request, receiver_id: int | None
    ) -> list[api.JsonObject]:
        pipeline = self._pipeline(connection, request)
        receivers = [
            receiver
            for receiver in store.watched_receivers(connection, pipeline.stream_ids)
            if receiver_id in (None, receiver.receiver_id)
        ]
        retained = store.newest_batches(connection, pipeline.pipeline_id, limit=RETAINED_BATCHES)
        records: Mapping[tuple[datetime, int], int] = {}
        if retained and receivers:
            since, records = store.records_by_receiver(
                connection,
                pipeline.pipeline_id,
                receiver_ids=[receiver.receiver_id for receiver in receivers],
                first=retained[0].batch_time,
            )
            retained = [batch for batch in retained if batch.batch_time >= since]
        return [api.receiver_info(pipeline, receiver, retained, records) for receiver in receivers]

    def _batches(self, request: Request) -> Response:
        wanted = _statuses(request)
        with self._connect() as connection:
            pipeline = self._pipeline(connection, request)
            found = [
                batch
                for batch in (
                    *store.newest_finished_batches(connection, pipeline.pipeline_id, limit=RETAINED_BATCHES),
                    *store.unfinished_batches(connection, pipeline.pipeline_id, limit=RETAINED_BATCHES),
                )
                if api.STATUS[batch.state] in wanted
            ]
            operations = self._found_operations(connection, pipeline, found)
        newest_first = sorted(found, key=lambda batch: batch.batch_time, reverse=True)
        return _json([api.batch_info(pipeline, batch, operations[batch.batch_time]) for batch in newest_first])

    def _batch(self, request: Request) -> Response:
        pipeline, batch, operations = self._one_batch(request)
        return _json(api.batch_info(pipeline, batch, operations))

    def _operations(self, request: Request) -> Response:
        _, batch, operations = self._one_batch(request)
        return _json([api.operation_info(batch, operation) for operation in operations])

    def _operation(self, request: Request) -> Response:
        number = _number(request, "operation")
        _, batch, operations = self._one_batch(request)
        for operation in operations:
            if operation.operation_id == number:
                return _json(api.operation_info(batch, operation))
        raise _not_found(f"unknown output operation: {number}")

    def _one_batch(self, request: Request) -> tuple[WatchedPipeline, WatchedBatch, list[api.OutputOperation]]:
        with self._connect() as connection:
            pipeline, batch = self._found_batch(connection, request)
            return pipeline, batch, self._found_operations(connection, pipeline, [batch])[batch.batch_time]

    def _pipeline_and_batch(self, request: Request) -> tuple[WatchedPipeline, WatchedBatch]:
        with self._connect() as connection:
            return self._found_batch(connection, request)

    def _found_batch(self, connection: sa.Connection, request: Request) -> tuple[WatchedPipeline, WatchedBatch]:
        number = _number(request, "batch")
        pipeline = self._pipeline(connection, request)
        try:
            first = api.EPOCH + timedelta(milliseconds=number)
            before = first + timedelta(milliseconds=1)
        except OverflowError:
            raise _not_found(f"unknown batch: {number}") from None
        batch = store.batch_between(connection, pipeline.pipeline_id, first, before)
        if batch is None:
            raise _not_found(f"unknown batch: {number}")
        return pipeline, batch

    @staticmethod
    def _found_operations(
        connection: sa.Connection, pipeline: WatchedPipeline, found: Sequence[WatchedBatch]
    ) -> dict[datetime, list[api.OutputOperation]]:
        if not found:
            return {}
        times = [batch.batch_time for batch in found]
        commits: dict[datetime, list[store.OutputResult]] = {time: [] for time in times}
        for commit in store.output_commits(
            connection,
            pipeline.pipeline_id,
            outputs=api.output_names(pipeline),
            first=min(times),
            last=max(times),
        ):
            if commit.batch_time in commits:
                commits[commit.batch_time].append(commit)
        errors: dict[datetime, dict[str, str]] = {time: {} for time in times}
        for failure in newest_output_failures(connection, pipeline.pipeline_id, first=min(times), last=max(times)):
            if failure.batch_time in errors:
                errors[failure.batch_time][failure.output] = failure.error
        return {
            batch.batch_time: api.operations(pipeline, batch, commits[batch.batch_time], errors[batch.batch_time])
            for batch in found
        }


def _number(request: Request, name: str) -> int:
    value: str = request.path_params[name]
    # int() also accepts signs, spaces, underscores and digits of other scripts; these are refused.
    if not (value.isascii() and value.isdigit()) or len(value) > len(str(2**63 - 1)):
        raise _not_found(f"unknown {name}: {value!r} is no number")
    number = int(value)
    if number >= 2**63:
        raise _not_found(f"unknown {name}: {number}")
    return number


def _statuses(request: Request) -> frozenset[api.BatchStatus]:
    given = request.query_params.getlist("status")
    wanted = set()
    for value in given:
        try:
            wanted.add(api.BatchStatus(value.upper()))
        except ValueError:
            # The original also answers 404 to a parameter that it can't read.
            raise _not_found(f"unknown status: {value!r}; use {', '.join(api.BatchStatus)}") from None
    return frozenset(wanted or api.BatchStatus)


class TrackerHttpServer:
    """Serve HTTP in a thread, while the context is entered. `address_file` holds the server's URL meanwhile."""

    def __init__(
        self,
        engine: sa.Engine,
        tracker: TrackerView,
        address: ListenAddress,
        *,
        address_file: Path,
        first_retry_seconds: float = FIRST_RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        metrics_max_receivers: int = MAX_RECEIVERS,
        dagster_url: str | None = None,
        replay_dagster: ReplayDagster | None = None,
    ) -> None:
        """Prepare to serve.

        Args:
            engine: the driver log; used by this server only, with a short statement timeout.
            tracker: the tracker in the same process.
            address: where to listen, and what a client has to send.
            address_file: holds the URL while the server listens.
            first_retry_seconds: how long to wait before a port in use is tried the second time.
            clock: monotonic, in seconds.
            metrics_max_receivers: the most receivers with samples of their own in /metrics.
            dagster_url: Dagster's webserver, to which the status page has links.
            replay_dagster: executes the replays that are requested here; None: they are refused.
        """
        pages = _Pages(engine, tracker, clock, metrics_max_receivers, dagster_url, replay_dagster, address.write_token)
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
