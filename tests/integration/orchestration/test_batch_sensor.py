"""The batch sensor on a real driver log and a Dagster instance: what it asks for, tick by tick."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg
import pytest
import sqlalchemy as sa

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.apply import apply
from orchestration.dagster_defs.batch_sensor import (
    ATTEMPT_TAG,
    BATCH_TIME_TAG,
    PIPELINE_TAG,
    Launch,
    Wait,
    batch_sensor,
    next_step,
)
from orchestration.dagster_defs.jobs import batch_job
from tests.driver_log import Log
from tracker_store import batches
from tracker_store.engine import connect
from tracker_store.pipeline_states import stop_pipelines
from tracker_store.pipelines import get_pipeline
from tracker_store.processes import register_process
from tracker_store.received_block_tracker import batch_times
from tracker_store.receivers import placements
from tracker_store.schema import BatchState, ProcessKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

INTERVAL = timedelta(minutes=10)
SECOND = timedelta(seconds=1)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def connection(engine: sa.Engine) -> Iterator[sa.Connection]:
    with connect(engine) as made:
        yield made


def declare(**arguments: object) -> Pipeline:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval=INTERVAL, **arguments)  # type: ignore[arg-type]
    pipeline.output(inputs=[lines], sink=ParquetSink("/out"), name="counts")(lambda frame: frame)
    return pipeline


def behind(connection: sa.Connection, pipeline: Pipeline, boundaries: int) -> tuple[Log, list[datetime]]:
    """Apply the pipeline as if its last batch was `boundaries` intervals ago; the log and the boundaries due."""
    apply(connection, [pipeline])
    row = get_pipeline(connection, pipeline.name)
    newest = batch_times(connection, row.pipeline_id).newest
    connection.execute(
        sa.text("UPDATE forebay.pipelines SET last_batch_time = :at"), {"at": newest - boundaries * INTERVAL}
    )
    log = Log(connection, row.stream_ids[0], row.pipeline_id, [p.receiver_id for p in placements(connection)])
    return log, [newest - n * INTERVAL for n in reversed(range(boundaries))]


def add_run(instance: dg.DagsterInstance, launch: Launch, status: dg.DagsterRunStatus) -> dg.DagsterRun:
    run = dg.DagsterRun(
        job_name="words_batch",
        status=status,
        tags={PIPELINE_TAG: "words", BATCH_TIME_TAG: launch.batch_time, ATTEMPT_TAG: str(launch.attempt)},
    )
    return instance.add_run(run)


def claim(log: Log, launch: Launch, time: datetime, run_id: str) -> None:
    batches.claim_attempt(
        log.connection,
        pipeline_id=log.pipeline_id,
        batch_time=time,
        attempt=launch.attempt,
        run_id=run_id,
        process_id=register_process(log.connection, kind=ProcessKind.BATCH_RUN, name="r", host="h", pid=1),
    )


def finish(log: Log, launch: Launch, time: datetime) -> None:
    batches.complete_batch(
        log.connection, pipeline_id=log.pipeline_id, batch_time=time, attempt=launch.attempt, outputs=[]
    )


def test_a_pipeline_that_is_not_applied_waits_for_it(connection: sa.Connection, instance: dg.DagsterInstance) -> None:
    step = next_step(connection, declare(), instance)
    assert isinstance(step, Wait)
    assert "run `forebay apply`" in step.reason


def test_a_stopped_pipeline_makes_no_batch_and_one_that_is_stopping_its_last(
    connection: sa.Connection, instance: dg.DagsterInstance
) -> None:
    pipeline = declare()
    log, [time] = behind(connection, pipeline, 1)
    log.add_at(log.receiver_ids[0], time - SECOND)
    stop_pipelines(connection)
    assert next_step(connection, pipeline, instance) == Launch(time.isoformat(), 1)
    connection.execute(sa.text("UPDATE forebay.pipelines SET state = 'STOPPED'"))
    step = next_step(connection, pipeline, instance)
    assert isinstance(step, Wait)
    assert "run `forebay start --pipeline words`" in step.reason


def test_nothing_due_says_when_the_next_is(connection: sa.Connection, instance: dg.DagsterInstance) -> None:
    pipeline = declare()
    apply(connection, [pipeline])
    step = next_step(connection, pipeline, instance)
    assert isinstance(step, Wait)
    assert "the next is at" in step.reason


def test_after_an_outage_each_interval_gets_its_own_batch_in_order(
    connection: sa.Connection, instance: dg.DagsterInstance
) -> None:
    """Dagster was down for five intervals; two of them had records."""
    pipeline = declare()
    log, times = behind(connection, pipeline, 5)
    [receiver] = log.receiver_ids
    log.add_at(receiver, times[1] - SECOND, times[3] - 2 * SECOND, times[3] - SECOND)
    launched = []
    for time in (times[1], times[3]):
        step = next_step(connection, pipeline, instance)
        assert step == Launch(time.isoformat(), 1)
        launched.append(step)
        run = add_run(instance, step, dg.DagsterRunStatus.STARTED)
        claim(log, step, time, run.run_id)
        finish(log, step, time)
    assert isinstance(next_step(connection, pipeline, instance), Wait)
    found = [batches.get_batch(connection, log.pipeline_id, time) for time in times]
    assert [(batch.state, batch.records) for batch in found if batch] == [
        (BatchState.COMPLETED, records) for records in (0, 10, 0, 20, 0)
    ]


def test_merge_makes_one_batch_at_the_newest_boundary(connection: sa.Connection, instance: dg.DagsterInstance) -> None:
    pipeline = declare(catch_up="merge")
    log, times = behind(connection, pipeline, 5)
    log.add_at(log.receiver_ids[0], times[1] - SECOND, times[3] - SECOND)
    assert next_step(connection, pipeline, instance) == Launch(times[-1].isoformat(), 1)
    batch = batches.get_batch(connection, log.pipeline_id, times[-1])
    assert batch is not None
    assert (batch.records, batch.oldest_time) == (20, times[0])


def test_a_run_that_lives_is_waited_for(connection: sa.Connection, instance: dg.DagsterInstance) -> None:
    pipeline = declare()
    log, [time] = behind(connection, pipeline, 1)
    log.add_at(log.receiver_ids[0], time - SECOND)
    launch = next_step(connection, pipeline, instance)
    assert isinstance(launch, Launch)
    run = add_run(instance, launch, dg.DagsterRunStatus.STARTING)
    starting = next_step(connection, pipeline, instance)
    assert isinstance(starting, Wait)
    assert f"starting in run {run.run_id}" in starting.reason
    claim(log, launch, time, run.run_id)
    running = next_step(connection, pipeline, instance)
    assert isinstance(running, Wait)
    assert f"running in run {run.run_id}" in running.reason


@pytest.mark.parametrize("claimed", [False, True])
def test_a_run_that_ended_without_a_word_is_retried_under_a_new_key(
    connection: sa.Connection, instance: dg.DagsterInstance, *, claimed: bool
) -> None:
    """`kill -9` of a run's process, before or after its claim: Dagster launches a run key only once."""
    pipeline = declare()
    log, [time] = behind(connection, pipeline, 1)
    log.add_at(log.receiver_ids[0], time - SECOND)
    launch = next_step(connection, pipeline, instance)
    assert isinstance(launch, Launch)
    run = add_run(instance, launch, dg.DagsterRunStatus.STARTED)
    if claimed:
        claim(log, launch, time, run.run_id)
    instance.report_run_failed(run)
    waiting = next_step(connection, pipeline, instance)
    assert isinstance(waiting, Wait)
    assert "ended as FAILURE" in waiting.reason
    connection.execute(sa.text("UPDATE forebay.batches SET retry_at = clock_timestamp()"))
    again = next_step(connection, pipeline, instance)
    assert again == Launch(time.isoformat(), 2)
    assert again.run_key != launch.run_key


