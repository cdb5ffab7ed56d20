"""Finish what attempts that died between two commits left behind, and look after targets: the upkeep schedule.

It publishes what is committed but not published, records commits that a target has and the driver log has not, and then
gives each target its turn: small files are merged, and what nothing needs any more is deleted. In this order, because a
target may forget old commits in its turn.

A tick only reads the driver log; the run that it requests must be able to access the outputs' files. Nothing waits for
it: a batch is committed without it, and published by its own run or by the next run of its pipeline. Only pipelines
whose outputs publish files, write to a target with its own commits, or need upkeep, have this schedule.
"""

# No `from __future__ import annotations`: Dagster reads the context's class off the annotation.
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg

from orchestration.batches.batch_schedule import PIPELINE_TAG
from orchestration.batches.following import (
    FOLLOWED_FOR,
    FOLLOWED_LATER_FOR,
    follow_targets,
    followed_outputs,
    to_follow,
)
from orchestration.batches.publishing import UpkeepResult, publish_what_is_left, upkeep
from orchestration.declarations.pipeline import Output, Pipeline
from orchestration.declarations.settings import DatabaseUrlMissingError, Settings
from orchestration.declarations.sink import DAILY, HOURLY
from tracker_store.batches.outputs import commits_to_publish
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.errors import DriverLogError
from tracker_store.schema.batch_calendar import zone_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

EVERY = "*/10 * * * *"
MOST_PUBLISHED = 10_000
MOST_SECONDS = 300.0
_MINUTE = 10


def published_outputs(pipeline: Pipeline) -> list[Output]:
    """Return the outputs that publish files for their readers."""
    return [output for output in pipeline.outputs.values() if output.sink.publishes]


def has_upkeep(pipeline: Pipeline) -> bool:
    """Return whether the schedule can ever have work for the pipeline."""
    return bool(published_outputs(pipeline) or followed_outputs(pipeline) or _due(pipeline, DAILY))


def _due(pipeline: Pipeline, every: timedelta) -> bool:
    """Return whether an output's target is looked after as often as this, or more often."""
    return any(
        output.sink.upkeep_every is not None and output.sink.upkeep_every <= every
        for output in pipeline.outputs.values()
    )


@contextmanager
def _engine(pipeline: Pipeline) -> "Iterator[sa.Engine]":
    engine = create_engine(
        Settings().require_database_url(), application_name=f"forebay upkeep {pipeline.name}", pool_size=1
    )
    try:
        yield engine
    finally:
        engine.dispose()


def upkeep_job(pipeline: Pipeline) -> dg.JobDefinition:
    """Return the job `PIPELINE_upkeep`, which publishes what is left, follows the targets, then looks after them."""

    @dg.op(
        name=f"{pipeline.name}__upkeep",
        description="Publishes batches that were committed but not published, records commits of targets, merges small "
        "files, and deletes what nothing needs any more.",
    )
    def keep(context: dg.OpExecutionContext) -> None:
        with _engine(pipeline) as engine:
            with connect(engine) as connection:
                pipeline_id = get_pipeline(connection, pipeline.name).pipeline_id
            published = publish_what_is_left(engine, pipeline, pipeline_id, most=MOST_PUBLISHED)
            followed = follow_targets(engine, pipeline, pipeline_id)
            results = upkeep(engine, pipeline, pipeline_id, most_seconds=MOST_SECONDS)
        context.log.info(
            f"{published} batches of earlier runs published, {followed} commits of targets recorded, "
            f"{sum(not result.error for result in results)} turns of upkeep"
        )
        _report(context, pipeline, results)
        figures = sum((Counter(result.figures) for result in results), Counter[str]())
        failed = sum(bool(result.error) for result in results)
        context.add_output_metadata({"published": published, "followed": followed, "failed": failed, **figures})

    @dg.job(
        name=f"{pipeline.name}_upkeep",
        executor_def=dg.in_process_executor,
        description=f"Publishes batches of {pipeline.name} that were committed but not published (because the process "
        "was killed in between), records commits that an attempt made in a target before it failed, merges small "
        "files, and deletes what nothing needs any more.",
        # So that the maintenance job prunes its runs too.
        tags={PIPELINE_TAG: pipeline.name},
    )
    def upkeep_job_definition() -> None:
        keep()

    return upkeep_job_definition


def _report(context: dg.OpExecutionContext, pipeline: Pipeline, results: list[UpkeepResult]) -> None:
    """Say on the page of each output what was done, and what failed."""
    for result in results:
        of_hour = {} if result.hour is None else {"hour": result.hour.isoformat()}
        if result.error:
            context.log.error(f"upkeep of output {result.output!r} failed: {result.error}")
        context.log_event(
            dg.AssetObservation(
                pipeline.outputs[result.output].asset_key,
                description="Upkeep failed." if result.error else "Upkeep.",
                metadata={**of_hour, **result.figures, **({"error": result.error} if result.error else {})},
            )
        )


def upkeep_schedule(pipeline: Pipeline, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Return the schedule `PIPELINE_upkeep`: every 10 minutes if there is work; it runs by default."""

    @dg.schedule(
        name=f"{pipeline.name}_upkeep",
        # By name: Dagster would bind a job object again when definitions are merged, with warnings.
        job_name=job.name,
        cron_schedule=EVERY,
        # Its hours and nights are those of the pipeline.
        execution_timezone=pipeline.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Every 10 minutes if a committed batch is not published, or a target may have commits of a failed "
        "attempt; once an hour if small files are to be merged, otherwise once a day, to delete what replays have "
        "replaced.",
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        now = context.scheduled_execution_time
        if pipeline.timezone is not None:
            now = now.astimezone(zone_of(pipeline.timezone))
        is_daily = (now.hour, now.minute) == (0, _MINUTE)
        try:
            waiting = _is_waiting(pipeline, FOLLOWED_LATER_FOR if is_daily else FOLLOWED_FOR)
        except (DatabaseUrlMissingError, DriverLogError) as error:
            return dg.SkipReason(f"the driver log can't be asked: {error}")
        if waiting:
            return dg.RunRequest()
        # An hour is closed shortly after its end, at the latest when its last batch is complete.
        if (now.minute == _MINUTE and _due(pipeline, HOURLY)) or (is_daily and _due(pipeline, DAILY)):
            return dg.RunRequest()
        return dg.SkipReason("what is committed is published, and written down" + _next(pipeline))

    return evaluate


def _next(pipeline: Pipeline) -> str:
    if _due(pipeline, HOURLY):
        return "; small files are merged 10 minutes past the hour"
    if _due(pipeline, DAILY):
        return "; what replays replaced is deleted once a day (no output has compact=True)"
    return ""


def _is_waiting(pipeline: Pipeline, within: timedelta) -> bool:
    with _engine(pipeline) as engine, connect(engine) as connection:
        pipeline_id = get_pipeline(connection, pipeline.name).pipeline_id
        published = [output.name for output in pipeline.outputs.values() if output.sink.may_publish()]
        return bool(
            (published and commits_to_publish(connection, pipeline_id, published, limit=1))
            or to_follow(connection, pipeline_id, followed_outputs(pipeline), within=within, limit=1)
        )
