"""Decide every scaling interval how large Spark should be for a pipeline's batches (O04): the scaling schedule.

It runs once a minute. If the scaling interval has passed since its last decision, it compares how long batches took
since then with their interval, and records a decision. It does nothing else:
the next Spark session, or an agent that runs batch drivers, reads the decision from the driver log. If
`dynamic_allocation_enabled` is off, or the master supports neither, the decision is only advice that `forebay status`
shows. It decides in its own tick and launches no run; a person can run the job of the same name to decide at once.
"""

# No `from __future__ import annotations`: Dagster reads the context's class off the annotation.
from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg

from orchestration.declarations.pipeline import Pipeline
from orchestration.declarations.settings import DatabaseUrlMissingError, Settings
from orchestration.policies.executor_allocation import Bounds, decide, scaling
from orchestration.spark.session.session_configuration import spark_master
from receiver_runtime.sources.fields.units import parse_duration
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.scaling import processing_times_since, record_scaling, scaling_decision
from tracker_store.connection.engine import connect_once
from tracker_store.connection.errors import DriverLogError

if TYPE_CHECKING:
    import sqlalchemy as sa

EVERY_MINUTE = "* * * * *"
# How much earlier than the scaling interval a tick may decide: ticks of a minute are some seconds early or late.
_TICK_TOLERANCE = timedelta(seconds=30)


def scaling_interval(pipeline: Pipeline) -> timedelta:
    """Return how long after a decision the next one is due."""
    return timedelta(seconds=parse_duration(pipeline.settings.dynamic_allocation_scaling_interval))


def not_due(connection: "sa.Connection", pipeline: Pipeline) -> str | None:
    """Return why the schedule does not decide yet, as a sentence; None if a decision is due."""
    newest = scaling_decision(connection, pipeline.name)
    interval = scaling_interval(pipeline)
    if newest is None or newest.age >= interval - _TICK_TOLERANCE:
        return None
    return (
        f"decided {newest.age.total_seconds():.0f} s ago, and decides every {interval.total_seconds():g} s "
        "(dynamic_allocation_scaling_interval)"
    )


def decide_scaling(connection: "sa.Connection", pipeline: Pipeline, *, master: str) -> str:
    """Decide, record the decision, and return its reason as a sentence. Raises NotAppliedError."""
    row = get_pipeline(connection, pipeline.name)
    before = scaling_decision(connection, pipeline.name)
    settings = pipeline.settings
    # As in the original, each batch counts in only one decision.
    times = processing_times_since(
        connection,
        row.pipeline_id,
        after=None if before is None else before.decided_at,
        seconds=scaling_interval(pipeline).total_seconds(),
    )
    found = scaling(
        times,
        row.interval,
        scaling_up_ratio=settings.dynamic_allocation_scaling_up_ratio,
        scaling_down_ratio=settings.dynamic_allocation_scaling_down_ratio,
    )
    if found is None:
        return "no batch was completed since it was looked at last"
    decision = decide(
        found,
        executors=settings.dynamic_allocation_min_executors if before is None else before.executors,
        batch_drivers=1 if before is None else before.batch_drivers,
        bounds=Bounds(
            settings.dynamic_allocation_min_executors,
            settings.dynamic_allocation_max_executors,
            settings.concurrent_batches,
        ),
        master=master,
        applied=settings.dynamic_allocation_enabled,
    )
    record_scaling(
        connection,
        pipeline_id=row.pipeline_id,
        ratio=found.ratio,
        batches=found.batches,
        executors=decision.executors,
        batch_drivers=decision.batch_drivers,
        applied=settings.dynamic_allocation_enabled,
        reason=decision.reason,
    )
    return decision.reason


def _look(pipeline: Pipeline, *, on_request: bool) -> str:
    settings = Settings()
    with connect_once(
        settings.require_database_url(), application_name=f"forebay scaling {pipeline.name}"
    ) as connection:
        if not on_request and (reason := not_due(connection, pipeline)) is not None:
            return reason
        return decide_scaling(connection, pipeline, master=spark_master(settings, pipeline.spark_configuration))


def scaling_job(pipeline: Pipeline) -> dg.JobDefinition:
    """Return the job `PIPELINE_scaling`, which makes the same decision on request."""

    @dg.op(name=f"{pipeline.name}__scaling", description="Decides how large Spark should be, by the newest batches.")
    def look(context: dg.OpExecutionContext) -> None:
        context.log.info(_look(pipeline, on_request=True))

    @dg.job(
        name=f"{pipeline.name}_scaling",
        executor_def=dg.in_process_executor,
        description=f"Decides now how large Spark should be for batches of {pipeline.name}; its schedule does it "
        "every dynamic_allocation_scaling_interval, without a run.",
        tags={"forebay/pipeline": pipeline.name},
    )
    def scaling_job_definition() -> None:
        look()

    return scaling_job_definition


def scaling_schedule(pipeline: Pipeline, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Return the schedule `PIPELINE_scaling`: every minute; it runs by default."""

    @dg.schedule(
        name=f"{pipeline.name}_scaling",
        # By name: Dagster would bind a job object again when definitions are merged, with warnings.
        job_name=job.name,
        cron_schedule=EVERY_MINUTE,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Decides how large Spark should be for {pipeline.name}, in the tick itself; launches no run.",
    )
    def evaluate(_context: dg.ScheduleEvaluationContext) -> dg.SkipReason:
        try:
            return dg.SkipReason(_look(pipeline, on_request=False))
        except (DatabaseUrlMissingError, DriverLogError) as error:
            return dg.SkipReason(f"nothing is decided: {error}")

    return evaluate
