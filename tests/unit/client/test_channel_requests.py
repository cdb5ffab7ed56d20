"""Test requests and answers on a connection whose other side does as it likes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from forebay.client import RequestRefusedError, Sender, SenderLimits
from forebay.client.channel_requests import Answer, ChannelRequests, NoAnswerError
from tests.support.polling import joined
from tests.support.servers.channel_receiver import channel_receiver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextlib.contextmanager
def served(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Have connections served one by one, each closed at its end; yield a stream's URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    serve(connection)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/s"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        joined(thread)


def ask(url: str, *, timeout: float = 5.0, body: bytes = b"1\n") -> Answer:
    requests = ChannelRequests(url, "a", token="secret", timeout=timeout)
    with contextlib.closing(requests):
        return requests.send(body, offset=3, content_type="text/plain")


def test_a_request_is_whole_in_one_piece() -> None:
    found: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        found.append(connection.recv(2**16))
        connection.sendall(b"HTTP/1.1 200 OK\r\nForebay-Offset: 4\r\nContent-Length: 2\r\n\r\n{}")

    with served(serve) as url:
        assert ask(url) == Answer(200, 4, reason="{}")
    [request] = found
    head, _, body = request.partition(b"\r\n\r\n")
    assert body == b"1\n"
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/s HTTP/1.1"
    assert {b"Forebay-Channel: a", b"Forebay-Offset: 3", b"Authorization: Bearer secret"} < set(lines)


def test_an_answer_that_comes_slowly_ends_in_time() -> None:
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.recv(2**16)
        while not over.wait(0.02):
            connection.sendall(b"H")

    with served(serve) as url:
        began = time.monotonic()
        with pytest.raises(NoAnswerError, match=r"no whole answer in 0\.3 s"):
            ask(url, timeout=0.3)
        assert time.monotonic() - began < 5
        over.set()


def test_a_request_that_is_not_read_ends_in_time() -> None:
    over = threading.Event()

    def serve(_: socket.socket) -> None:
        over.wait(20)

    with served(serve) as url:
        with pytest.raises(NoAnswerError):
            ask(url, timeout=0.3, body=bytes(2**24))
        over.set()


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", b"SSH-2.0-x\r\n", b"\0" * 99]
)
def test_what_is_no_whole_answer_is_none(answer: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(2**16)
        connection.sendall(answer)

    with served(serve) as url, pytest.raises(NoAnswerError):
        ask(url)


def test_a_page_that_is_no_channel_is_named() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(2**16)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHello")

    with served(serve) as url:
        requests = ChannelRequests(url, "a", token=None, timeout=5.0)
        with contextlib.closing(requests), pytest.raises(RequestRefusedError, match="without the channel's offset"):
            requests.position()


def test_a_proxy_that_cuts_large_requests_gets_smaller_ones(tmp_path: Path) -> None:
    """Check that a sender does not send for ever what never arrives as a whole."""
    with channel_receiver() as receiver:
        receiver.cuts_above = 40_000
        limits = SenderLimits(linger=0.001, request_timeout=5.0)
        with Sender(receiver.url, channel="a", spool=tmp_path, limits=limits) as sender:
            sender.send_many(b'"%s"' % (b"x" * 997) for _ in range(150))
            sender.flush(30)
        assert len(receiver.channels["a"]) == 150


def test_a_token_of_the_url_is_sent() -> None:
    found: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        found.append(connection.recv(2**16))

    with served(serve) as url:
        requests = ChannelRequests(url.replace("//", "//me:word@"), "a", token=None, timeout=5.0)
        with contextlib.closing(requests), pytest.raises(NoAnswerError):
            requests.position()
    assert b"Authorization: Basic bWU6d29yZA==" in found[0]
    assert b"me:word" not in found[0]
