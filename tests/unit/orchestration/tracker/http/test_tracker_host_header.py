"""Check that the tracker's HTTP server answers requests without one Host by 400, whatever they ask for."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from orchestration.tracker.http.http import TrackerHttpServer, TrackerView
from orchestration.tracker.http.listen_address import ListenAddress
from tests.support.polling import eventually

if TYPE_CHECKING:
    from pathlib import Path


ROUTES = ("/status/streams/", "/status/pipelines/", "/metrics", "/api/v1/applications/", "/health")


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        ("", 400),
        ("Host: localhost\r\nHost: localhost\r\n", 400),
        ("Host: localhost\r\nHost: evil.example\r\n", 400),
        ("Host: localhost\r\n", 200),
    ],
)
def test_a_request_has_one_host(tmp_path: Path, hosts: str, status: int) -> None:
    # Never connected to: /health asks no database.
    engine = sa.create_engine("postgresql+psycopg2://127.0.0.1:1/none")
    view = TrackerView("t", lambda: None, dict)
    with TrackerHttpServer(engine, view, ListenAddress("127.0.0.1", 0), address_file=tmp_path / "url") as server:
        eventually(lambda: server.url, "the server's address")
        port = urlsplit(str(server.url)).port
        eventually(lambda: answers(port), "the server")
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(f"GET /health HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode())
            assert connection.recv(65536).startswith(f"HTTP/1.1 {status} ".encode())
    engine.dispose()


@pytest.mark.parametrize("bad", ["%00", "%FC", "a%00b", "%ED%A0%80", "?a=%00", "?%FF=1", "?limit=%C3"])
def test_a_target_that_is_no_text_is_400_on_every_route(tmp_path: Path, bad: str) -> None:
    engine = sa.create_engine("postgresql+psycopg2://127.0.0.1:1/none")
    view = TrackerView("t", lambda: None, dict)
    with TrackerHttpServer(engine, view, ListenAddress("127.0.0.1", 0), address_file=tmp_path / "url") as server:
        eventually(lambda: server.url, "the server's address")
        port = urlsplit(str(server.url)).port
        eventually(lambda: answers(port), "the server")
        for route in ROUTES:
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                connection.sendall(
                    f"GET {route}{bad} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
                )
                assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")
    engine.dispose()


def answers(port: int | None) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0
