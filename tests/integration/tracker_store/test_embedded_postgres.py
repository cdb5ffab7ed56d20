"""Test the embedded server: created once, survives kills, and is never mistaken for another one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import psutil
import psycopg2
import pytest
import sqlalchemy as sa

from tests.polling import eventually
from tests.postgres import PostgresProcess, ends_within
from tracker_store.embedded_postgres import (
    BinariesMissingError,
    EmbeddedPostgres,
    ForeignDataDirectoryError,
    ServerNotReadyError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _query(url: str, statement: str) -> object:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        result = connection.execute(sa.text(statement))
        return result.scalar() if result.returns_rows else None


@pytest.fixture
def running(home: Path) -> Iterator[PostgresProcess]:
    """Yield a running server with fsync, in a folder whose name contains blanks and more."""
    with PostgresProcess(EmbeddedPostgres(home / "a b'ü" / "postgres")) as process:
        yield process


def test_starts_durable_and_answers_by_its_url(running: PostgresProcess) -> None:
    server = running.server
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


def test_another_user_of_the_machine_is_refused(running: PostgresProcess) -> None:
    url = sa.make_url(running.server.url("postgres")).set(drivername="postgresql", password="guess")
    with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
        psycopg2.connect(url.render_as_string(hide_password=False))
    assert (running.server.data_directory / "forebay.json").stat().st_mode & 0o077 == 0


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
    assert running.wait() == 128 + signal.SIGKILL
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
        process.wait()


def test_a_left_over_server_is_found_and_ended(home: Path) -> None:
    server = EmbeddedPostgres(home / "postgres")
    server.initialise()
    with _started(server) as left_over:
        server.wait_until_ready()

        successor = EmbeddedPostgres(home / "postgres")
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


def test_a_second_start_on_the_same_directory_leaves_the_first_alone(running: PostgresProcess) -> None:
    first = running.server.running_pid()
    with _started(EmbeddedPostgres(running.server.data_directory)) as second:
        assert second.wait(30) == 1
    assert running.server.running_pid() == first
    assert _query(running.server.url("postgres"), "SELECT 1") == 1


def test_a_pid_file_that_names_another_process_is_no_server(home: Path) -> None:
    server = EmbeddedPostgres(home / "postgres")
    server.initialise()
    (server.data_directory / "postmaster.pid").write_text(f"{os.getpid()}\n{server.data_directory}\n1\n")
    assert server.running_pid() is None
    server.stop()
    assert psutil.Process().is_running()


def test_a_server_whose_port_is_taken_moves(home: Path) -> None:
    server = EmbeddedPostgres(home / "postgres")
    server.initialise()
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", server.port))
        thief.listen()
        before = server.port
        server.initialise()
        assert server.port != before


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
    with pytest.raises(ForeignDataDirectoryError, match="another folder"):
        EmbeddedPostgres(theirs).initialise()
    assert (theirs / file).read_text() == "18\n"


def test_an_unknown_version_is_refused_with_the_known_ones(home: Path) -> None:
    with pytest.raises(BinariesMissingError, match="18"):
        EmbeddedPostgres(home / "postgres", version=9).command()


def test_a_data_directory_keeps_its_version(home: Path) -> None:
    EmbeddedPostgres(home / "postgres", version=16).initialise()
    assert EmbeddedPostgres(home / "postgres").version == 16


def test_a_missing_server_is_reported_in_time(home: Path) -> None:
    server = EmbeddedPostgres(home / "postgres")
    server.initialise()
    assert not server.is_ready()
    with pytest.raises(ServerNotReadyError, match="log"):
        server.wait_until_ready(0.2)


def test_a_server_ends_with_the_process_that_runs_it(running: PostgresProcess) -> None:
    pid = running.server.running_pid()
    assert pid is not None
    running.stop()
    assert ends_within(pid, 30)
