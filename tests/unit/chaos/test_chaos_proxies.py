"""The proxies of `make chaos` do to connections what their names say."""

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
    """A proxy before a server that sends everything back."""
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


def test_bytes_pass_also_when_they_are_delayed(proxy: Proxy) -> None:
    with client(proxy) as connection:
        for mode in (Mode.PASS, Mode.DELAY):
            proxy.set(mode, delay_seconds=0.05)
            connection.sendall(b"there")
            assert connection.recv(1024) == b"there"


def test_a_cut_ends_what_is_open_and_what_comes_until_it_is_healed(proxy: Proxy) -> None:
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


def test_a_reset_ends_what_is_open_and_nothing_else(proxy: Proxy) -> None:
    with client(proxy) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        proxy.reset()
        assert is_cut(connection)
    with client(proxy) as other:
        other.sendall(b"b")
        assert other.recv(1) == b"b"


def test_what_is_stalled_comes_when_it_is_healed(proxy: Proxy) -> None:
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


def test_a_target_that_is_not_there_closes_the_connection(proxy: Proxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        proxy.target = gone.getsockname()[1]
    assert is_refused(proxy)
