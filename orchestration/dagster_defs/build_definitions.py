"""Pipelines → Dagster definitions that merge with any project's own.

It exports no resource key and no executor, and every name begins with the pipeline's (docs/how-to/dagster.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from orchestration.apply import declared_streams
from orchestration.dagster_defs.assets import output_assets
from orchestration.dagster_defs.batch_checks import batch_checks
from orchestration.dagster_defs.batch_plots import plot_assets
from orchestration.dagster_defs.batch_sensor import batch_sensor
from orchestration.dagster_defs.checks import checks_job, pipeline_checks, stream_checks
from orchestration.dagster_defs.compaction import compaction_job, compaction_schedule, has_compaction
from orchestration.dagster_defs.jobs import batch_job
from orchestration.dagster_defs.maintenance import maintenance_job, maintenance_schedule
from orchestration.dagster_defs.observation_sensor import observation_sensor
from orchestration.dagster_defs.receiver_sensor import owned_streams, receiver_sensor, restart_job
from orchestration.dagster_defs.replay_job import replay_job
from orchestration.dagster_defs.scaling_schedule import scaling_job, scaling_schedule
from orchestration.dagster_defs.spark_resource import spark_configuration
from orchestration.dagster_defs.stream_assets import stream_asset
from orchestration.dagster_defs.stream_jobs import stream_jobs
from tracker_store.process_output import keep_log_from_failing

if TYPE_CHECKING:
    from orchestration.pipeline import Pipeline


def build_definitions(*pipelines: Pipeline, spark: object | None = None) -> dg.Definitions:
    """Assets with their checks, a batch job, a replay job, a batch sensor and a job of checks for each of `pipelines`.

    Each stream's receivers are looked after by the sensor and the jobs of the first of `pipelines` that reads it; one
    job, on a schedule that is named after the first, takes their old runs out of Dagster.

    `spark` is a `PySparkResource` of dagster-pyspark: its `spark_config` is what the batches' sessions are made with,
    over what FOREBAY_SPARK_CONFIGURATION says, in runs, batch drivers and commands that load the module which calls
    this. Without it a pipeline keeps what it was given before. Raises SparkResourceError where it is none.
    """
    # In the processes of Dagster that load these definitions: a full disk must not fail a batch by a line of the log.
    keep_log_from_failing()
    if spark is not None:
        configuration = spark_configuration(spark)
        for pipeline in pipelines:
            pipeline.spark_configuration = configuration
    owned = {pipeline: streams for pipeline in pipelines if (streams := owned_streams(pipelines)[pipeline.name])}
    restarts = {pipeline: restart_job(pipeline) for pipeline in owned}
    jobs = {pipeline.name: batch_job(pipeline) for pipeline in pipelines}
    checks = {pipeline: [pipeline_checks(pipeline), batch_checks(pipeline)] for pipeline in pipelines}
    for pipeline, streams in owned.items():
        checks[pipeline].append(stream_checks(pipeline, streams))
    scalings = {pipeline: scaling_job(pipeline) for pipeline in pipelines}
    compactions = {pipeline: compaction_job(pipeline) for pipeline in pipelines if has_compaction(pipeline)}
    maintenance = [maintenance_job(pipelines)] if pipelines else []
    return dg.Definitions(
        assets=[
            *(stream_asset(stream) for stream in declared_streams(pipelines)),
            *(output_assets(pipeline) for pipeline in pipelines),
            *(asset for pipeline in pipelines for asset in plot_assets(pipeline)),
        ],
        asset_checks=[check for of_pipeline in checks.values() for check in of_pipeline],
        jobs=[
            *jobs.values(),
            *(replay_job(pipeline) for pipeline in pipelines),
            *(checks_job(pipeline, *checks[pipeline]) for pipeline in pipelines),
            *restarts.values(),
            *(job for pipeline, streams in owned.items() for job in stream_jobs(pipeline, streams)),
            *scalings.values(),
            *compactions.values(),
            *maintenance,
        ],
        schedules=[
            *(scaling_schedule(pipeline, job) for pipeline, job in scalings.items()),
            *(compaction_schedule(pipeline, job) for pipeline, job in compactions.items()),
            *(maintenance_schedule(pipelines, job) for job in maintenance),
        ],
        sensors=[
            *(batch_sensor(pipeline, jobs[pipeline.name]) for pipeline in pipelines),
            *(observation_sensor(pipeline, owned.get(pipeline, [])) for pipeline in pipelines),
            *(receiver_sensor(pipeline, streams, restarts[pipeline]) for pipeline, streams in owned.items()),
        ],
    )
