"""Check that each fault of a `make chaos` proxy affects connections as its name says."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from tests.chaos.proxies import Mode, Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT = 20.0


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """Give a proxy in front of an echo server."""
    with socket.create_server(("127.0.0.1", 0)) as listener, Proxy(listener.getsockname()[1]) as proxy:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield proxy


def serve(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=echo, args=(connection,), daemon=True).start()


def echo(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        while data := connection.recv(1024):
            connection.sendall(data)


def client(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=TIMEOUT)


def is_cut(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def is_refused(proxy: Proxy) -> bool:
    try:
        connection = client(proxy)
    except ConnectionError:
        return True
    with connection:
        return is_cut(connection)


def test_bytes_pass_with_and_without_delay(proxy: Proxy) -> None:
    with client(proxy) as connection:
        for mode in (Mode.PASS, Mode.DELAY):
            proxy.set(mode, delay_seconds=0.05)
            connection.sendall(b"there")
            assert connection.recv(1024) == b"there"


def test_a_cut_closes_open_and_new_connections_until_healed(proxy: Proxy) -> None:
    with client(proxy) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        proxy.set(Mode.CUT)
        assert is_cut(connection)
    assert is_refused(proxy)
    proxy.set(Mode.PASS)
    with client(proxy) as healed:
        healed.sendall(b"b")
        assert healed.recv(1) == b"b"


def test_a_reset_closes_only_open_connections(proxy: Proxy) -> None:
    with client(proxy) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        proxy.reset()
        assert is_cut(connection)
    with client(proxy) as other:
        other.sendall(b"b")
        assert other.recv(1) == b"b"


def test_stalled_bytes_arrive_after_healing(proxy: Proxy) -> None:
    with client(proxy) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        proxy.set(Mode.STALL)
        connection.sendall(b"b")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        proxy.set(Mode.PASS)
        connection.settimeout(TIMEOUT)
        assert connection.recv(1) == b"b"


def test_missing_target_closes_the_connection(proxy: Proxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        proxy.target = gone.getsockname()[1]
    assert is_refused(proxy)
