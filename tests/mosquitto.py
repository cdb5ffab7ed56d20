"""Debian's mosquitto for tests: a broker of one's own on loopback, which can be ended and started again.

It answers a publisher before it has written anything: what it holds is saved when it is ended by SIGTERM, and at
intervals. So ``stop`` is the end that loses nothing, and a broker that is killed loses what it had promised; no test
of ours can say anything else of it.
"""

from __future__ import annotations

import contextlib
import getpass
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from tests.held_ports import held_ports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DEADLINE_SECONDS = 20.0


class NoMosquittoError(Exception):
    """There is no mosquitto to test against: install Debian's package of that name."""


class Mosquitto:
    """One broker, on a port that it keeps over restarts; of the settings of mosquitto.conf."""

    def __init__(self, directory: Path, settings: Mapping[str, object] | None = None) -> None:
        found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
        if found is None:
            raise NoMosquittoError(NoMosquittoError.__doc__)
        self._program = found
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        #: What `close` ends first: a client that is left looks for its broker for ever, beside the tests to come.
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
            # None of what waits for a receiver is thrown away.
            "max_queued_messages": 0,
            **(settings or {}),
        }
        self._configuration = directory / "mosquitto.conf"
        self._configuration.write_text("".join(f"{name} {value}\n" for name, value in lines.items()), encoding="utf-8")

    def start(self) -> None:
        """Start it; returns when it answers."""
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
        """End it, if it runs; it saves its sessions."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_DEADLINE_SECONDS)
            self._process = None

    def kill(self) -> None:
        """End it at once, if it runs; what it had not saved is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it for good, and its clients."""
        self.clients.close()
        self.kill()

    def said(self) -> str:
        """Its log."""
        path = self._directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""
