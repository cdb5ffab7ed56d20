"""Request one run per batch that is due and that the tracker has not pushed already: the batch sensor.

``batch_schedule`` decides what is due. The next tick sees the driver log's state whatever process was killed: the
sensor's cursor holds nothing but which declarations it has seen applied (``reloaded_code``). In an instance created by
`forebay up`, a tick that begins shortly before a boundary waits for it, because runs are requested when a tick returns,
and ticks come every 5 s. Elsewhere a tick never waits, because it would delay the other sensors of an instance that has
no threads for sensors.
"""

from __future__ import annotations

import time
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

import dagster as dg

from orchestration.batches.batch_schedule import (
    ATTEMPT_TAG,
    BATCH_TIME_TAG,
    DECLARATION_TAG,
    PIPELINE_TAG,
    PUSHED_BELOW,
    SENSOR_LAUNCHER,
    BatchRules,
    PipelineRun,
    Steps,
    Wait,
    declaration_fingerprint,
    end_expired_runs,
    next_steps,
    pause_reason,
    sensor_name,
)
from orchestration.dagster_defs.sensors.lost_replays import lost_replays
from orchestration.dagster_defs.sensors.reloaded_code import AppliedCursor, follow_reload
from orchestration.dagster_defs.shared.run_errors import tag_cause, why_failed
from orchestration.declarations.apply import is_applied
from orchestration.declarations.project_code import CodeCopies
from orchestration.declarations.settings import DatabaseUrlMissingError, Settings
from tracker_store.batches.pipelines import get_pipeline, list_pipelines
from tracker_store.connection.errors import DriverLogError
from tracker_store.host.code_in_force import loaded_copy

if TYPE_CHECKING:
    import sqlalchemy as sa
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

    from orchestration.batches.batch_schedule import Launch
    from orchestration.dagster_defs.shared.sensor_connections import SensorConnections
    from orchestration.declarations.pipeline import Pipeline

__all__ = ["ATTEMPT_TAG", "BATCH_TIME_TAG", "PIPELINE_TAG", "DagsterRuns", "batch_sensor", "tick", "wait_seconds"]

# A tick that begins at most this long before a boundary waits for it: the daemon's loop of 5 s and its jitter.
LONGEST_WAIT_SECONDS = 6.0
# Added to the wait for a boundary, so that it has also passed on the database's clock.
_PAST_SECONDS = 0.002
# Most runs read for an attempt. It has one; a launch without a timely answer may have made another, a person more.
_MOST_OF_ATTEMPT = 10
_BEGUN = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
_MOST_BEGUN = 100


class DagsterRuns:
    """Find the runs of a pipeline in a Dagster instance."""

    def __init__(self, instance: dg.DagsterInstance, pipeline: str) -> None:
        """Look for runs of `pipeline` in `instance`."""
        self._instance = instance
        self._pipeline = pipeline

    def by_id(self, run_id: str) -> PipelineRun | None:
        """Return the run, or None if it is gone."""
        run = self._instance.get_run_by_id(run_id)
        return None if run is None else _run(run)

    def of_attempt(self, launch: Launch) -> PipelineRun | None:
        """Return an attempt's newest run, found by its tags; prefer a run that has not ended."""
        runs = self._instance.get_runs(filters=dg.RunsFilter(tags=launch.tags(self._pipeline)), limit=_MOST_OF_ATTEMPT)
        run = next((run for run in runs if not run.is_finished), runs[0] if runs else None)
        return None if run is None else _run(run)

    def why_failed(self, run_id: str) -> str:
        """Return the last error in Dagster's events of a run; empty if there is none."""
        return why_failed(self._instance, run_id)

    def show_cause(self, run_id: str, cause: str) -> None:
        """Tag a run with the first line of its cause."""
        tag_cause(self._instance, run_id, cause)

    def begun(self) -> list[tuple[PipelineRun, datetime, int]]:
        """Return the runs of attempts that have begun and not ended, each with its batch time and its attempt."""
        return [
            (_run(run), datetime.fromisoformat(run.tags[BATCH_TIME_TAG]), int(run.tags[ATTEMPT_TAG]))
            for run in self.all_begun
            if BATCH_TIME_TAG in run.tags and ATTEMPT_TAG in run.tags
        ]

    @cached_property
    def all_begun(self) -> list[dg.DagsterRun]:
        """Return the pipeline's runs that have begun and not ended, replays too; they are read from Dagster once."""
        return list(
            self._instance.get_runs(
                filters=dg.RunsFilter(tags={PIPELINE_TAG: self._pipeline}, statuses=_BEGUN), limit=_MOST_BEGUN
            )
        )

    def end_lost(self, run_id: str, reason: str) -> None:
        """Mark a run as failed in Dagster, because its process is dead and can't do so itself."""
        run = self._instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished:
            self._instance.report_run_failed(run, f"Forebay: {reason}")
            tag_cause(self._instance, run_id, reason)


def _run(run: dg.DagsterRun) -> PipelineRun:
    return PipelineRun(run.run_id, run.status.value, run.is_finished)


