"""A paged HTTP API of orders, as docs/how-to/custom-receiver.md has it, that stops, starts and hangs on demand."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qs, urlsplit

from tests.support.polling import joined

if TYPE_CHECKING:
    from types import TracebackType

_PAUSE_SECONDS = 0.01


class PagedOrders:
    """Orders with the ids 1 to ``newest``, of which there are more and more while ``growing`` is set.

    The server and the orders are apart: orders come while the server is stopped too.
    """

    def __init__(self, port: int, *, each: int = 5) -> None:
        self.port = port
        self.newest = 0
        self.requests = 0
        self.growing = threading.Event()
        #: While it is cleared, requests get no answer.
        self.answers = threading.Event()
        self.answers.set()
        self._each = each
        self._closed = threading.Event()
        self._grower = threading.Thread(target=self._grow, daemon=True)
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        orders = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = urlsplit(self.path)
                orders.requests += 1
                orders.answers.wait(60)
                if asked.path != "/orders":
                    self.send_error(404)
                    return
                query = parse_qs(asked.query)
                body = json.dumps(orders.page(int(query["after"][0]), int(query["limit"][0]))).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Say nothing: a process that asked was killed."""

        self._server = Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def page(self, after: int, limit: int) -> list[dict[str, object]]:
        ids = range(after + 1, min(after + limit, self.newest) + 1)
        return [{"id": number, "item": f"item {number}"} for number in ids]

    def __enter__(self) -> Self:
        self._grower.start()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self.growing.set()
        self.answers.set()
        joined(self._grower)
        self.stop()

    def _grow(self) -> None:
        while not self._closed.wait(_PAUSE_SECONDS):
            self.growing.wait(60)
            self.newest += self._each
