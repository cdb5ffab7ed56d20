"""Finish what attempts that died between two commits left behind, and compact hours: the compaction schedule.

It publishes what is committed but not published, records commits that a target has and the driver log has not, and
merges each closed hour into one directory.

A tick only reads the driver log; the run that it requests must be able to access the outputs' files. Nothing waits for
it: a batch is committed without it, and published by its own run or by the next run of its pipeline. Only pipelines
whose outputs publish files, or write to a target with its own commits, have this schedule.
"""

# No `from __future__ import annotations`: Dagster reads the context's class off the annotation.
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
from orchestration.batches.publishing import compact, publish_what_is_left
from orchestration.declarations.pipeline import Output, Pipeline
from orchestration.declarations.settings import DatabaseUrlMissingError, Settings
from tracker_store.batches.outputs import commits_to_publish
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.errors import DriverLogError

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


def has_compaction(pipeline: Pipeline) -> bool:
    """Return whether the schedule can ever have work for the pipeline."""
    return bool(published_outputs(pipeline) or followed_outputs(pipeline))


def compacted_outputs(pipeline: Pipeline) -> list[Output]:
    """Return the outputs whose closed hours are merged into one directory."""
    return [output for output in pipeline.outputs.values() if output.sink.compact]


@contextmanager
def _engine(pipeline: Pipeline) -> "Iterator[sa.Engine]":
    engine = create_engine(
        Settings().require_database_url(), application_name=f"forebay compaction {pipeline.name}", pool_size=1
    )
    try:
        yield engine
    finally:
        engine.dispose()


def compaction_job(pipeline: Pipeline) -> dg.JobDefinition:
    """Return the job `PIPELINE_compaction`, which publishes what is left, follows the targets, then compacts."""

    @dg.op(
        name=f"{pipeline.name}__compaction",
        description="Publishes batches that were committed but not published, records commits of targets, and merges "
        "each closed hour into one directory.",
    )
    def compaction(context: dg.OpExecutionContext) -> None:
        with _engine(pipeline) as engine:
            with connect(engine) as connection:
                pipeline_id = get_pipeline(connection, pipeline.name).pipeline_id
            published = publish_what_is_left(engine, pipeline, pipeline_id, most=MOST_PUBLISHED)
            followed = follow_targets(engine, pipeline, pipeline_id)
            hours = compact(engine, pipeline, pipeline_id, most_seconds=MOST_SECONDS)
        context.log.info(
            f"{published} batches of earlier runs published, {followed} commits of targets recorded, "
            f"{len(hours)} hours compacted"
        )
        context.add_output_metadata(
            {
                "published": published,
                "followed": followed,
                "hours": len(hours),
                "rows": sum(hour.rows for hour in hours),
            }
        )

    @dg.job(
        name=f"{pipeline.name}_compaction",
        executor_def=dg.in_process_executor,
        description=f"Publishes batches of {pipeline.name} that were committed but not published (because the process "
        "was killed in between), records commits that an attempt made in a target before it failed, and merges each "
        "closed hour of outputs with compact=True into one directory.",
        # So that the maintenance job prunes its runs too.
        tags={PIPELINE_TAG: pipeline.name},
    )
    def compaction_job_definition() -> None:
        compaction()

    return compaction_job_definition


def compaction_schedule(pipeline: Pipeline, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Return the schedule `PIPELINE_compaction`: every 10 minutes if there is work; it runs by default."""

    @dg.schedule(
        name=f"{pipeline.name}_compaction",
        # By name: Dagster would bind a job object again when definitions are merged, with warnings.
        job_name=job.name,
        cron_schedule=EVERY,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Every 10 minutes if a committed batch is not published, or a target may have commits of a failed "
        "attempt; once an hour if an output has compact=True, otherwise once a day if files are published, to delete "
        "what replays have replaced.",
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        now = context.scheduled_execution_time
        is_daily = (now.hour, now.minute) == (0, _MINUTE)
        try:
            waiting = _is_waiting(pipeline, FOLLOWED_LATER_FOR if is_daily else FOLLOWED_FOR)
        except (DatabaseUrlMissingError, DriverLogError) as error:
            return dg.SkipReason(f"the driver log can't be asked: {error}")
        if waiting:
            return dg.RunRequest()
        # An hour is closed shortly after its end, at the latest when its last batch is complete.
        if (now.minute == _MINUTE and compacted_outputs(pipeline)) or (is_daily and published_outputs(pipeline)):
            return dg.RunRequest()
        return dg.SkipReason("what is committed is published, and written down" + _next(pipeline))

    return evaluate


def _next(pipeline: Pipeline) -> str:
    if not published_outputs(pipeline):
        return ""
    if not compacted_outputs(pipeline):
        return "; what replays replaced is deleted once a day (no output has compact=True)"
    return "; hours are compacted 10 minutes past the hour"


def _is_waiting(pipeline: Pipeline, within: timedelta) -> bool:
    with _engine(pipeline) as engine, connect(engine) as connection:
        pipeline_id = get_pipeline(connection, pipeline.name).pipeline_id
        published = [output.name for output in pipeline.outputs.values() if output.sink.may_publish()]
        return bool(
            (published and commits_to_publish(connection, pipeline_id, published, limit=1))
            or to_follow(connection, pipeline_id, followed_outputs(pipeline), within=within, limit=1)
        )
