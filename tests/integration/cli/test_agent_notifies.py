"""Test that a real `forebay agent` reports to systemd, here a socket of the test: ready, alive, stopping."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from pathlib import Path


def test_an_agent_is_ready_alive_and_stopping(database_url: str, home: Path, tmp_path: Path) -> None:
    address = tmp_path / "notify"
    environment = {
        **os.environ,
        "NOTIFY_SOCKET": str(address),
        "WATCHDOG_USEC": "60000000",
        "FOREBAY_DATABASE_URL": database_url,
        "FOREBAY_HOME": str(home),
        "FOREBAY_TRACKER_HTTP": "off",
    }
    command = [sys.executable, "-m", "forebay.cli", "agent", "--roles", "tracker", "--host", "h1"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(60)
        listening.bind(str(address))
        with (tmp_path / "agent.log").open("wb") as log:
            agent = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            said = [listening.recv(4096).decode() for _ in range(4)]
            assert said[0] == "READY=1"
            assert all(message.startswith("WATCHDOG=1\nSTATUS=0 receiver processes") for message in said[1:])
            # A child that had the socket would speak for the agent.
            for child in psutil.Process(agent.pid).children(recursive=True):
                assert "NOTIFY_SOCKET" not in child.environ()
            agent.send_signal(signal.SIGTERM)
            while (message := listening.recv(4096)) != b"STOPPING=1":
                assert message.startswith(b"WATCHDOG=1\n")
            assert agent.wait(60) == 0
        finally:
            agent.kill()
            agent.wait(60)
