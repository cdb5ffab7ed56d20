"""Delete old batch runs from Dagster, which keeps every run for ever (about 25 kB each): the maintenance schedule.

It deletes a pipeline's finished run when it is older than `run_retention`, or when there are `ui_retained_batches`
newer batch runs; a failed run when it is older than `failed_run_retention`. The run's events, compute logs and files
are deleted with it. An asset also keeps at most `ui_retained_batches` runless events of each kind. Nothing else depends
on them: the results of a batch are in the driver log, which also refuses to run it a second time when Dagster has
forgotten the run key. An unfinished run is never touched.

The schedule is on by default only in an instance created by `forebay up`; elsewhere a person turns it on.
"""

# No `from __future__ import annotations`: Dagster reads the context's class off the annotation.
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg

from orchestration.batches.batch_schedule import PIPELINE_TAG, job_name
from orchestration.dagster_defs.shared.batch_plots import batches_key, minutes_key
from orchestration.dagster_defs.shared.runless_events import prune_runless_events
from orchestration.dagster_defs.shared.stream_assets import stream_key
from orchestration.declarations.pipeline import Pipeline
from orchestration.declarations.settings import Settings
from receiver_runtime.sources.fields.units import parse_duration

EVERY = "*/10 * * * *"
# Limits of one maintenance run; deleting a run takes 30 ms. The rest waits for the next maintenance run.
MOST_SECONDS = 120.0
MOST_RUNS_PER_PIPELINE = 4_000
_PAGE = 200

_WELL_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.CANCELED]
_FAILED = [dg.DagsterRunStatus.FAILURE]


@dataclass(frozen=True, slots=True)
class Pruned:
    """Count the runs that one call deleted; `more`: there is more to do."""

    runs: int
    more: bool


def old_runs(
    instance: dg.DagsterInstance, pipeline: Pipeline, now: datetime, *, limit: int = MOST_RUNS_PER_PIPELINE
) -> Iterator[dg.RunRecord]:
    """Yield the pipeline's runs that may be deleted, oldest first, at most `limit`.

    Each page is read after the caller has deleted the runs of the page before.
    """
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
    """Delete a finished run: its files first, so that the next call finds the run if this one is killed."""
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
    """Delete old runs and events for at most `most_seconds`; write the progress to `log`."""
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
            log.info(f"{pipeline.name}: {of_pipeline} runs pruned, and {events} runless events")
    return Pruned(runs, more=False)


def _asset_keys(pipeline: Pipeline) -> list[dg.AssetKey]:
    return [
        *(output.asset_key for output in pipeline.outputs.values()),
        *(stream_key(stream) for stream in pipeline.streams),
        batches_key(pipeline),
        minutes_key(pipeline),
    ]


def maintenance_job(pipelines: Sequence[Pipeline]) -> dg.JobDefinition:
    """Return the job `FIRST_maintenance`, named after the first of `pipelines`; it prunes the runs of all of them."""
    first = pipelines[0].name

    @dg.op(name=f"{first}__prune_runs", description="Deletes old batch runs from Dagster.")
    def prune_runs(context: dg.OpExecutionContext) -> None:
        pruned = prune(context.instance, pipelines, log=context.log)
        context.add_output_metadata({"runs": pruned.runs, "more": pruned.more})

    @dg.job(
        name=f"{first}_maintenance",
        executor_def=dg.in_process_executor,
        description=f"Deletes old batch runs of {', '.join(pipeline.name for pipeline in pipelines)} from Dagster.",
        # So that its own runs are pruned too.
        tags={PIPELINE_TAG: first},
    )
    def maintenance() -> None:
        prune_runs()

    return maintenance


def maintenance_schedule(pipelines: Sequence[Pipeline], job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Return the schedule `FIRST_maintenance_schedule`, which runs by default in Forebay's own instance."""
    is_own = Settings().dagster_url is not None

    @dg.schedule(
        name=f"{job.name}_schedule",
        cron_schedule=EVERY,
        # By name: Dagster would bind a job object again when definitions are merged, with warnings.
        job_name=job.name,
        default_status=dg.DefaultScheduleStatus.RUNNING if is_own else dg.DefaultScheduleStatus.STOPPED,
        description="Every 10 minutes, if there is something to prune.",
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        now = context.scheduled_execution_time.astimezone(UTC)
        # Once a day in any case, because runless events accumulate without runs too.
        is_midnight = (now.hour, now.minute) == (0, 0)
        runs = (run for pipeline in pipelines for run in old_runs(context.instance, pipeline, now, limit=1))
        if not is_midnight and next(runs, None) is None:
            return dg.SkipReason("no run is old enough, and there are not too many")
        return dg.RunRequest()

    return evaluate
