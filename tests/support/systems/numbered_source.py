"""A TCP source that numbers its lines and sends each number once, to any client that connects."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Self

from tests.support.polling import joined

if TYPE_CHECKING:
    from types import TracebackType

_CHUNK = 100


class NumberedSource:
    """Send 1, 2, 3 … at about a thousand lines a second while sending is on.

    Lines given to a connection that then broke are never sent again: a socket's sender can't know what arrived.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.2)
        self._sending = threading.Event()
        # Held while a chunk is handed over.
        self._handing_over = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="numbered source")
        self.last_sent = 0

    @property
    def port(self) -> int:
        """Return the port on which the source listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def send(self) -> None:
        """Start or resume sending."""
        self._sending.set()

    def pause(self) -> int:
        """Keep the connection but send nothing; return the last number, which has been handed over by then."""
        with self._handing_over:
            self._sending.clear()
            return self.last_sent

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._sending.set()
        joined(self._thread)
        self._listener.close()

    def _serve(self) -> None:
        while not self._stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            with connection:
                self._feed(connection)

    def _feed(self, connection: socket.socket) -> None:
        connection.settimeout(0.1)
        while not self._stopped.is_set():
            try:
                if connection.recv(1) == b"":
                    return
            except TimeoutError:
                pass
            except OSError:
                return
            if not self._sending.wait(0.1):
                continue
            try:
                self._hand_over(connection)
            except OSError:
                return

    def _hand_over(self, connection: socket.socket) -> None:
        with self._handing_over:
            if not self._sending.is_set():
                return
            first = self.last_sent + 1
            self.last_sent += _CHUNK
            connection.sendall(b"".join(b"%d\n" % n for n in range(first, self.last_sent + 1)))
