"""Runs one HTTP server, from one ``on_start`` to its ``on_stop``: its thread, loop, listening socket and TLS.

At a stop the socket is closed first, so that a load balancer sends elsewhere. Requests in flight are answered when
their blocks are registered, and each connection is closed after its answer. Requests that are still not answered after
a few seconds, because the driver log is unavailable, are answered 503: their records are stored, and will be registered
later or sent again.

While an operator pauses the receiver, a server of its own has the socket: it takes no record, and answers 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from typing import TYPE_CHECKING, cast

import structlog
import uvicorn

from receiver_runtime.receivers.connection_places import ConnectionPlaces
from receiver_runtime.receivers.http.acknowledgement import Acknowledgement
from receiver_runtime.receivers.http.app import HttpApp
from receiver_runtime.receivers.http.connections.accepting import Acceptor
from receiver_runtime.receivers.http.connections.buffering import BufferedHandOver
from receiver_runtime.receivers.http.connections.connections import ConnectionLimits, limited_protocol
from receiver_runtime.receivers.http.intake import Intake
from receiver_runtime.receivers.tcp import listening_socket
from receiver_runtime.sources.fields.secret import SecretError
from receiver_runtime.sources.fields.tcp import address_of, most_per_peer
from receiver_runtime.sources.fields.tls_context import server_context

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import AsyncIterator, Callable, Sequence

    from starlette.types import ASGIApp

    from receiver_runtime.receivers.http.connections.accepting import AcceptedProtocol
    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.protocol import RequestCheck
    from receiver_runtime.receivers.http.requests.route import Route
    from receiver_runtime.sources.fields.secret import Secret
    from receiver_runtime.supervisor.receiver import Receiver

_log = structlog.get_logger(__name__)

BACKLOG = 2048
_DRAIN_SHARE = 0.6  # the part of the time that a supervisor gives on_stop in which to answer requests


class HttpServer:
    """See the module. Call ``start`` and ``stop`` once each."""

    def __init__(
        self,
        receiver: Receiver,
        source: Http,
        routes: Sequence[Route],
        *,
        listener: socket.socket | None = None,
        is_paused: bool = False,
    ) -> None:
        """Take over ``listener``, if there is one; with ``is_paused``, answer every request 503."""
        self._given = listener
        self._is_paused = is_paused
        # The socket, once the thread has ended, if it is to stay open.
        self._kept: socket.socket | None = None
        self._keeps = False
        self._receiver = receiver
        self._source = source
        self._routes = routes
        self._lock = threading.Lock()
        self._stopping = False
        self._wake: Callable[[], None] | None = None
        self._acknowledgement: Acknowledgement | None = None
        # As much as one block may wait here, in addition to the block generator's own buffer.
        supervisor = receiver.supervisor
        self._buffering = BufferedHandOver(supervisor, most_bytes=supervisor.settings.max_block_bytes)
        self._thread = threading.Thread(target=self._run, name=f"http {source.listen}", daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Drain and end; returns when all requests are answered, the port is free, and records taken are registered."""
        self._stop(keep=False)

    def take_over(self, listener: socket.socket) -> None:
        """Serve this listening socket; to be called before ``start``."""
        self._given = listener

    def stop_listening(self) -> socket.socket | None:
        """Do as ``stop``, except that the port stays open: return its socket, where new connections wait.

        None if there is none, because it could not listen.
        """
        self._stop(keep=True)
        return self._kept

    def _stop(self, *, keep: bool) -> None:
        with self._lock:
            self._stopping = True
            self._keeps = keep
            if self._wake is not None:
                self._wake()
        self._thread.join()
        if self._acknowledgement is not None:
            self._acknowledgement.close()
        self._buffering.close()

    # -- for kinds that have more than this port ---------------------------------------------------------------------

    def open_listener(self) -> socket.socket:
        """Return a socket that listens at the source's address. Raises OSError."""
        return listening_socket(self._source.listen_address, backlog=BACKLOG)

    @contextlib.asynccontextmanager
    async def serving_beside(self, app: HttpApp) -> AsyncIterator[ASGIApp]:
        """Serve what is served besides, on the loop; yield the application that answers this port's requests."""
        yield app

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        listener: socket.socket | None = self._given
        try:
            tokens = [(token, secret.reference) for secret in self._source.tokens for token in _tokens_of(secret)]
            verify = self._source.verify
            check = None if verify is None else verify.load_check()(verify)
            context = None if self._source.tls is None else server_context(self._source.tls)
            listener = listener or self.open_listener()
        except (OSError, SecretError) as error:
            if listener is not None:
                listener.close()
            self._fail(f"Error listening on {self._source.listen}", error)
            return
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._serve(listener, context, tokens, check))
        except BaseException as error:  # noqa: BLE001  a thread that dies silently would receive nothing for ever
            with self._lock:
                stopping = self._stopping
            if not stopping:
                self._fail("the HTTP server failed", error)
            _log.exception("an HTTP server failed")
        finally:
            with self._lock:
                keeps = self._keeps
            if keeps and listener.fileno() >= 0:
                self._kept = listener
            else:
                listener.close()

    def _fail(self, message: str, error: BaseException) -> None:
        # A receiver that is paused is not restarted: its senders are refused connections until it goes on.
        if self._is_paused:
            self._receiver.report_error(message, error)
        else:
            self._receiver.restart(message, error)

    async def _serve(
        self,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        tokens: list[tuple[str, str]],
        check: RequestCheck | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        wake = asyncio.Event()
        with self._lock:
            if self._stopping:
                return
            self._wake = lambda: _call(loop, wake.set)
        acknowledgement = Acknowledgement(self._receiver.supervisor, loop, on_failed=self._on_failed)
        self._acknowledgement = acknowledgement
        supervisor = self._receiver.supervisor
        intake = Intake(
            self._source,
            supervisor,
            acknowledgement,
            self._buffering,
            tokens=tokens,
            check=check,
            is_paused=self._is_paused,
        )
        app = HttpApp(self._receiver, self._source, intake, self._routes)
        async with self.serving_beside(app) as application:
            await self._serve_until_stopped(listener, context, intake, app, self._configuration(application, app), wake)

    async def _serve_until_stopped(
        self,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        intake: Intake,
        app: HttpApp,
        config: uvicorn.Config,
        wake: asyncio.Event,
    ) -> None:
        server = uvicorn.Server(config)
        make_protocol = cast("Callable[..., AcceptedProtocol]", config.http_protocol_class)
        acceptor = Acceptor(
            listener,
            ConnectionPlaces(
                most=self._source.max_connections,
                most_per_peer=most_per_peer(self._source.max_connections, self._source.max_connections_per_peer),
            ),
            lambda: make_protocol(config=config, server_state=server.server_state, app_state={}),
            context,
            handshake_seconds=self._source.head_timeout,
            on_exhausted=self._on_exhausted,
        )
        host, port = listener.getsockname()[:2]
        if not self._is_paused:
            self._receiver.report_listening(address_of(host, port))
        # It has no socket of its own: the acceptor gives it its connections.
        serving = asyncio.ensure_future(server.serve(sockets=[]))
        acceptor.start()
        woken = asyncio.ensure_future(wake.wait())
        try:
            await asyncio.wait([serving, woken], return_when=asyncio.FIRST_COMPLETED)
            if not woken.done():
                await serving
                raise RuntimeError("the server ended without being stopped")
            intake.draining.set()
            acceptor.close()
            with self._lock:
                keeps = self._keeps
            if not keeps:
                listener.close()
            await self._drain(intake)
            server.should_exit = True
            await serving
        finally:
            woken.cancel()
            app.close()
            with self._lock:
                self._wake = None

    async def _drain(self, intake: Intake) -> None:
        seconds = self._receiver.supervisor.settings.receiver_stop_timeout * _DRAIN_SHARE
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(intake.quiet.wait(), seconds)
        intake.give_up_waiting()
        intake.acknowledgement.give_up()

    def _configuration(self, application: ASGIApp, app: HttpApp) -> uvicorn.Config:
        config = uvicorn.Config(
            application,
            access_log=False,
            http=limited_protocol(
                ConnectionLimits(
                    head_seconds=self._source.head_timeout,
                    idle_seconds=self._source.idle_timeout,
                    on_refused=self._on_refused,
                    on_invalid=self._on_invalid,
                ),
                app.direct,
            ),
            lifespan="off",
            log_config=None,
            # Uvicorn would log each invalid request; ``on_invalid`` reports them, with a count.
            log_level="error",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            # In whole seconds, rounded up so that it is not less than the setting.
            timeout_keep_alive=math.ceil(self._source.idle_timeout),
            ws="none",
        )
        config.load()
        return config

    def _on_failed(self, error: BaseException) -> None:
        # If the receiver was fenced, it ends anyway and is not restarted.
        self._receiver.restart("records could not be handed over", error)

    def _on_exhausted(self, error: OSError) -> None:
        self._receiver.report_error("no connection can be taken for a second: the system has no room", error)

    def _on_refused(self, peer: str, why: str) -> None:
        self._receiver.report_error(f"a connection was refused: {why}", ConnectionRefusedError(f"from {peer}"))

    def _on_invalid(self, peer: str) -> None:
        self._receiver.report_error(
            "bytes that are no HTTP/1.1 request were refused", ConnectionRefusedError(f"from {peer}")
        )


def _tokens_of(secret: Secret) -> list[str]:
    """Return the tokens of one sender: a line each, so that the old one and the new one count during a change.

    Raises:
        SecretError: there is none.
    """
    tokens = [line.strip() for line in secret.resolve().splitlines() if line.strip()]
    if not tokens:
        raise SecretError(f"there is no token: write one, or several in a line each, into {secret}")
    return tokens


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    # A loop that has ended needs no call.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(what)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory of loops, where uvloop is installed."""
    try:
        import uvloop  # noqa: PLC0415  no dependency of ours: Dagster's webserver brings it
    except ImportError:
        return None
    return uvloop.new_event_loop
