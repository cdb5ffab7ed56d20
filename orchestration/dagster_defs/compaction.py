"""The compaction schedule: puts right what attempts left behind that died between two commits, and compacts hours.

What is committed and not published is shown to readers; what a target has and no row says gets its row; a closed hour
becomes one directory.

A tick looks in the driver log alone; the run that it asks for is where the outputs' files are. Nothing waits for it: a
batch is committed without, and published by its own run, or by the next of its pipeline. Only pipelines whose outputs
publish files, or go to a target with commits of its own, have one.
"""

# No `from __future__ import annotations`: Dagster reads the context's class off the annotation.
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg

from orchestration.batch_schedule import PIPELINE_TAG
from orchestration.following import (
    FOLLOWED_FOR,
    FOLLOWED_LATER_FOR,
    follow_targets,
    followed_outputs,
    to_follow,
)
from orchestration.pipeline import Output, Pipeline
from orchestration.publishing import compact, publish_what_is_left
from orchestration.settings import DatabaseUrlMissingError, Settings
from orchestration.spark.sinks.parquet import ParquetSink
from tracker_store.engine import connect, create_engine
from tracker_store.errors import DriverLogError
from tracker_store.outputs import commits_to_publish
from tracker_store.pipelines import get_pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

EVERY = "*/10 * * * *"
MOST_PUBLISHED = 10_000
MOST_SECONDS = 300.0
_MINUTE = 10


def published_outputs(pipeline: Pipeline) -> list[Output]:
    """The outputs whose readers see files that are published."""
    return [output for output in pipeline.outputs.values() if output.sink.publishes]


def has_compaction(pipeline: Pipeline) -> bool:
    """Whether there may ever be something for it to do."""
    return bool(published_outputs(pipeline) or followed_outputs(pipeline))


def compacted_outputs(pipeline: Pipeline) -> list[Output]:
    """The outputs whose closed hours become one directory."""
    return [
        output for output in pipeline.outputs.values() if isinstance(output.sink, ParquetSink) and output.sink.compact
    ]


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
    """`PIPELINE_compaction`: publishes what is left, follows the targets, then compacts."""

    @dg.op(
        name=f"{pipeline.name}__compaction",
        description="Publishes what is committed and was not published, writes down what targets have committed, and "
        "makes one directory of each closed hour.",
    )
    def compaction(context: dg.OpExecutionContext) -> None:
        with _engine(pipeline) as engine:
            with connect(engine) as connection:
                pipeline_id = get_pipeline(connection, pipeline.name).pipeline_id
            published = publish_what_is_left(engine, pipeline, pipeline_id, most=MOST_PUBLISHED)
            followed = follow_targets(engine, pipeline, pipeline_id)
            hours = compact(engine, pipeline, pipeline_id, most_seconds=MOST_SECONDS)
        context.log.info(
            f"{published} batches published that others had committed, {followed} commits of targets written down, "
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
        description=f"Publishes what batches of {pipeline.name} committed and did not publish (a process that was "
        "killed between the two), writes down what a target has committed by an attempt that failed afterwards, and "
        "makes one directory of each closed hour of outputs with compact=True.",
        # So that its own runs are pruned.
        tags={PIPELINE_TAG: pipeline.name},
    )
    def compaction_job_definition() -> None:
        compaction()

    return compaction_job_definition


def compaction_schedule(pipeline: Pipeline, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """`PIPELINE_compaction`, every 10 minutes where there is something to do, running by default."""

    @dg.schedule(
        name=f"{pipeline.name}_compaction",
        # By its name: a job that is given whole is bound anew where definitions are merged, with Dagster's warnings.
        job_name=job.name,
        cron_schedule=EVERY,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Every 10 minutes where something committed is not published, or a target may have what a failed "
        "attempt committed; once an hour where an output has compact=True, and else once a day where files are "
        "published, to take away what replays have replaced.",
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
        # An hour is closed a moment after its end, at the latest when its last batch is done.
        if (now.minute == _MINUTE and compacted_outputs(pipeline)) or (is_daily and published_outputs(pipeline)):
            return dg.RunRequest()
        return dg.SkipReason("what is committed is published, and written down" + _next(pipeline))

    return evaluate


def _next(pipeline: Pipeline) -> str:
    if not published_outputs(pipeline):
        return ""
    if not compacted_outputs(pipeline):
        return "; what replays replaced is taken away once a day (no output has compact=True)"
    return "; hours are compacted 10 minutes past the hour"


def _is_waiting(pipeline: Pipeline, within: timedelta) -> bool:
    with _engine(pipeline) as engine, connect(engine) as connection:
        pipeline_id = get_pipeline(connection, pipeline.name).pipeline_id
        published = [output.name for output in published_outputs(pipeline)]
        return bool(
            (published and commits_to_publish(connection, pipeline_id, published, limit=1))
            or to_follow(connection, pipeline_id, followed_outputs(pipeline), within=within, limit=1)
        )
