"""Make and keep the data directory of the embedded Postgres server: its files, its passwords, its account.

Never touches a directory that it did not make, or the directories above it, and never starts or ends a server.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import psycopg2
import psycopg2.extensions

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

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


# In the data directory: the passwords. Written before the directory gets its name: it marks a complete one.
_OWN_FILE = "forebay.json"
_SETTINGS_FILE = "forebay.conf"
SUPERUSER = "forebay"


class EmbeddedPostgresError(DriverLogError):
    """Use a server of your own by FOREBAY_DATABASE_URL: the embedded Postgres server can't be used."""


@dataclasses.dataclass(frozen=True, slots=True)
class Passwords:
    """Hold the contents of `_OWN_FILE`: the superuser's password, and that of the login of services."""

    password: str
    services_password: str


class DataDirectory:
    """Keep one data directory; see the module.

    Args:
        path: absolute; its parent holds a lock file beside it.
        durable: False turns fsync off, for tests only.
    """

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path = path
        #: In the socket's name.
        self.port = SOCKET_PORT
        self._durable = durable

    def user(self) -> ServerUser | None:
        """Return the account that the server must run as; None: the caller's own.

        If the caller is root, it is the owner of the data directory; if that is root too, a separate account.
        """
        if os.geteuid() != 0:
            return None
        with contextlib.suppress(FileNotFoundError):
            owner = self.path.stat().st_uid
            if owner != 0:
                return account_of(owner)
        return unprivileged_user()

    def passwords(self) -> Passwords:
        """Return the passwords. Raises EmbeddedPostgresError before there is a directory."""
        try:
            stored = json.loads((self.path / _OWN_FILE).read_text())
            return Passwords(**stored)
        except FileNotFoundError:
            message = f"{self.path} is not initialised"
            raise EmbeddedPostgresError(message) from None

    def url(self, login: str, password: str, database: str) -> str:
        """Return SQLAlchemy's URL of a database."""
        query = urlencode(self._address(), quote_via=quote)
        return f"postgresql+psycopg2://{login}:{password}@/{database}?{query}"

    def _address(self) -> dict[str, str]:
        """Return libpq's parameters that lead to this server, and to no process of another account."""
        account = account_of(self.path.stat().st_uid)
        return {
            "host": str(client_directory(self.path)),
            "port": str(self.port),
            "requirepeer": account.name,
        }

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from making or starting it."""
        with self._beside(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def discard_half_made(self) -> None:
        """Remove what an interrupted ``make`` left. Raises EmbeddedPostgresError."""
        shutil.rmtree(self._beside(".new"), ignore_errors=True)
        if not self.path.exists() or (self.path / _OWN_FILE).exists():
            return
        held = {entry.name for entry in self.path.iterdir()}
        # initdb writes PG_VERSION first and pg_control late: no server ever ran on a directory that has only the first.
        half_made = "PG_VERSION" in held and not (self.path / "global" / "pg_control").exists()
        if held and not half_made:
            message = f"{self.path} was not made by Forebay"
            raise EmbeddedPostgresError(
                message, "Choose another folder by FOREBAY_HOME: Forebay leaves as it is what it did not make."
            )
        shutil.rmtree(self.path)

    def make(
        self, binaries: Path, options: Sequence[str], environment: Mapping[str, str], user: ServerUser | None
    ) -> None:
        """Make the directory by initdb, with its passwords; it is there as a whole, or not at all."""
        new = self._beside(".new")
        new.mkdir(mode=0o700)
        own = Passwords(password=secrets.token_hex(24), services_password=secrets.token_hex(24))
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
                    str(programs_for(binaries, user) / "initdb"),
                    *("--pgdata", str(directory_as_started(new, user)), "--username", SUPERUSER),
                    *("--pwfile", password_path),
                    *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-instructions"),
                    *([] if self._durable else ["--no-sync"]),
                    *options,
                ],
                env=environment,
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
            raise EmbeddedPostgresError(
                message,
                "Make room or grant access as initdb says, and start again: the data directory could not be made.",
            )
        with (new / "postgresql.conf").open("a") as configuration:
            configuration.write(f"\ninclude_if_exists = '{_SETTINGS_FILE}'\n")
        _write(new / _OWN_FILE, json.dumps(dataclasses.asdict(own)), user)
        if self._durable:
            _sync_directory(new)
        new.rename(self.path)
        if self._durable:
            _sync_directory(new.parent)

    def prepare_start(self, user: ServerUser | None) -> None:
        """Write the settings, and remove what a killed server left. No server runs on the directory."""
        # These are left of a killed server, or came with a copy of the directory.
        for left in (f".s.PGSQL.{self.port}", f".s.PGSQL.{self.port}.lock"):
            (self.path / left).unlink(missing_ok=True)
        _write(self.path / _SETTINGS_FILE, self._settings(), user)

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
    def connection(self, database: str = "postgres") -> Iterator[psycopg2.extensions.connection]:
        """Connect as the superuser."""
        connection = psycopg2.connect(
            user=SUPERUSER,
            password=self.passwords().password,
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
