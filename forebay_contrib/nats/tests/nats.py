"""Debian's nats-server with JetStream for tests: a private one on loopback, which can be killed and started again."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from tests.support.machine.held_ports import held_ports

if TYPE_CHECKING:
    from pathlib import Path

_DEADLINE_SECONDS = 20.0


class NoNatsError(Exception):
    """There is no nats-server to test against: install Debian's package of that name."""


class NatsServer:
    """One server, on a port that it keeps over restarts; `settings` are lines of nats.conf."""

    def __init__(self, directory: Path, settings: str = "") -> None:
        found = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
        if found is None:
            raise NoNatsError(NoNatsError.__doc__)
        self._program = found
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        [self.port] = held_ports(self, 1)
        self._configuration = directory / "nats.conf"
        self._configuration.write_text(
            f'host: 127.0.0.1\nport: {self.port}\njetstream {{ store_dir: "{directory}" }}\n{settings}\n',
            encoding="utf-8",
        )

    @property
    def address(self) -> str:
        """Return the address in the form that a source takes."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server; return when it accepts clients."""
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "-c", str(self._configuration)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while True:
            assert self._process.poll() is None, f"nats-server ended: {self.said()[-2000:]}"
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                    if connection.recv(4) == b"INFO":
                        return
            except OSError:
                time.sleep(0.01)
            assert time.monotonic() < deadline, f"nats-server does not answer: {self.said()[-2000:]}"

    def kill(self) -> None:
        """Kill the server, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def said(self) -> str:
        """Return the server's log."""
        path = self._directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""