def tick(
    connection: sa.Connection,
    pipeline: Pipeline,
    instance: dg.DagsterInstance,
    *,
    wait_seconds: float = 0.0,
    launcher: str = SENSOR_LAUNCHER,
) -> Steps:
    """Return what the pipeline needs now, after waiting for a boundary that comes within `wait_seconds`.

    Two sensors for one pipeline, in two code locations, need different `launcher` names: then only one requests a run.
    """
    give_up_at = time.monotonic() + wait_seconds
    runs = DagsterRuns(instance, pipeline.name)
    while True:
        if why := _pause_reason(connection, pipeline):
            return Steps(waits=(Wait(why),))
        rules = BatchRules.of_row(get_pipeline(connection, pipeline.name))
        steps = next_steps(connection, rules, launcher=launcher, runs=runs)
        if steps.launches or steps.next_due_in is None:
            return steps
        pause = max(0.0, steps.next_due_in.total_seconds()) + _PAST_SECONDS
        if time.monotonic() + pause > give_up_at:
            return steps
        time.sleep(pause)


def end_left_runs(connection: sa.Connection, pipeline: Pipeline, instance: dg.DagsterInstance) -> list[dg.RunRequest]:
    """End the pipeline's runs in Dagster that no process will end, even if the pipeline makes no batches now.

    Return requests for replays that are to run again.
    """
    runs = DagsterRuns(instance, pipeline.name)
    for row in list_pipelines(connection):
        if row.name == pipeline.name:
            end_expired_runs(connection, row.pipeline_id, runs)
            return lost_replays(connection, row.pipeline_id, row.name, runs.all_begun, instance, runs.end_lost)
    return []


def _pause_reason(connection: sa.Connection, pipeline: Pipeline) -> str | None:
    """Return why the pipeline makes no batches now (stopped, halted, not applied), or None."""
    if not is_applied(connection, pipeline):
        return "not applied: code and driver log differ, run `forebay apply`"
    return pause_reason(get_pipeline(connection, pipeline.name))


def wait_seconds(pipeline: Pipeline, settings: Settings) -> float:
    """Return how long a tick may wait: 0 outside Forebay's own instance and for intervals that the tracker pushes."""
    is_own = settings.dagster_url is not None
    return LONGEST_WAIT_SECONDS if is_own and pipeline.interval >= PUSHED_BELOW else 0.0


def _launcher(context: dg.SensorEvaluationContext) -> str:
    origin = context.code_location_origin
    return SENSOR_LAUNCHER if origin is None else f"{SENSOR_LAUNCHER} of {origin.location_name}"


def batch_sensor(
    pipeline: Pipeline, job: UnresolvedAssetJobDefinition, replays: dg.JobDefinition, connections: SensorConnections
) -> dg.SensorDefinition:
    """Return the sensor `PIPELINE_batches`, which runs by default; `replays`: the pipeline's replay job."""
    loaded = time.time()

    def reloaded(context: dg.SensorEvaluationContext, connection: sa.Connection) -> str:
        if loaded_copy() is not None:
            # `forebay up` decides which code is in force.
            return ""
        before = AppliedCursor.of(context.cursor)
        now, waits = follow_reload(connection, pipeline, before, loaded=loaded)
        if now != before:
            context.update_cursor(str(now))
        return waits

    @dg.sensor(
        name=sensor_name(pipeline.name),
        jobs=[job, replays],
        # The daemon's loop is 5 s; a minimum of 5 would give 10 s (the loop comes some ms early and skips the sensor).
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Gives each interval's blocks to a batch of {pipeline.name} and launches one run per batch.",
        # The tracker pushes only if the applied declaration is the one of the code that is loaded here.
        tags={
            DECLARATION_TAG: declaration_fingerprint(
                pipeline.declaration(), {stream.name: stream.declaration() for stream in pipeline.streams}
            )
        },
    )
    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        settings = Settings()
        try:
            database_url = settings.require_database_url()
        except DatabaseUrlMissingError as error:
            return dg.SkipReason(str(error))
        try:
            with connections.connect(database_url) as connection:
                waits = reloaded(context, connection)
                steps = tick(
                    connection,
                    pipeline,
                    context.instance,
                    wait_seconds=wait_seconds(pipeline, settings),
                    launcher=_launcher(context),
                )
                again = [] if steps.launches else end_left_runs(connection, pipeline, context.instance)
        except DriverLogError as error:
            return dg.SkipReason(f"the driver log can't be asked, trying again: {error}")
        if again:
            return dg.SensorResult(run_requests=again)
        if not steps.launches:
            # A person who looks here for a change that is missing finds why.
            return dg.SkipReason(" ".join(filter(None, [steps.reason, waits, CodeCopies(settings.home).notice()])))
        return dg.SensorResult(
            run_requests=[
                dg.RunRequest(
                    job_name=job.name,
                    run_key=launch.run_key,
                    run_config=launch.run_config(pipeline.name),
                    tags=launch.tags(pipeline.name),
                    asset_selection=[pipeline.outputs[output].asset_key for output in launch.outputs] or None,
                    # A selection of assets has all checks of them, Forebay's too, whatever the job leaves out.
                    asset_check_keys=[] if launch.outputs else None,
                )
                for launch in steps.launches
            ]
        )

    return evaluate
