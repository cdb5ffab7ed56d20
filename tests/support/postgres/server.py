"""Other servers than the one that Forebay ships: another version, another installation, one that listens on TCP."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import ClassVar

from forebay.testing.cutting_proxy import through
from tests.support.machine.held_ports import held_ports
from tracker_store.server.embedded_postgres import EmbeddedPostgres


class TcpPostgres(EmbeddedPostgres):
    """A server that listens on TCP too, as a server of the user's does; `listening` says how."""

    def __init__(self, data_directory: Path) -> None:
        super().__init__(data_directory)
        # It is in the socket's name too.
        [self.port] = held_ports(self, 1)
        self._directory.port = self.port

    @property
    def listening(self) -> dict[str, str]:
        """Return the configuration that opens the port, and releases a dead client's locks after half a minute."""
        return {
            "listen_addresses": "127.0.0.1",
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "4",
        }

    def url(self, database: str = "forebay") -> str:
        """Return the superuser's URL by TCP."""
        return through(super().url(database), self.port)


class InstalledPostgres(EmbeddedPostgres):
    """A server of another installation, run in the same way."""

    # initdb of Postgres 15 has no option --set.
    initdb_options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, data_directory: Path, binaries: Path) -> None:
        super().__init__(data_directory, durable=False)
        self._installed = binaries

    @property
    def binaries(self) -> Path:
        """Return the folder of initdb and postgres."""
        return self._installed


def embedded_server(data_directory: Path) -> EmbeddedPostgres:
    """Return a server of the shipped version, unless the environment names another of the wheel's, or a folder."""
    binaries = os.environ.get("FOREBAY_TEST_POSTGRES_BINARIES")
    if binaries:
        return InstalledPostgres(data_directory, Path(binaries))
    version = os.environ.get("FOREBAY_TEST_POSTGRES_VERSION")
    return EmbeddedPostgres(data_directory, int(version) if version else None, durable=False)


def ends_within(pid: int, seconds: float) -> bool:
    """Return whether a process, which need not be a child, ends within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False
