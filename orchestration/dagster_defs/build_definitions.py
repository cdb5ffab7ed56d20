"""Pipelines → Dagster definitions that merge with any project's own.

It exports no resource key and no executor, and every name begins with the pipeline's (design §6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from orchestration.apply import declared_streams
from orchestration.dagster_defs.assets import output_assets, stream_asset
from orchestration.dagster_defs.batch_sensor import batch_sensor
from orchestration.dagster_defs.checks import checks_job, pipeline_checks
from orchestration.dagster_defs.jobs import batch_job

if TYPE_CHECKING:
    from orchestration.pipeline import Pipeline


def build_definitions(*pipelines: Pipeline) -> dg.Definitions:
    """Assets with their checks, a batch job, a batch sensor and a job of checks for each of `pipelines`."""
    jobs = {pipeline.name: batch_job(pipeline) for pipeline in pipelines}
    checks = {pipeline.name: pipeline_checks(pipeline) for pipeline in pipelines}
    return dg.Definitions(
        assets=[
            *(stream_asset(stream) for stream in declared_streams(pipelines)),
            *(output_assets(pipeline) for pipeline in pipelines),
        ],
        asset_checks=list(checks.values()),
        jobs=[*jobs.values(), *(checks_job(pipeline, checks[pipeline.name]) for pipeline in pipelines)],
        sensors=[batch_sensor(pipeline, jobs[pipeline.name]) for pipeline in pipelines],
    )
