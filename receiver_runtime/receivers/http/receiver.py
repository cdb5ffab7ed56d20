"""The receiver of an ``Http`` source. Owns the server of each ``on_start`` (``server``)."""

from __future__ import annotations

from typing import ClassVar

from receiver_runtime.receivers.http.routes import routes_of
from receiver_runtime.receivers.http.server import HttpServer
from receiver_runtime.receivers.run_receiver import RunReceiver
from receiver_runtime.sources.http import Http


class HttpReceiver(RunReceiver):
    """Listen for requests, and acknowledge records that are registered. See ``Http``."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = Http.columns
    # ``Http.source_rule`` is for records that were answered 202, because no sender sends these again.
    # ``KeyedHandOver`` marks the blocks of all other requests.

    def __init__(self, source: Http) -> None:
        super().__init__()
        self._source = source
        self._routes = routes_of(source)

    def make_run(self) -> HttpServer:
        """Return a server. Its ``stop`` returns when all requests are answered and the port is free."""
        return HttpServer(self, self._source, self._routes)
