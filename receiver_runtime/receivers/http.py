"""The receiver of an ``Http`` source. Owns the server of each ``on_start`` (``http_server``)."""

from __future__ import annotations

import threading
from typing import ClassVar

from receiver_runtime.receiver import Receiver
from receiver_runtime.receivers.http_routes import routes_of
from receiver_runtime.receivers.http_server import HttpServer
from receiver_runtime.sources.base import SourceRule
from receiver_runtime.sources.http import Http


class HttpReceiver(Receiver):
    """Listens, and acknowledges what is registered. See ``Http``."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = Http.columns
    # Of what was answered 202, for nobody sends it again; ``KeyedHandOver`` marks the blocks of all other requests.
    source_rule: ClassVar[SourceRule | None] = SourceRule.NOT_SENT_AGAIN

    def __init__(self, source: Http) -> None:
        super().__init__()
        self._source = source
        self._routes = routes_of(source)
        self._lock = threading.Lock()
        self._server: HttpServer | None = None

    def on_start(self) -> None:
        """Start a server."""
        server = HttpServer(self, self._source, self._routes)
        with self._lock:
            # Said before on_stop is called: nobody would end this one.
            if not self.is_stopped():
                self._server = server
                server.start()

    def on_stop(self) -> None:
        """End it; returns when everybody is answered and the port is free. Safe twice."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.stop()
