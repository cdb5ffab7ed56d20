"""A TCP proxy in front of Postgres that cuts connections around a request, which is how answers are really lost.

``pg_terminate_backend`` never loses the answer of a *committed* statement; a network does. Clients that connect through
the proxy must speak in clear text (``sslmode=disable``).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Self

import sqlalchemy as sa

from forebay.testing.cutting_proxy import connect_to, through

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Cut(StrEnum):
    """The point at which a connection is cut."""

    BEFORE_REQUEST = "before the request reaches the server"
    AFTER_REQUEST = "the server has the request and works on it"
    BEFORE_ANSWER = "the server has answered, and the client never hears it"


def is_call(request: bytes, function: str) -> bool:
    """Return whether a message to the server runs `function`; preparing it does not run it."""
    return function.encode() in request and b"PREPARE" not in request[:16]


class CuttingProxy:
    """Forward to the server of `url` while entered; `decide` is called with every message to the server.

    `cuts` counts the cuts that were made. `decide` runs on the threads of connections.
    """

    def __init__(self, url: str, decide: Callable[[bytes], Cut | None]) -> None:
        self._target = url
        self._decide = decide
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self._guard = threading.Lock()
        self.cuts: Counter[Cut] = Counter()

    @property
    def url(self) -> str:
        """Return the database's URL through this proxy."""
        target = sa.make_url(through(self._target, self._listener.getsockname()[1]))
        return target.update_query_dict({"sslmode": "disable", "gssencmode": "disable"}).render_as_string(
            hide_password=False
        )

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        # Closing alone would leave the thread that waits in accept() blocked.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, connect_to(self._target) as server:
            self._pump(client, server)

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        selector = selectors.DefaultSelector()
        selector.register(client, selectors.EVENT_READ, server)
        selector.register(server, selectors.EVENT_READ, client)
        swallow = False
        with selector:
            while not self._ended.is_set():
                for key, _ in selector.select(0.5):
                    source, target = key.fileobj, key.data
                    assert isinstance(source, socket.socket)
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    if source is server:
                        if swallow:
                            return
                        target.sendall(data)
                        continue
                    cut = self._decide(data)
                    if cut is not None:
                        with self._guard:
                            self.cuts[cut] += 1
                    if cut is Cut.BEFORE_REQUEST:
                        return
                    target.sendall(data)
                    if cut is Cut.AFTER_REQUEST:
                        client.close()
                        self._close_gracefully(server)
                        return
                    swallow = swallow or cut is Cut.BEFORE_ANSWER

    @staticmethod
    def _close_gracefully(server: socket.socket) -> None:
        """Close without a reset, which could discard the request before the server reads it."""
        server.shutdown(socket.SHUT_WR)
        while server.recv(1 << 16):
            pass
