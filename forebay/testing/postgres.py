"""Run one embedded Postgres for a whole test run, and make a new migrated database for each test that asks for one.

The server is the same as in `forebay up`, run by the guard that ends it whenever and however pytest ends; only fsync is
off. A database is a copy of a template that was migrated once, which takes milliseconds.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from typing import TYPE_CHECKING, Self

import psycopg2
import psycopg2.errors
import psycopg2.extensions
import psycopg2.sql
import sqlalchemy as sa

import tracker_store.install.migrate
from forebay.cli.services import guard
from tracker_store.server.embedded_postgres import EmbeddedPostgres, StopMode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

_TEMPLATE = "migrated"
# A database is made or dropped in less than a second, and in some when the machine is busy.
_ADMINISTER_SECONDS = 60


class PostgresProcess:
    """Run an embedded server while entered; its log is beside its data."""

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


class TestServer:
    """Run the server of a test run."""

    __test__ = False

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.process = PostgresProcess(server)
        self._numbers = itertools.count(1)
        self._has_template = False
        self._connection: psycopg2.extensions.connection | None = None

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
        with self._connected().cursor() as cursor:
            cursor.execute(psycopg2.sql.SQL(statement).format(*map(psycopg2.sql.Identifier, names)))

    def _connected(self) -> psycopg2.extensions.connection:
        """Return the connection that makes and drops databases: one for each statement took a quarter of the time."""
        if self._connection is None or self._connection.closed:
            url = sa.make_url(self.url("postgres")).set(drivername="postgresql")
            self._connection = psycopg2.connect(
                url.render_as_string(hide_password=False), options=f"-c statement_timeout={_ADMINISTER_SECONDS}s"
            )
            self._connection.autocommit = True
        return self._connection
