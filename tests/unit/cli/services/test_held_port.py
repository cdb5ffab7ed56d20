"""Check that `forebay up` keeps the port of its web pages, which no other Forebay may choose, from start to end."""

from __future__ import annotations

import socket

import pytest

from forebay.cli.services.child import SupervisorError
from forebay.cli.services.held_port import HOST, held_port


def test_a_held_port_refuses_connections_and_is_given_to_no_other_process() -> None:
    with held_port(0, else_any=0) as port:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port), timeout=5)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((HOST, port))


def test_one_webserver_after_another_listens_on_a_held_port() -> None:
    with held_port(0, else_any=0) as port:
        for _ in range(2):
            with socket.create_server((HOST, port)) as webserver:
                socket.create_connection(webserver.getsockname(), timeout=5).close()


def test_two_that_have_not_begun_to_listen_never_hold_the_same_port() -> None:
    with held_port(0, else_any=0) as first:
        with held_port(None, else_any=first) as second:
            assert second != first
        with pytest.raises(SupervisorError, match="--ui-port"), held_port(first, else_any=0):
            pass
    with held_port(first, else_any=0) as again:
        assert again == first


def test_a_port_that_another_server_has_is_named_with_the_way_out() -> None:
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        expected = rf"{HOST}:{port}: Address already in use\. .*--ui-port"
        with pytest.raises(SupervisorError, match=expected), held_port(port, else_any=0):
            pass
