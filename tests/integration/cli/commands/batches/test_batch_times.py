"""Test that `forebay batches` finds a batch by its time as other commands print it, and by `latest`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.main import app
from orchestration.replays.replay_choice import ReplayChoice, batches_to_replay
from tests.support.driver_log.log import INTERVAL, NOON, make_log

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

    from tests.support.driver_log.log import Log


@pytest.fixture
def log(connection: sa.Connection, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return make_log(connection)


def add_batches(log: Log, *times: datetime) -> None:
    for time in times:
        log.connection.execute(
            sa.text(
                "INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, records, bytes, blocks) "
                "VALUES (:p, :t, :t, 'ALLOCATED', 1, 1, 1)"
            ),
            {"p": log.pipeline_id, "t": time},
        )


def forebay(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def found(text: str) -> str:
    answer = forebay("batches", "show", "words", text, "--json")
    assert answer.exit_code == 0, answer.output
    time: str = json.loads(answer.stdout)["batch"]["batch_time"]
    return time


def refusal(text: str) -> str:
    answer = forebay("batches", "show", "words", text)
    assert answer.exit_code == 1
    return " ".join(answer.output.split())


@pytest.mark.parametrize("written", ["%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S+00:00", "%H:%M:%S"])
def test_a_time_as_commands_print_it(log: Log, written: str) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    times = [now - timedelta(hours=hours) for hours in (20, 10, 0)]
    add_batches(log, *times)
    assert [found(f"{time:{written}}") for time in times] == [time.isoformat() for time in times]


def test_a_time_of_day_is_the_newest_one(log: Log) -> None:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    yesterday = today - timedelta(days=1)
    add_batches(log, yesterday - timedelta(days=1), yesterday)
    assert found("00:00:00") == yesterday.isoformat()
    add_batches(log, today)
    assert found("00:00:00") == today.isoformat()
    assert f"no batch at {today.date()}T01:02:03+00:00 or {yesterday.date()}T01:02:03+00:00" in refusal("01:02:03")


def test_a_time_without_its_fraction_names_the_only_batch_of_that_second(log: Log) -> None:
    times = [NOON + timedelta(milliseconds=more) for more in (500, 1000, 1250, 1500)]
    add_batches(log, *times)
    assert found("2026-01-01T12:00:00Z") == times[0].isoformat()
    assert found("2026-01-01T12:00:01Z") == times[1].isoformat(), "the exact one"
    add_batches(log, NOON + timedelta(milliseconds=750))
    assert "several batches within that second: 2026-01-01T12:00:00.500000+00:00, 2026-01-01T12:00:00.750" in refusal(
        "2026-01-01T12:00:00Z"
    )


def test_latest_is_the_newest_batch_and_never_what_is_discarded(log: Log) -> None:
    assert "pipeline 'words' has no batch yet" in refusal("latest")
    add_batches(log, NOON, NOON + INTERVAL)
    assert found("latest") == (NOON + INTERVAL).isoformat()
    log.connection.execute(sa.text("UPDATE forebay.batches SET records = 0 WHERE batch_time > :t"), {"t": NOON})
    assert found("latest") == NOON.isoformat(), "the newest one is empty"
    log.connection.execute(sa.text("UPDATE forebay.batches SET attempt = 1"))
    assert found("latest") == NOON.isoformat(), "the newest one is empty, and ran for a window"
    pipeline_id = log.pipeline_id
    log.connection.execute(sa.text("UPDATE forebay.batches SET state = 'RUNNING'"))
    log.connection.execute(sa.text("UPDATE forebay.batches SET state = 'COMPLETED', completed_at = now()"))
    assert batches_to_replay(log.connection, pipeline_id, ReplayChoice()) == [NOON]
    log.connection.execute(sa.text("UPDATE forebay.batches SET records = 0"))
    assert found("latest") == (NOON + INTERVAL).isoformat(), "all are"
    assert batches_to_replay(log.connection, pipeline_id, ReplayChoice()) == [NOON + INTERVAL]
    discarded = forebay("batches", "discard", "words", "latest", "--yes")
    assert (discarded.exit_code, "'latest' is no time" in discarded.output) == (1, True)


def test_a_discarded_batch_is_said_as_json(log: Log) -> None:
    log.add_at(log.receiver_ids[0], NOON + timedelta(seconds=1))
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    arguments = ["batches", "discard", "words", (NOON + INTERVAL).isoformat(), "--json", "--yes"]
    refused = forebay(*arguments)
    assert (refused.exit_code, refused.stdout) == (1, "")
    log.end_batch(NOON + INTERVAL, fails=True)
    discarded = forebay(*arguments)
    assert discarded.exit_code == 0
    report = json.loads(discarded.stdout)
    assert report.pop("kept_sequences") > 0
    assert report == {
        "pipeline": "words",
        "batch_time": (NOON + INTERVAL).isoformat(),
        "state": "DISCARDED",
        "records": 10,
    }
    assert "Discarded: 10 records" in discarded.stderr


def test_status_prints_a_time_that_show_takes(log: Log) -> None:
    yesterday = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1, hours=1)
    add_batches(log, yesterday, NOON)
    shown = forebay("status").output
    for time in (yesterday, NOON):
        assert f"{time:%Y-%m-%dT%H:%M:%SZ}" in shown


def test_a_span_and_a_pipeline_are_given_to_a_list_as_to_show(log: Log) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    times = [now - timedelta(hours=hours) for hours in (20, 10, 1)]
    add_batches(log, *times)

    def listed(*arguments: str) -> list[str]:
        answer = forebay("batches", "list", *arguments, "--json")
        assert answer.exit_code == 0, answer.output
        return [row["batch_time"] for row in json.loads(answer.stdout)["batches"]]

    newest_first = [time.isoformat() for time in reversed(times)]
    assert listed("words") == listed("--pipeline", "words") == listed() == newest_first
    # A time of day that has not come yet today is yesterday's.
    assert listed("words", "--from", f"{times[1]:%H:%M:%S}") == newest_first[:2]
    assert listed("--to", f"{times[1]:%H:%M:%S}") == newest_first[1:]
    assert listed("--from", f"{times[1]:%H:%M:%S}", "--to", f"{times[1]:%H:%M:%S}Z") == newest_first[1:2]
    assert "give one" in " ".join(forebay("batches", "list", "words", "--pipeline", "others").output.split())
    assert forebay("batches", "list", "nosuch").exit_code == 1
