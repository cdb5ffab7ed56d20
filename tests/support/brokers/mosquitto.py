"""Debian's mosquitto for tests: a private broker on loopback, which can be stopped and started again.

It answers a publisher before it has written anything: it saves its messages when SIGTERM ends it, and at intervals. So
``stop`` loses nothing, and a broker that is killed loses messages that it had acknowledged; none of our tests can show
otherwise.
"""

from __future__ import annotations

import contextlib
import getpass
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from tests.support.machine.held_ports import held_ports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DEADLINE_SECONDS = 20.0


class NoMosquittoError(Exception):
    """There is no mosquitto to test against: install Debian's package of that name."""


class Mosquitto:
    """One broker, on a port that it keeps over restarts; `settings` are those of mosquitto.conf."""

    def __init__(self, directory: Path, settings: Mapping[str, object] | None = None) -> None:
        found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
        if found is None:
            raise NoMosquittoError(NoMosquittoError.__doc__)
        self._program = found
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        #: Clients that `close` ends first: one that is left would look for its broker for ever, during later tests.
        self.clients = contextlib.ExitStack()
        data = directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        [self.port] = held_ports(self, 1)
        lines = {
            "listener": f"{self.port} 127.0.0.1",
            "user": getpass.getuser(),
            "allow_anonymous": "true",
            "persistence": "true",
            "persistence_location": f"{data}/",
            # Drop no messages that wait for a receiver.
            "max_queued_messages": 0,
            **(settings or {}),
        }
        self._configuration = directory / "mosquitto.conf"
        self._configuration.write_text("".join(f"{name} {value}\n" for name, value in lines.items()), encoding="utf-8")

    def start(self) -> None:
        """Start the broker; return when it answers."""
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "-c", str(self._configuration)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while True:
            assert self._process.poll() is None, f"mosquitto ended: {self.said()[-2000:]}"
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert time.monotonic() < deadline, f"mosquitto does not answer: {self.said()[-2000:]}"
                time.sleep(0.01)
            else:
                return

    def stop(self) -> None:
        """Stop the broker, if it runs; it saves its sessions."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_DEADLINE_SECONDS)
            self._process = None

    def kill(self) -> None:
        """Kill the broker, if it runs; what it had not saved is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def close(self) -> None:
        """End the broker for good, and its clients."""
        self.clients.close()
        self.kill()

    def said(self) -> str:
        """Return the broker's log."""
        path = self._directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""
