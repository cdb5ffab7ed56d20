"""Test the batch sensor on a real driver log and a Dagster instance: what it requests, tick by tick."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import Mock

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.events import EngineEventData, JobFailureData
from dagster._core.execution.plan.objects import StepFailureData
from dagster._core.execution.retries import auto_reexecution_should_retry_run
from dagster_shared.error import SerializableErrorInfo

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.batches.batch_schedule import (
    ATTEMPT_TAG,
    BATCH_TIME_TAG,
    FIRST_TAG,
    PIPELINE_TAG,
    BatchRules,
    Launch,
    Wait,
    declaration_fingerprint,
    next_steps,
)
from orchestration.dagster_defs.assets.replay_job import replay_job
from orchestration.dagster_defs.assets.replay_tags import KIND_TAG, LAST_TAG, REPLAY_KIND
from orchestration.dagster_defs.build_definitions import batch_job
from orchestration.dagster_defs.sensors.batch_sensor import batch_sensor, tick, wait_seconds
from orchestration.dagster_defs.shared.sensor_connections import SensorConnections
from orchestration.declarations.apply import apply
from orchestration.declarations.project_code import CodeCopies
from orchestration.declarations.settings import Settings
from orchestration.replays.replay_run import AGAIN_TAG, FOLLOWS_TAG, REQUEST_TAG
from tests.integration.orchestration.boundaries import complete_launched, is_in_time
from tests.support.driver_log.allocated_ranges import ranges_of_batch
from tests.support.driver_log.attempts import claim_batch, commit_batch, fail_batch
from tests.support.driver_log.log import INTERVAL as LOG_INTERVAL
from tests.support.driver_log.log import Log, oldest_unfinished_batch
from tests.support.polling import eventually
from tracker_store.batches import batches, retry
from tracker_store.batches.pipeline_states import start_pipelines, stop_pipelines
from tracker_store.batches.pipelines import get_pipeline, list_pipelines, list_streams, remove_pipeline
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker, batch_times
from tracker_store.batches.run_queue import (
    claim_run,
    enqueue_run,
    register_batch_driver,
    run_worker,
    set_batch_driver_state,
)
from tracker_store.receivers.processes import deregister_process, register_process
from tracker_store.receivers.receivers import placements
from tracker_store.retention.cleanup import clean_up_receiver
from tracker_store.schema.states import AttemptFailure, AttemptState, BatchDriverState, BatchState, ProcessKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracker_store.batches.batches import BatchRow

# Long, because a test waits for a boundary that would pass in the middle of it, which should be rare.
INTERVAL = timedelta(hours=4)
SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def _long_pause_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengthen the pauses: none ends between a tick's looks or between two ticks, unless a test ends it."""
    for failure, pauses in retry.PAUSES.items():
        monkeypatch.setitem(retry.PAUSES, failure, [pause and timedelta(minutes=1) for pause in pauses])


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def declare(interval: timedelta = INTERVAL, **arguments: object) -> Pipeline:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval=interval, **arguments)  # type: ignore[arg-type]
    pipeline.output(inputs=[lines], sink=ParquetSink("/out"), name="counts")(lambda frame: frame)
    return pipeline


def behind(connection: sa.Connection, pipeline: Pipeline, boundaries: int) -> tuple[Log, list[datetime]]:
    """Apply the pipeline as if its last batch was `boundaries` intervals ago; return the log and the boundaries due."""
    apply(connection, [pipeline])
    row = get_pipeline(connection, pipeline.name)

    def no_boundary_is_near() -> bool:
        times = batch_times(connection, row.pipeline_id)
        return times.now - times.newest < INTERVAL - 30 * SECOND

    eventually(no_boundary_is_near, "the boundary that is near", seconds=60)
    newest = batch_times(connection, row.pipeline_id).newest
    connection.execute(
        sa.text("UPDATE forebay.pipelines SET last_batch_time = :at"), {"at": newest - boundaries * INTERVAL}
    )
    log = Log(connection, row.stream_ids[0], row.pipeline_id, [p.receiver_id for p in placements(connection)])
    return log, [newest - n * INTERVAL for n in reversed(range(boundaries))]


def sensor_with_one_due(connection: sa.Connection) -> tuple[dg.SensorDefinition, datetime]:
    """Return a pipeline's sensor, and the one boundary that is due, with records before it."""
    pipeline = declare()
    log, [time] = behind(connection, pipeline, 1)
    log.add_at(log.receiver_ids[0], time - SECOND)
    return batch_sensor(pipeline, batch_job(pipeline), replay_job(pipeline), SensorConnections()), time


@dataclass(frozen=True)
class Ticking:
    """Lets a pipeline's sensor tick, on a driver log and in an instance of Dagster."""

    connection: sa.Connection
    instance: dg.DagsterInstance

    def next_step(self, pipeline: Pipeline) -> Launch | Wait:
        """Return the only launch of a tick, or what it waits for."""
        steps = tick(self.connection, pipeline, self.instance)
        if steps.launches:
            [launch] = steps.launches
            return launch
        return Wait(steps.reason)

    def waits(self, pipeline: Pipeline) -> str:
        """Return what a tick waits for; it launches nothing."""
        step = self.next_step(pipeline)
        assert isinstance(step, Wait)
        return step.reason

    def launched(
        self,
        pipeline: Pipeline,
        status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED,
        *,
        claimed: bool = True,
        boundaries: int = 1,
    ) -> tuple[Log, list[datetime], Launch, dg.DagsterRun]:
        """Launch the oldest of the boundaries due, each with a block; return them, its launch and its run."""
        log, times = behind(self.connection, pipeline, boundaries)
        log.add_at(log.receiver_ids[0], *(time - SECOND for time in times))
        launch = self.next_step(pipeline)
        assert isinstance(launch, Launch)
        run = add_run(self.instance, launch, status)
        if claimed:
            claim(log, launch, times[0], run.run_id)
        return log, times, launch, run


@pytest.fixture
def ticking(connection: sa.Connection, instance: dg.DagsterInstance) -> Ticking:
    return Ticking(connection, instance)


