"""Test the embedded server: created once, survives kills, and is never mistaken for another one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg2
import pytest
import sqlalchemy as sa

from forebay.testing.postgres import PostgresProcess
from tests.support.machine.another_account import as_nobody
from tests.support.machine.state_directory import state_directory
from tests.support.polling import eventually
from tests.support.postgres.server import InstalledPostgres, ends_within
from tracker_store.connection.errors import DriverLogError
from tracker_store.install import migrate
from tracker_store.server import server_account, server_socket
from tracker_store.server.data_directory import EmbeddedPostgresError
from tracker_store.server.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator


_UNINSTALL = (Path(__file__).parents[4] / "docs" / "how-to" / "uninstall.md").read_text(encoding="utf-8")


def _query(url: str, statement: str) -> object:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        result = connection.execute(sa.text(statement))
        return result.scalar() if result.returns_rows else None


@pytest.fixture(scope="module")
def new_directory() -> Iterator[Path]:
    """Make a data directory on which no server has run yet; that takes a second."""
    with state_directory() as home:
        EmbeddedPostgres(home / "postgres").initialise()
        yield home / "postgres"


@pytest.fixture
def server(home: Path, new_directory: Path) -> EmbeddedPostgres:
    """Return a server with fsync that has a new data directory of its own, and does not run."""
    subprocess.run(["cp", "--archive", new_directory, home / "postgres"], check=True, timeout=60)
    return EmbeddedPostgres(home / "postgres")


@pytest.fixture
def running(server: EmbeddedPostgres) -> Iterator[PostgresProcess]:
    """Yield a running server with fsync, which the test may stop."""
    with PostgresProcess(server) as process:
        yield process


@pytest.fixture(scope="module")
def shared() -> Iterator[PostgresProcess]:
    """Yield a running server with fsync that no test stops, in a folder whose name contains blanks and more."""
    with state_directory() as home, PostgresProcess(EmbeddedPostgres(home / "a b'ü" / "postgres")) as process:
        yield process


def test_starts_durable_and_answers_by_its_url(shared: PostgresProcess) -> None:
    server = shared.server
    server.ensure_database("forebay")
    server.ensure_database("forebay")

    assert _query(server.url(), "SELECT current_database()") == "forebay"
    settings = {
        name: _query(server.url(), f"SHOW {name}")
        for name in ("fsync", "synchronous_commit", "full_page_writes", "server_encoding", "TimeZone")
    }
    assert settings == {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "server_encoding": "UTF8",
        "TimeZone": "UTC",
    }
    assert int(str(_query(server.url(), "SHOW max_connections"))) >= 200
    assert _query(server.url(), "SELECT 'Zürich ☃'") == "Zürich ☃"


def test_a_wrong_password_is_refused(shared: PostgresProcess) -> None:
    url = sa.make_url(shared.server.url("postgres")).set(drivername="postgresql", password="guess")
    with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
        psycopg2.connect(url.render_as_string(hide_password=False))
    assert (shared.server.data_directory / "forebay.json").stat().st_mode & 0o077 == 0


def test_the_server_listens_on_no_tcp_port(shared: PostgresProcess) -> None:
    pid = shared.server.running_pid()
    assert pid is not None
    assert psutil.Process(pid).net_connections("inet") == []
    assert _query(shared.server.url("postgres"), "SHOW listen_addresses") == ""


_CONNECT = """
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
"""


def test_another_account_cannot_reach_the_socket(shared: PostgresProcess) -> None:
    query = sa.make_url(shared.server.url()).query
    path = f"{query['host']}/.s.PGSQL.{query['port']}"
    with socket.socket(socket.AF_UNIX) as mine:
        mine.connect(path)
    refused = subprocess.run(as_nobody(_CONNECT, path), check=False, capture_output=True, text=True, timeout=120)
    assert "PermissionError" in refused.stderr


# Listens in a directory that it may write, and asks each client for its password in clear text.
_STAND_IN = """
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print("listening", flush=True)
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(20)
        received = b""
        while data := connection.recv(4096):
            received += data
            connection.sendall(b"R" + bytes([0, 0, 0, 8, 0, 0, 0, 3]))
        sys.stdout.buffer.write(received)
"""


def test_a_stand_in_of_another_account_is_sent_no_password(server: EmbeddedPostgres) -> None:
    """Check even where the stand-in has the socket's very path: the client asks the kernel whose process it is."""
    url = sa.make_url(server.url()).set(drivername="postgresql")
    assert url.password is not None
    with tempfile.TemporaryDirectory() as everybodys:
        Path(everybodys).chmod(0o777)
        attack = as_nobody(_STAND_IN, f"{everybodys}/.s.PGSQL.{server.port}")
        with subprocess.Popen(attack, stdout=subprocess.PIPE) as stand_in, contextlib.ExitStack() as stack:
            stack.callback(stand_in.kill)
            assert stand_in.stdout is not None
            assert stand_in.stdout.readline() == b"listening\n"
            with pytest.raises(psycopg2.OperationalError, match="requirepeer"):
                psycopg2.connect(url.update_query_dict({"host": everybodys}).render_as_string(hide_password=False))
            assert url.password.encode() not in stand_in.stdout.read()


