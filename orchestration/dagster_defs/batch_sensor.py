"""The batch sensor: allocates the blocks of each interval that is due, and asks for one run per batch.

Correctness is the driver log's, not the sensor's: the cut is by batch time, so a late tick costs latency and nothing
else; an allocation happens once; a run claims its attempt or ends. The sensor keeps no state of its own (no cursor),
so whatever is killed, the next tick sees what the driver log says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from orchestration.apply import is_applied
from orchestration.dagster_defs.assets import batch_op_name
from orchestration.settings import DatabaseUrlMissingError, Settings
from tracker_store import batches
from tracker_store.engine import connect, create_engine
from tracker_store.errors import DriverLogError
from tracker_store.pipelines import get_pipeline
from tracker_store.received_block_tracker import ReceivedBlockTracker, batch_times
from tracker_store.retry import retry_delay
from tracker_store.schema import BatchState, PipelineState

if TYPE_CHECKING:
    import sqlalchemy as sa
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

    from orchestration.pipeline import Pipeline

PIPELINE_TAG = "forebay/pipeline"
BATCH_TIME_TAG = "forebay/batch_time"
ATTEMPT_TAG = "forebay/attempt"

# Intervals without records complete here, without a run; the rest of a long gap waits for the next tick.
MAX_EMPTY_BATCHES_PER_TICK = 2_000


@dataclass(frozen=True, slots=True)
class Launch:
    """A batch's next attempt is to be run."""

    batch_time: str
    attempt: int

    @property
    def run_key(self) -> str:
        """One run per attempt, whatever crashes: Dagster launches a key once."""
        return f"{self.batch_time}:{self.attempt}"


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to launch now; `reason` tells an operator what is waited for."""

    reason: str


def next_step(connection: sa.Connection, pipeline: Pipeline, instance: dg.DagsterInstance) -> Launch | Wait:
    """What the pipeline needs now, after allocating what is due: one batch at a time, in order."""
    if why := _stands_still(connection, pipeline):
        return Wait(why)
    row = get_pipeline(connection, pipeline.name)
    tracker = ReceivedBlockTracker(connection, row.pipeline_id)
    for _ in range(MAX_EMPTY_BATCHES_PER_TICK):
        batch = batches.oldest_unfinished_batch(connection, row.pipeline_id)
        if batch is None:
            times = batch_times(connection, row.pipeline_id)
            if times.next_due > times.newest:
                return Wait(f"no batch due; the next is at {times.next_due.isoformat()}")
            due = times.next_due if pipeline.catch_up == "each" else times.newest
            tracker.allocate_blocks_to_batch(
                due,
                oldest_time=times.next_due,
                max_records=pipeline.max_records_per_batch,
                max_bytes=pipeline.max_bytes_per_batch,
                run_empty=pipeline.runs_empty_batches,
            )
            continue
        if batch.state is BatchState.FAILED and not batch.retry_due:
            return Wait(
                f"batch {batch.batch_time.isoformat()}: attempt {batch.attempt} failed ({batch.reason}); "
                f"the next starts after {batch.retry_at}"
            )
        if batch.state is BatchState.FAILED and batch.run_id:
            _end_lost_run(instance, batch.run_id, batch.reason)
        running = batch.state is BatchState.RUNNING
        attempt = batch.attempt if running else batch.attempt + 1
        launch = Launch(batch.batch_time.isoformat(), attempt)
        run = _run_of(instance, pipeline, launch, batch.run_id if running else None)
        if run is None and not running:
            return launch
        if run is not None and not run.is_finished:
            return Wait(
                f"batch {launch.batch_time}: attempt {attempt} is {'running' if running else 'starting'} "
                f"in run {run.run_id}"
            )
        # The run ended, or is gone, without a word in the driver log.
        ending = "is gone" if run is None else f"ended as {run.status.value}"
        batches.fail_attempt(
            connection,
            pipeline_id=row.pipeline_id,
            batch_time=batch.batch_time,
            attempt=attempt,
            run_id=batch.run_id or "" if run is None else run.run_id,
            error=f"run {batch.run_id if run is None else run.run_id} {ending} before the batch was complete",
            max_attempts=pipeline.max_attempts,
            retry_after=retry_delay(attempt),
        )
    return Wait(f"{MAX_EMPTY_BATCHES_PER_TICK} batches without records completed in this tick; more in the next")


def _stands_still(connection: sa.Connection, pipeline: Pipeline) -> str | None:
    """Why a person wants no batch of it now; None: batches are made. One that is STOPPING gets its last ones."""
    if not is_applied(connection, pipeline):
        return "not applied: code and driver log differ, run `forebay apply`"
    if get_pipeline(connection, pipeline.name).state is PipelineState.STOPPED:
        return f"the pipeline is stopped: run `forebay start --pipeline {pipeline.name}`"
    return None


def _end_lost_run(instance: dg.DagsterInstance, run_id: str, reason: str) -> None:
    """End a run in Dagster too, whose attempt the tracker has failed: its process is dead and can't say so."""
    run = instance.get_run_by_id(run_id)
    if run is not None and not run.is_finished:
        instance.report_run_failed(run, f"Forebay: {reason}")


def _run_of(
    instance: dg.DagsterInstance, pipeline: Pipeline, launch: Launch, run_id: str | None
) -> dg.DagsterRun | None:
    if run_id is not None:
        return instance.get_run_by_id(run_id)
    runs = instance.get_runs(
        filters=dg.RunsFilter(
            tags={
                PIPELINE_TAG: pipeline.name,
                BATCH_TIME_TAG: launch.batch_time,
                ATTEMPT_TAG: str(launch.attempt),
            }
        ),
        limit=1,
    )
    return runs[0] if runs else None


def batch_sensor(pipeline: Pipeline, job: UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """`PIPELINE_batches`, running by default."""

    @dg.sensor(
        name=f"{pipeline.name}_batches",
        job=job,
        # The daemon's loop is 5 s; a minimum of 5 would give 10 (the loop comes some ms early and skips).
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Gives each interval's blocks to a batch of {pipeline.name} and launches one run per batch.",
    )
    def evaluate(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        try:
            database_url = Settings().require_database_url()
        except DatabaseUrlMissingError as error:
            return dg.SkipReason(str(error))
        engine = create_engine(database_url, application_name=f"forebay batch sensor {pipeline.name}", pool_size=1)
        try:
            with connect(engine) as connection:
                step = next_step(connection, pipeline, context.instance)
        except DriverLogError as error:
            return dg.SkipReason(f"the driver log said no, trying again: {error}")
        finally:
            engine.dispose()
        if isinstance(step, Wait):
            return dg.SkipReason(step.reason)
        return dg.RunRequest(
            run_key=step.run_key,
            run_config=dg.RunConfig(
                {batch_op_name(pipeline): {"config": {"batch_time": step.batch_time, "attempt": step.attempt}}}
            ),
            tags={
                PIPELINE_TAG: pipeline.name,
                BATCH_TIME_TAG: step.batch_time,
                ATTEMPT_TAG: str(step.attempt),
            },
        )

    return evaluate
