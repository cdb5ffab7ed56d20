"""A source on every host at once that gets acknowledgements, and the receiver that acknowledges it."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from forebay.receiver import Receiver
from tests.support.polling import joined

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_CHUNK = 20
_PAUSE = 0.05
# At most this many chunks may be in flight without an acknowledgement.
_WINDOW = 4


class AckingReceiver(Receiver):
    """Read lines of numbers, each line one block, and acknowledge each when it is registered."""

    columns = (("number", "int64"),)
    is_bound_to_host = False

    def __init__(self, port: int) -> None:
        self._port = port

    def on_start(self) -> None:
        """Connect on a thread."""
        self._stopping = threading.Event()
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def on_stop(self) -> None:
        """Stop reading; return when everything that was read has been handed on."""
        self._stopping.set()
        joined(self._thread)

    def _read(self) -> None:
        try:
            with (
                socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection,
                ThreadPoolExecutor(_WINDOW) as threads,
            ):
                self.report_connected(f"127.0.0.1:{self._port}")
                rest = b""
                while not self._stopping.is_set():
                    if select.select([connection], [], [], 0.1)[0]:
                        data = connection.recv(65536)
                        if not data:
                            break
                        # Several lines can come at once: no buffer may hold one back until more comes.
                        *lines, rest = (rest + data).split(b"\n")
                        for line in lines:
                            threads.submit(self._store, connection, line)
        except OSError as error:
            self.restart("the source can't be read", error)
            return
        if not self._stopping.is_set():
            self.restart("the source is gone")

    def _store(self, connection: socket.socket, line: bytes) -> None:
        numbers = [int(word) for word in line.split()]
        self.store(numbers)
        # Acknowledge only now, after the block is registered.
        connection.sendall(b"%d\n" % numbers[0])


class AckedSource:
    """Send 1, 2, 3 … once, in chunks, to any client on any host; record what was acknowledged.

    Chunks that a connection took but did not acknowledge are never sent again, so that nothing may come out twice.
    """

    def __init__(self, listeners: Sequence[socket.socket]) -> None:
        self._listeners = listeners
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._sending = threading.Event()
        self._threads = [threading.Thread(target=self._serve, args=(listener,)) for listener in listeners]
        self.port = int(listeners[0].getsockname()[1])
        self.sent = 0
        self.acknowledged: set[int] = set()
        self._on_their_way: set[int] = set()

    def send(self) -> None:
        """Start or resume sending."""
        self._sending.set()

    def pause(self) -> None:
        """Keep connections, but send nothing."""
        with self._lock:
            self._sending.clear()

    def is_at_rest(self) -> bool:
        """Return whether every number sent is acknowledged or its connection has ended."""
        with self._lock:
            return not self._on_their_way

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        for thread in self._threads:
            joined(thread)
        for listener in self._listeners:
            listener.close()

    def _serve(self, listener: socket.socket) -> None:
        listener.settimeout(0.2)
        threads: list[threading.Thread] = []
        while not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=self._feed, args=(connection,)))
                threads[-1].start()
        for thread in threads:
            joined(thread)

    def _feed(self, connection: socket.socket) -> None:
        waiting: set[int] = set()
        try:
            with connection, contextlib.suppress(OSError):
                self._converse(connection, waiting)
        finally:
            with self._lock:
                self._on_their_way -= waiting

    def _converse(self, connection: socket.socket, waiting: set[int]) -> None:
        rest = b""
        while not self._stopped.is_set():
            first = self._next() if len(waiting) < _WINDOW else None
            if first is not None:
                waiting.add(first)
                connection.sendall(b" ".join(b"%d" % n for n in range(first, first + _CHUNK)) + b"\n")
            if select.select([connection], [], [], _PAUSE)[0]:
                data = connection.recv(4096)
                if not data:
                    return
                *acknowledged, rest = (rest + data).split(b"\n")
                for word in acknowledged:
                    waiting.remove(int(word))
                    with self._lock:
                        self._on_their_way.remove(int(word))
                        self.acknowledged.update(range(int(word), int(word) + _CHUNK))
                time.sleep(_PAUSE)

    def _next(self) -> int | None:
        """Return the next chunk's first number and mark it as in flight; None while nothing is to be sent."""
        with self._lock:
            if not self._sending.is_set():
                return None
            first = self.sent + 1
            self.sent += _CHUNK
            self._on_their_way.add(first)
            return first
