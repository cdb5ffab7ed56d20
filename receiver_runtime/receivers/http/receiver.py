"""Define the receiver of an ``Http`` source. Owns the server of each ``on_start`` (``server``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.routes import routes_of
from receiver_runtime.receivers.http.server import HttpServer
from receiver_runtime.receivers.run_receiver import RunReceiver

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from receiver_runtime.receivers.http.requests.route import Route


class HttpReceiver(RunReceiver):
    """Listen for requests, and acknowledge records that are registered. See ``Http``."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = Http.columns
    keeps_address = True
    # ``Http.source_rule`` is for records that were answered 202, because no sender sends these again.
    # ``KeyedHandOver`` marks the blocks of all other requests.

    def __init__(self, source: Http, routes: Sequence[Route] | None = None) -> None:
        super().__init__()
        self._source = source
        self._routes = routes_of(source) if routes is None else routes

    def make_run(self) -> HttpServer:
        """Return a server. Its ``stop`` returns when all requests are answered and the port is free."""
        return self.make_server()

    def make_server(self, *, listener: socket.socket | None = None, is_paused: bool = False) -> HttpServer:
        """Return a server; its arguments are those of ``HttpServer``."""
        return HttpServer(self, self._source, self._routes, listener=listener, is_paused=is_paused)

    def on_start(self) -> None:
        """Start a server, on the socket of the one that answered during a pause, so that no sender is refused."""
        run = self.make_run()
        with self._current_run_lock:
            if self.is_stopped():
                return
            if (listener := self._end_run()) is not None:
                run.take_over(listener)
            self._current_run = run
            run.start()

    def on_pause(self) -> None:
        """Drain as ``on_stop``, and keep the port: a server answers 503 there until ``on_start`` or ``on_stop``."""
        with self._current_run_lock:
            listener = self._end_run()
            self._current_run = run = self.make_server(listener=listener, is_paused=True)
            run.start()

    def _end_run(self) -> socket.socket | None:
        """End the server that there is, and return its listening socket, if it has one."""
        run, self._current_run = self._current_run, None
        return run.stop_listening() if isinstance(run, HttpServer) else None
