"""Test `forebay top` on a terminal: it shows, follows, outlasts an outage and ends; and without one it prints once."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.main import app
from tests.support.driver_log.log import NOON, Log
from tests.support.polling import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _environment(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("COLUMNS", "80")


class Terminal:
    """`forebay top` on a terminal of 80 columns and 24 lines."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._theirs = theirs
        self.before = termios.tcgetattr(theirs)
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        # A shell ignores Ctrl-C for what it starts in the background, and all children inherit that.
        self.process = subprocess.Popen(
            ["env", "--default-signal=INT", sys.executable, "-m", "forebay.cli", "top", "--interval", "0.5"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "TERM": "xterm"},
        )
        self._seen = ""

    def wait_for(self, text: str) -> None:
        """Return when the program has written this text since the last call."""
        deadline = time.monotonic() + 60
        while text not in self._seen:
            assert time.monotonic() < deadline, self._seen
            self._read()
        self._seen = self._seen.partition(text)[2]

    def _read(self) -> None:
        if select.select([self._ours], [], [], 0.05)[0]:
            self._seen += os.read(self._ours, 65_536).decode(errors="replace")

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def ends(self) -> int:
        """Return the exit code, reading on: a program whose terminal nobody reads can't write."""

        def has_ended() -> bool:
            self._read()
            return self.process.poll() is not None

        eventually(has_ended, "forebay top ends")
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60)
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminal(log: Log) -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


def test_it_follows_outlasts_an_outage_and_ends_with_q(log: Log, terminal: Terminal) -> None:
    terminal.wait_for("STREAMS")
    terminal.wait_for("lines")
    assert not termios.tcgetattr(terminal._theirs)[3] & termios.ECHO, "single keys get through, and are not shown"
    log.add_at(log.receiver_ids[0], NOON, records=123_456)
    terminal.wait_for("123,456")
    cut = sa.text(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE application_name = 'forebay top' AND datname = current_database()"
    )
    eventually(lambda: log.connection.execute(cut).scalar_one() > 0, "its connection is cut")
    log.add_at(log.receiver_ids[0], NOON, records=1_000_000)
    terminal.wait_for("1,123,456")
    terminal.press(b"x")
    assert terminal.process.poll() is None
    terminal.press(b"q")
    assert terminal.ends() == 0
    assert termios.tcgetattr(terminal._theirs) == terminal.before, "the terminal is as it was"


def test_ctrl_c_ends_it_with_0(terminal: Terminal) -> None:
    terminal.wait_for("RECEIVERS")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ends() == 0
    assert termios.tcgetattr(terminal._theirs) == terminal.before, "the terminal is as it was"


def test_without_a_terminal_it_prints_once(log: Log) -> None:
    log.add_at(log.receiver_ids[0], NOON, records=123_456)
    done = CliRunner().invoke(app, ["top", "--interval", "0.5"])
    assert done.exit_code == 0, done.output
    assert "123,456" in done.stdout
    assert "\x1b" not in done.stdout
    assert "q: quit" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    told = json.loads(CliRunner().invoke(app, ["top", "--interval", "0.5", "--json"]).stdout)
    [stream] = told["streams"]
    assert (stream["stream"], stream["records"], stream["records_per_second"]) == ("lines", 123_456, 0)


def test_a_driver_log_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    done = CliRunner().invoke(app, ["top"])
    assert done.exit_code == 1
    assert "Traceback" not in done.output
