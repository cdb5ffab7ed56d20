"""Kill a batch run with SIGKILL at every step of its PostgresSink; the next attempt leaves each row once (M02)."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
import pytest
import sqlalchemy as sa

from forebay import DeltaSink
from forebay.dagster import build_definitions
from orchestration.batches.following import follow_targets
from orchestration.dagster_defs.jobs.upkeep import upkeep_job
from orchestration.declarations.apply import apply
from orchestration.declarations.settings import Settings
from orchestration.declarations.sink import Step
from orchestration.tracker.tracker import Tracker
from tests.integration.orchestration import killed_batch_run
from tests.support.driver_log.attempts import fail_batch
from tests.support.machine.forked_processes import run
from tracker_store.batches import batches
from tracker_store.batches.outputs import commits_of_batch
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.engine import connect
from tracker_store.schema.states import AttemptFailure, AttemptState, BatchState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orchestration.sinks.table_columns import Mode
    from tests.integration.orchestration.target_database import Target


class Log:
    """A driver log with a batch of `words` that has not run."""

    def __init__(self, engine: sa.Engine, connection: sa.Connection, url: str, home: Path, mode: Mode) -> None:
        self.engine = engine
        self.connection = connection
        self.mode: Mode = mode
        self.settings = Settings(home=home, database_url=url)
        apply(connection, [killed_batch_run.declare(mode)])
        pipeline = get_pipeline(connection, "words")
        self.pipeline_id = pipeline.pipeline_id
        self.time = pipeline.last_batch_time + timedelta(hours=1)
        connection.execute(
            sa.text(
                "INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, records, "
                "bytes, blocks) VALUES (:p, :t, :t, 'ALLOCATED', 0, 0, 0)"
            ),
            {"p": self.pipeline_id, "t": self.time},
        )

    def killed(self, what: str, step: str, *, max_lost_attempts: int = 3, by_the_tracker: bool = False) -> None:
        """Run attempt number `what`, or a replay, in a process that dies at a step; then report its end."""
        died = run(
            killed_batch_run.__name__,
            *(str(self.settings.home), self.settings.require_database_url()),
            *(self.time.isoformat(), what, self.mode, str(step)),
        )
        assert died.returncode == -signal.SIGKILL, died.stderr
        if by_the_tracker:
            self.bury_by_the_tracker()
        else:
            self.bury(max_lost_attempts)

    def bury(self, max_lost_attempts: int = 3) -> None:
        """Fail the attempt as the tracker does when the process's heartbeat stands still."""
        [(number, run)] = self.connection.execute(
            sa.text("SELECT attempt, run_id FROM forebay.batch_attempts WHERE state = 'RUNNING'")
        ).all()
        fail_batch(
            self.connection,
            self.pipeline_id,
            self.time,
            number,
            run_id=run,
            error="killed",
            max_attempts=1,
            pauses=None,
            failure=AttemptFailure.LOST,
            max_lost_attempts=max_lost_attempts,
        )

    def bury_by_the_tracker(self) -> None:
        """Let a real tracker do the same; its clock goes faster than the database's."""
        now = [1000.0]
        leader = Tracker(self.engine, heartbeat_limit_seconds=10.0, clock=lambda: now[0], name="t")
        for _ in range(8):
            leader.tick(self.connection)
            now[0] += 3.0

    def state(self) -> BatchState:
        batch = batches.get_batch(self.connection, self.pipeline_id, self.time)
        assert batch is not None
        return batch.state

    def commits(self) -> list[tuple[int, int | None]]:
        return [(row.attempt, row.rows) for row in commits_of_batch(self.connection, self.pipeline_id, self.time)]

    def follow(self) -> int:
        return follow_targets(self.engine, killed_batch_run.declare(self.mode), self.pipeline_id)


@pytest.fixture
def log(
    engine: sa.Engine, database_url: str, target: Target, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Log]:
    with connect(engine) as connection:
        yield Log(engine, connection, database_url, tmp_path, getattr(request, "param", "append"))


@pytest.mark.parametrize(
    ("step", "log"),
    [
        *((step, "append") for step in (*Step, killed_batch_run.PUBLISHING)),
        (Step.STAGED, "merge"),
        (Step.COMMITTED, "merge"),
        (Step.COMMITTED, "overwrite"),
    ],
    indirect=["log"],
)
def test_each_row_comes_out_once_whichever_step_a_kill_hits(log: Log, target: Target, step: str) -> None:
    log.killed("1", step)
    killed_batch_run.run(log.settings, log.time, 2, mode=log.mode)
    assert log.state() is BatchState.COMPLETED
    assert target.counts() == killed_batch_run.WRITTEN
    took_over = step in (Step.COMMITTED, Step.SWEPT, killed_batch_run.PUBLISHING)
    assert target.commits() == [(log.time, 1 if took_over else 2, 3)]
    [commit] = commits_of_batch(log.connection, log.pipeline_id, log.time)
    assert (commit.attempt, commit.rows, commit.location) == (
        1 if step == killed_batch_run.PUBLISHING else 2,
        3,
        "public.counts",
    )