def test_a_deleted_run_is_retried(connection: sa.Connection, instance: dg.DagsterInstance) -> None:
    pipeline = declare()
    log, [time] = behind(connection, pipeline, 1)
    log.add_at(log.receiver_ids[0], time - SECOND)
    launch = next_step(connection, pipeline, instance)
    assert isinstance(launch, Launch)
    run = add_run(instance, launch, dg.DagsterRunStatus.STARTED)
    claim(log, launch, time, run.run_id)
    instance.delete_run(run.run_id)
    waiting = next_step(connection, pipeline, instance)
    assert isinstance(waiting, Wait)
    assert "is gone" in waiting.reason


def test_a_quarantined_batch_lets_the_later_ones_go_on(connection: sa.Connection, instance: dg.DagsterInstance) -> None:
    pipeline = declare(max_attempts=1)
    log, times = behind(connection, pipeline, 2)
    log.add_at(log.receiver_ids[0], times[0] - SECOND, times[1] - SECOND)
    launch = next_step(connection, pipeline, instance)
    assert isinstance(launch, Launch)
    run = add_run(instance, launch, dg.DagsterRunStatus.STARTED)
    instance.report_run_failed(run)
    assert next_step(connection, pipeline, instance) == Launch(times[1].isoformat(), 1)
    first = batches.get_batch(connection, log.pipeline_id, times[0])
    assert first is not None
    assert first.state is BatchState.QUARANTINED


