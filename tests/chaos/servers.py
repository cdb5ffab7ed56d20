"""The harness's own Postgres servers, run from Debian's binaries (or from the wheel's, if those are missing).

A primary may have a synchronous standby that takes over from it. The server of `forebay up` is not started here.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg2

from tests.support.machine.held_ports import held_ports
from tests.support.polling import eventually
from tracker_store.server.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Mapping

USER = "forebay"
_CONF = "chaos.conf"
_START_SECONDS = 180.0
_STOP_SECONDS = 30.0
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "max_wal_size": "128MB",
    "min_wal_size": "32MB",
    "shared_buffers": "32MB",
    "wal_level": "replica",
    "hot_standby": "on",
    "logging_collector": "off",
}


def binaries() -> Path:
    """Return the folder of the newest Postgres that Debian has installed, or else the wheel's."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return debian[-1].parent if debian else EmbeddedPostgres(Path("unused")).binaries


def _account() -> dict[str, Any]:
    """Return the subprocess arguments to run as another user when this process runs as root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "pgserver", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise RuntimeError("no account to run Postgres as: install Debian's postgresql")


class PostgresServer:
    """One server in a directory below `parent`. The directory survives kills; `port` stays the same."""

    def __init__(self, parent: Path, name: str, environment: Mapping[str, str] | None = None) -> None:
        self.data = parent / name
        self.log = parent / f"{name}.log"
        self._binaries = binaries()
        self._account = _account()
        self._environment = {"LC_ALL": "C", "PATH": os.defpath, **(environment or {})}
        [self.port] = held_ports(self, 1)
        self._process: subprocess.Popen[bytes] | None = None
        parent.mkdir(parents=True, exist_ok=True)
        if self._account:
            os.chown(parent, self._account["user"], self._account["group"])

    def dsn(self, database: str = USER) -> str:
        """Return the connection string for psycopg2."""
        return f"host=127.0.0.1 port={self.port} user={USER} dbname={database} connect_timeout=5"

    def url(self, database: str, port: int | None = None) -> str:
        """Return the address as a URL; `port` may be that of a proxy in front of the server."""
        return f"postgresql://{USER}@127.0.0.1:{port or self.port}/{database}"

    def initialise(self, *databases: str) -> None:
        """Create the server's data directory, start it, and create these databases."""
        self._run("initdb", "--pgdata", str(self.data), "--username", USER, "--auth", "trust", "--encoding", "UTF8")
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"\ninclude_if_exists = '{_CONF}'\n")
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write("\nhost replication all 127.0.0.1/32 trust\n")
        self.start()
        for database in databases:
            self.execute(f'CREATE DATABASE "{database}"', database="postgres")

    def start(self, *, synchronous: bool = False) -> None:
        """Start the server and wait until it answers. `synchronous`: a commit waits for the standby."""
        self.configure(synchronous=synchronous)
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._binaries / "postgres"), "-D", str(self.data)],
                cwd=self.data,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._account,
            )
        eventually(self.answers, f"an answer of Postgres in {self.data}", seconds=_START_SECONDS, step=0.1)

    def configure(self, *, synchronous: bool) -> None:
        """Write the settings; a running server applies them at its next reload."""
        settings = {**_SETTINGS, "port": str(self.port), "synchronous_standby_names": "standby" if synchronous else ""}
        text = "".join(f"{name} = '{value}'\n" for name, value in settings.items())
        (self.data / _CONF).write_text(text)
        if self._account:
            os.chown(self.data / _CONF, self._account["user"], self._account["group"])

    def reload(self, *, synchronous: bool) -> None:
        """Change whether commits wait for the standby."""
        self.configure(synchronous=synchronous)
        self.execute("SELECT pg_reload_conf()")

    def answers(self) -> bool:
        """Return whether the server answers now."""
        try:
            self.execute("SELECT 1", database="postgres")
        except psycopg2.Error:
            return False
        return True

    def execute(self, statement: str, *, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement; return its rows."""
        with contextlib.closing(psycopg2.connect(self.dsn(database))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return [] if cursor.description is None else list(cursor.fetchall())

    def family(self) -> list[psutil.Process]:
        """Return the postmaster and its children; an empty list if it does not run."""
        if self._process is None or self._process.poll() is not None:
            return []
        postmaster = psutil.Process(self._process.pid)
        return [postmaster, *postmaster.children(recursive=True)]

    def is_running(self) -> bool:
        """Return whether the postmaster is alive."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill all its processes at once, as in a power cut, except that the page cache survives."""
        family = self.family()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=_STOP_SECONDS)
        if self._process is not None:
            self._process.wait(_STOP_SECONDS)

    def stop(self) -> None:
        """Stop the server as `pg_ctl stop -m fast` does; do nothing if it does not run."""
        if self._process is None or self._process.poll() is not None:
            return
        family = self.family()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def follow(self, primary: PostgresServer) -> None:
        """Rebuild this server as the primary's standby, and make commits wait for it."""
        self.stop()
        for entry in self.data.iterdir() if self.data.exists() else ():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        conninfo = f"host=127.0.0.1 port={primary.port} user={USER} application_name=standby"
        self._run("pg_basebackup", "-D", str(self.data), "-d", conninfo, "-R", "-X", "stream", "--checkpoint=fast")
        self.start()
        state = "SELECT 1 FROM pg_stat_replication WHERE application_name = 'standby' AND state = 'streaming'"
        eventually(lambda: primary.execute(state), "a standby that streams", seconds=_START_SECONDS, step=0.1)
        primary.reload(synchronous=True)
        synchronous = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        eventually(lambda: primary.execute(synchronous), "a synchronous standby", seconds=_START_SECONDS, step=0.1)

    def promote(self) -> None:
        """Promote the standby to a primary whose commits wait for no standby."""
        self.configure(synchronous=False)
        self.execute("SELECT pg_reload_conf()")
        self.execute("SELECT pg_promote(true, 60)")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._binaries / program), *arguments],
            cwd=self.data.parent,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            **self._account,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr.strip()}")
