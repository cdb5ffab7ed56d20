"""Test `forebay pipelines` on a real driver log: what it shows, and that a pipeline given up holds nothing back."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.commands import pipelines
from forebay.cli.main import app
from forebay.cli.terminal import confirmation
from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log
from tracker_store.batches import batches
from tracker_store.batches.pipeline_states import advance_stops, start_pipelines, stop_pipelines
from tracker_store.batches.pipelines import apply_pipeline, list_pipelines
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.receivers.receivers import placements
from tracker_store.retention.cleanup import clean_up_receiver
from tracker_store.schema.states import DesiredState

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

SECOND = timedelta(seconds=1)


@pytest.fixture
def log(connection: sa.Connection, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    return make_log(connection)


def forebay(*arguments: str, **options: Any) -> Result:  # noqa: ANN401  the runner's own
    return CliRunner().invoke(app, arguments, **options)


def said(result: Result) -> str:
    return " ".join(result.output.split())


def shown() -> dict[str, Any]:
    [row] = json.loads(forebay("pipelines", "--json").stdout)["pipelines"]
    found: dict[str, Any] = row
    return found


def age(log: Log, by: timedelta) -> None:
    """Move the times in the pipelines' and batches' rows into the past by this much."""
    for table, columns in (("pipelines", ("applied_at", "state_since")), ("batches", ("allocated_at", "completed_at"))):
        for column in columns:
            log.connection.execute(
                sa.text(f"UPDATE forebay.{table} SET {column} = {column} - CAST(:by AS interval)"),
                {"by": by},
            )


def now(log: Log) -> datetime:
    time: datetime = log.connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
    return time


def test_the_row_of_each_pipeline(log: Log) -> None:
    row = shown()
    assert (row["pipeline"], row["state"], row["batch_interval"]) == ("words", "RUNNING", 10.0)
    assert (row["waiting_records"], row["last_completed_time"], row["holds_back_for"]) == (0, None, None)
    log.add_at(log.receiver_ids[0], NOON + SECOND)
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    at: dict[str, Any] = {"pipeline_id": log.pipeline_id, "batch_time": NOON + INTERVAL, "attempt": 1}
    batches.claim_attempt(log.connection, **at, run_id="run", process_id=1)
    row = shown()
    assert (row["unfinished_batches"], row["running_batches"], row["waiting_records"]) == (1, 1, 0)
    assert datetime.fromisoformat(row["last_batch_time"]) == NOON + INTERVAL
    batches.complete_batch(log.connection, **at, outputs=[])
    row = shown()
    assert (row["unfinished_batches"], row["holds_back_for"]) == (0, None)
    assert datetime.fromisoformat(row["last_completed_time"]).astimezone(UTC) == NOON + INTERVAL
    stop_pipelines(log.connection)
    assert shown()["state"] == "STOPPING"
    table = forebay("pipelines")
    assert table.exit_code == 0
    assert "words" in table.output
    status = forebay("status", "--within", "60")
    assert "STOPPING" in status.output
    [in_status] = json.loads(forebay("status", "--within", "60", "--json").stdout)["pipelines"]
    [listed] = json.loads(forebay("pipelines", "--json").stdout)["pipelines"]
    # Both read the clock.
    for row in (in_status, listed):
        assert row.pop("due_for") > 0
        assert row.pop("intervals_behind") > 0
    assert in_status == listed


def test_a_pipeline_that_completes_nothing_while_blocks_wait_is_reported(log: Log) -> None:
    log.add_at(log.receiver_ids[0], now(log) - timedelta(days=3))
    # It was applied just now: no batch can be complete yet.
    assert not shown()["is_stale"]
    age(log, timedelta(minutes=4))
    assert not shown()["is_stale"]
    age(log, timedelta(minutes=2))
    row = shown()
    assert row["is_stale"]
    assert row["holds_back_for"] == pytest.approx(360, abs=30)
    for command in (("pipelines",), ("status", "--within", "60")):
        assert re.search(r"words \(RUNNING\) has completed nothing for 3[6-8]\d", said(forebay(*command)))
        assert "does Dagster run it? forebay batches list --pipeline words" in said(forebay(*command))
        assert "remove" not in said(forebay(*command)), "no advice that destroys"
    # A long interval gets ten intervals of time.
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET batch_interval = interval '1 minute'"))
    assert not shown()["is_stale"]


def test_w10_one_that_is_halted_is_told_with_its_ways_out(log: Log) -> None:
    log.add_at(log.receiver_ids[0], now(log) - timedelta(days=3))
    age(log, timedelta(days=1))
    assert shown()["halted_by"] is None
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET halted_by = :t"), {"t": NOON})
    assert datetime.fromisoformat(shown()["halted_by"]) == NOON
    status = said(forebay("status", "--within", "60"))
    assert 'words is halted (on_failure="halt"): batch 2026-01-01T12:00:00Z is quarantined' in status
    assert "forebay batches show words 2026-01-01T12:00:00Z" in status
    assert "does Dagster run it" not in status, "it is known why nothing is completed"
    for command in (("pipelines",), ("batches",)):
        told = said(forebay(*command))
        assert f'words is halted (on_failure="halt"): batch {NOON.isoformat()} is quarantined' in told
        for way_out in ("batches replay words", "batches discard words", "start --pipeline words"):
            assert f"`forebay {way_out}" in told
        assert "does Dagster run it" not in told, "it is known why nothing is completed"
        assert command != ("pipelines",) or "HALTED" in told


def test_a_pipeline_left_stopped_is_reported_with_its_ways_out(log: Log) -> None:
    log.add_at(log.receiver_ids[0], now(log) - timedelta(days=3))
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET state = 'STOPPED'"))
    age(log, timedelta(days=1))
    told = said(forebay("pipelines"))
    assert "forebay start --pipeline words lets it go on" in told
    assert "remove" not in told


def problem_lines() -> list[str]:
    """Return the problems of this driver log, apart from those that a system without processes has."""
    listed = json.loads(forebay("status", "--within", "60", "--json").stdout)["problems"]
    lines = [f"{row['what']}: {row['command']}" for row in listed]
    return [line for line in lines if not line.startswith(("No tracker leads", "No agent runs", "block store"))]


def test_a_pipeline_that_is_behind_its_schedule_is_a_problem_though_no_record_waits(log: Log) -> None:
    """Check with blocks that are all in a batch: its lag is 0, and its schedule is not kept."""
    newest = now(log) - 63 * INTERVAL - SECOND
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET last_batch_time = :t"), {"t": newest - INTERVAL})
    log.add_at(log.receiver_ids[0], newest - SECOND)
    log.tracker.allocate_blocks_to_batch(newest)
    row = shown()
    assert (row["waiting_records"], row["unfinished_batches"], row["intervals_behind"]) == (0, 1, 63)
    at: dict[str, Any] = {"pipeline_id": log.pipeline_id, "batch_time": newest, "attempt": 1}
    batches.claim_attempt(log.connection, **at, run_id="run", process_id=1)
    [line] = problem_lines()
    assert re.fullmatch(
        r"words is 63 intervals \(63\d s\) behind its schedule: forebay batches list --pipeline words", line
    )
    age(log, timedelta(days=1))
    [_, stale] = problem_lines()
    assert "a batch of it runs: forebay batches list --pipeline words" in stale
    assert "remove" not in stale, "an attempt runs"
    batches.complete_batch(log.connection, **at, outputs=[])
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET last_batch_time = :t"), {"t": now(log)})
    assert (shown()["intervals_behind"], shown()["due_for"]) == (0, None)
    assert problem_lines() == []


def test_a_stopped_pipeline_is_not_behind(log: Log) -> None:
    assert shown()["intervals_behind"] > 63
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET state = 'STOPPED'"))
    assert shown()["intervals_behind"] == 0


def test_quarantined_batches_are_a_problem_however_many_newer_batches_there_are(log: Log) -> None:
    for number in range(1, 14):
        time = NOON + number * INTERVAL
        if number <= 2:
            log.add_at(log.receiver_ids[0], time - SECOND)
        log.tracker.allocate_blocks_to_batch(time)
        if number <= 2:
            log.end_batch(time, fails=True)
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET last_batch_time = :t"), {"t": now(log)})
    assert problem_lines() == [
        (
            "words has 2 quarantined batches, the newest at 2026-01-01T12:00:20Z: "
            "forebay batches list --pipeline words --state QUARANTINED"
        )
    ]
    output = said(forebay("status", "--within", "60", "--batches", "10"))
    assert output.index("2 quarantined batches") < output.index("Pipelines")
    assert "2 quarantined" in output[output.index("Pipelines") :], "counted by state"
    assert batches.discard_batch(log.connection, pipeline_id=log.pipeline_id, batch_time=NOON + INTERVAL)
    assert problem_lines() == [
        "words has a quarantined batch at 2026-01-01T12:00:20Z: forebay batches show words 2026-01-01T12:00:20Z"
    ]


def test_a_running_pipeline_is_not_removed(log: Log) -> None:
    result = forebay("pipelines", "remove", "words", "--yes")
    assert result.exit_code == 1
    assert "stop it first, `forebay stop --pipeline words`" in said(result)
    log.add_at(log.receiver_ids[0], NOON + SECOND)
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    at: dict[str, Any] = {"pipeline_id": log.pipeline_id, "batch_time": NOON + INTERVAL, "attempt": 1}
    batches.claim_attempt(log.connection, **at, run_id="run", process_id=1)
    stop_pipelines(log.connection)
    assert forebay("pipelines", "remove", "words", "--yes").exit_code == 1
    assert [row.name for row in list_pipelines(log.connection)] == ["words"]
    unknown = forebay("pipelines", "remove", "verbs", "--yes")
    assert unknown.exit_code == 1
    assert "'verbs' is not in the driver log, which has words" in said(unknown)
    for command in ("stop", "start"):
        assert "'verbs' is not in the driver log, which has words" in said(forebay(command, "--pipeline", "verbs"))
    assert "'verbs' is not in the driver log, which has lines" in said(forebay("streams", "remove", "verbs", "--yes"))


def test_remove_asks_for_a_confirmation(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirmation, "is_terminal", lambda: True)
    log.add_at(log.receiver_ids[0], NOON + SECOND)
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    stop_pipelines(log.connection)
    refused = forebay("pipelines", "remove", "words", input="n\n")
    assert refused.exit_code == 1
    lost = "0 records wait for a batch, and 10 are in 1 batch(es) that are not complete. They will not come out."
    assert f"words (STOPPING): {lost}" in said(refused)
    assert [row.name for row in list_pipelines(log.connection)] == ["words"]

    def confirm(question: str, *, yes: bool, err: bool) -> None:
        log.add_at(log.receiver_ids[0], NOON + INTERVAL + SECOND)
        log.tracker.allocate_blocks_to_batch(NOON + 2 * INTERVAL)
        confirmation.confirm(question, yes=yes, err=err)

    # While a person thinks about it, another batch is made.
    monkeypatch.setattr(pipelines, "confirm", confirm)
    removed = forebay("pipelines", "remove", "words", input="y\n")
    assert "and 20 were in batches that do not come out: 2 not complete" in said(removed)
    assert list_pipelines(log.connection) == []


def test_a_removal_is_said_as_json(log: Log) -> None:
    refused = forebay("pipelines", "remove", "words", "--json", "--yes")
    assert (refused.exit_code, refused.stdout) == (1, "")
    log.add_at(log.receiver_ids[0], NOON + SECOND)
    stop_pipelines(log.connection)
    removed = forebay("pipelines", "remove", "words", "--json", "--yes")
    assert json.loads(removed.stdout) == {
        "pipeline": "words",
        "removed": True,
        "waiting_records": 10,
        "unfinished_batches": 0,
        "kept_batches": 0,
        "records_in_batches": 0,
    }
    assert "10 records had waited for a batch" in said(removed)
    assert list_pipelines(log.connection) == []


def test_k12_a_stop_that_waits_for_nobody_names_the_way_out_and_clean_up_goes_on_after_it(log: Log) -> None:
    """Check with records that wait for a pipeline that no running module has: no process will make a batch of them."""
    [receiver_id] = log.receiver_ids
    log.add_at(receiver_id, NOON + SECOND, NOON + 2 * SECOND)
    other = apply_pipeline(
        log.connection,
        name="other",
        declaration={"max_attempts": 3, "streams": ["lines"]},
        stream_ids=[log.stream_id],
        interval=INTERVAL,
    )
    # The other pipeline has read all of it.
    log.connection.execute(
        sa.text("INSERT INTO forebay.cursors (consumer_id, receiver_id, next_sequence) VALUES (:p, :r, 4)"),
        {"p": other, "r": receiver_id},
    )
    assert clean_up_receiver(log.connection, receiver_id=receiver_id, threshold=now(log), max_rows=1000).blocks == 0
    stopped = forebay("stop", "--pipeline", "words", "--timeout", "1s")
    assert stopped.exit_code == 1
    assert "if what waits is not wanted any more: forebay pipelines remove words" in said(stopped)
    removed = forebay("pipelines", "remove", "words", "--yes")
    assert removed.exit_code == 0, removed.output
    assert "words is removed; 20 records had waited for a batch, and 0 were in batches" in said(removed)
    assert clean_up_receiver(log.connection, receiver_id=receiver_id, threshold=now(log), max_rows=1000).blocks > 0
    [event] = log.connection.execute(
        sa.text("SELECT pipeline, detail FROM forebay.driver_log WHERE event = 'pipeline removed'")
    ).all()
    assert event.pipeline == "words"
    assert "20 records had not been in a batch" in event.detail
    [same] = log.connection.execute(
        sa.text("SELECT * FROM forebay.driver_log_between(clock_timestamp() - interval '1 minute') WHERE source = :s"),
        {"s": "pipelines"},
    ).all()
    assert same.detail == event.detail


def test_receivers_stopped_with_a_pipeline_start_when_another_pipeline_reads_them(log: Log) -> None:
    term = take_leadership(log.connection, seen=read_leadership(log.connection), holder="me")
    assert term is not None
    stop_pipelines(log.connection, name="words")
    advance_stops(log.connection, term=term)
    [receiver] = placements(log.connection)
    assert receiver.desired_state is DesiredState.STOPPED
    assert forebay("pipelines", "remove", "words", "--yes").exit_code == 0
    advance_stops(log.connection, term=term)
    # No pipeline reads the stream: it receives nothing that would only be stored.
    [receiver] = placements(log.connection)
    assert receiver.desired_state is DesiredState.STOPPED
    apply_pipeline(
        log.connection,
        name="words",
        declaration={"max_attempts": 3, "streams": ["lines"]},
        stream_ids=[log.stream_id],
        interval=INTERVAL,
    )
    advance_stops(log.connection, term=term)
    [receiver] = placements(log.connection)
    assert receiver.desired_state is DesiredState.RUNNING
    assert start_pipelines(log.connection) == []
