"""Run the server of one signal's receiver: OTLP/HTTP, OTLP/gRPC, and what other signals' receivers pass on."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from forebay_contrib.opentelemetry.door.addresses import shared_listener
from forebay_contrib.opentelemetry.door.app import OtlpApp
from forebay_contrib.opentelemetry.door.siblings import Siblings
from forebay_contrib.opentelemetry.signals import SIGNALS
from receiver_runtime.receivers.http.server import BACKLOG, HttpServer
from receiver_runtime.receivers.tcp import listening_socket
from receiver_runtime.sources.fields.tcp import address_of, parse_listen

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Sequence

    from starlette.types import ASGIApp

    from forebay_contrib.opentelemetry.declaration import OtlpHttp
    from receiver_runtime.receivers.http.app import HttpApp
    from receiver_runtime.receivers.http.requests.route import Route
    from receiver_runtime.supervisor.receiver import Receiver


# How many messages of gRPC may be read at once where max_waiting_bytes has room for fewer.
_MOST_READING = 16


class OtlpServer(HttpServer):
    """See the module. ``grpc`` is the address of gRPC; None: it is not taken."""

    def __init__(
        self,
        receiver: Receiver,
        source: OtlpHttp,
        routes: Sequence[Route],
        *,
        grpc: str | None,
        listener: socket.socket | None = None,
        is_paused: bool = False,
    ) -> None:
        super().__init__(receiver, source, routes, listener=listener, is_paused=is_paused)
        self._otlp_receiver = receiver
        self._otlp_source = source
        self._grpc = grpc
        [self._signal] = (signal for signal in SIGNALS if signal.path == source.own_path)
        self._siblings = Siblings(source.listen, self._signal.name, terms=source.address_terms)
        # The socket with the own name, until it is served.
        self._name: socket.socket | None = None

    def open_listener(self) -> socket.socket:
        """Return a socket at the source's address, which the receivers of other signals may share. Raises OSError."""
        address = self._otlp_source.listen_address
        if not self._siblings.can_share:
            return listening_socket(address, backlog=BACKLOG)
        listener, self._name = self._siblings.open_port(backlog=BACKLOG)
        return listener

    @contextlib.asynccontextmanager
    async def serving_beside(self, app: HttpApp) -> AsyncIterator[ASGIApp]:
        """Serve gRPC and what other receivers pass on; yield the application that knows all signals."""
        source = self._otlp_source
        application = OtlpApp(app, self._signal, self._siblings, listen=source.listen)
        name, self._name = self._name, None
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._siblings.taking(app, name, self._otlp_receiver.report_error))
            if self._grpc is not None:
                where = await self._serve_calls(self._grpc, app, application, stack)
                self._otlp_receiver.supervisor.report_note("grpc", f"gRPC at {where}")
            yield application

    def _stop(self, *, keep: bool) -> None:
        super()._stop(keep=keep)
        # It has not come to be served.
        self._close_name()

    async def _serve_calls(
        self, grpc: str, app: HttpApp, application: ASGIApp, stack: contextlib.AsyncExitStack
    ) -> str:
        """Serve gRPC until the stack is closed, and return where. Raises OSError."""
        from forebay_contrib.opentelemetry.door.calls import serving_calls  # noqa: PLC0415  it loads grpcio

        source = self._otlp_source
        address = parse_listen(grpc)
        # Names of its own: a receiver that shares the port of HTTP need not have this one.
        siblings = Siblings(grpc, self._signal.name, terms=f"grpc {source.address_terms}")
        can_share = siblings.can_share and self._siblings.can_share
        name: socket.socket | None = None
        # gRPC opens the port itself, and would share a stranger's.
        if can_share:
            checked, name = siblings.open_port(backlog=1)
            checked.close()
        else:
            shared_listener(address, backlog=1, is_shared=lambda: False).close()
        if name is not None:
            stack.callback(name.close)
        port = await stack.enter_async_context(
            serving_calls(
                application,
                address,
                tls=source.tls,
                most_bytes=source.max_body_bytes,
                most_calls=source.max_connections,
                most_reading=max(_MOST_READING, source.max_waiting_bytes // source.max_body_bytes),
                idle_seconds=source.idle_timeout,
            )
        )
        if can_share:
            await stack.enter_async_context(siblings.taking(app, name, self._otlp_receiver.report_error))
        return address_of(address[0], port)

    def _close_name(self) -> None:
        if self._name is not None:
            self._name.close()
            self._name = None
