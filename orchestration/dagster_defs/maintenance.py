"""The maintenance schedule: takes old batch runs out of Dagster, which keeps every run for ever (about 25 kB each).

What goes: a finished run of a pipeline's when it is older than `run_retention`, or when `ui_retained_batches` newer
batch runs are there; a failed one when it is older than `failed_run_retention`. With it go its events, its compute
logs and its files. Of events that are no run's, an asset keeps as many. Nothing else depends on them: what a batch did
stands in the driver log, which also refuses to run it a second time when Dagster has forgotten the run key. A run that
has not finished is never touched.

On by default in the instance of `forebay up` alone; elsewhere a person turns the schedule on.
"""

# No `from __future__ import annotations`: Dagster reads the context's class off the annotation.
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg

from orchestration.batch_schedule import PIPELINE_TAG, job_name
from orchestration.dagster_defs.batch_plots import batches_key, minutes_key
from orchestration.dagster_defs.runless_events import prune_runless_events
from orchestration.dagster_defs.stream_assets import stream_key
from orchestration.pipeline import Pipeline
from orchestration.settings import Settings
from receiver_runtime.sources.units import parse_duration

EVERY = "*/10 * * * *"
# One run's worth: 30 ms a run; what is left waits for the next.
MOST_SECONDS = 120.0
MOST_RUNS_PER_PIPELINE = 4_000
_PAGE = 200

_WELL_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.CANCELED]
_FAILED = [dg.DagsterRunStatus.FAILURE]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one call took away; `more`: there is more to do."""

    runs: int
    more: bool


def old_runs(
    instance: dg.DagsterInstance, pipeline: Pipeline, now: datetime, *, limit: int = MOST_RUNS_PER_PIPELINE
) -> Iterator[dg.RunRecord]:
    """The pipeline's runs that may go, oldest first, at most `limit`; looked up in pages, as they are taken away."""
    settings = pipeline.settings
    tags = {PIPELINE_TAG: pipeline.name}
    ended_before = now - timedelta(seconds=parse_duration(settings.run_retention))
    failed_before = now - timedelta(seconds=parse_duration(settings.failed_run_retention))
    batch_runs = dg.RunsFilter(job_name=job_name(pipeline.name), tags=tags, statuses=_WELL_ENDED)
    too_many = max(0, instance.get_runs_count(batch_runs) - settings.ui_retained_batches)
    for filters, most in (
        (batch_runs, too_many),
        (dg.RunsFilter(tags=tags, statuses=_WELL_ENDED, created_before=ended_before), limit),
        (dg.RunsFilter(tags=tags, statuses=_FAILED, created_before=failed_before), limit),
    ):
        left = min(most, limit)
        while left > 0:
            page = instance.get_run_records(filters, limit=min(left, _PAGE), ascending=True)
            yield from page
            left = left - len(page) if len(page) == _PAGE else 0
            limit -= len(page)


def prune_run(instance: dg.DagsterInstance, run_id: str) -> None:
    """Take a finished run away: its files first, so that one that is killed in between is found again."""
    instance.compute_log_manager.delete_logs(prefix=[run_id])
    files = Path(instance.storage_directory()) / run_id
    if run_id and files.is_dir():
        shutil.rmtree(files, ignore_errors=True)
    instance.delete_run(run_id)


def prune(
    instance: dg.DagsterInstance,
    pipelines: Iterable[Pipeline],
    *,
    log: dg.DagsterLogManager | None = None,
    now: datetime | None = None,
    most_seconds: float = MOST_SECONDS,
) -> Pruned:
    """Take away what may go, for at most so long; progress stands in `log`."""
    now = now or datetime.now(UTC)
    give_up_at = time.monotonic() + most_seconds
    runs = 0
    for pipeline in pipelines:
        of_pipeline = 0
        for record in old_runs(instance, pipeline, now):
            if time.monotonic() > give_up_at:
                if log is not None:
                    log.info(f"{runs} runs pruned in {most_seconds:g} s; the rest waits for the next time")
                return Pruned(runs, more=True)
            prune_run(instance, record.dagster_run.run_id)
            runs += 1
            of_pipeline += 1
            if log is not None and of_pipeline % _PAGE == 0:
                log.info(f"{pipeline.name}: {of_pipeline} runs pruned, up to {record.create_timestamp.isoformat()}")
        events = sum(
            prune_runless_events(instance, key, keep=pipeline.settings.ui_retained_batches)
            for key in _asset_keys(pipeline)
        )
        if log is not None:
            log.info(f"{pipeline.name}: {of_pipeline} runs pruned, and {events} events that are no run's")
    return Pruned(runs, more=False)


def _asset_keys(pipeline: Pipeline) -> list[dg.AssetKey]:
    return [
        *(output.asset_key for output in pipeline.outputs.values()),
        *(stream_key(stream) for stream in pipeline.streams),
        batches_key(pipeline),
        minutes_key(pipeline),
    ]


def maintenance_job(pipelines: Sequence[Pipeline]) -> dg.JobDefinition:
    """`FIRST_maintenance`: prunes the runs of all of `pipelines`; named after the first of them."""
    first = pipelines[0].name

    @dg.op(name=f"{first}__prune_runs", description="Takes old batch runs out of Dagster.")
    def prune_runs(context: dg.OpExecutionContext) -> None:
        pruned = prune(context.instance, pipelines, log=context.log)
        context.add_output_metadata({"runs": pruned.runs, "more": pruned.more})

    @dg.job(
        name=f"{first}_maintenance",
        executor_def=dg.in_process_executor,
        description=f"Takes old batch runs of {', '.join(pipeline.name for pipeline in pipelines)} out of Dagster.",
        # So that its own runs are pruned too.
        tags={PIPELINE_TAG: first},
    )
    def maintenance() -> None:
        prune_runs()

    return maintenance


def maintenance_schedule(pipelines: Sequence[Pipeline], job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """`FIRST_maintenance_schedule`, running by default in Forebay's own instance."""
    is_own = Settings().dagster_url is not None

    @dg.schedule(
        name=f"{job.name}_schedule",
        cron_schedule=EVERY,
        # By its name: a job that is given whole is bound anew where definitions are merged, with Dagster's warnings.
        job_name=job.name,
        default_status=dg.DefaultScheduleStatus.RUNNING if is_own else dg.DefaultScheduleStatus.STOPPED,
        description="Every 10 minutes, where there is something to prune.",
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        now = context.scheduled_execution_time.astimezone(UTC)
        # Once a day in any case: events that are no run's come without runs too.
        is_midnight = (now.hour, now.minute) == (0, 0)
        runs = (run for pipeline in pipelines for run in old_runs(context.instance, pipeline, now, limit=1))
        if not is_midnight and next(runs, None) is None:
            return dg.SkipReason("no run is old enough, nor one too many")
        return dg.RunRequest()

    return evaluate
