"""Test the datagrams that systemd gets, on a socket like its own."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from receiver_runtime.agent.service_manager import ServiceManager

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["path", "abstract"])
def notify(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """Listen as systemd does; yield the address for NOTIFY_SOCKET and the socket."""
    name = f"@forebay-test-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(5)
        listening.bind(name.replace("@", "\0", 1) if request.param == "abstract" else name)
        yield name, listening


def test_each_state_is_one_datagram(notify: tuple[str, socket.socket]) -> None:
    address, listening = notify
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1", "HOME": "/"}
    manager = ServiceManager.taken_from(environment)
    assert environment == {"HOME": "/"}, "a child would speak for the agent"
    manager.ready()
    manager.alive("2 receiver processes")
    manager.stopping()
    assert [listening.recv(4096) for _ in range(3)] == [
        b"READY=1",
        b"WATCHDOG=1\nSTATUS=2 receiver processes",
        b"STOPPING=1",
    ]


def test_without_a_service_manager_nothing_is_sent() -> None:
    manager = ServiceManager.taken_from({})
    with capture_logs() as logs:
        manager.ready()
        manager.alive("")
        manager.stopping()
    assert logs == []


def test_a_socket_that_is_gone_is_logged_once_and_fails_nothing(tmp_path: Path) -> None:
    manager = ServiceManager(str(tmp_path / "gone"))
    with capture_logs() as logs:
        for _ in range(3):
            manager.alive("")
    assert [entry["log_level"] for entry in logs] == ["warning"]


def test_a_full_socket_does_not_delay(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        manager = ServiceManager(str(tmp_path / "notify"))
        with capture_logs() as logs:
            for _ in range(10_000):
                manager.alive("nobody reads this")
        assert len(logs) == 1