def test_kills_use_up_no_attempt_and_the_first_kill_is_followed_by_a_retry_at_once(log: Log, target: Target) -> None:
    """Check with as many kills as the pipeline has attempts: the batch still completes."""
    for number in (1, 2):
        log.killed(str(number), Step.STAGED, by_the_tracker=True)
        batch = batches.get_batch(log.connection, log.pipeline_id, log.time)
        assert batch is not None
        assert (batch.state, batch.attempt_state) == (BatchState.FAILED, AttemptState.LOST)
        assert batch.reason == f"the process of run run{number} ended before the batch was complete"
        assert number > 1 or batch.retry_due
    killed_batch_run.run(log.settings, log.time, 3)
    assert log.state() is BatchState.COMPLETED
    assert target.counts() == killed_batch_run.WRITTEN


def test_the_row_follows_a_replay_killed_after_its_targets_commit(
    log: Log, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", log.settings.require_database_url())
    killed_batch_run.run(log.settings, log.time, 1)
    log.killed("replay", Step.COMMITTED)
    assert target.counts() == killed_batch_run.REPLAYED
    assert log.commits() == [(1, 3)], "the commit from before the replay"
    tick = upkeep_tick(log)
    assert isinstance(tick, dg.RunRequest)
    assert log.follow() == 1
    assert log.commits() == [(2, 1)]
    assert log.state() is BatchState.COMPLETED
    assert log.follow() == 0
    assert isinstance(upkeep_tick(log), dg.SkipReason)
    killed_batch_run.replay(log.settings, log.time)
    assert log.commits() == [(3, 1)]


def test_a_replay_killed_before_its_targets_commit_changes_no_row(log: Log, target: Target) -> None:
    killed_batch_run.run(log.settings, log.time, 1)
    log.killed("replay", Step.IN_TRANSACTION)
    assert target.counts() == killed_batch_run.WRITTEN
    assert log.follow() == 0
    assert log.commits() == [(1, 3)]


def test_the_row_follows_a_last_attempt_killed_after_its_targets_commit(log: Log, target: Target) -> None:
    """Check that the batch stays quarantined: the row does not say which outputs the batch should have had."""
    log.killed("1", Step.COMMITTED, max_lost_attempts=1)
    assert log.state() is BatchState.QUARANTINED
    assert (target.counts(), log.commits()) == (killed_batch_run.WRITTEN, [])
    assert log.follow() == 1
    assert log.commits() == [(1, 3)]
    assert log.state() is BatchState.QUARANTINED


def test_no_row_follows_while_an_attempt_runs_or_will_run(log: Log) -> None:
    log.killed("1", Step.COMMITTED)
    assert log.state() is BatchState.FAILED
    assert log.follow() == 0, "the next attempt finds it"
    assert log.commits() == []


def test_a_row_that_is_hours_behind_follows_once_a_day(
    log: Log, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check after the target or Dagster was unavailable for longer than an attempt is looked up on every tick."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", log.settings.require_database_url())
    killed_batch_run.run(log.settings, log.time, 1)
    log.killed("replay", Step.COMMITTED)
    log.connection.execute(sa.text("UPDATE forebay.batch_attempts SET ended_at = ended_at - interval '5 hours'"))
    assert isinstance(upkeep_tick(log), dg.SkipReason)
    assert isinstance(upkeep_tick(log, hour=0, minute=10), dg.RunRequest)
    assert log.follow() == 1
    assert (target.counts(), log.commits()) == (killed_batch_run.REPLAYED, [(2, 1)])
    assert isinstance(upkeep_tick(log, hour=0, minute=10), dg.SkipReason)


def test_a_target_whose_client_fails_delays_no_other_and_no_compaction(
    log: Log, target: Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", log.settings.require_database_url())
    killed_batch_run.run(log.settings, log.time, 1)
    log.killed("replay", Step.COMMITTED)
    broken = tmp_path / "broken"
    (broken / "_delta_log").mkdir(parents=True)
    (broken / "_delta_log" / "00000000000000000000.json").write_text("no JSON", encoding="utf-8")
    pipeline = killed_batch_run.declare(log.mode)
    [(name, counts)] = pipeline.outputs.items()
    pipeline.outputs.clear()
    pipeline.output(inputs=counts.inputs, sink=DeltaSink(broken), name="broken")(counts.function)
    pipeline.outputs[name] = counts
    assert follow_targets(log.engine, pipeline, log.pipeline_id, most_seconds=-1) == 0
    assert log.commits() == [(1, 3)]
    assert upkeep_job(pipeline).execute_in_process().success
    assert (target.counts(), log.commits()) == (killed_batch_run.REPLAYED, [(2, 1)])


def upkeep_tick(log: Log, *, hour: int = 12, minute: int = 20) -> object:
    definitions = build_definitions(killed_batch_run.declare(log.mode))
    schedule = definitions.get_repository_def().get_schedule_def("words_upkeep")
    return schedule(dg.build_schedule_context(scheduled_execution_time=datetime(2026, 1, 1, hour, minute, tzinfo=UTC)))
