"""Test `forebay state` and `forebay batches replay --forward`: what they list, show, run, undo and refuse."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.commands.batches.replay_launching import ReplayLauncher
from forebay.cli.commands.state import forward_following
from forebay.cli.main import app
from forebay.cli.terminal import confirmation
from orchestration.dagster_instance.dagster_client import DagsterClient
from tests.support.driver_log.stated_log import OUTPUT, StatedLog, batch_time, make_stated_log
from tracker_store.batches import batches
from tracker_store.batches.state_replays import (
    begin_state_replay,
    end_undoing,
    next_batch,
    state_replay,
    state_replays,
    stop_state_replay,
)
from tracker_store.connection.engine import connect
from tracker_store.reports.state_status import output_states
from tracker_store.schema.states import AttemptFailure, StateReplayState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from orchestration.replays.replay_run import ReplayRequest

pytestmark = pytest.mark.usefixtures("settings_in_environment")


@pytest.fixture
def log(engine: sa.Engine) -> Iterator[StatedLog]:
    """Return a log whose output `totals` has the state of two batches."""
    with connect(engine) as connection:
        made = make_stated_log(connection)
        made.run(1)
        made.run(2, next_expiry=batch_time(9))
        yield made


def forebay(*arguments: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    return answer.exit_code, answer.output


def listed() -> list[dict[str, Any]]:
    code, said = forebay("state", "--json")
    assert code == 0, said
    states: list[dict[str, Any]] = json.loads(said)["states"]
    return states


def test_without_a_state_nothing_is_listed(connection: sa.Connection) -> None:
    make_stated_log(connection)
    assert forebay("state") == (0, "No output has a state yet.\n")
    assert listed() == []


def test_states_are_listed_with_their_size_and_next_expiry(log: StatedLog) -> None:
    [row] = listed()
    assert (row["pipeline"], row["output"], row["batch_time"]) == ("words", OUTPUT, batch_time(2).isoformat())
    assert (row["keys"], row["versions"], row["stored_bytes"]) == (None, 2, 800)
    assert (row["next_expiry"], row["replay"]) == (batch_time(9).isoformat(), None)
    begin_state_replay(log.connection, pipeline_id=log.pipeline_id, output=OUTPUT, from_time=batch_time(2))
    [row] = listed()
    assert (row["replay_state"], row["replay_from"]) == ("RUNNING", batch_time(2).isoformat())
    code, said = forebay("state", "list")
    assert (code, "800" in said, f"{batch_time(9):%H:%M:%S}" in said) == (0, True, True), said
    assert f"{row['replay']} RUNNING, no process" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("state", "show", "words", "other", "ann"), "output other of pipeline words has no state: `forebay state`"),
        (("state", "show", "other", "totals", "ann"), "'other' is not in the driver log"),
        (("state", "show", "words", "totals", "ann", "--at", "2100-01-01"), "has no batch at 2100-01-01"),
        (("state", "resume", "words", "totals"), "no replay of the state of output totals is unfinished"),
        (("state", "undo", "words", "totals", "--yes"), "the state of output totals was never replayed"),
        (("batches", "replay", "words", "--forward"), "--forward needs TIME"),
        (("batches", "replay", "words", "latest", "--forward", "--to", "latest"), "takes no --from, --to"),
        (("batches", "replay", "words", "latest", "--forward", "--quarantined"), "takes no --from, --to"),
        (
            ("batches", "replay", "words", "latest", "--forward", "--output", "other"),
            "runs one output with a state: name one of totals",
        ),
    ],
)
def test_what_can_not_be_done_is_refused_by_name(log: StatedLog, arguments: tuple[str, ...], said: str) -> None:
    code, answer = forebay(*arguments)
    assert code != 0
    assert said in " ".join(answer.replace("│", " ").split())
    assert log.head() is not None


def test_a_batch_without_a_version_of_its_own_is_named(log: StatedLog) -> None:
    time = log.allocate(3)
    code, answer = forebay("state", "show", "words", OUTPUT, "ann", "--at", time.isoformat())
    assert (code, f"batch {time.isoformat()} has made no version of the state" in answer) == (1, True), answer


def test_a_replay_forward_says_what_it_costs_and_asks(log: StatedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirmation, "is_terminal", lambda: True)
    answer = CliRunner().invoke(
        app, ["batches", "replay", "words", batch_time(1).isoformat(), "--forward"], input="n\n"
    )
    said = f"2 batch(es) of output {OUTPUT}, from {batch_time(1).isoformat()} on: "
    assert (answer.exit_code, said in answer.output) == (1, True), answer.output
    assert "New batches of it wait until the last of these is committed." in answer.output
    [row] = listed()
    assert row["replay"] is None
    assert log.head() is not None


def test_the_status_says_what_a_state_has_and_what_it_waits_for(log: StatedLog) -> None:
    def state() -> dict[str, Any]:
        _, said = forebay("status", "--json")
        [row] = json.loads(said)["states"]
        return dict(row)

    found = state()
    assert (found["pipeline"], found["output"], found["batch_time"]) == ("words", OUTPUT, batch_time(2).isoformat())
    assert (found["keys"], found["bytes"], found["next_expiry"]) == (None, 400, batch_time(9).isoformat())
    assert (found["waits_for"], found["replay"]) == (None, None)
    log.quarantine(3)
    assert state()["waits_for"] is None, "no batch is blocked by it yet"
    time = log.allocate(4)
    log.claim(time)
    log.fail(time, 1, failure=AttemptFailure.BLOCKED)
    assert state()["waits_for"] == batch_time(3).isoformat()
    _, said = forebay("status")
    assert f"Output {OUTPUT} of words waits for batch {batch_time(3):%Y-%m-%dT%H:%M:%SZ}, which is quarantined" in said
    begin_state_replay(log.connection, pipeline_id=log.pipeline_id, output=OUTPUT, from_time=batch_time(2))
    assert (state()["replay_state"], state()["replay_runs"], state()["replayed_to"]) == ("RUNNING", False, None)
    _, said = forebay("status")
    assert "of its state, which is RUNNING, but no process runs it: new batches wait (no result is from replay" in said
    assert f"forebay state resume words {OUTPUT}" in said


def test_how_far_event_time_is_is_shown(log: StatedLog) -> None:
    time, slow = batch_time(3), batch_time(3) - timedelta(hours=2)
    times = [("1", time, False), ("2:0", slow, False), ("2:1", slow - timedelta(hours=1), True)]
    sources = [
        {"stream": "lines", "source": source, "latest": at.isoformat(), "seen": time.isoformat(), "idle": idle}
        for source, at, idle in times
    ]
    watermark = slow - timedelta(minutes=1)
    _, said = forebay("state", "list")
    assert "watermark" not in said
    _, said = forebay("status")
    assert "Event time" not in said
    log.run(3, watermark=watermark, late=1_234, event_times=sources)
    [row] = listed()
    assert (row["watermark"], row["late"], row["late_total"]) == (watermark.isoformat(), 1_234, 1_234)
    _, said = forebay("state", "list")
    assert (f"{watermark:%Y-%m-%d %H:%M:%S}" in said, "1,234" in said) == (True, True), said
    [found] = output_states(log.connection)
    assert (found.slowest_stream, found.slowest_source, found.slowest_seen) == ("lines", "2:0", time)
    assert (found.slowest_event_time, found.newest_event_time) == (slow, time)
    assert (found.watermark, found.watermark_lag) == (watermark, timedelta(hours=2, minutes=1))
    _, said = forebay("status")
    assert "Event time: the watermark of each output" in said
    assert ("7260.0 s" in said, "1,234" in said) == (True, True), said
    assert (
        f"The windows of output {OUTPUT} of words stay open for lines/2:0, which is at {slow:%Y-%m-%dT%H:%M:%SZ}"
        in said
    )
    _, said = forebay("status", "--json")
    [row] = json.loads(said)["states"]
    assert (row["watermark"], row["late_total"], row["slowest_source"]) == (watermark.isoformat(), 1_234, "2:0")


def test_a_source_that_has_had_no_event_time_is_the_slowest(log: StatedLog) -> None:
    common = {"stream": "lines", "seen": batch_time(3).isoformat(), "idle": False}
    sources = [
        {**common, "source": "1", "latest": batch_time(3).isoformat()},
        {**common, "source": "2", "latest": None},
    ]
    log.run(3, late=0, event_times=sources)
    [found] = output_states(log.connection)
    assert (found.slowest_source, found.slowest_event_time, found.newest_event_time) == ("2", None, batch_time(3))
    log.run(4, late=0, event_times=[{**source, "idle": True} for source in sources])
    [found] = output_states(log.connection)
    assert (found.slowest_stream, found.newest_event_time, found.is_by_event_time) == (None, None, True)


def test_the_status_of_a_state_costs_no_versions(log: StatedLog) -> None:
    sent: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, values: Any, *___: object) -> None:  # noqa: ANN401  the driver's
        sent.append((statement, values))

    sa.event.listen(log.connection, "before_cursor_execute", note)
    [found] = output_states(log.connection)
    sa.event.remove(log.connection, "before_cursor_execute", note)
    assert found.output == OUTPUT
    [(statement, values)] = sent
    plan = log.connection.exec_driver_sql(f"EXPLAIN {statement}", values).scalars().all()
    assert [line for line in plan if "Aggregate" in line] == [], "the sum of all versions' bytes is computed"


class Dagster:
    """Stands for Dagster: a launch runs some batches of the replay at once, and leaves it as its run's end does."""

    def __init__(self, log: StatedLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = log
        self.launched: list[dict[str, object]] = []
        # How many batches each run gets through, and how its next attempt ends; None: the run is cancelled.
        self.runs: list[tuple[int, AttemptFailure | None]] = []
        self.is_lost = False
        monkeypatch.setenv("FOREBAY_DAGSTER_URL", "http://127.0.0.1:1")
        monkeypatch.setattr(ReplayLauncher, "launch", lambda _, request: self.launch(request))
        monkeypatch.setattr(forward_following, "POLL_SECONDS", 0.01)
        monkeypatch.setattr(DagsterClient, "run_status", lambda *_: self.status())

    def status(self) -> str:
        # A run that was lost is shown as started for ever.
        return "STARTED" if self.is_lost else "SUCCESS"

    def launch(self, request: ReplayRequest) -> str:
        self.launched.append(request.config())
        assert request.state_replay is not None
        replay, run_id, connection = request.state_replay, f"r{len(self.launched)}", self.log.connection
        whole, failure = self.runs.pop(0) if self.runs else (10, None)
        self.is_lost = failure is AttemptFailure.LOST
        while (time := next_batch(connection, replay)) is not None and whole:
            whole -= 1
            made = self.log.replay(time, forward=replay)
            self.name(time, made.attempt, run_id)
        if time is None:
            if state_replay(connection, replay).state is StateReplayState.UNDOING:
                end_undoing(connection, replay)
            return run_id
        if failure is not None:
            attempt = self.log.claim_replay(time, forward=replay)
            self.name(time, attempt, run_id)
            batches.fail_attempt(
                connection,
                pipeline_id=self.log.pipeline_id,
                batch_time=time,
                attempt=attempt,
                run_id=run_id,
                error="no luck",
                failure=failure,
                max_attempts=1,
                pauses=[timedelta(0)],
            )
        if not self.is_lost:
            stop_state_replay(connection, replay)
        return run_id

    def name(self, time: datetime, attempt: int, run_id: str) -> None:
        self.log.connection.execute(
            sa.text("UPDATE forebay.batch_attempts SET run_id = :run WHERE batch_time = :time AND attempt = :attempt"),
            {"run": run_id, "time": time, "attempt": attempt},
        )


@pytest.fixture
def dagster(log: StatedLog, monkeypatch: pytest.MonkeyPatch) -> Dagster:
    """Return a Dagster that runs replays of `log`."""
    return Dagster(log, monkeypatch)


def replayed(*arguments: str) -> tuple[int, str, list[tuple[str, str]]]:
    code, said = forebay(*arguments, "--json")
    line = next(line for line in said.splitlines() if line.startswith("{"))
    found = json.loads(line)
    return code, found["state"], [(row["batch_time"], row["outcome"]) for row in found["batches"]]


FORWARD = ("batches", "replay", "words", batch_time(1).isoformat(), "--forward", "--yes")
FIRST, SECOND = batch_time(1).isoformat(), batch_time(2).isoformat()


def test_dagster_runs_a_replay_forward_and_its_undoing(dagster: Dagster) -> None:
    assert replayed(*FORWARD) == (0, "COMPLETED", [(FIRST, "replayed"), (SECOND, "replayed")])
    undone = replayed("state", "undo", "words", OUTPUT, "--yes")
    assert undone == (0, "UNDONE", [(FIRST, "replayed"), (SECOND, "replayed")])
    [row] = state_replays(dagster.log.connection, pipeline_id=dagster.log.pipeline_id)
    assert dagster.launched == [{"state_replay": row.replay_id}] * 2


@pytest.mark.parametrize("failure", [AttemptFailure.FAILED, None])
def test_a_replay_that_failed_or_was_cancelled_in_dagster_is_resumed_there(
    dagster: Dagster, failure: AttemptFailure | None
) -> None:
    dagster.runs = [(1, failure)]
    failed = [] if failure is None else [(SECOND, "failed")]
    assert replayed(*FORWARD) == (1, "STOPPED", [(FIRST, "replayed"), *failed])
    assert replayed("state", "resume", "words", OUTPUT) == (0, "COMPLETED", [(SECOND, "replayed")])


@pytest.mark.parametrize(("lost", "code"), [(1, 0), (2, 1)])
def test_a_run_that_is_lost_is_launched_again_once(dagster: Dagster, lost: int, code: int) -> None:
    dagster.runs.extend((1 - number, AttemptFailure.LOST) for number in range(lost))
    if lost == 2:
        # The second one ends in Dagster too.
        dagster.status = lambda: "STARTED" if len(dagster.launched) == 1 else "FAILURE"  # type: ignore[method-assign]
    found, state, rows = replayed(*FORWARD)
    assert (found, state) == ((0, "COMPLETED") if lost == 1 else (1, "RUNNING"))
    assert rows == [(FIRST, "replayed"), (SECOND, "replayed" if lost == 1 else "failed")]
    assert len(dagster.launched) == 2


def test_a_replay_that_dagster_does_not_launch_is_stopped(log: StatedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DAGSTER_URL", "http://127.0.0.1:1")
    code, said = forebay(*FORWARD)
    assert (code, "--local replays in this process" in said) == (1, True), said
    [row] = state_replays(log.connection, pipeline_id=log.pipeline_id)
    assert row.state is StateReplayState.STOPPED
