"""Pipelines → Dagster definitions that merge with any project's own.

It exports no resource key and no executor, and every name begins with the pipeline's (design §6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from orchestration.apply import declared_streams
from orchestration.dagster_defs.assets import output_assets, stream_asset
from orchestration.dagster_defs.batch_sensor import batch_sensor
from orchestration.dagster_defs.checks import checks_job, pipeline_checks, stream_checks
from orchestration.dagster_defs.jobs import batch_job
from orchestration.dagster_defs.receiver_sensor import owned_streams, receiver_sensor, restart_job

if TYPE_CHECKING:
    from orchestration.pipeline import Pipeline


def build_definitions(*pipelines: Pipeline) -> dg.Definitions:
    """Assets with their checks, a batch job, a batch sensor and a job of checks for each of `pipelines`.

    Each stream's receivers are looked after by the sensor of the first of `pipelines` that reads it.
    """
    owned = {pipeline: streams for pipeline in pipelines if (streams := owned_streams(pipelines)[pipeline.name])}
    restarts = {pipeline: restart_job(pipeline) for pipeline in owned}
    jobs = {pipeline.name: batch_job(pipeline) for pipeline in pipelines}
    checks = {pipeline: [pipeline_checks(pipeline)] for pipeline in pipelines}
    for pipeline, streams in owned.items():
        checks[pipeline].append(stream_checks(pipeline, streams))
    return dg.Definitions(
        assets=[
            *(stream_asset(stream) for stream in declared_streams(pipelines)),
            *(output_assets(pipeline) for pipeline in pipelines),
        ],
        asset_checks=[check for of_pipeline in checks.values() for check in of_pipeline],
        jobs=[
            *jobs.values(),
            *(checks_job(pipeline, *checks[pipeline]) for pipeline in pipelines),
            *restarts.values(),
        ],
        sensors=[
            *(batch_sensor(pipeline, jobs[pipeline.name]) for pipeline in pipelines),
            *(receiver_sensor(pipeline, streams, restarts[pipeline]) for pipeline, streams in owned.items()),
        ],
    )