def test_a_data_directory_with_a_long_path_is_reached_by_a_short_link(home: Path) -> None:
    deep = home / ("d" * 100) / "postgres"
    with PostgresProcess(EmbeddedPostgres(deep)) as process:
        url = process.server.url("postgres")
        directory = Path(str(sa.make_url(url).query["host"]))
        assert directory.parent.stat().st_mode & 0o077 == 0
        assert directory.readlink() == deep
        assert EmbeddedPostgres(deep).url("postgres") == url
        assert _query(url, "SELECT 1") == 1


def test_a_directory_of_links_that_another_account_could_fill_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_socket, "_LINKS", home)
    own = home / f"forebay-{os.geteuid()}"
    own.mkdir()
    own.chmod(0o777)
    server = EmbeddedPostgres(home / ("d" * 100) / "postgres")
    with pytest.raises(DriverLogError, match="shorter path"):
        server.initialise()


def test_no_directory_above_the_data_is_opened_for_its_account(home: Path) -> None:
    above = home / "closed" / "inner"
    above.mkdir(parents=True)
    for folder in (above, above.parent, home):
        folder.chmod(0o700)
    with PostgresProcess(EmbeddedPostgres(above / "postgres")) as process:
        assert _query(process.server.url("postgres"), "SELECT 1") == 1
        assert process.server.data_directory.stat().st_mode & 0o777 == 0o700
    assert {folder.stat().st_mode & 0o777 for folder in (above, above.parent, home)} == {0o700}


