"""Debian's redis-server for tests: a private one on loopback, which can be killed and started again.

It syncs each command to its append-only file, so every command that it has answered survives a kill.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import redis

from tests.support.machine.held_ports import held_ports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DEADLINE_SECONDS = 20.0


class NoRedisError(Exception):
    """There is no redis-server to test against: install Debian's package of that name."""


class RedisServer:
    """One server, on a port that it keeps over restarts; `settings` are those of redis.conf."""

    def __init__(self, directory: Path, settings: Mapping[str, object] | None = None) -> None:
        found = shutil.which("redis-server")
        if found is None:
            raise NoRedisError(NoRedisError.__doc__)
        self._program = found
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        [self.port] = held_ports(self, 1)
        lines = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": directory,
            "appendonly": "yes",
            "appendfsync": "always",
            "save": '""',
            **(settings or {}),
        }
        self._configuration = directory / "redis.conf"
        self._configuration.write_text("".join(f"{name} {value}\n" for name, value in lines.items()), encoding="utf-8")

    def client(self, **options: object) -> redis.Redis:
        """Return a client with these options."""
        return redis.Redis(**{"host": "127.0.0.1", "port": self.port, "protocol": 2, **options})  # type: ignore[arg-type]

    def start(self, **options: object) -> None:
        """Start the server; return when it answers a client with these options."""
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, str(self._configuration)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _DEADLINE_SECONDS
        with self.client(**options) as client:
            while True:
                assert self._process.poll() is None, f"redis-server ended: {self.said()[-2000:]}"
                try:
                    client.ping()
                except redis.ConnectionError:
                    time.sleep(0.01)
                else:
                    return
                assert time.monotonic() < deadline, f"redis-server does not answer: {self.said()[-2000:]}"

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
