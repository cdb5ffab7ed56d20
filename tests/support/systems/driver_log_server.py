"""A Postgres server that a test stops, kills, fills and replaces, and an address that stays the same meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Self

import psutil
import psycopg2
import pytest
import sqlalchemy as sa

import tracker_store.install.migrate
from forebay.testing.postgres import PostgresProcess
from tests.support.commands.run_program import run_program
from tests.support.polling import eventually
from tests.support.postgres.server import TcpPostgres
from tracker_store.server.data_directory import EmbeddedPostgresError
from tracker_store.server.embedded_postgres import StopMode
from tracker_store.server.server_account import directory_as_started

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

_BEFORE_START = 0.5


class DriverLogServer(PostgresProcess):
    """An embedded server, durable as in production: a kill loses no committed data."""

    def __init__(self, data_directory: Path, **configuration: str) -> None:
        server = TcpPostgres(data_directory)
        super().__init__(server)
        self._configuration = {**server.listening, **configuration}
        self._numbers = itertools.count(1)

    def start(self, timeout: float = 60.0) -> None:
        self.server.initialise()
        # Append after Forebay's include, so that these settings take precedence.
        own = "".join(f"{name} = '{value}'\n" for name, value in self._configuration.items())
        configuration = self.server.data_directory / "postgresql.conf"
        if not configuration.read_text().endswith(own):
            with configuration.open("a") as file:
                file.write(own)
        super().start(timeout)

    def ensure_running(self, timeout: float = 60.0) -> None:
        """Start the server as often as it takes, as its supervisor does; return when it answers."""
        deadline = time.monotonic() + timeout
        while not self.server.is_ready():
            if self._process is None or self._process.poll() is not None:
                self.stop()
                with contextlib.suppress(EmbeddedPostgresError):
                    self.start(1.0)
            assert time.monotonic() < deadline, self.log_file.read_text(encoding="utf-8")[-2000:]
            time.sleep(_BEFORE_START / 10)

    def stop_fast(self) -> None:
        """Stop the server as `pg_ctl stop -m fast` does."""
        self.server.stop(StopMode.FAST)
        self.wait(60)

    def kill(self) -> None:
        """Kill the postmaster with `kill -9`; return when its last child has noticed and ended too."""
        postmaster = self.server.running_pid()
        assert postmaster is not None
        family = [psutil.Process(postmaster), *psutil.Process(postmaster).children(recursive=True)]
        os.kill(postmaster, signal.SIGKILL)
        assert [left for left in psutil.wait_procs(family, timeout=20)[1] if left.is_running()] == []
        self.wait(60)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Send SIGSTOP to the whole server: the kernel still accepts connections for it, but nothing answers."""
        postmaster = self.server.running_pid()
        assert postmaster is not None
        # Stop the postmaster first, so that it starts no other children.
        os.kill(postmaster, signal.SIGSTOP)
        family = [postmaster, *(child.pid for child in psutil.Process(postmaster).children(recursive=True))]
        try:
            for pid in family[1:]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def new_database(self) -> str:
        """Create and migrate a new database; return its URL."""
        name = f"away_{next(self._numbers)}"
        self.server.ensure_database(name)
        url = self.server.url(name)
        tracker_store.install.migrate.upgrade(url)
        return url

    @contextlib.contextmanager
    def connection(self, database: str = "postgres") -> Iterator[psycopg2.extensions.connection]:
        """Open a plain connection, as a person does with psql."""
        url = sa.make_url(self.server.url(database)).set(drivername="postgresql")
        connection = psycopg2.connect(url.render_as_string(hide_password=False), application_name="a person")
        try:
            connection.autocommit = True
            yield connection
        finally:
            connection.close()

    def make_standby(self, data_directory: Path, *, synchronous: bool = True) -> DriverLogServer:
        """Create a copy that follows this server.

        If it is synchronous, then once it answers, no commit completes here before it is on the standby too.
        """
        url = sa.make_url(self.server.url())
        source = f"host=127.0.0.1 port={url.port} user={url.username} password={url.password}"
        user = self.server.user()
        data_directory.parent.mkdir(parents=True, exist_ok=True)
        data_directory.mkdir(mode=0o700)
        if user is not None:
            os.chown(data_directory, user.uid, user.gid)
        subprocess.run(
            [
                *(str(self.server.binaries / "pg_basebackup"), "-D", str(directory_as_started(data_directory, user))),
                *("-d", source),
                *("--write-recovery-conf", "--checkpoint=fast", "--no-sync"),
            ],
            env=self.server.environment(),
            cwd=data_directory,
            check=True,
            user=None if user is None else user.uid,
            group=None if user is None else user.gid,
            extra_groups=None if user is None else [],
            timeout=120,
        )
        standby = DriverLogServer(data_directory).__enter__()
        if not synchronous:
            return standby
        with self.connection() as connection, connection.cursor() as cursor:
            cursor.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            cursor.execute("SELECT pg_reload_conf()")
            deadline = time.monotonic() + 20
            while True:
                cursor.execute("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")
                if cursor.fetchone() == (1,):
                    return standby
                if time.monotonic() > deadline:
                    standby.stop()
                    pytest.fail("the standby does not follow")
                time.sleep(0.05)

    def stop_following(self) -> None:
        """Cut a standby off: when this returns, it has everything it received so far, and receives nothing more."""
        with self.connection() as connection, connection.cursor() as cursor:
            cursor.execute("ALTER SYSTEM SET primary_conninfo = ''")
            cursor.execute("SELECT pg_reload_conf()")

            def alone() -> bool:
                cursor.execute("SELECT count(*) FROM pg_stat_wal_receiver")
                return bool(cursor.fetchone() == (0,))

            eventually(alone, "the standby to be cut off", seconds=60)

    def promote(self) -> None:
        """Make a standby the primary; return when it accepts writes."""
        with self.connection() as connection, connection.cursor() as cursor:
            # Otherwise it would wait for a synchronous standby of its own.
            cursor.execute("SELECT pg_promote(true, 30)")
            cursor.execute("ALTER SYSTEM RESET synchronous_standby_names")
            cursor.execute("SELECT pg_reload_conf()")


class Address:
    """A TCP address that leads to one server after the other, as a floating address or a load balancer does."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="address", daemon=True)

    def of(self, url: str) -> str:
        """Return a server's URL through this address."""
        return sa.make_url(url).set(port=self.port).render_as_string(hide_password=False)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        self._thread.join(10)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._stopped:
                client.close()
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=2)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for side in (source, target):
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
    source.close()


class MountRefusedError(Exception):
    """A file system of a fixed size takes root and the right to mount: run this test where you have both."""


@contextlib.contextmanager
def small_file_system(path: Path, size: str) -> Iterator[Path]:
    """Mount a file system in memory at `path`. Raises MountRefusedError."""
    path.mkdir(parents=True)
    made = run_program(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0711", "tmpfs", str(path)])
    if made.returncode != 0:
        raise MountRefusedError(f"{made.stderr.strip()}. {MountRefusedError.__doc__}")
    try:
        yield path
    finally:
        # A backend that has just ended may still hold it for a moment.
        subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True, timeout=120)


def fill(ballast: Path) -> None:
    """Write one file until no byte is left."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for piece in (2**20, 2**12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"\0" * piece) == piece:
                    pass
