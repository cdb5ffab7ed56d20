"""Build Dagster definitions from pipelines; they can be merged with any project's own definitions.

They contain one resource key, `forebay_spark`, and no executor. Every other name begins with the pipeline's name
(docs/how-to/dagster.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from orchestration.batches.batch_schedule import PIPELINE_TAG, job_name
from orchestration.dagster_defs.assets.assets import output_assets
from orchestration.dagster_defs.assets.replay_job import replay_job
from orchestration.dagster_defs.checks.batch_checks import batch_checks
from orchestration.dagster_defs.checks.checks import checks_job, pipeline_checks, stream_checks
from orchestration.dagster_defs.jobs.maintenance import maintenance_job, maintenance_schedule
from orchestration.dagster_defs.jobs.scaling_schedule import scaling_job, scaling_schedule
from orchestration.dagster_defs.jobs.stream_jobs import stream_jobs
from orchestration.dagster_defs.jobs.upkeep import has_upkeep, upkeep_job, upkeep_schedule
from orchestration.dagster_defs.sensors.batch_sensor import batch_sensor
from orchestration.dagster_defs.sensors.observation_sensor import observation_sensor
from orchestration.dagster_defs.sensors.receiver_sensor import owned_streams, receiver_sensor, restart_job
from orchestration.dagster_defs.shared.batch_plots import plot_assets
from orchestration.dagster_defs.shared.sensor_connections import SensorConnections
from orchestration.dagster_defs.shared.spark_resource import SPARK_RESOURCE, spark_resource
from orchestration.dagster_defs.shared.state_assets import state_assets
from orchestration.dagster_defs.shared.stream_assets import stream_asset
from orchestration.declarations.apply import declared_streams
from orchestration.declarations.project_code import loaded_version
from tracker_store.host.process_output import keep_log_from_failing

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

    from orchestration.dagster_defs.shared.spark_resource import SparkResource
    from orchestration.declarations.pipeline import Pipeline

_MAX_RETRIES_TAG = "dagster/max_retries"  # Dagster's own


def build_definitions(*pipelines: Pipeline, spark: SparkResource | None = None) -> dg.Definitions:
    """Return assets with checks, a batch job, a replay job, a batch sensor and a job of checks for each of `pipelines`.

    The sensor and jobs of the first of `pipelines` that reads a stream look after the stream's receivers. One job, on a
    schedule that is named after the first pipeline, deletes old runs from Dagster.

    `spark` is a `PySparkResource` or `LazyPySparkResource` of dagster-pyspark. The batches take their session from it.
    It stands in the definitions under the key `forebay_spark`, and your own assets can use it too. Its `spark_config`
    takes precedence over FOREBAY_SPARK_CONFIGURATION, in runs, batch drivers and commands that load the module with
    this call. Without it a pipeline keeps what an earlier call was given, and the default is made from the settings.
    Raises TypeError if `spark` is anything else.
    """
    # For the Dagster processes that load these definitions: a log line that can't be written must not fail a batch.
    keep_log_from_failing()
    session = spark_resource(spark, pipelines)
    for pipeline in pipelines:
        pipeline.code_version = loaded_version({output.function.__module__ for output in pipeline.outputs.values()})
    owned = {pipeline: streams for pipeline in pipelines if (streams := owned_streams(pipelines)[pipeline.name])}
    restarts = {pipeline: restart_job(pipeline) for pipeline in owned}
    checks = {pipeline: [pipeline_checks(pipeline), batch_checks(pipeline)] for pipeline in pipelines}
    for pipeline, streams in owned.items():
        checks[pipeline].append(stream_checks(pipeline, streams))
    jobs = {pipeline.name: batch_job(pipeline, *checks[pipeline]) for pipeline in pipelines}
    replays = {pipeline.name: replay_job(pipeline, session) for pipeline in pipelines}
    scalings = {pipeline: scaling_job(pipeline) for pipeline in pipelines}
    upkeeps = {pipeline: upkeep_job(pipeline) for pipeline in pipelines if has_upkeep(pipeline)}
    connections = SensorConnections()
    maintenance = [maintenance_job(pipelines)] if pipelines else []
    return dg.Definitions(
        assets=[
            *(stream_asset(stream) for stream in declared_streams(pipelines)),
            *(output_assets(pipeline) for pipeline in pipelines),
            *(asset for pipeline in pipelines for asset in plot_assets(pipeline)),
            *(asset for pipeline in pipelines for asset in state_assets(pipeline)),
        ],
        asset_checks=[check for of_pipeline in checks.values() for check in of_pipeline],
        jobs=[
            *jobs.values(),
            *replays.values(),
            *(checks_job(pipeline, *checks[pipeline]) for pipeline in pipelines),
            *restarts.values(),
            *(job for pipeline, streams in owned.items() for job in stream_jobs(pipeline, streams)),
            *scalings.values(),
            *upkeeps.values(),
            *maintenance,
        ],
        schedules=[
            *(scaling_schedule(pipeline, job) for pipeline, job in scalings.items()),
            *(upkeep_schedule(pipeline, job) for pipeline, job in upkeeps.items()),
            *(maintenance_schedule(pipelines, job) for job in maintenance),
        ],
        resources={SPARK_RESOURCE: session},
        sensors=[
            *(
                batch_sensor(pipeline, jobs[pipeline.name], replays[pipeline.name], connections)
                for pipeline in pipelines
            ),
            *(observation_sensor(pipeline, owned.get(pipeline, []), connections) for pipeline in pipelines),
            *(
                receiver_sensor(pipeline, streams, restarts[pipeline], connections)
                for pipeline, streams in owned.items()
            ),
        ],
    )


def batch_job(pipeline: Pipeline, *checks: dg.AssetChecksDefinition) -> UnresolvedAssetJobDefinition:
    """Return the job `PIPELINE_batch`; it sets its own executor, so that a project's default executor is unaffected.

    A batch is one step: a process for each step would only cost time. It runs a user's own checks of the outputs, and
    not `checks`, which are ours: those read the whole driver log.
    """
    return dg.define_asset_job(
        job_name(pipeline.name),
        # A selection of assets includes their checks.
        selection=dg.AssetSelection.assets(*(output.asset_key for output in pipeline.outputs.values()))
        - dg.AssetSelection.checks(*checks),
        executor_def=dg.in_process_executor,
        description=f"Runs one batch of {pipeline.name}; launched by its batch sensor.",
        # A batch's next attempt is another run: an instance with `run_retries` must not repeat one.
        tags={PIPELINE_TAG: pipeline.name, _MAX_RETRIES_TAG: "0"},
    )
