"""Check that connections that ask nothing keep no client from the tracker's /health."""

from __future__ import annotations

import contextlib
import http.client
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from orchestration.dagster_instance import http_connections
from orchestration.dagster_instance.http_connections import MOST_CONNECTIONS, RequestLimit
from orchestration.tracker.http.http import TrackerHttpServer, TrackerView
from orchestration.tracker.http.listen_address import ListenAddress
from tests.support.polling import eventually
from tracker_store.connection.engine import create_engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from starlette.types import Message, Receive, Scope, Send


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """Serve without a driver log: /health needs none."""
    engine = create_engine("postgresql://nobody@127.0.0.1:1/none", application_name="tests")
    view = TrackerView("host:1", lambda: None, dict)
    server = TrackerHttpServer(
        engine, view, ListenAddress("127.0.0.1", 0, None), address_file=tmp_path / "run" / "tracker.url"
    )
    with server:
        eventually(lambda: server.url is not None, "the server", seconds=60)
        where = urlsplit(server.url or "")
        yield where.hostname or "", where.port or 0
    engine.dispose()


def health(address: tuple[str, int]) -> int:
    connection = http.client.HTTPConnection(*address, timeout=30)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("said", [b"", b"GET /health HTT"], ids=["nothing", "half a head"])
def test_health_is_answered_while_hundreds_of_connections_ask_nothing(address: tuple[str, int], said: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(4 * MOST_CONNECTIONS):
            one = stack.enter_context(socket.create_connection(address, timeout=30))
            with contextlib.suppress(ConnectionError):
                one.sendall(said)
        assert health(address) == 200


@pytest.mark.parametrize(
    "said",
    [b"", b"GET /health HTT", b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1"],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_connection_on_which_nothing_is_asked_is_closed_in_time(
    address: tuple[str, int], said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "_QUIET_SECONDS", 0.3)
    with socket.create_connection(address, timeout=30) as one, contextlib.suppress(ConnectionError):
        one.sendall(said)
        while one.recv(65536):
            pass


def test_requests_beyond_the_limit_are_503_but_health_is_answered() -> None:
    asked: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])
        if scope["path"] == "/slow":
            # While this one is being answered, others come.
            for path in ("/metrics", "/health"):
                await limit({"type": "http", "path": path}, receive, send)

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    limit = RequestLimit(app, most=1, always="/health")
    run(limit({"type": "http", "path": "/slow"}, receive, send))
    assert asked == ["/slow", "/health"]
    assert [message["status"] for message in sent if message["type"] == "http.response.start"] == [503]
    run(limit({"type": "http", "path": "/metrics"}, receive, send))
    assert asked[-1] == "/metrics"


def run(coroutine: object) -> None:
    """Run a coroutine that waits for nothing."""
    with pytest.raises(StopIteration):
        coroutine.send(None)  # type: ignore[attr-defined]
