"""A TCP source that numbers its lines, outpaces a reader that has stopped, and measures how long it is held up.

It never gives up on a connection and never drops a line that it began: every number up to `sent` was handed to the
system, so that all of them arrive unless the process that reads them dies.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Self

from tests.support.polling import joined

if TYPE_CHECKING:
    from types import TracebackType

_TICK_SECONDS = 0.01


class SteadySource:
    """Sends lines `NUMBER PADDING` at a steady pace to one connection after the other; each number once.

    lines_per_second: the rate while nothing holds it up. line_bytes: the length of a line, with its newline.
    """

    def __init__(self, *, lines_per_second: int = 4000, line_bytes: int = 200) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0)
        self._lines = max(1, int(lines_per_second * _TICK_SECONDS))
        self._line_bytes = line_bytes
        self._sending = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="steady source")
        self._progress = time.monotonic()
        self.connections = 0
        self.sent = 0

    @property
    def port(self) -> int:
        """Return the port on which the source listens."""
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def held_up_for(self) -> float:
        """Return the seconds since the reader last took anything, while there is something to send."""
        return 0.0 if self._idle.is_set() else time.monotonic() - self._progress

    def send(self) -> None:
        """Start or resume sending."""
        self._progress = time.monotonic()
        self._idle.clear()
        self._sending.set()

    def pause(self, timeout: float = 60.0) -> int:
        """Finish the lines that are begun; return the last number when all are handed over."""
        self._sending.clear()
        assert self._idle.wait(timeout), f"the reader took nothing for {self.held_up_for:.0f} s"
        return self.sent

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        joined(self._thread)
        self._listener.close()

    def _serve(self) -> None:
        while not self._stopped.is_set():
            if not select.select([self._listener], [], [], 0.1)[0]:
                continue
            connection, _ = self._listener.accept()
            self.connections += 1
            with connection:
                connection.settimeout(0)
                # The less the kernel buffers, the sooner a stopped reader is noticed.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
                self._feed(connection)

    def _feed(self, connection: socket.socket) -> None:
        while not self._stopped.is_set():
            if not self._sending.is_set():
                self._idle.set()
                if self._hung_up(connection):
                    return
                self._sending.wait(0.05)
                continue
            lines = range(self.sent + 1, self.sent + 1 + self._lines)
            data = b"".join(b"%d ".ljust(self._line_bytes - 1, b"x") % number + b"\n" for number in lines)
            if not self._hand_over(connection, memoryview(data)):
                return
            self.sent = lines[-1]
            time.sleep(_TICK_SECONDS)

    def _hand_over(self, connection: socket.socket, data: memoryview) -> bool:
        while data and not self._stopped.is_set():
            if not select.select([], [connection], [], 0.1)[1]:
                continue
            try:
                count = connection.send(data)
            except BlockingIOError:
                continue
            except OSError:
                return False
            data = data[count:]
            self._progress = time.monotonic()
        return not data

    def _hung_up(self, connection: socket.socket) -> bool:
        if not select.select([connection], [], [], 0)[0]:
            return False
        try:
            return connection.recv(1) == b""
        except OSError:
            return True
