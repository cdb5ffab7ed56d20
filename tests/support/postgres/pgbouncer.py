"""Debian's pgbouncer for tests, in front of a Postgres that listens on TCP: docs/how-to/pgbouncer.md has this file."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psycopg2
import sqlalchemy as sa

from tests.support.machine.held_ports import held_ports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_DEADLINE_SECONDS = 30.0


class NoPgbouncerError(Exception):
    """There is no pgbouncer to test against: install Debian's package of that name."""


class Pgbouncer:
    """A pooler that runs while entered. It has two sessions of the server, so clients must share them."""

    def __init__(self, server: str, mode: str, settings: Mapping[str, object] | None = None, *, size: int = 2) -> None:
        """Take the URL of a database, and further settings of pgbouncer.ini. `size`: how many sessions it opens."""
        found = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        if found is None:
            raise NoPgbouncerError(NoPgbouncerError.__doc__)
        self._program = found
        self._server = sa.make_url(server)
        self.mode = mode
        self._directory = Path(tempfile.mkdtemp(prefix="forebay-pgbouncer-"))
        self._process: subprocess.Popen[bytes] | None = None
        [self._port] = held_ports(self, 1)
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": self._port,
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": self._directory / "userlist.txt",
            "pool_mode": mode,
            "default_pool_size": size,
            "max_client_conn": 500,
            **(settings or {}),
        }
        where = f"host={self._server.host} port={self._server.port}"
        (self._directory / "userlist.txt").write_text(f'"{self._server.username}" "{self._server.password}"\n')
        text = f"[databases]\n* = {where}\n[pgbouncer]\n" + "".join(f"{name} = {v}\n" for name, v in lines.items())
        (self._directory / "pgbouncer.ini").write_text(text)

    @property
    def plain_url(self) -> str:
        """Return the database's URL through the pooler, without a word about it."""
        return self._server.set(host="127.0.0.1", port=self._port).render_as_string(hide_password=False)

    @property
    def url(self) -> str:
        """Return the database's URL through the pooler, as FOREBAY_DATABASE_URL has it."""
        url = self._server.set(host="127.0.0.1", port=self._port).update_query_dict({"pool_mode": self.mode})
        return url.render_as_string(hide_password=False)

    def __enter__(self) -> Self:
        command = [self._program, str(self._directory / "pgbouncer.ini")]
        if os.getuid() == 0:
            # It refuses to run as root.
            nobody = pwd.getpwnam("nobody")
            for path in (self._directory, *self._directory.iterdir()):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
            command[1:1] = ["-u", "nobody"]
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + _DEADLINE_SECONDS
        plain = self._server.set(drivername="postgresql", host="127.0.0.1", port=self._port)
        while True:
            try:
                psycopg2.connect(plain.render_as_string(hide_password=False)).close()
            except psycopg2.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    said = (self._directory / "log").read_text()
                    self.__exit__(None, None, None)
                    raise AssertionError(f"pgbouncer does not answer: {error}\n{said}") from error
                time.sleep(0.05)
            else:
                return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
        shutil.rmtree(self._directory, ignore_errors=True)