def add_run(instance: dg.DagsterInstance, launch: Launch, status: dg.DagsterRunStatus) -> dg.DagsterRun:
    run = dg.DagsterRun(
        job_name="words_batch",
        status=status,
        tags={PIPELINE_TAG: "words", BATCH_TIME_TAG: launch.batch_time, ATTEMPT_TAG: str(launch.attempt)},
    )
    return instance.add_run(run)


def newest_attempt(log: Log, time: datetime) -> tuple[AttemptState | None, str]:
    """Return how the newest attempt at a batch ended, and its error."""
    row = batches.get_batch(log.connection, log.pipeline_id, time)
    assert row is not None
    return row.attempt_state, row.attempt_error


def claim(log: Log, launch: Launch, time: datetime, run_id: str) -> None:
    claim_batch(log.connection, log.pipeline_id, time, launch.attempt, run_id=run_id)


def finish(log: Log, launch: Launch, time: datetime) -> None:
    batches.complete_batch(
        log.connection, pipeline_id=log.pipeline_id, batch_time=time, attempt=launch.attempt, outputs=[]
    )


def test_a_pipeline_that_is_not_applied_waits_for_apply(ticking: Ticking) -> None:
    assert "run `forebay apply`" in ticking.waits(declare())


def test_a_stopped_pipeline_makes_no_batch_and_one_that_is_stopping_its_last(ticking: Ticking) -> None:
    pipeline = declare()
    log, [time] = behind(ticking.connection, pipeline, 1)
    log.add_at(log.receiver_ids[0], time - SECOND)
    stop_pipelines(ticking.connection)
    assert ticking.next_step(pipeline) == Launch(time.isoformat(), 1)
    ticking.connection.execute(sa.text("UPDATE forebay.pipelines SET state = 'STOPPED'"))
    step = ticking.waits(pipeline)
    assert "run `forebay start --pipeline words`" in step


def test_nothing_due_says_when_the_next_is(ticking: Ticking) -> None:
    pipeline = declare()
    apply(ticking.connection, [pipeline])
    step = ticking.waits(pipeline)
    assert "the next is at" in step


def test_after_an_outage_each_interval_gets_its_own_batch_in_order(ticking: Ticking) -> None:
    """Check after Dagster was down for five intervals, two of which had records."""
    pipeline = declare()
    log, times = behind(ticking.connection, pipeline, 5)
    [receiver] = log.receiver_ids
    log.add_at(receiver, times[1] - SECOND, times[3] - 2 * SECOND, times[3] - SECOND)
    launched = []
    for time in (times[1], times[3]):
        step = ticking.next_step(pipeline)
        assert step == Launch(time.isoformat(), 1)
        launched.append(step)
        run = add_run(ticking.instance, step, dg.DagsterRunStatus.STARTED)
        claim(log, step, time, run.run_id)
        finish(log, step, time)
    assert isinstance(ticking.next_step(pipeline), Wait)
    found = [batches.get_batch(ticking.connection, log.pipeline_id, time) for time in times]
    assert [(batch.state, batch.records) for batch in found if batch] == [
        (BatchState.COMPLETED, records) for records in (0, 10, 0, 20, 0)
    ]


def test_merge_makes_one_batch_at_the_newest_boundary(ticking: Ticking) -> None:
    pipeline = declare(catch_up="merge")
    log, times = behind(ticking.connection, pipeline, 5)
    log.add_at(log.receiver_ids[0], times[1] - SECOND, times[3] - SECOND)
    assert ticking.next_step(pipeline) == Launch(times[-1].isoformat(), 1)
    batch = batches.get_batch(ticking.connection, log.pipeline_id, times[-1])
    assert batch is not None
    assert (batch.records, batch.oldest_time) == (20, times[0])


def test_the_sensor_waits_for_a_living_run(ticking: Ticking) -> None:
    pipeline = declare()
    log, [time], launch, run = ticking.launched(pipeline, dg.DagsterRunStatus.STARTING, claimed=False)
    starting = ticking.waits(pipeline)
    assert f"starting in run {run.run_id}" in starting
    claim(log, launch, time, run.run_id)
    running = ticking.waits(pipeline)
    assert f"running in run {run.run_id}" in running


@pytest.mark.parametrize("claimed", [False, True])
def test_a_run_that_died_silently_is_retried_under_a_new_key(ticking: Ticking, *, claimed: bool) -> None:
    """Check after `kill -9` of a run's process, before or after its claim: Dagster launches a run key only once."""
    pipeline = declare()
    log, [time], launch, run = ticking.launched(pipeline, claimed=claimed)
    ticking.instance.report_run_failed(run)
    again = ticking.next_step(pipeline)
    assert again == Launch(time.isoformat(), 2), "at once"
    assert again.run_key != launch.run_key
    state, said = newest_attempt(log, time)
    assert state is AttemptState.LOST
    assert "ended as FAILURE" in said
    # After the second loss in a row there is a pause.
    run = add_run(ticking.instance, again, dg.DagsterRunStatus.STARTED)
    ticking.instance.report_run_failed(run)
    waiting = ticking.waits(pipeline)
    assert f"attempt 2 was lost (run {run.run_id} ended as FAILURE" in waiting


def failed_with(data: JobFailureData | EngineEventData, kind: dg.DagsterEventType) -> dg.DagsterEvent:
    return dg.DagsterEvent(kind.value, "words_batch", message="it ended", event_specific_data=data)


def raised(at: str) -> SerializableErrorInfo:
    """Return an error as Dagster stores it: the wrapped error is its cause."""
    error = SerializableErrorInfo("ModuleNotFoundError: No module named 'lookup'\n", [], "ModuleNotFoundError")
    return SerializableErrorInfo(f"DagsterUserCodeLoadError: {at}\n", [], "DagsterUserCodeLoadError", cause=error)


