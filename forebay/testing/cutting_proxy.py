"""Cut a receiver off from its driver log: a proxy in front of a Postgres that may listen on a Unix socket alone."""

from __future__ import annotations

import contextlib
import socket
import threading

import sqlalchemy as sa

# What leads to a Unix socket, and to no other server.
_TO_SOCKET = ("host", "port", "requirepeer")


def connect_to(url: str) -> socket.socket:
    """Open a connection to the server of a URL, which names a host or the directory of a Unix socket."""
    target = sa.make_url(url)
    if target.host is not None:
        connection = socket.create_connection((target.host, target.port or 5432), timeout=60)
        connection.settimeout(None)
        return connection
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"{target.query['host']}/.s.PGSQL.{target.query['port']}")
    except BaseException:
        connection.close()
        raise
    return connection


def through(url: str, port: int) -> str:
    """Return the URL of the same database through a proxy on this port of 127.0.0.1."""
    target = sa.make_url(url).difference_update_query(_TO_SOCKET).set(host="127.0.0.1", port=port)
    return target.render_as_string(hide_password=False)


class CuttingProxy:
    """Forward between a receiver and Postgres.

    `cut` breaks every connection in mid-message; `away` refuses new ones.
    """

    def __init__(self, target: str | int) -> None:
        """Take the database's URL, or a port of another server."""
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.away = False
        self.cuts = 0
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._closed = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._pairs)

    def cut(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        self.cuts += len(pairs)
        for pair in pairs:
            for side in pair:
                with contextlib.suppress(OSError):
                    side.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        self._thread.join(20)
        self._listener.close()
        self.cut()

    def _connect(self) -> socket.socket:
        if isinstance(self._target, int):
            connection = socket.create_connection(("127.0.0.1", self._target), timeout=60)
            connection.settimeout(None)
            return connection
        return connect_to(self._target)

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._closed or self.away:
                client.close()
                if self._closed:
                    return
                continue
            try:
                server = self._connect()
            except OSError:
                # No server is listening.
                client.close()
                continue
            with self._lock:
                # Check again: a cut that happened meanwhile did not know of this connection.
                let_in = not self.away
                if let_in:
                    self._pairs.append((client, server))
            if not let_in:
                client.close()
                server.close()
                continue
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        source.close()
