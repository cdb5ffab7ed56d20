"""Test `forebay events`: the newest ones, those after an id, following, and through an outage of the connection."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.main import app
from tests.support.driver_log.log import INTERVAL, NOON, Log, wait_until_told
from tests.support.polling import eventually, joined
from tracker_store.receivers.receivers import report_event
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typer.testing import Result


@pytest.fixture(autouse=True)
def _environment(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("COLUMNS", "200")


def forebay(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def answer(*arguments: str) -> list[dict[str, Any]]:
    done = forebay("events", "--json", *arguments)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def report(log: Log, *messages: str) -> None:
    for message in messages:
        report_event(
            log.connection,
            receiver_id=log.receiver_ids[0],
            epoch=1,
            kind=ReceiverEventKind.ERROR,
            message=message,
        )


def test_the_newest_events_and_those_after_an_id(log: Log) -> None:
    report(log, "one", "two\nand more")
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    wait_until_told(log.connection)
    shown = answer()
    assert [(event["kind"], event["message"].partition("\n")[0]) for event in shown] == [
        ("pipeline_started", ""),
        ("receiver_error", "one"),
        ("receiver_error", "two"),
        ("batch_completed", "no records"),
    ]
    assert shown[-1]["batch_time"] == (NOON + INTERVAL).isoformat()
    assert answer("--limit", "1") == shown[-1:]
    assert answer("--limit", "0") == []
    assert answer("--limit", "1", "--kind", "receiver_error") == shown[2:3]
    assert answer("--after", shown[1]["event_id"]) == shown[2:]
    assert answer("--after", shown[1]["event_id"], "--kind", "batch_completed") == shown[3:]
    assert answer("--after", shown[-1]["event_id"]) == []
    assert answer("--after", "start") == shown
    lines = forebay("events").stdout.splitlines()
    assert len(lines) == len(shown), "one line per event, whatever its message"
    assert lines[2].endswith(f"{shown[2]['event_id']} receiver_error lines/1: two")
    assert lines[3].endswith("batch_completed words 2026-01-01T12:00:10Z 0 records: no records")


def test_an_unknown_id_and_an_unknown_kind_say_what_there_is(log: Log) -> None:
    done = forebay("events", "--after", "1-1")
    assert done.exit_code == 1
    assert "the driver log has no event '1-1'" in done.output
    assert "--after start" in done.output
    done = forebay("events", "--kind", "batch_exploded")
    assert done.exit_code == 2
    assert "batch_quarantined" in done.output


class Follower:
    """A process that runs `forebay events --follow --json`, and the events that it has printed."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            # A shell ignores Ctrl-C for what it starts in the background, and all children inherit that.
            [
                *("env", "--default-signal=INT", sys.executable, "-m", "forebay.cli"),
                *("events", "--follow", "--json", *arguments),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self.errors.extend(self._process.stderr)

    def next(self) -> dict[str, Any]:
        """Return the next event."""
        event: dict[str, Any] = json.loads(self._lines.get(timeout=120))
        return event

    def end(self) -> tuple[int, str]:
        """End it as Ctrl-C does; return its exit code, and what it printed that was not read."""
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(60)
        for thread in self._threads:
            joined(thread)
        return code, "".join(self._lines.queue)

    def close(self) -> None:
        """Kill it if it still runs."""
        self._process.kill()
        self._process.wait(60)
        for thread in self._threads:
            joined(thread)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def follower(log: Log) -> Iterator[Follower]:
    report(log, "before")
    wait_until_told(log.connection)
    [before] = answer("--limit", "1")
    made = Follower("--after", before["event_id"], "--kind", "receiver_error")
    yield made
    made.close()


def test_m08_events_are_followed_from_an_id_on_until_ctrl_c(log: Log, follower: Follower) -> None:
    for number in range(3):
        report(log, str(number))
        log.tracker.allocate_blocks_to_batch(NOON + (number + 1) * INTERVAL)
        assert follower.next()["message"] == str(number)
    assert follower.end() == (0, "")


def test_a_follower_whose_connection_is_cut_goes_on_where_it_was(log: Log, follower: Follower) -> None:
    report(log, "1")
    assert follower.next()["message"] == "1"
    cut = sa.text(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE application_name = 'forebay events' AND datname = current_database()"
    )
    eventually(lambda: log.connection.execute(cut).scalar_one() > 0, "its connection is cut")
    report(log, "2", "3")
    assert [follower.next()["message"] for _ in range(2)] == ["2", "3"]
    assert follower.end() == (0, "")
