"""A TCP proxy that cuts, delays, resets and stalls connections. It does not interpret the bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_STALL_POLL = 0.05
_PIECE = 65536
# SO_LINGER on, with 0 seconds: close with a reset instead of in order.
_RESET = struct.pack("ii", 1, 0)


class Mode(StrEnum):
    """What the proxy does with the bytes."""

    PASS = "pass"
    CUT = "cut"
    """Reset connections, and new ones immediately."""
    DELAY = "delay"
    """Delay each piece."""
    STALL = "stall"
    """Forward nothing, without an error to either side."""


class Proxy:
    """Forward to `target`, a port of 127.0.0.1 that may be changed, while the context is entered."""

    def __init__(self, target: int = 0) -> None:
        self.target = target
        self.delay_seconds = 0.0
        self._mode = Mode.PASS
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._ended = False

    @property
    def port(self) -> int:
        """Return the port on which the proxy listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def set(self, mode: Mode, *, delay_seconds: float = 0.0) -> None:
        """Change the mode, also for open connections."""
        self.delay_seconds = delay_seconds
        self._mode = mode
        if mode is Mode.CUT:
            self.reset()

    def reset(self) -> None:
        """Reset all connections; new ones are forwarded as before."""
        with self._guard:
            for side in self._open:
                with contextlib.suppress(OSError):
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    # Wake the thread that waits in recv(); it closes the connection.
                    side.shutdown(socket.SHUT_RD)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._mode = Mode.CUT
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        while not self._ended:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        while self._mode is Mode.STALL:
            time.sleep(_STALL_POLL)
        if self._mode is Mode.CUT:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.close()
            return
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._guard:
            self._open |= {client, server}
        back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
        back.start()
        self._pump(client, server)
        back.join()
        with self._guard:
            self._open -= {client, server}
        client.close()
        server.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE):
                while self._mode is Mode.STALL:
                    time.sleep(_STALL_POLL)
                if self._mode is Mode.CUT:
                    break
                if self._mode is Mode.DELAY:
                    time.sleep(self.delay_seconds)
                target.sendall(data)
        if self._mode is Mode.CUT:
            for side in (source, target):
                with contextlib.suppress(OSError):
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    side.shutdown(socket.SHUT_RD)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
