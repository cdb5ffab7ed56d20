"""Test `forebay status` when something is unreachable: it answers in time with what it has, the cause and a way out."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest
import sqlalchemy as sa

from forebay.cli.instance.database import database_url as find_database_url
from forebay.testing.postgres import PostgresProcess
from orchestration.declarations.settings import Settings
from orchestration.status_page.system_status import system_status
from tests.support.commands.forked_command import forebay
from tests.support.driver_log.log import make_log
from tests.support.machine.hanging_mount import HangingMountRefusedError, hanging_mount
from tests.support.polling import joined
from tests.support.postgres.cutting_proxy import CuttingProxy
from tracker_store.blocks.block_stores import attach_block_store
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import DriverLogUnavailableError
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.receivers.processes import register_process
from tracker_store.schema.states import ProcessKind
from tracker_store.server.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orchestration.status_page.system_status import SystemStatus

# Seconds: the deadline of a look in these tests, and how long a loaded machine may take for it.
SECONDS = 1.0
BOUND = 20.0
# Seconds: the deadline of a look that is expected to answer, long enough for a loaded machine.
PATIENT = 60.0
PATIENTLY = ("--within", "60")


def status(
    home: Path,
    *arguments: str,
    database_url: str | None = None,
    block_store: Path | None = None,
    interpreter: bool = False,
) -> tuple[int, str, str]:
    """Run `forebay status`; return its exit code, its standard output, and its whole output on one line.

    `interpreter`: in one of its own, which ends as Python does.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    # So wide that no line is wrapped within a word.
    environment |= {"FOREBAY_HOME": str(home), "COLUMNS": "1000"}
    if database_url is not None:
        environment["FOREBAY_DATABASE_URL"] = database_url
    if block_store is not None:
        environment["FOREBAY_BLOCK_STORE"] = str(block_store)
    if interpreter:
        command = [sys.executable, "-m", "forebay.cli", "status", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    else:
        done = forebay("status", *arguments, environment=environment, timeout=60)
    return done.returncode, done.stdout, " ".join((done.stdout + done.stderr).split())


def look(url: str, root: Path | None = None, *, seconds: float = PATIENT, watch: float = 1.0) -> SystemStatus:
    """Look as the command does, with the caller's deadline."""
    roots = [] if root is None else [str(root)]
    return system_status(lambda: url, seconds=seconds, batches=10, host="here", roots=roots, watch=watch)


def reasons(found: SystemStatus) -> dict[str, str]:
    return {missing.part: missing.reason for missing in found.unreachable}


def test_a_server_that_refuses(tmp_path: Path) -> None:
    code, output, said = status(tmp_path, *PATIENTLY, "--json", database_url="postgresql://nobody@127.0.0.1:1/none")
    assert code == 1
    report: dict[str, Any] = json.loads(output)
    [missing] = report.pop("unreachable")
    assert missing["part"] == "driver log"
    assert "Connection refused" in missing["reason"]
    [problem] = report.pop("problems")
    assert problem["what"].startswith("driver log can't be reached: ")
    assert set(report.values()) == {None}, "a missing part must not look empty"

    code, _, said = status(tmp_path, *PATIENTLY, database_url="postgresql://nobody@127.0.0.1:1/none")
    assert code == 1
    assert "driver log can't be reached: connection to server" in said
    assert "go on by themselves" in said
    assert "check FOREBAY_DATABASE_URL" in said


def test_a_server_that_takes_connections_and_answers_nothing() -> None:
    """Check a server that accepts connections without answering.

    A stopped server process looks the same: the kernel accepts the connection.
    """
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        began = monotonic()
        found = look(f"postgresql://nobody@127.0.0.1:{listener.getsockname()[1]}/none", seconds=SECONDS)
        assert monotonic() - began < BOUND
    assert reasons(found) == {"driver log": "no answer within 1.0 s"}


def test_the_command_ends_even_if_its_threads_hang(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        url = f"postgresql://nobody@127.0.0.1:{listener.getsockname()[1]}/none"
        code, _, said = status(tmp_path, "--within", "1", database_url=url, interpreter=True)
    assert code == 1
    assert "driver log can't be reached: no answer within 1.0 s" in said


def test_a_server_that_stops_answering_during_a_statement(database_url: str) -> None:
    silent = threading.Event()

    def decide(request: bytes) -> None:
        if b"receiver_status" in request:
            silent.wait(BOUND)

    with CuttingProxy(database_url, decide) as proxy:
        began = monotonic()
        found = look(proxy.url, seconds=SECONDS * 4)
        assert monotonic() - began < BOUND
        silent.set()
    assert found.receivers is None
    # On a machine that takes that long to connect at all, the driver log is reported instead.
    assert {"receivers", "driver log"} & set(reasons(found))


@contextmanager
def locked(database_url: str, table: str) -> Iterator[None]:
    """Hold the table in another session, as a migration does."""
    url = sa.make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg2.connect(url)) as person, person.cursor() as cursor:
        cursor.execute(sa.text(f"LOCK TABLE forebay.{table} IN ACCESS EXCLUSIVE MODE").text)
        yield


def test_a_locked_table_is_named_and_the_other_parts_are_shown(engine: sa.Engine, database_url: str) -> None:
    with connect(engine) as connection:
        make_log(connection)
    with locked(database_url, "scaling_decisions"):
        found = look(database_url, seconds=PATIENT / 3)
    assert reasons(found) == {"scaling decisions": "canceling statement due to lock timeout"}
    assert found.decisions is None
    assert found.pipelines is not None
    assert [row.pipeline for row in found.pipelines] == ["words"]


def test_with_all_tables_locked_it_answers_too(engine: sa.Engine, database_url: str) -> None:
    with connect(engine) as connection:
        make_log(connection)
    with ExitStack() as stack:
        for table in ("receivers", "blocks", "pipelines", "processes", "leadership", "block_stores"):
            stack.enter_context(locked(database_url, table))
        began = monotonic()
        found = look(database_url, seconds=SECONDS * 12)
        assert monotonic() - began < SECONDS * 12 + BOUND
    assert found.pipelines is None
    assert {"pipelines", "receivers", "leader", "agents"} <= set(reasons(found))
    assert "driver log" not in reasons(found), "the driver log is reachable and must not be reported"


def test_a_driver_log_without_a_schema_is_reported(postgres_server: Any) -> None:  # noqa: ANN401  tests.support.postgres.server loads a driver
    with postgres_server.database(migrated=False) as url:
        found = look(url)
    assert found.receivers is None
    assert "receivers" not in reasons(found)
    assert "there is no driver log in" in reasons(found)["driver log"]


def test_an_embedded_server_that_is_not_running(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "postgres.log"
    log.write_text('LOG:  starting\nFATAL:  could not write lock file "postmaster.pid": No space left on device\n')
    code, _, said = status(tmp_path, *PATIENTLY)
    assert code == 1
    assert "the Postgres of this home does not run; `forebay up` starts it" in said
    assert "No space left on device" in said


def test_an_embedded_server_that_was_stopped_has_nothing_to_explain(home: Path) -> None:
    """Check the log of a real server after Ctrl-C: the sessions that it ends are FATAL there."""
    (home / "logs").mkdir()
    log = home / "logs" / "postgres.log"
    server = EmbeddedPostgres(home / "postgres")
    with PostgresProcess(server) as running, closing(psycopg2.connect(server.url("postgres").replace("+psycopg2", ""))):
        server.stop()
        running.wait(60)
        log.write_bytes(running.log_file.read_bytes())
    _, _, said = status(home, *PATIENTLY)
    assert "the Postgres of this home was stopped, in order; `forebay up` starts it" in said
    assert "says why" not in said
    assert "`forebay up` does not run in this home" in said
    with pytest.raises(DriverLogUnavailableError, match=r"`forebay up` starts it\. Try again when it runs\.$"):
        find_database_url(Settings(home=home, database_url=None))
    assert "FOREBAY_DATABASE_URL" not in said, "it is not set"
    assert "go on by themselves" not in said, "no receiver runs"
    # The next start fails.
    log.write_text(
        log.read_text() + "LOG:  starting PostgreSQL 16\nFATAL:  out of room\nLOG:  database system is shut down\n"
    )
    assert "says why it ended: FATAL: out of room" in status(home, *PATIENTLY)[2]


def test_a_home_without_a_server_is_all_that_is_said(tmp_path: Path) -> None:
    code, _, said = status(tmp_path)
    assert (code, said) == (
        1,
        "No driver log: run `forebay up` in this FOREBAY_HOME (it brings a Postgres), or set FOREBAY_DATABASE_URL.",
    )
    code, printed, _ = status(tmp_path, "--json")
    assert code == 1
    assert [part["part"] for part in json.loads(printed)["unreachable"]] == ["driver log"]


def test_the_page_of_another_installation_on_the_host_is_not_shown(
    engine: sa.Engine, database_url: str, tmp_path: Path
) -> None:
    with connect(engine) as connection:
        make_log(connection)
    assert "Status page" not in status(tmp_path, *PATIENTLY, database_url=database_url)[2]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tracker.url").write_text("http://127.0.0.1:3070\n")
    assert "Status page: http://127.0.0.1:3070/status" in status(tmp_path, *PATIENTLY, database_url=database_url)[2]


def test_a_block_store_whose_mount_hangs(engine: sa.Engine, database_url: str, home: Path) -> None:
    with ExitStack() as stack:
        try:
            root = stack.enter_context(hanging_mount(home / "blocks"))
        except HangingMountRefusedError as error:
            pytest.skip(str(error))
        with connect(engine) as connection:
            make_log(connection)
        code, output, _ = status(home, "--within", "6", "--json", database_url=database_url, block_store=root)
    assert code == 1
    report = json.loads(output)
    reason = {missing["part"]: missing["reason"] for missing in report["unreachable"]}[f"block store {root}"]
    assert "no answer within" in reason


def test_a_block_store_other_than_the_one_this_host_attached(
    engine: sa.Engine, database_url: str, tmp_path: Path
) -> None:
    root = tmp_path / "blocks"
    root.mkdir()
    assert reasons(look(database_url, root)) == {}, "a host without receivers has attached none"
    with connect(engine) as connection:
        attach_block_store(connection, host="here", roots={"directory-1": str(root)})
    assert reasons(look(database_url, root)) == {
        f"block store {root}": "it has no identity, and this host attached directory-1 there: not mounted?"
    }
    (root / "_store").write_text("directory-1\n")
    assert reasons(look(database_url, root)) == {}


def test_a_dead_control_plane_is_shown(engine: sa.Engine, database_url: str, tmp_path: Path) -> None:
    with connect(engine) as connection:
        nobody = look(database_url).leader
        assert nobody is not None
        assert (nobody.holder, nobody.moves) == (None, False)
        take_leadership(connection, seen=read_leadership(connection), holder="tracker on here")
        agent = register_process(connection, kind=ProcessKind.AGENT, name="a", host="here", pid=1)
    code, output, _ = status(tmp_path, *PATIENTLY, "--json", database_url=database_url)
    report = json.loads(output)
    assert code == 0, "every part was answered"
    assert report["leader"]["holder"] == "tracker on here"
    assert not report["leader"]["moves"]
    assert [(row["name"], row["moves"]) for row in report["agents"]] == [("a", False)]
    _, _, said = status(tmp_path, *PATIENTLY, database_url=database_url)
    assert "No tracker leads: tracker on here (term 1) has been silent for" in said
    assert "Agent a on here has been silent for" in said

    done = threading.Event()

    def live() -> None:
        while not done.wait(0.05):
            with connect(engine) as connection:
                connection.execute(sa.text("UPDATE forebay.leadership SET counter = counter + 1"))
                connection.execute(
                    sa.text("UPDATE forebay.processes SET heartbeat = heartbeat + 1 WHERE id = :id"), {"id": agent}
                )

    thread = threading.Thread(target=live)
    thread.start()
    try:
        found = look(database_url, watch=PATIENT)
    finally:
        done.set()
        joined(thread)
    assert found.leader is not None
    assert found.leader.moves
    assert [row.moves for row in found.agents or []] == [True]