def test_the_reason_of_a_batch_given_up_says_why_its_runs_died_at_their_start(ticking: Ticking) -> None:
    """Check with a module that can't be loaded: each run ends before it claims, and only Dagster knows the reason."""
    pipeline = declare(max_lost_attempts=3)
    log, [time] = behind(ticking.connection, pipeline, 1)
    log.add_at(log.receiver_ids[0], time - SECOND)
    for events in (
        [failed_with(JobFailureData(raised("at its end")), dg.DagsterEventType.RUN_FAILURE)],
        [
            failed_with(EngineEventData(error=raised("before it")), dg.DagsterEventType.ENGINE_EVENT),
            failed_with(JobFailureData(None), dg.DagsterEventType.RUN_FAILURE),
        ],
        [
            failed_with(
                JobFailureData(
                    None,
                    first_step_failure_event=dg.DagsterEvent(
                        dg.DagsterEventType.STEP_FAILURE.value,
                        "words_batch",
                        event_specific_data=StepFailureData(raised("in the step"), None),  # type: ignore[no-untyped-call]
                    ),
                ),
                dg.DagsterEventType.RUN_FAILURE,
            )
        ],
    ):
        launch = ticking.next_step(pipeline)
        assert isinstance(launch, Launch)
        run = add_run(ticking.instance, launch, dg.DagsterRunStatus.STARTED)
        for event in events:
            ticking.instance.report_dagster_event(event, run.run_id)
        ticking.next_step(pipeline)
        ended = ticking.instance.get_run_by_id(run.run_id)
        assert ended is not None
        assert ended.tags["forebay/failed_because"] == "ModuleNotFoundError: No module named 'lookup'"
        state, said = newest_attempt(log, time)
        assert state is AttemptState.LOST
        assert "(ModuleNotFoundError: No module named 'lookup')" in said
        ticking.connection.execute(sa.text("UPDATE forebay.batches SET retry_at = NULL"))
    batch = batches.get_batch(ticking.connection, log.pipeline_id, time)
    assert batch is not None
    assert batch.state is BatchState.QUARANTINED
    assert batch.reason.startswith("3 attempts were lost (max_lost_attempts=3), the last one: run ")
    assert "No module named 'lookup'" in batch.reason


def test_a_tick_reports_an_earlier_failure_if_the_newest_attempt_was_lost(ticking: Ticking) -> None:
    pipeline = declare()
    log, [time] = behind(ticking.connection, pipeline, 1)
    log.add_at(log.receiver_ids[0], time - SECOND)
    for attempt, failure in enumerate((AttemptFailure.FAILED, AttemptFailure.LOST, AttemptFailure.LOST), start=1):
        if attempt == 1:
            assert ticking.next_step(pipeline) == Launch(time.isoformat(), 1)
        claim(log, Launch(time.isoformat(), attempt), time, f"run{attempt}")
        error = f"{failure}: {attempt}"
        fail_batch(
            ticking.connection,
            log.pipeline_id,
            time,
            attempt,
            run_id=f"run{attempt}",
            error=error,
            pauses=None,
            failure=failure,
        )
    waiting = ticking.waits(pipeline)
    assert "attempt 3 was lost (LOST: 3); the next starts after" in waiting
    assert waiting.endswith("; an earlier one said more: FAILED: 1")


def test_a_pipeline_created_again_under_its_name_does_not_take_the_old_ones_runs_for_its_own(ticking: Ticking) -> None:
    """Check that its batch times are later than the old one's.

    If a clock that was set back makes them coincide, the pipeline tries again.
    """
    pipeline = declare()
    log, times = behind(ticking.connection, pipeline, 2)
    log.add_at(log.receiver_ids[0], *(time - SECOND for time in times))
    for time in times:
        launch = ticking.next_step(pipeline)
        assert isinstance(launch, Launch)
        claim(log, launch, time, add_run(ticking.instance, launch, dg.DagsterRunStatus.SUCCESS).run_id)
        finish(log, launch, time)
    stop_pipelines(ticking.connection)
    ticking.connection.execute(sa.text("UPDATE forebay.pipelines SET state = 'STOPPED'"))
    remove_pipeline(ticking.connection, "words")
    apply(ticking.connection, [pipeline])
    row = get_pipeline(ticking.connection, "words")
    assert row.pipeline_id != log.pipeline_id
    assert batch_times(ticking.connection, row.pipeline_id).next_due > times[-1]
    # As if the clock had been set back between the two.
    ticking.connection.execute(
        sa.text("UPDATE forebay.pipelines SET last_batch_time = :at WHERE id = :id"),
        {"at": times[0], "id": row.pipeline_id},
    )
    assert ticking.next_step(pipeline) == Launch(times[1].isoformat(), 2)
    found = batches.get_batch(ticking.connection, row.pipeline_id, times[1])
    assert found is not None
    assert "ended as SUCCESS before the batch was complete" in found.attempt_error


def test_a_deleted_run_is_retried(ticking: Ticking) -> None:
    pipeline = declare()
    log, [time], _launch, run = ticking.launched(pipeline)
    ticking.instance.delete_run(run.run_id)
    assert ticking.next_step(pipeline) == Launch(time.isoformat(), 2)
    assert "is gone" in newest_attempt(log, time)[1]


def test_later_batches_wait_while_one_is_in_its_backoff(ticking: Ticking) -> None:
    pipeline = declare()
    log, times, _, run = ticking.launched(pipeline, boundaries=2)
    fail_batch(ticking.connection, log.pipeline_id, times[0], run_id=run.run_id, error="no", pauses=None)
    for _ in range(2):
        waiting = ticking.waits(pipeline)
        assert "attempt 1 failed" in waiting
        assert "1 more interval(s)" in waiting
    assert batches.get_batch(ticking.connection, log.pipeline_id, times[1]) is None


def test_a_quarantined_batch_lets_the_later_ones_go_on(ticking: Ticking) -> None:
    pipeline = declare(max_lost_attempts=1)
    log, times, _, run = ticking.launched(pipeline, claimed=False, boundaries=2)
    ticking.instance.report_run_failed(run)
    assert ticking.next_step(pipeline) == Launch(times[1].isoformat(), 1)
    first = batches.get_batch(ticking.connection, log.pipeline_id, times[0])
    assert first is not None
    assert first.state is BatchState.QUARANTINED


