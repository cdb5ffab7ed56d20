"""A WebSocket server whose messages are numbered, and that knows which of them must come.

It shares its messages out among its connections. Nothing is acknowledged, so what was sent on a connection that ended
may be lost from some message on; everything else must come, and nothing twice.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forebay_websocket import WebSocket
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from forebay.testing.sources import Sending, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.testing.source_rig import SourceRig

_IDLE_SECONDS = 0.01


@dataclass(eq=False)
class _Connection:
    sent: list[bytes] = field(default_factory=list)
    ended: bool = False


class Feed:
    """See the module. It is the adapter of the conformance suite (``forebay.testing.sources.SourceAdapter``)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[bytes | str] = deque()
        self._connections: list[_Connection] = []
        self._number = 0
        self._port = 0
        self._server = self._serve()

    def _serve(self) -> Server:
        server = serve(self._feed, "127.0.0.1", self._port, max_size=2**20)
        self._port = server.socket.getsockname()[1]
        self._closing = threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()

    def _feed(self, socket: ServerConnection) -> None:
        closing, connection = self._closing, _Connection()
        with self._lock:
            self._connections.append(connection)
        try:
            while not closing.is_set():
                with self._lock:
                    message = self._queue.popleft() if self._queue else None
                    if message is not None:
                        connection.sent.append(message.encode() if isinstance(message, str) else message)
                if message is not None:
                    socket.send(message)
                else:
                    # That a receiver went is noticed by reading; it never sends anything.
                    with suppress(TimeoutError):
                        socket.recv(_IDLE_SECONDS)
        except ConnectionClosed:
            pass
        finally:
            connection.ended = True

    def source(self, **changes: Any) -> WebSocket:  # noqa: ANN401  fields of its own
        return WebSocket(**{"url": f"ws://127.0.0.1:{self._port}/feed", **changes})

    def send(self, records: int) -> None:
        with self._lock:
            for number in range(self._number, self._number + records):
                self._queue.append(f"message {number}" if number % 3 else b"message %d" % number)
            self._number += records

    def send_odd(self) -> int:
        odd = ["", "é", b"\xff\0", b"x" * 1_000_000]
        with self._lock:
            self._queue.extend(odd)
        return len(odd)

    def sending(self) -> Sending:
        return Sending(lambda: self.send(50))

    @contextmanager
    def away(self) -> Iterator[None]:
        self.close()
        eventually(lambda: all(connection.ended for connection in self._connections), "no connection")
        yield
        self._server = self._serve()

    def all_came(self, rig: SourceRig) -> bool:
        with self._lock:
            if self._queue or all(connection.ended for connection in self._connections):
                return False
            sure = {message for one in self._connections if not one.ended for message in one.sent}
        return rig.registered() >= len(sure) and sure <= {row["value"] for row in rig.rows()}

    def check(self, rig: SourceRig) -> None:
        came = Counter(row["value"] for row in rig.rows())
        assert max(came.values()) == 1, "messages came twice"
        assert came.keys() <= {message for one in self._connections for message in one.sent}
        for connection in self._connections:
            arrived = [message in came for message in connection.sent]
            kept = sum(arrived) if connection.ended else len(arrived)
            assert arrived == [True] * kept + [False] * (len(arrived) - kept), "more than the tail is lost"
        assert rig.failed_checks() == []
