"""Run a benchmark's Postgres server: the embedded one with its default settings, durable, with a driver log in it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from typing import TYPE_CHECKING

import psycopg2
import sqlalchemy as sa

import tracker_store.install.migrate
from forebay.testing.postgres import PostgresProcess
from tracker_store.connection.engine import create_engine
from tracker_store.server.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DATABASE = "forebay"
_PGBENCH_RATE = re.compile(r"^tps = (?P<rate>[0-9.]+) \(without", re.MULTILINE)

_PLAIN_COLUMNS = (
    'receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes, segment_id, "offset", '
    "length, crc32c"
)
# As wide as a block, with the same key and checks; one parameter per column, except the time, which is the server's.
PLAIN_INSERT = (
    f"INSERT INTO public.plain ({_PLAIN_COLUMNS}) "  # noqa: S608  constants only
    "VALUES (%s, %s, %s, clock_timestamp(), %s, %s, %s, %s, %s, %s, %s, %s)"
)
_PGBENCH_SCRIPT = f"""\
INSERT INTO public.plain ({_PLAIN_COLUMNS}) \
VALUES (:client_id + 1000000, nextval('public.plain_sequence'), 1, clock_timestamp(), 10, 100, 10, 100, 1, 0, 100, 1);
"""  # noqa: S608  constants only


class Server:
    """Give access to a running server with one migrated database, and a table `public.plain` for plain inserts."""

    def __init__(self, embedded: EmbeddedPostgres, directory: Path) -> None:
        self._embedded = embedded
        self._directory = directory
        self.url = embedded.url(_DATABASE)
        self.engine = create_engine(self.url, application_name="benchmark")

    def connect(self) -> psycopg2.extensions.connection:
        """Open a plain psycopg2 connection in autocommit, without timeouts."""
        connection = psycopg2.connect(sa.make_url(self.url).set(drivername="postgresql").render_as_string(False))  # noqa: FBT003
        connection.autocommit = True
        return connection

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Run one statement of the benchmark's own, however long it takes."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    @property
    def binaries(self) -> Path:
        """Return the folder of the server's programs."""
        return self._embedded.binaries

    def version(self) -> str:
        """Return the server's version, such as 18.4."""
        return str(self.execute("SHOW server_version")[0][0])

    def postmaster(self) -> int:
        """Return the process id of the server's first process, the parent of its sessions."""
        return int((self._embedded.data_directory / "postmaster.pid").read_text().split()[0])

    def pgbench(self, clients: int, seconds: float) -> float:
        """Return the plain inserts per second of pgbench, the server's own load generator: prepared, without Python."""
        script = self._directory / "plain.sql"
        script.write_text(_PGBENCH_SCRIPT)
        url = sa.make_url(self.url)
        answer = subprocess.run(  # noqa: S603  our own binary
            [
                str(self._embedded.binaries / "pgbench"),
                *("--no-vacuum", "--protocol", "prepared", "--file", str(script)),
                *("--client", str(clients), "--jobs", "2", "--time", str(max(1, round(seconds)))),
                *("--host", str(url.query["host"]), "--port", str(url.query["port"]), "--username", str(url.username)),
                str(url.database),
            ],
            env={"PGPASSWORD": str(url.password), "PATH": os.defpath, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        rate = _PGBENCH_RATE.search(answer.stdout)
        if rate is None:
            raise ValueError(f"pgbench printed no rate: {answer.stdout}")
        return float(rate["rate"])


@contextlib.contextmanager
def running_server(directory: Path) -> Iterator[Server]:
    """Start a new durable server in `directory`; stop it and its connections at the end."""
    embedded = EmbeddedPostgres(directory / "postgres")
    with PostgresProcess(embedded):
        embedded.ensure_database(_DATABASE)
        tracker_store.install.migrate.upgrade(embedded.url(_DATABASE))
        server = Server(embedded, directory)
        server.execute("CREATE TABLE public.plain (LIKE forebay.blocks INCLUDING ALL)")
        server.execute("CREATE SEQUENCE public.plain_sequence CACHE 1000")
        try:
            yield server
        finally:
            server.engine.dispose()
