"""Test `forebay logs`: lists, receivers and processes of this host, receivers elsewhere, and following."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.main import app
from tests.support.driver_log.log import Log, make_log
from tracker_store.host.log_files import open_log, roll
from tracker_store.receivers.processes import register_process
from tracker_store.receivers.receivers import process_of_receiver
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


@pytest.fixture(autouse=True)
def directory(home: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "80")
    (home / "logs").mkdir()
    return home / "logs"


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    return make_log(connection, receivers=2)


def forebay(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["logs", *arguments])


def write(path: Path, text: str) -> None:
    with open_log(path) as file:
        file.write(text.encode())


def run_on(log: Log, receiver_id: int, *, host: str, pid: int) -> None:
    """Say that a living process on this host holds the receiver."""
    process_id = register_process(log.connection, kind=ProcessKind.RECEIVER, name="lines/1", host=host, pid=pid)
    log.connection.execute(
        sa.text("UPDATE forebay.receivers SET process_id = :process WHERE id = :receiver"),
        {"process": process_id, "receiver": receiver_id},
    )
    assert process_of_receiver(log.connection, receiver_id).host == host


def test_a_process_is_named_by_its_file_and_needs_no_driver_log(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    write(directory / "agent.log", "one\ntwo \x1b[2J\nthree\n")
    assert forebay("agent").stdout.splitlines() == ["one", "two \\u001b[2J", "three"]
    assert forebay("agent", "-n", "1").stdout == "three\n"
    shown = [json.loads(line) for line in forebay("agent", "-n", "2", "--json").stdout.splitlines()]
    assert shown == [{"log": "agent", "line": "two \x1b[2J"}, {"log": "agent", "line": "three"}]


def test_without_a_name_the_logs_are_listed(directory: Path) -> None:
    assert "No process of Forebay has run here" in forebay().stdout
    write(directory / "receiver-1.log", "x" * 1234)
    write(directory / "agent.log", "")
    told: dict[str, Any] = json.loads(forebay("--json").stdout)
    assert told["directory"] == str(directory)
    assert [(row["name"], row["bytes"]) for row in told["logs"]] == [("agent", 0), ("receiver-1", 1234)]
    assert "receiver-1" in (shown := forebay().stdout)
    assert "1,234" in shown
    assert max(map(len, shown.splitlines())) <= 80
    long = f"batch-driver-{'of-another-name-' * 4}1"
    write(directory / f"{long}.log", "")
    assert long in forebay().stdout


def test_a_receiver_is_named_as_stream_and_number(log: Log, directory: Path) -> None:
    first, second = log.receiver_ids
    write(directory / f"receiver-{first}.log", "of the first\n")
    write(directory / f"receiver-{second}.log", "of the second\n")
    assert forebay("lines/2").stdout == "of the second\n"
    assert forebay("lines").stdout == "of the first\n"


def test_a_receiver_that_shares_a_process_has_that_processs_log(log: Log, directory: Path) -> None:
    write(directory / f"receiver-{log.receiver_ids[0]}.log", "of an earlier process\n")
    with (
        (directory / "receivers-3.log").open("ab") as output,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=output) as process,
    ):
        run_on(log, log.receiver_ids[0], host=socket.gethostname(), pid=process.pid)
        write(directory / "receivers-3.log", "shared\n")
        assert forebay("lines/1").stdout == "shared\n"


def test_a_receiver_elsewhere_has_its_host_named(log: Log, directory: Path) -> None:
    first = log.receiver_ids[0]
    done = forebay("lines/1")
    assert done.exit_code == 1
    assert "lines/1 is on no host now (INACTIVE)" in done.stderr
    run_on(log, first, host="far-away", pid=2**22 + 1)
    done = forebay("lines/1")
    assert done.exit_code == 1
    assert "lines/1 runs on host far-away" in done.stderr
    assert "forebay logs lines/1" in done.stderr
    write(directory / f"receiver-{first}.log", "before\n")
    done = forebay("lines/1")
    assert (done.exit_code, done.stdout) == (0, "before\n")
    assert "runs on host far-away: this is what it wrote here before" in done.stderr


def test_an_unknown_name_is_refused(log: Log) -> None:
    done = forebay("nothing")
    assert done.exit_code == 1
    assert "receiver 'nothing'" in done.stderr


def test_a_log_is_followed_while_it_is_rolled_until_ctrl_c(directory: Path) -> None:
    path = directory / "agent.log"
    write(path, "zero\none\n")
    # A shell ignores Ctrl-C for what it starts in the background, and all children inherit that.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "forebay.cli", "logs", "agent", "-f", "-n", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "one\n"
            write(path, "two\n")
            assert process.stdout.readline() == "two\n"
            write(path, "three\n")
            assert roll(path, most_bytes=1)
            write(path, "four\n")
            assert [process.stdout.readline() for _ in range(2)] == ["three\n", "four\n"]
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == ""
            assert process.wait(60) == 0
        finally:
            process.kill()
