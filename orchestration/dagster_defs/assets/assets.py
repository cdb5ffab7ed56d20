"""Define one asset per output; a batch computes them together in one step."""

# No `from __future__ import annotations`: Dagster reads the configuration's class off the annotation.
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING

import dagster as dg
import structlog

from orchestration.batches.batch_run import run_batch
from orchestration.batches.batch_schedule import op_name
from orchestration.dagster_defs.assets.batch_input_table import MOST_RANGES, input_table
from orchestration.dagster_defs.assets.committed_outputs import CommittedOutputs, address_metadata
from orchestration.dagster_defs.assets.replay_job import replay_in_dagster
from orchestration.dagster_defs.shared.batch_plots import batch_materialization, batch_metadata, batches_key
from orchestration.dagster_defs.shared.page_links import page_of_batch, page_of_pipeline
from orchestration.dagster_defs.shared.partitions import partitions_of
from orchestration.dagster_defs.shared.run_errors import tag_cause
from orchestration.dagster_defs.shared.spark_resource import SparkResource, batch_session
from orchestration.dagster_defs.shared.stream_assets import stream_key
from orchestration.declarations.pipeline import Pipeline
from orchestration.declarations.settings import Settings
from orchestration.replays.replay_choice import ReplayChoice, parsed_time
from tracker_store.batches.input_metadata import InputMetadata, input_metadata
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.engine import connect_once
from tracker_store.connection.errors import DriverLogError
from tracker_store.long_texts import shortened
from tracker_store.reports.batch_statistics import BatchFigures, batch_figures

if TYPE_CHECKING:
    from orchestration.batches.attempt_outputs import OutputResult

log = structlog.get_logger(__name__)


class BatchConfig(dg.Config):
    """Name the batch and attempt to run; the batch sensor fills it in.

    Without an attempt it is a replay: of the batch at `batch_time`, of the partition's batches, or of the newest batch.
    """

    batch_time: str = ""
    attempt: int = 0


def batch_op_name(pipeline: Pipeline) -> str:
    """Return the name of the step that runs a batch, under which the run configuration has its settings."""
    return op_name(pipeline.name)


def _observe_failure(context: dg.AssetExecutionContext, pipeline: Pipeline, batch_time: datetime, cause: str) -> None:
    """Say in the run's events that its attempt failed, with the link to the batch's page. Never raises.

    A run that has committed nothing has no other event with that link.
    """
    try:
        context.log_event(
            dg.AssetObservation(
                batches_key(pipeline),
                description=f"The batch of {batch_time.isoformat()} failed.",
                metadata={
                    "batch_time": dg.MetadataValue.text(batch_time.isoformat()),
                    "failed_because": dg.MetadataValue.text(cause),
                    **page_of_batch(pipeline, batch_time),
                },
            )
        )
    except Exception as error:  # noqa: BLE001  a storage may raise anything
        log.warning("can't report where the failed batch is shown", error=shortened(str(error), 500))


def _figures(settings: Settings, pipeline: Pipeline, batch_time: datetime) -> tuple[BatchFigures, InputMetadata] | None:
    """Read what Dagster shows of the batch; None if that fails, because the batch is complete anyway."""
    try:
        with connect_once(
            settings.require_database_url(), application_name=f"forebay batch {pipeline.name}"
        ) as connection:
            pipeline_id = get_pipeline(connection, pipeline.name).pipeline_id
            figures = batch_figures(connection, pipeline_id, batch_time)
            inputs = input_metadata(connection, pipeline_id, batch_time, limit=MOST_RANGES)
    except DriverLogError as error:
        log.warning("no figures of the batch for Dagster's plots", error=str(error))
        return None
    return None if figures is None else (figures, inputs)


def _output_metadata(settings: Settings, pipeline: Pipeline) -> Callable[[datetime], Mapping[str, dg.MetadataValue]]:
    """Return what gives the batch's figures that are known while it runs; they are read once."""

    @cache
    def metadata(batch_time: datetime) -> Mapping[str, dg.MetadataValue]:
        shown = _figures(settings, pipeline, batch_time)
        return {} if shown is None else {**batch_metadata(pipeline, shown[0]), **page_of_batch(pipeline, batch_time)}

    return metadata


def _replay(
    context: dg.AssetExecutionContext, pipeline: Pipeline, config: BatchConfig, resource: SparkResource
) -> None:
    """Replay batches, for "Materialize" and backfills: the selected outputs are replaced."""
    selected = [output.name for output in pipeline.outputs.values() if output.asset_key in context.selected_asset_keys]
    from_time = parsed_time(config.batch_time)
    to_time = None
    if from_time is None and context.has_partition_key_range:
        window = context.partition_time_window
        # Both ends of a replay are batch times (inclusive); a partition ends where the next one begins (exclusive).
        from_time, to_time = window.start, window.end - timedelta(microseconds=1)
    replay_in_dagster(context, pipeline, resource, ReplayChoice(from_time, to_time), outputs=selected)


def output_assets(pipeline: Pipeline) -> dg.AssetsDefinition:
    """Return the assets of all outputs of a pipeline; a batch is one unit, so one step computes and commits them."""

    @dg.multi_asset(
        name=batch_op_name(pipeline),
        specs=[
            dg.AssetSpec(
                output.asset_key,
                deps=[stream_key(stream) for stream in output.streams],
                group_name=pipeline.name,
                description=output.description,
                kinds={"spark", str(output.sink.declaration()["kind"])},
                # A windowed output may not be due, and in a run of its own each output is reported by an event when it
                # is committed.
                skippable=True,
                metadata={**page_of_pipeline(pipeline), **address_metadata(output.sink.address())},
            )
            for output in pipeline.outputs.values()
        ],
        can_subset=True,
        partitions_def=partitions_of(pipeline),
        backfill_policy=None if pipeline.settings.partitions is None else dg.BackfillPolicy.single_run(),
        description=f"Runs one attempt at one batch of {pipeline.name}.",
    )
    def outputs(
        context: dg.AssetExecutionContext, config: BatchConfig, forebay_spark: dg.ResourceParam[SparkResource]
    ) -> Iterator[dg.MaterializeResult[None]]:
        if not config.attempt:
            _replay(context, pipeline, config, forebay_spark)
            return
        settings = Settings()
        batch_time = datetime.fromisoformat(config.batch_time).astimezone(UTC)
        committed = CommittedOutputs(context, pipeline, _output_metadata(settings, pipeline))
        # In a job with other steps, those below this one go on only if it yields its outputs, which it can at its end.
        yields = len(context.op_execution_context.job_def.nodes) > 1
        results: list[OutputResult] = []
        try:
            run_batch(
                pipeline,
                batch_time=batch_time,
                attempt=config.attempt,
                run_id=context.run.run_id,
                settings=settings,
                session=lambda: batch_session(forebay_spark, settings, pipeline),
                on_committed=results.append if yields else partial(committed.report, batch_time),
            )
        except BaseException as error:
            for result in results:
                committed.report(batch_time, result)
            cause = str(error) or type(error).__name__
            _observe_failure(context, pipeline, batch_time, cause)
            tag_cause(context.instance, context.run.run_id, cause)
            raise
        committed.finish()
        shown = _figures(settings, pipeline, batch_time)
        if shown is not None:
            figures, inputs = shown
            context.log_event(
                batch_materialization(pipeline, figures, {**input_table(inputs), **page_of_batch(pipeline, batch_time)})
            )
        # Also where it yields nothing: a function that returned nothing would materialize its only output again.
        yield from committed.materialized(batch_time, results, context.selected_asset_keys)

    return outputs
