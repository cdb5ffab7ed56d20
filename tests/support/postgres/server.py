"""One embedded Postgres for a whole test run, and a new migrated database for each test that asks for one.

The server is the same as in `forebay up`, run by the guard that ends it whenever and however pytest ends; only fsync is
off. A database is a copy of a template that was migrated once, which takes milliseconds.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import psycopg2
import psycopg2.errors
import psycopg2.sql
import sqlalchemy as sa

import tracker_store.install.migrate
from forebay.cli.services import guard
from tests.support.machine.held_ports import held_ports
from tests.support.postgres.address import through
from tracker_store.server.embedded_postgres import EmbeddedPostgres, StopMode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

_TEMPLATE = "migrated"
# A database is made or dropped in less than a second, and in some when the machine is busy.
_ADMINISTER_SECONDS = 60


class PostgresProcess:
    """An embedded server that runs while entered; its log is beside its data."""

    def __init__(self, server: EmbeddedPostgres, configuration: Mapping[str, str] | None = None) -> None:
        """Take the server, and settings of postgresql.conf that it is started with."""
        self.server = server
        self._settings = [f"--{name}={value}" for name, value in (configuration or {}).items()]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 60.0) -> None:
        """Start the server and wait until it answers."""
        self.server.initialise()
        user = self.server.user()
        command = [sys.executable, "-I", guard.__file__, "--signal", str(int(StopMode.FAST.signal))]
        if user is not None:
            command += ["--user", str(user.uid), "--group", str(user.gid)]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--", *self.server.command(), *self._settings],
                cwd=self.server.data_directory,
                env=self.server.environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.server.wait_until_ready(timeout)

    def stop(self) -> None:
        """End the server and its guard."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(30)
            self._process = None

    def wait(self, timeout: float = 30.0) -> int:
        """Wait until the server has been ended by something else; return its exit code."""
        assert self._process is not None
        code = self._process.wait(timeout)
        self.stop()
        return code

    @property
    def log_file(self) -> Path:
        return self.server.data_directory.with_name(self.server.data_directory.name + ".log")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


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


def _server(data_directory: Path) -> EmbeddedPostgres:
    """Return a server of the shipped version, unless the environment names another of the wheel's, or a folder."""
    binaries = os.environ.get("FOREBAY_TEST_POSTGRES_BINARIES")
    if binaries:
        return InstalledPostgres(data_directory, Path(binaries))
    version = os.environ.get("FOREBAY_TEST_POSTGRES_VERSION")
    return EmbeddedPostgres(data_directory, int(version) if version else None, durable=False)


class TestServer:
    """The server of a test run."""

    __test__ = False

    def __init__(self, directory: Path) -> None:
        self.process = PostgresProcess(_server(directory / "postgres"))
        self._numbers = itertools.count(1)
        self._has_template = False

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        return self.process.server.url(database)

    @contextlib.contextmanager
    def database(self, *, migrated: bool = True) -> Iterator[str]:
        """Make a new database; drop it at the end even if it is in use."""
        if migrated and not self._has_template:
            self._make_template()
        name = f"test_{next(self._numbers)}"
        template = _TEMPLATE if migrated else "template1"
        # Without fsync, a file copy with its checkpoints costs a quarter of a copy through the WAL.
        self._administer("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY", name, template)
        try:
            yield self.url(name)
        finally:
            self._drop(name)

    def _drop(self, name: str) -> None:
        statement = "DROP DATABASE {} WITH (FORCE)"
        try:
            self._administer(statement, name)
        except psycopg2.errors.QueryCanceled:
            # Postgres waits until each of its processes has closed the files, and may wait for ever for one that starts
            # at that moment (pgsql-hackers, April 2026: "WaitForProcSignalBarriers vs aux process"). A second statement
            # asks that process again.
            self._administer(statement, name)

    def _make_template(self) -> None:
        self._administer("CREATE DATABASE {}", _TEMPLATE)
        tracker_store.install.migrate.upgrade(self.url(_TEMPLATE))
        # No connection to the template may exist while it is copied, not even of an autovacuum worker.
        self._administer("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false", _TEMPLATE)
        self._has_template = True

    def _administer(self, statement: str, *names: str) -> None:
        url = sa.make_url(self.url("postgres")).set(drivername="postgresql")
        connection = psycopg2.connect(
            url.render_as_string(hide_password=False), options=f"-c statement_timeout={_ADMINISTER_SECONDS}s"
        )
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(psycopg2.sql.SQL(statement).format(*map(psycopg2.sql.Identifier, names)))
        finally:
            connection.close()


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