def test_the_sensor_yields_one_request_per_attempt(
    ticking: Ticking, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    sensor, time = sensor_with_one_due(ticking.connection)
    [request] = sensor.evaluate_tick(dg.build_sensor_context(instance=ticking.instance)).run_requests or []
    assert request.run_key == f"{time.isoformat()}:1"
    assert request.tags[PIPELINE_TAG] == "words"
    assert request.run_config["ops"]["words__outputs"]["config"] == {"batch_time": time.isoformat(), "attempt": 1}
    # No run claimed it: the next tick requests the same key, which Dagster launches once.
    [same] = sensor.evaluate_tick(dg.build_sensor_context(instance=ticking.instance)).run_requests or []
    assert same.run_key == request.run_key


def test_an_instance_with_run_retries_repeats_no_run_of_a_batch() -> None:
    with dg.DagsterInstance.ephemeral(settings={"run_retries": {"enabled": True, "max_retries": 3}}) as instance:
        of_users = instance.add_run(dg.DagsterRun("report", status=dg.DagsterRunStatus.FAILURE))
        assert auto_reexecution_should_retry_run(instance, of_users, None)
        tags = batch_job(declare()).tags
        of_batch = instance.add_run(dg.DagsterRun("words_batch", status=dg.DagsterRunStatus.FAILURE, tags=tags))
        assert not auto_reexecution_should_retry_run(instance, of_batch, None)


def test_the_next_attempt_is_no_run_of_the_outputs_that_are_committed(
    ticking: Ticking, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    pipeline = declare()
    pipeline.output(inputs=[*pipeline.outputs["counts"].streams], sink=ParquetSink("/more"), name="more")(lambda x: x)
    log, [time] = behind(ticking.connection, pipeline, 1)
    log.add_at(log.receiver_ids[0], time - SECOND)
    sensor = batch_sensor(pipeline, batch_job(pipeline), replay_job(pipeline), SensorConnections())
    [first] = sensor.evaluate_tick(dg.build_sensor_context(instance=ticking.instance)).run_requests or []
    assert first.asset_selection is None
    launch = Launch(time.isoformat(), 1)
    run = add_run(ticking.instance, launch, dg.DagsterRunStatus.STARTED)
    claim(log, launch, time, run.run_id)
    commit_batch(ticking.connection, log.pipeline_id, time, "counts", location="/out/1")
    ticking.instance.report_run_failed(run)
    [second] = sensor.evaluate_tick(dg.build_sensor_context(instance=ticking.instance)).run_requests or []
    assert second.run_key == f"{time.isoformat()}:2"
    assert (second.asset_selection, second.asset_check_keys) == ([dg.AssetKey(["words", "more"])], [])


def test_a_driver_log_that_is_away_is_a_skip_that_says_so(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    pipeline = declare()
    data = batch_sensor(pipeline, batch_job(pipeline), replay_job(pipeline), SensorConnections()).evaluate_tick(
        dg.build_sensor_context(instance=instance)
    )
    assert not data.run_requests
    assert "trying again" in (data.skip_message or "")


def test_without_a_driver_log_the_skip_names_the_command(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOREBAY_DATABASE_URL", raising=False)
    pipeline = declare()
    data = batch_sensor(pipeline, batch_job(pipeline), replay_job(pipeline), SensorConnections()).evaluate_tick(
        dg.build_sensor_context(instance=instance)
    )
    assert "run `forebay up`" in (data.skip_message or "")


def test_a_run_whose_attempt_the_tracker_failed_is_ended_in_dagster_too(ticking: Ticking) -> None:
    """Check after code server and run were killed together: no process was left to report to Dagster."""
    pipeline = declare()
    log, [time], _launch, run = ticking.launched(pipeline)
    fail_batch(ticking.connection, log.pipeline_id, time, run_id=run.run_id, error="lost")
    assert ticking.next_step(pipeline) == Launch(time.isoformat(), 2)
    ended = ticking.instance.get_run_by_id(run.run_id)
    assert ended is not None
    assert ended.status is dg.DagsterRunStatus.FAILURE
    assert ended.tags["forebay/failed_because"] == "lost", "where Dagster lists runs, it shows their tags"


@pytest.mark.parametrize("says_so", ["the run", "nobody"])
def test_a_cancelled_run_ends_only_its_attempt_and_the_tick_reports_it(ticking: Ticking, says_so: str) -> None:
    pipeline = declare()
    log, [time], _launch, run = ticking.launched(pipeline)
    if says_so == "the run":
        # Its Spark job was cancelled, which the user's code saw as an error.
        fail_batch(
            ticking.connection,
            log.pipeline_id,
            time,
            run_id=run.run_id,
            error="job cancelled",
            max_attempts=1,
            pauses=[timedelta(minutes=1)],
            failure=AttemptFailure.LOST,
        )
    ticking.instance.report_run_canceled(run)
    step = ticking.next_step(pipeline)
    row = batches.get_batch(ticking.connection, log.pipeline_id, time)
    assert row is not None
    assert (row.state, row.attempt, row.attempt_state) == (BatchState.FAILED, 1, AttemptState.LOST)
    if says_so == "the run":
        assert isinstance(step, Wait)
        assert "attempt 1 was cancelled in Dagster, which uses up none of max_attempts (job cancelled)" in step.reason
        ticking.connection.execute(sa.text("UPDATE forebay.batches SET retry_at = clock_timestamp()"))
        step = ticking.next_step(pipeline)
    assert step == Launch(time.isoformat(), 2)


@pytest.mark.parametrize("state", [BatchState.QUARANTINED, BatchState.COMPLETED])
def test_a_run_killed_when_its_batch_ended_is_ended_in_dagster_after_a_while(
    ticking: Ticking, database_url: str, monkeypatch: pytest.MonkeyPatch, state: BatchState
) -> None:
    """Check this because no further attempt is requested, which would have ended the run."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    pipeline = declare()
    sensor = batch_sensor(pipeline, batch_job(pipeline), replay_job(pipeline), SensorConnections())
    log, [time], launch, run = ticking.launched(pipeline)

    def status() -> dg.DagsterRunStatus:
        assert not sensor.evaluate_tick(dg.build_sensor_context(instance=ticking.instance)).run_requests
        found = ticking.instance.get_run_by_id(run.run_id)
        assert found is not None
        return found.status

    def later(table: str) -> None:
        ticking.connection.execute(
            sa.text(f"UPDATE forebay.{table} SET ended_at = clock_timestamp() - interval '3 minutes'")
        )

    assert status() is dg.DagsterRunStatus.STARTED
    if state is BatchState.COMPLETED:
        finish(log, launch, time)
    else:
        fail_batch(ticking.connection, log.pipeline_id, time, run_id=run.run_id, error="lost", max_attempts=1)
    assert status() is dg.DagsterRunStatus.STARTED, "it may be about to say so itself"
    later("batch_attempts")
    assert status() is dg.DagsterRunStatus.STARTED, "its process lives, as far as is known"
    later("processes")
    assert status() is dg.DagsterRunStatus.FAILURE
    row = batches.get_batch(ticking.connection, log.pipeline_id, time)
    assert row is not None
    assert row.state is state


@pytest.mark.parametrize("by_http", [True, False])
def test_a_replay_lost_with_its_code_server_is_requested_again_once_if_nothing_follows_it(
    ticking: Ticking, database_url: str, monkeypatch: pytest.MonkeyPatch, by_http: bool
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    pipeline = declare()
    sensor = batch_sensor(pipeline, batch_job(pipeline), replay_job(pipeline), SensorConnections())
    log, [time], launch, run = ticking.launched(pipeline)
    finish(log, launch, time)
    ticking.instance.report_run_canceled(run)
    tags = {FIRST_TAG: time.isoformat(), LAST_TAG: time.isoformat()} | ({AGAIN_TAG: "once"} if by_http else {})
    tags |= {PIPELINE_TAG: "words", KIND_TAG: REPLAY_KIND, REQUEST_TAG: "k"}
    started = dg.DagsterRunStatus.STARTED
    config = {"ops": {"words__replay": {"config": {"from_time": time.isoformat()}}}}
    lost = ticking.instance.add_run(
        dg.DagsterRun(job_name="words_replay", status=started, tags=tags, run_config=config)
    )
    process = register_process(ticking.connection, kind=ProcessKind.BATCH_RUN, name="words", host="h", pid=1)
    batches.claim_replay(
        ticking.connection,
        pipeline_id=log.pipeline_id,
        batch_time=time,
        run_id=lost.run_id,
        process_id=process,
        reach=timedelta(0),
    )

    def look() -> list[dg.RunRequest]:
        return list(sensor.evaluate_tick(dg.build_sensor_context(instance=ticking.instance)).run_requests or [])

    def status() -> dg.DagsterRunStatus:
        found = ticking.instance.get_run_by_id(lost.run_id)
        assert found is not None
        return found.status

    assert look() == []
    ended = "ended_at = clock_timestamp() - interval '3 minutes'"
    ticking.connection.execute(
        sa.text(f"UPDATE forebay.batch_attempts SET state = 'LOST', {ended} WHERE run_id = :run"), {"run": lost.run_id}
    )
    assert look() == [], "its process lives, as far as is known"
    ticking.connection.execute(sa.text(f"UPDATE forebay.processes SET {ended}"))
    if by_http:
        [request] = look()
        assert (request.job_name, request.run_config) == ("words_replay", config)
        assert request.tags.get(REQUEST_TAG) == "k"
        assert AGAIN_TAG not in request.tags, "it is requested again once"
        assert status() is started, "the other run may not be made: this is looked at again"
        assert (request.run_key or "").endswith(lost.run_id)
        assert request.tags[FOLLOWS_TAG] == lost.run_id
        ticking.instance.add_run(dg.DagsterRun(job_name="words_replay", status=started, tags=request.tags))
    assert look() == []
    assert status() is dg.DagsterRunStatus.FAILURE
    asked = Mock(wraps=ticking.instance.get_runs)
    monkeypatch.setattr(ticking.instance, "get_runs", asked)
    assert look() == []
    assert asked.call_count == 1, "ticks come every few seconds, for each pipeline"


def test_m01_concurrent_batches_are_made_in_order_and_no_more_of_them(ticking: Ticking) -> None:
    """Check that it works as concurrentJobs does: a slow batch delays none of the others, up to the limit."""
    pipeline = declare(concurrent_batches=2)
    log, times = behind(ticking.connection, pipeline, 3)
    log.add_at(log.receiver_ids[0], *(time - SECOND for time in times))
    steps = tick(ticking.connection, pipeline, ticking.instance)
    first, second = steps.launches
    assert [first, second] == [Launch(time.isoformat(), 1) for time in times[:2]]
    assert "1 more interval(s)" in steps.reason
    assert batches.get_batch(ticking.connection, log.pipeline_id, times[2]) is None, "not made before it can run"
    for launch, time in zip((first, second), times, strict=False):
        claim(log, launch, time, add_run(ticking.instance, launch, dg.DagsterRunStatus.STARTED).run_id)
    assert not tick(ticking.connection, pipeline, ticking.instance).launches
    # The later one completes first: the third runs beside the first.
    finish(log, second, times[1])
    assert tick(ticking.connection, pipeline, ticking.instance).launches == (Launch(times[2].isoformat(), 1),)


def test_a_batch_that_halts_the_pipeline_holds_those_beside_it_and_none_is_lost(ticking: Ticking) -> None:
    """Check three batches at a time: the first is given up, the second completes, and the third has not begun."""
    pipeline = declare(concurrent_batches=3, on_failure="halt", max_lost_attempts=1)
    log, times = behind(ticking.connection, pipeline, 4)
    log.add_at(log.receiver_ids[0], *(time - SECOND for time in times))
    first, second, third = tick(ticking.connection, pipeline, ticking.instance).launches
    runs = [add_run(ticking.instance, launch, dg.DagsterRunStatus.STARTED) for launch in (first, second)]
    for launch, time, run in zip((first, second), times, runs, strict=False):
        claim(log, launch, time, run.run_id)
    ticking.instance.report_run_failed(runs[0])
    # This tick gives the first batch up. The next tick does not launch what this one finds due beside it.
    tick(ticking.connection, pipeline, ticking.instance)
    halted = ticking.waits(pipeline)
    assert f"forebay batches replay words {times[0].isoformat()}" in halted
    finish(log, second, times[1])
    assert isinstance(ticking.next_step(pipeline), Wait)
    found = [batches.get_batch(ticking.connection, log.pipeline_id, time) for time in times[:3]]
    assert [batch.state for batch in found if batch] == [
        BatchState.QUARANTINED,
        BatchState.COMPLETED,
        BatchState.ALLOCATED,
    ]
    start_pipelines(ticking.connection, names=["words"])
    # The lease of the tick that first launched it is this sensor's own.
    launches = tick(ticking.connection, pipeline, ticking.instance).launches
    assert third in launches
    assert [launch.batch_time for launch in launches] == [time.isoformat() for time in times[2:]]
    assert [entry.records for time in times for entry in ranges_of_batch(log.tracker, time)] == [10] * 4


def test_merge_leaves_no_block_of_any_input_out_of_a_window_that_is_due_later(ticking: Ticking) -> None:
    """Check two inputs after an outage of five intervals; one is a window that is not due at the newest boundary."""
    lines, others = (Stream(name, SocketText(host="127.0.0.1", port=9999)) for name in ("lines", "others"))
    pipeline = Pipeline("words", interval=INTERVAL, catch_up="merge")
    pipeline.output(inputs=[lines], sink=ParquetSink("/out"), name="counts")(lambda frame: frame)
    slide = 3 * INTERVAL
    windowed = pipeline.output(inputs=[others.window(slide, slide=slide)], sink=ParquetSink("/others"), name="late")(
        lambda frame: frame
    )
    apply(ticking.connection, [pipeline])
    row = get_pipeline(ticking.connection, "words")
    # The newest boundary is one interval after the window's, and five are due.
    newest = ticking.connection.execute(
        sa.text("SELECT date_bin(:slide, clock_timestamp() - :slide, timestamptz 'epoch')"), {"slide": slide}
    ).scalar_one()
    newest += INTERVAL
    ticking.connection.execute(
        sa.text("UPDATE forebay.pipelines SET last_batch_time = :at"), {"at": newest - 5 * INTERVAL}
    )
    streams = {stream.name: stream.stream_id for stream in list_streams(ticking.connection)}
    for placement in placements(ticking.connection):
        log = Log(ticking.connection, placement.stream_id, row.pipeline_id, [placement.receiver_id])
        log.add_at(placement.receiver_id, newest - 4 * INTERVAL - SECOND, newest - SECOND, newest + SECOND)
    tracker = ReceivedBlockTracker(ticking.connection, row.pipeline_id)
    # As the sensor would do at that time.
    tracker.allocate_blocks_to_batch(newest, oldest_time=newest - 4 * INTERVAL, run_empty=True)
    assert not windowed.is_due(newest)
    assert windowed.is_due(newest + 2 * INTERVAL)
    for time in (newest + INTERVAL, newest + 2 * INTERVAL):
        tracker.allocate_blocks_to_batch(time, run_empty=True)
    assert [entry.records for entry in ranges_of_batch(tracker, newest)] == [20, 20]
    window = tracker.get_blocks_of_window_and_stream(newest + 2 * INTERVAL, slide, streams["others"])
    assert [entry.records for entry in window] == [10, 10, 10]


def test_a_skip_says_what_is_said_of_changed_code(
    ticking: Ticking, database_url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(home))
    pipeline = declare()
    apply(ticking.connection, [pipeline])
    sensor = batch_sensor(pipeline, batch_job(pipeline), replay_job(pipeline), SensorConnections())

    def skipped() -> str:
        return sensor.evaluate_tick(dg.build_sensor_context(instance=ticking.instance)).skip_message or ""

    assert "forebay apply" not in skipped()
    (home / "code").mkdir()
    CodeCopies(home).note("shop.py changed and waits for `forebay apply`")
    assert skipped().endswith(" shop.py changed and waits for `forebay apply`")


def test_of_two_locations_with_one_pipeline_one_asks_for_its_run(
    ticking: Ticking, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check two sensors that tick at once, in an instance with sensor threads: a second run would fail for nothing."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    sensor, _ = sensor_with_one_due(ticking.connection)

    def asked(location: str) -> tuple[int, str | None]:
        context = dg.build_sensor_context(instance=ticking.instance)
        monkeypatch.setattr(
            type(context), "code_location_origin", SimpleNamespace(location_name=location), raising=True
        )
        data = sensor.evaluate_tick(context)
        return len(data.run_requests or []), data.skip_message

    assert asked("forebay") == (1, None)
    requests, why = asked("reports")
    assert requests == 0
    assert "the run of attempt 1 is asked for by batch sensor of forebay" in (why or "")
    assert asked("forebay") == (1, None), "a repeated look requests the same run key"


def test_a_batch_that_waits_while_the_interval_is_changed_is_run_with_its_blocks(ticking: Ticking) -> None:
    pipeline = declare()
    log, times = behind(ticking.connection, pipeline, 3)
    # The second block is more than one new interval old, so that one new boundary after it has already passed.
    log.add_at(log.receiver_ids[0], *(time - SECOND for time in times[:2]))
    launch = ticking.next_step(pipeline)
    assert isinstance(launch, Launch)
    changed = declare(interval=timedelta(hours=3))
    apply(ticking.connection, [changed])
    [counts] = changed.outputs.values()
    assert counts.is_due(times[0])
    assert ticking.next_step(changed) == launch
    claim(log, launch, times[0], add_run(ticking.instance, launch, dg.DagsterRunStatus.STARTED).run_id)
    finish(log, launch, times[0])
    rest = ticking.next_step(changed)
    while isinstance(rest, Launch):
        time = datetime.fromisoformat(rest.batch_time)
        claim(log, rest, time, add_run(ticking.instance, rest, dg.DagsterRunStatus.STARTED).run_id)
        finish(log, rest, time)
        rest = ticking.next_step(changed)
    held = ticking.connection.execute(
        sa.text("SELECT records FROM forebay.batch_allocations ORDER BY batch_time")
    ).scalars()
    assert sum(held) == 20


def test_concurrent_batches_have_their_own_blocks_whatever_the_order_in_which_they_end(ticking: Ticking) -> None:
    """Check this because a window and clean-up go by what was allocated (in order) and by what is unfinished."""
    pipeline = declare(concurrent_batches=2)
    log, times = behind(ticking.connection, pipeline, 2)
    log.add_at(log.receiver_ids[0], times[0] - SECOND, times[1] - SECOND)
    first, second = tick(ticking.connection, pipeline, ticking.instance).launches
    for launch, time in zip((first, second), times, strict=True):
        claim(log, launch, time, add_run(ticking.instance, launch, dg.DagsterRunStatus.STARTED).run_id)
    finish(log, second, times[1])
    ranges = [ranges_of_batch(log.tracker, time)[0] for time in times]
    assert ranges[0].last + 1 == ranges[1].first
    window = log.tracker.get_blocks_of_window_and_stream(times[1], 2 * INTERVAL, log.stream_id)
    assert len(window) == 2, "the window has the blocks of the batch that still runs"
    ticking.connection.execute(sa.text("UPDATE forebay.pipelines SET retention = interval '0'"))
    cleaned = clean_up_receiver(
        ticking.connection, receiver_id=log.receiver_ids[0], threshold=times[1] + INTERVAL, max_rows=100
    )
    assert cleaned.blocks <= ranges[0].first - 1, "nothing of the batch that still runs has gone"
    finish(log, first, times[0])
    assert oldest_unfinished_batch(ticking.connection, log.pipeline_id) is None


def test_an_interval_without_records_runs_if_configured(ticking: Ticking) -> None:
    pipeline = declare(run_empty_batches=True)
    _, [time] = behind(ticking.connection, pipeline, 1)
    assert ticking.next_step(pipeline) == Launch(time.isoformat(), 1)


def test_empty_intervals_of_a_window_run_only_when_its_content_changes(ticking: Ticking) -> None:
    """Check a pipeline that was down while nothing came: it catches up at once, and its result is emptied once."""
    pipeline = Pipeline("words", interval=INTERVAL)
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline.output(inputs=[lines.window(2 * INTERVAL)], sink=ParquetSink("/out"), name="counts")(lambda frame: frame)
    log, times = behind(ticking.connection, pipeline, 6)
    log.add_at(log.receiver_ids[0], times[0] - SECOND)
    launched = []
    while isinstance(step := ticking.next_step(pipeline), Launch):
        time = datetime.fromisoformat(step.batch_time)
        claim(log, step, time, add_run(ticking.instance, step, dg.DagsterRunStatus.STARTED).run_id)
        finish(log, step, time)
        launched.append(time)
    assert launched == [times[0], times[2]], "the batch with the record, and the one whose window has lost it"
    assert "no batch due" in step.reason


def test_a_tick_waits_for_a_boundary_that_is_near_and_for_no_other(ticking: Ticking) -> None:
    """Check what docs/how-to/intervals.md says: under 0.2 s late, in the median of nine batches."""
    pipeline = declare(run_empty_batches=True)
    behind(ticking.connection, pipeline, 0)
    assert not tick(ticking.connection, pipeline, ticking.instance, wait_seconds=1).launches
    # Ticks wait for boundaries of any interval; only the sensor's own setting excludes short ones.
    ticking.connection.execute(
        sa.text(
            "UPDATE forebay.pipelines SET batch_interval = interval '1 s', "
            "last_batch_time = date_trunc('second', clock_timestamp())"
        )
    )

    def are_launched_in_time() -> bool:
        # A tick has one boundary to wait for, which is at most a second away.
        [_] = tick(ticking.connection, pipeline, ticking.instance, wait_seconds=60).launches
        complete_launched(ticking.connection)
        # While this machine is busy with something else, later batches are looked at.
        return is_in_time(ticking.connection, "allocated_at")

    eventually(are_launched_in_time, "nine batches launched at their boundaries", seconds=120)


@pytest.mark.parametrize(
    ("interval", "url", "waits"),
    [("10s", "http://127.0.0.1:3000", True), ("9s", "http://127.0.0.1:3000", False), ("10s", None, False)],
)
def test_a_tick_waits_only_in_forebays_own_instance_and_only_if_the_tracker_does_not_push(
    monkeypatch: pytest.MonkeyPatch, interval: str, url: str | None, *, waits: bool
) -> None:
    if url is None:
        monkeypatch.delenv("FOREBAY_DAGSTER_URL", raising=False)
    else:
        monkeypatch.setenv("FOREBAY_DAGSTER_URL", url)
    assert (wait_seconds(Pipeline("words", interval=interval), Settings()) > 0) is waits


def test_each_state_has_its_reason_to_wait(ticking: Ticking) -> None:
    pipeline = declare(catch_up="merge")
    log, times = behind(ticking.connection, pipeline, 2)
    log.add_at(log.receiver_ids[0], times[0] - SECOND)
    launch = ticking.next_step(pipeline)
    assert isinstance(launch, Launch)
    run = add_run(ticking.instance, launch, dg.DagsterRunStatus.STARTED)
    claim(log, launch, times[1], run.run_id)
    ticking.connection.execute(
        sa.text("UPDATE forebay.pipelines SET last_batch_time = last_batch_time - :i * 2"), {"i": INTERVAL}
    )
    reason = tick(ticking.connection, pipeline, ticking.instance).reason
    assert f"attempt 1 is running in run {run.run_id}" in reason
    assert "2 more interval(s)" in reason
    assert "in one batch, and wait for the batch before to finish" in reason


def test_a_row_of_an_older_release_gets_the_defaults(connection: sa.Connection, log: Log) -> None:
    [row] = list_pipelines(connection)
    assert BatchRules.of_row(row) == BatchRules(log.pipeline_id, "words", LOG_INTERVAL, max_attempts=3)


def test_code_and_driver_log_have_the_same_fingerprint_only_if_they_agree(connection: sa.Connection) -> None:
    pipeline = declare(backpressure_pid_min_rate=1e16)
    apply(connection, [pipeline])
    [row] = list_pipelines(connection)
    streams = {stream.name: stream.declaration for stream in list_streams(connection)}

    def of_code(pipeline: Pipeline) -> str:
        return declaration_fingerprint(
            pipeline.declaration(), {stream.name: stream.declaration() for stream in pipeline.streams}
        )

    assert declaration_fingerprint(row.declaration, streams) == of_code(pipeline)
    assert of_code(pipeline) != of_code(declare())


def driver(connection: sa.Connection) -> int:
    process_id = register_process(connection, kind=ProcessKind.BATCH_DRIVER, name="d", host="h", pid=1)
    register_batch_driver(connection, process_id=process_id, location="forebay")
    set_batch_driver_state(connection, process_id=process_id, state=BatchDriverState.READY)
    return process_id


def test_the_sensor_ends_a_run_whose_driver_died_before_it_began(ticking: Ticking) -> None:
    """Check this because Dagster's run monitoring, if enabled, checks the health only of runs that have begun."""
    pipeline = declare()
    log, [time], _launch, run = ticking.launched(pipeline, dg.DagsterRunStatus.STARTING, claimed=False)
    process_id = driver(ticking.connection)
    assert enqueue_run(ticking.connection, run_id=run.run_id, location="forebay")
    assert claim_run(ticking.connection, process_id=process_id, location="forebay") == run.run_id
    waiting = ticking.waits(pipeline)
    assert f"starting in run {run.run_id}" in waiting
    deregister_process(ticking.connection, process_id, "killed by SIGKILL")
    assert ticking.next_step(pipeline) == Launch(time.isoformat(), 2)
    state, said = newest_attempt(log, time)
    assert state is AttemptState.LOST
    assert "killed by SIGKILL" in said
    ended = ticking.instance.get_run_by_id(run.run_id)
    assert ended is not None
    assert ended.status is dg.DagsterRunStatus.FAILURE


def test_the_sensor_gives_up_a_run_without_a_driver_after_a_while(ticking: Ticking) -> None:
    pipeline = declare()
    log, [time], _launch, run = ticking.launched(pipeline, dg.DagsterRunStatus.STARTING, claimed=False)
    process_id = driver(ticking.connection)
    enqueue_run(ticking.connection, run_id=run.run_id, location="forebay")
    deregister_process(ticking.connection, process_id)
    waiting = ticking.waits(pipeline)
    assert "starting in run" in waiting, "one may be starting"
    ticking.connection.execute(sa.text("UPDATE forebay.run_queue SET enqueued_at = enqueued_at - interval '2 minutes'"))
    assert ticking.next_step(pipeline) == Launch(time.isoformat(), 2)
    assert "no batch driver" in newest_attempt(log, time)[1]
    assert run_worker(ticking.connection, run.run_id) is None, (
        "a driver that starts later would run it although it was given up"
    )


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING])
def test_a_run_that_was_never_submitted_is_given_up_after_a_while(
    ticking: Ticking, status: dg.DagsterRunStatus
) -> None:
    """Check a run whose webserver, for example, was killed before it submitted it: nothing would ever start the run."""
    pipeline = declare()
    log, [time], _launch, run = ticking.launched(pipeline, status, claimed=False)
    assert isinstance(ticking.next_step(pipeline), Wait), "it may be submitted just now"
    ticking.connection.execute(sa.text("UPDATE forebay.batches SET launched_at = launched_at - interval '2 minutes'"))
    step = ticking.next_step(pipeline)
    if status is dg.DagsterRunStatus.STARTING:
        assert isinstance(step, Wait), "the launcher looks after a submitted run"
        return
    assert step == Launch(time.isoformat(), 2)
    state, said = newest_attempt(log, time)
    assert state is AttemptState.LOST
    assert "never submitted" in said
    ended = ticking.instance.get_run_by_id(run.run_id)
    assert ended is not None
    assert ended.status is dg.DagsterRunStatus.FAILURE


def test_the_sensor_waits_for_the_living_one_of_two_runs_of_an_attempt(ticking: Ticking) -> None:
    """Check after a webserver took longer than the lease and made a second run, which could not be started."""
    pipeline = declare()
    log, [time] = behind(ticking.connection, pipeline, 1)
    log.add_at(log.receiver_ids[0], time - SECOND)
    launch = ticking.next_step(pipeline)
    assert isinstance(launch, Launch)
    lives = add_run(ticking.instance, launch, dg.DagsterRunStatus.STARTING)
    ticking.instance.report_run_failed(add_run(ticking.instance, launch, dg.DagsterRunStatus.STARTING))
    waiting = ticking.waits(pipeline)
    assert f"starting in run {lives.run_id}" in waiting


def test_a_launch_is_not_forgotten_if_another_batch_has_just_changed(
    connection: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check this because a launch that the pusher took and dropped would wait until its lease ends.

    The pusher looks at the launches that no launcher has taken.
    """
    pipeline = declare(concurrent_batches=2)
    log, times = behind(connection, pipeline, 2)
    log.add_at(log.receiver_ids[0], *(time - SECOND for time in times))
    rules = BatchRules.of_row(get_pipeline(connection, pipeline.name))
    seen = batches.unfinished_batches

    def after_which_the_second_is_claimed(own: sa.Connection, pipeline_id: int, *, limit: int) -> list[BatchRow]:
        rows = seen(own, pipeline_id, limit=limit)
        if len(rows) == 2 and all(row.state is BatchState.ALLOCATED for row in rows):
            claim(log, Launch(times[1].isoformat(), 1), times[1], "the sensor's")
        return rows

    monkeypatch.setattr(batches, "unfinished_batches", after_which_the_second_is_claimed)
    steps = next_steps(connection, rules, launcher="a", runs=None)
    assert steps.launches == (Launch(times[0].isoformat(), 1),)