def test_programs_that_the_account_cannot_reach_are_copied_and_left_as_they_are(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root runs the server as another account")
    site = home / "site"
    binaries = EmbeddedPostgres(home / "postgres").binaries
    package = binaries.parents[1]
    shutil.copytree(binaries.parent, site / package.name / binaries.parent.name, symlinks=True)
    shutil.copytree(package.with_name(f"{package.name}.libs"), site / f"{package.name}.libs")
    before = site.stat().st_mode
    with tempfile.TemporaryDirectory() as everybodys:
        Path(everybodys).chmod(0o755)
        monkeypatch.setattr(server_account, "PROGRAMS_DIRECTORY", Path(everybodys) / "forebay")
        server = InstalledPostgres(home / "postgres", site / package.name / binaries.parent.name / "bin")
        with PostgresProcess(server) as process:
            assert _query(process.server.url("postgres"), "SELECT 1") == 1
            assert server.command()[0].startswith(everybodys)
    assert site.stat().st_mode == before
    assert home.stat().st_mode & 0o777 == 0o700


def test_services_have_no_rights_beyond_the_roles(shared: PostgresProcess) -> None:
    server = shared.server
    server.ensure_database()
    migrate.upgrade(server.url())
    server.ensure_services_login()
    server.ensure_services_login()
    url = server.services_url()
    assert _query(url, "SELECT count(*) FROM forebay.streams") == 0
    for attack in (
        "COPY (SELECT 1) TO PROGRAM 'true'",
        "COPY (SELECT 1) TO '/tmp/x'",
        "SELECT pg_read_file('postgresql.conf')",
        "CREATE ROLE another SUPERUSER",
        "ALTER ROLE forebay_services SUPERUSER",
        "DROP TABLE forebay.blocks",
        "INSERT INTO forebay.blocks DEFAULT VALUES",
        "CREATE FUNCTION forebay.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE DATABASE mine",
        "ALTER SYSTEM SET fsync = off",
    ):
        with pytest.raises(sa.exc.ProgrammingError, match=r"permission denied|must be (owner|superuser)"):
            _query(url, attack)


def test_the_page_on_uninstalling_leaves_nothing_of_a_driver_log(running: PostgresProcess) -> None:
    running.server.ensure_database()
    url = running.server.url()
    migrate.upgrade(url)
    left = (
        "SELECT (SELECT count(*) FROM pg_namespace WHERE nspname = 'forebay') + "
        "(SELECT count(*) FROM pg_roles WHERE rolname LIKE 'forebay\\_%')"
    )
    assert _query(url, left) == 5
    for statements in re.findall(r"^```sql\n(.*?)^```$", _UNINSTALL, re.MULTILINE | re.DOTALL):
        _query(url, statements)
    assert _query(url, left) == 0


def test_a_server_stops_and_starts_again_at_the_same_url_with_its_data(running: PostgresProcess) -> None:
    url = running.server.url("postgres")
    _query(url, "CREATE TABLE kept AS SELECT 7 AS n")
    running.stop()
    assert running.server.running_pid() is None

    again = EmbeddedPostgres(running.server.data_directory)
    with PostgresProcess(again):
        assert again.url("postgres") == url
        assert _query(url, "SELECT n FROM kept") == 7


def test_a_killed_postmaster_loses_nothing_committed(running: PostgresProcess) -> None:
    url = running.server.url("postgres")
    _query(url, "CREATE TABLE kept AS SELECT 7 AS n")
    pid = running.server.running_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert running.wait(60) == 128 + signal.SIGKILL
    assert running.server.running_pid() is None, "its pid file alone is no running server"

    running.start()
    assert running.server.running_pid() != pid
    assert running.server.url("postgres") == url
    assert _query(url, "SELECT n FROM kept") == 7


@contextlib.contextmanager
def _started(server: EmbeddedPostgres) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server's own command, without a guard."""
    user = server.user()
    as_user = {} if user is None else {"user": user.uid, "group": user.gid, "extra_groups": []}
    with (server.data_directory.parent / "log").open("ab") as log:
        process = subprocess.Popen(  # type: ignore[call-overload]
            server.command(), cwd=server.data_directory, env=server.environment(), stderr=log, **as_user
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


def test_a_left_over_server_is_found_and_ended(server: EmbeddedPostgres) -> None:
    server.initialise()
    with _started(server) as left_over:
        server.wait_until_ready()

        successor = EmbeddedPostgres(server.data_directory)
        assert successor.running_pid() == left_over.pid
        # A single look takes at most 2 s.
        eventually(successor.is_ready, "an answer to who did not start the server")
        # The server does not wait for a client that stays connected.
        client = psycopg2.connect(successor.url("postgres").replace("+psycopg2", ""))
        with contextlib.closing(client):
            successor.initialise()
        assert left_over.wait(30) == 0
        assert successor.running_pid() is None
        assert successor.url() == server.url()
        successor.stop()


def test_a_second_start_on_the_same_directory_leaves_the_first_alone(shared: PostgresProcess) -> None:
    first = shared.server.running_pid()
    with _started(EmbeddedPostgres(shared.server.data_directory)) as second:
        assert second.wait(30) == 1
    assert shared.server.running_pid() == first
    assert _query(shared.server.url("postgres"), "SELECT 1") == 1


def test_a_pid_file_that_names_another_process_is_no_server(server: EmbeddedPostgres) -> None:
    (server.data_directory / "postmaster.pid").write_text(f"{os.getpid()}\n{server.data_directory}\n1\n")
    assert server.running_pid() is None
    server.stop()
    assert psutil.Process().is_running()


def test_an_incomplete_data_directory_is_created_again(home: Path) -> None:
    # Killed inside initdb, once for the former way of creating it and once for the present one.
    for name in ("postgres", "postgres.new"):
        (home / name / "base").mkdir(parents=True)
        (home / name / "PG_VERSION").write_text("18\n")
    with PostgresProcess(EmbeddedPostgres(home / "postgres")) as process:
        assert _query(process.server.url("postgres"), "SELECT 1") == 1
    assert not (home / "postgres.new").exists()


def test_an_empty_directory_is_used(home: Path) -> None:
    (home / "postgres").mkdir()
    EmbeddedPostgres(home / "postgres").initialise()
    assert (home / "postgres" / "PG_VERSION").exists()


@pytest.mark.parametrize("file", ["thesis.txt", "PG_VERSION"])
def test_a_foreign_directory_is_left_as_it_is(home: Path, file: str) -> None:
    theirs = home / "postgres"
    (theirs / "global").mkdir(parents=True)
    (theirs / "global" / "pg_control").write_text("x")
    (theirs / file).write_text("18\n")
    with pytest.raises(EmbeddedPostgresError, match="another folder"):
        EmbeddedPostgres(theirs).initialise()
    assert (theirs / file).read_text() == "18\n"


def test_an_unknown_version_is_refused_with_the_known_ones(home: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"no embedded Postgres 9; .*18"):
        EmbeddedPostgres(home / "postgres", version=9).command()


def test_a_data_directory_keeps_its_version(home: Path) -> None:
    EmbeddedPostgres(home / "postgres", version=16).initialise()
    assert EmbeddedPostgres(home / "postgres").version == 16


def test_a_missing_server_is_reported_in_time(server: EmbeddedPostgres) -> None:
    assert not server.is_ready()
    with pytest.raises(EmbeddedPostgresError, match="log file for the cause"):
        server.wait_until_ready(0.2)


def test_a_server_ends_with_the_process_that_runs_it(running: PostgresProcess) -> None:
    pid = running.server.running_pid()
    assert pid is not None
    running.stop()
    assert ends_within(pid, 30)
