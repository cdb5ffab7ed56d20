"""Check that `forebay up` keeps the port of its web pages from its start to its end."""

from __future__ import annotations

import socket

import pytest

from forebay.cli.commands.up import HOST, _held_ui_port
from forebay.cli.services.child import SupervisorError


def test_a_held_port_refuses_connections_and_is_given_to_no_other_process() -> None:
    with _held_ui_port(0) as held:
        address = (HOST, held.getsockname()[1])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)


def test_one_webserver_after_another_listens_on_a_held_port() -> None:
    with _held_ui_port(0) as held:
        for _ in range(2):
            with socket.create_server((HOST, held.getsockname()[1])) as webserver:
                socket.create_connection(webserver.getsockname(), timeout=5).close()


def test_a_port_that_another_server_has_is_named_with_the_way_out() -> None:
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SupervisorError, match=rf"{HOST}:{port}: Address already in use\. .*--ui-port"):
            _held_ui_port(port)
