"""The batch sensor: asks for one run per batch that is due, whatever the tracker may push before it.

What is due is ``batch_schedule``'s to say. The sensor keeps no state of its own (no cursor), so whatever is killed, the
next tick sees what the driver log says. In an instance that Forebay set up a tick that begins shortly before a boundary
waits for it: runs are asked for when a tick returns, and ticks come every 5 s. That would hold up the other sensors of
an instance without threads for sensors, so nowhere else does a tick wait.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

import dagster as dg

from orchestration.apply import is_applied
from orchestration.batch_schedule import (
    ATTEMPT_TAG,
    BATCH_TIME_TAG,
    DECLARATION_TAG,
    PIPELINE_TAG,
    PUSHED_BELOW,
    SENSOR_LAUNCHER,
    BatchRules,
    Run,
    Steps,
    Wait,
    declaration_fingerprint,
    end_what_is_over,
    next_steps,
    sensor_name,
    stands_still,
)
from orchestration.dagster_defs.run_errors import why_failed
from orchestration.settings import DatabaseUrlMissingError, Settings
from tracker_store.engine import connect_once
from tracker_store.errors import DriverLogError
from tracker_store.pipelines import get_pipeline, list_pipelines

if TYPE_CHECKING:
    import sqlalchemy as sa
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

    from orchestration.batch_schedule import Launch
    from orchestration.pipeline import Pipeline

__all__ = ["ATTEMPT_TAG", "BATCH_TIME_TAG", "PIPELINE_TAG", "DagsterRuns", "batch_sensor", "tick", "wait_seconds"]

# A tick that begins so long before a boundary waits for it: the daemon's loop of 5 s, and what that may be late.
LONGEST_WAIT_SECONDS = 6.0
# So long after a boundary it has come by the database's clock too.
_PAST_SECONDS = 0.002
# An attempt has one run; a launch that had no answer in time may have made another one, a person some more.
_MOST_OF_ATTEMPT = 10
_BEGUN = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
_MOST_BEGUN = 100


class DagsterRuns:
    """A pipeline's runs in a Dagster instance."""

    def __init__(self, instance: dg.DagsterInstance, pipeline: str) -> None:
        """Look for runs of `pipeline` in `instance`."""
        self._instance = instance
        self._pipeline = pipeline

    def by_id(self, run_id: str) -> Run | None:
        """The run, or None where it is gone."""
        run = self._instance.get_run_by_id(run_id)
        return None if run is None else _run(run)

    def of_attempt(self, launch: Launch) -> Run | None:
        """The newest run that was launched for an attempt, by its tags; one that has not ended before all others."""
        runs = self._instance.get_runs(filters=dg.RunsFilter(tags=launch.tags(self._pipeline)), limit=_MOST_OF_ATTEMPT)
        run = next((run for run in runs if not run.is_finished), runs[0] if runs else None)
        return None if run is None else _run(run)

    def why_failed(self, run_id: str) -> str:
        """The last error that Dagster's events of a run have; empty where there is none."""
        return why_failed(self._instance, run_id)

    def begun(self) -> list[tuple[Run, datetime, int]]:
        """The runs of attempts that have begun and not ended, each with its batch time and its attempt."""
        runs = self._instance.get_runs(
            filters=dg.RunsFilter(tags={PIPELINE_TAG: self._pipeline}, statuses=_BEGUN), limit=_MOST_BEGUN
        )
        return [
            (_run(run), datetime.fromisoformat(run.tags[BATCH_TIME_TAG]), int(run.tags[ATTEMPT_TAG]))
            for run in runs
            if BATCH_TIME_TAG in run.tags and ATTEMPT_TAG in run.tags
        ]

    def end_lost(self, run_id: str, reason: str) -> None:
        """End a run in Dagster too whose process is dead and can't say so."""
        run = self._instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished:
            self._instance.report_run_failed(run, f"Forebay: {reason}")


def _run(run: dg.DagsterRun) -> Run:
    return Run(run.run_id, run.status.value, run.is_finished)


def tick(
    connection: sa.Connection,
    pipeline: Pipeline,
    instance: dg.DagsterInstance,
    *,
    wait_seconds: float = 0.0,
    launcher: str = SENSOR_LAUNCHER,
) -> Steps:
    """What the pipeline needs now; a boundary that comes within `wait_seconds` is waited for.

    Of two sensors for one pipeline, in two code locations, each is a `launcher` of its own: so one asks for a run.
    """
    give_up_at = time.monotonic() + wait_seconds
    runs = DagsterRuns(instance, pipeline.name)
    while True:
        if why := _stands_still(connection, pipeline):
            return Steps(waits=(Wait(why),))
        rules = BatchRules.of_row(get_pipeline(connection, pipeline.name))
        steps = next_steps(connection, rules, launcher=launcher, runs=runs)
        if steps.launches or steps.next_due_in is None:
            return steps
        pause = max(0.0, steps.next_due_in.total_seconds()) + _PAST_SECONDS
        if time.monotonic() + pause > give_up_at:
            return steps
        time.sleep(pause)


def end_left_runs(connection: sa.Connection, pipeline: Pipeline, instance: dg.DagsterInstance) -> None:
    """End runs of the pipeline in Dagster that nobody else will end, also where it makes no batches now."""
    for row in list_pipelines(connection):
        if row.name == pipeline.name:
            end_what_is_over(connection, row.pipeline_id, DagsterRuns(instance, pipeline.name))


def _stands_still(connection: sa.Connection, pipeline: Pipeline) -> str | None:
    """Why a person wants no batch of it now; None: batches are made."""
    if not is_applied(connection, pipeline):
        return "not applied: code and driver log differ, run `forebay apply`"
    return stands_still(get_pipeline(connection, pipeline.name))


def wait_seconds(pipeline: Pipeline, settings: Settings) -> float:
    """How long a tick may wait: in Forebay's own instance, for an interval that the tracker does not push."""
    is_own = settings.dagster_url is not None
    return LONGEST_WAIT_SECONDS if is_own and pipeline.interval >= PUSHED_BELOW else 0.0


def _launcher(context: dg.SensorEvaluationContext) -> str:
    origin = context.code_location_origin
    return SENSOR_LAUNCHER if origin is None else f"{SENSOR_LAUNCHER} of {origin.location_name}"


def batch_sensor(pipeline: Pipeline, job: UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """`PIPELINE_batches`, running by default."""

    @dg.sensor(
        name=sensor_name(pipeline.name),
        job=job,
        # The daemon's loop is 5 s; a minimum of 5 would give 10 (the loop comes some ms early and skips).
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Gives each interval's blocks to a batch of {pipeline.name} and launches one run per batch.",
        # The tracker pushes for the code that is loaded here, and for no other.
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
            with connect_once(database_url, application_name=f"forebay batch sensor {pipeline.name}") as connection:
                steps = tick(
                    connection,
                    pipeline,
                    context.instance,
                    wait_seconds=wait_seconds(pipeline, settings),
                    launcher=_launcher(context),
                )
                if not steps.launches:
                    end_left_runs(connection, pipeline, context.instance)
        except DriverLogError as error:
            return dg.SkipReason(f"the driver log said no, trying again: {error}")
        if not steps.launches:
            return dg.SkipReason(steps.reason)
        return dg.SensorResult(
            run_requests=[
                dg.RunRequest(
                    run_key=launch.run_key,
                    run_config=launch.run_config(pipeline.name),
                    tags=launch.tags(pipeline.name),
                )
                for launch in steps.launches
            ]
        )

    return evaluate