def test_the_sensor_yields_one_request_per_attempt(
    connection: sa.Connection, database_url: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    pipeline = declare()
    log, [time] = behind(connection, pipeline, 1)
    log.add_at(log.receiver_ids[0], time - SECOND)
    sensor = batch_sensor(pipeline, batch_job(pipeline))
    [request] = sensor.evaluate_tick(dg.build_sensor_context(instance=instance)).run_requests or []
    assert request.run_key == f"{time.isoformat()}:1"
    assert request.tags[PIPELINE_TAG] == "words"
    assert request.run_config["ops"]["words__outputs"]["config"] == {"batch_time": time.isoformat(), "attempt": 1}
    # Nothing claimed it: the next tick asks for the same key, which Dagster launches once.
    [same] = sensor.evaluate_tick(dg.build_sensor_context(instance=instance)).run_requests or []
    assert same.run_key == request.run_key


def test_a_driver_log_that_is_away_is_a_skip_that_says_so(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    pipeline = declare()
    data = batch_sensor(pipeline, batch_job(pipeline)).evaluate_tick(dg.build_sensor_context(instance=instance))
    assert not data.run_requests
    assert "trying again" in (data.skip_message or "")


def test_without_a_driver_log_the_skip_says_what_to_do(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOREBAY_DATABASE_URL", raising=False)
    pipeline = declare()
    data = batch_sensor(pipeline, batch_job(pipeline)).evaluate_tick(dg.build_sensor_context(instance=instance))
    assert "run `forebay up`" in (data.skip_message or "")


def test_a_run_whose_attempt_the_tracker_has_failed_is_ended_in_dagster_too(
    connection: sa.Connection, instance: dg.DagsterInstance
) -> None:
    """Code server and run were killed together: nobody was left to tell Dagster."""
    pipeline = declare()
    log, [time] = behind(connection, pipeline, 1)
    log.add_at(log.receiver_ids[0], time - SECOND)
    launch = next_step(connection, pipeline, instance)
    assert isinstance(launch, Launch)
    run = add_run(instance, launch, dg.DagsterRunStatus.STARTED)
    claim(log, launch, time, run.run_id)
    batches.fail_attempt(
        connection,
        pipeline_id=log.pipeline_id,
        batch_time=time,
        attempt=1,
        run_id=run.run_id,
        error="lost",
        max_attempts=3,
        retry_after=timedelta(0),
    )
    assert next_step(connection, pipeline, instance) == Launch(time.isoformat(), 2)
    ended = instance.get_run_by_id(run.run_id)
    assert ended is not None
    assert ended.status is dg.DagsterRunStatus.FAILURE
