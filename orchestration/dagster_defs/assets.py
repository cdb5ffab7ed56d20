"""One asset per output, computed together in one step per batch."""

# No `from __future__ import annotations`: Dagster reads the configuration's class off the annotation.
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import dagster as dg
import structlog

from orchestration.batch_run import run_batch
from orchestration.batch_schedule import op_name
from orchestration.dagster_defs.batch_plots import batch_materialization, batch_metadata
from orchestration.dagster_defs.partitions import partition_key, partitions_of
from orchestration.dagster_defs.replay_job import replay_in_dagster, result_metadata
from orchestration.dagster_defs.stream_assets import stream_key
from orchestration.pipeline import Pipeline
from orchestration.replay import parsed_time
from orchestration.settings import Settings
from orchestration.spark.session import spark_session
from orchestration.spark.wanted_executors import wanted_executors
from tracker_store.batch_statistics import BatchFigures, batch_figures
from tracker_store.engine import connect_once
from tracker_store.errors import DriverLogError
from tracker_store.pipelines import get_pipeline

log = structlog.get_logger(__name__)


class BatchConfig(dg.Config):
    """Which attempt at which batch to run; the batch sensor fills it in.

    Without an attempt it is a replay: of the batch at `batch_time`, of the partition's batches, or of the newest.
    """

    batch_time: str = ""
    attempt: int = 0


def batch_op_name(pipeline: Pipeline) -> str:
    """The name of the step that runs a batch; its configuration stands under this name."""
    return op_name(pipeline.name)


def _figures(settings: Settings, pipeline: Pipeline, batch_time: datetime) -> BatchFigures | None:
    """The batch as the driver log has it; None where that can't be asked: the batch is complete all the same."""
    try:
        with connect_once(
            settings.require_database_url(), application_name=f"forebay batch {pipeline.name}"
        ) as connection:
            return batch_figures(connection, get_pipeline(connection, pipeline.name).pipeline_id, batch_time)
    except DriverLogError as error:
        log.warning("no figures of the batch for Dagster's plots", error=str(error))
        return None


def _replay(context: dg.AssetExecutionContext, pipeline: Pipeline, config: BatchConfig) -> None:
    """What "Materialize" and a backfill mean: the outputs that were selected are replaced."""
    selected = [output.name for output in pipeline.outputs.values() if output.asset_key in context.selected_asset_keys]
    from_time = parsed_time(config.batch_time)
    to_time = None
    if from_time is None and context.has_partition_key_range:
        window = context.partition_time_window
        # Both ends of a replay are batch times; a partition's end is the next one's beginning.
        from_time, to_time = window.start, window.end - timedelta(microseconds=1)
    replay_in_dagster(context, pipeline, from_time=from_time, to_time=to_time, outputs=selected)


def output_assets(pipeline: Pipeline) -> dg.AssetsDefinition:
    """All outputs of a pipeline: a batch is one unit, so they are computed and committed in one step."""

    @dg.multi_asset(
        name=batch_op_name(pipeline),
        specs=[
            dg.AssetSpec(
                output.asset_key,
                deps=[stream_key(stream) for stream in output.streams],
                group_name=pipeline.name,
                description=output.description,
                kinds={"spark", str(output.sink.declaration()["kind"])},
                # One of a window may not be due; a replay reports each batch by an event of its own.
                skippable=True,
            )
            for output in pipeline.outputs.values()
        ],
        can_subset=True,
        partitions_def=partitions_of(pipeline),
        backfill_policy=None if pipeline.settings.partitions is None else dg.BackfillPolicy.single_run(),
        description=f"Runs one attempt at one batch of {pipeline.name}.",
    )
    def outputs(context: dg.AssetExecutionContext, config: BatchConfig) -> Iterator[dg.MaterializeResult[None]]:
        if not config.attempt:
            _replay(context, pipeline, config)
            return
        settings = Settings()
        batch_time = datetime.fromisoformat(config.batch_time).astimezone(UTC)
        results = run_batch(
            pipeline,
            batch_time=batch_time,
            attempt=config.attempt,
            run_id=context.run.run_id,
            settings=settings,
            session=lambda: spark_session(
                settings,
                application=f"forebay {pipeline.name}",
                configuration={**pipeline.spark_configuration, **wanted_executors(settings, pipeline)},
            ),
        )
        figures = _figures(settings, pipeline, batch_time)
        if figures is not None:
            context.log_event(batch_materialization(pipeline, figures))
        partition = partition_key(pipeline, batch_time)
        for result in results:
            asset_key = pipeline.outputs[result.output].asset_key
            metadata = {
                **({} if figures is None else batch_metadata(pipeline, figures)),
                **result_metadata(result, batch_time),
            }
            if partition is None and asset_key in context.selected_asset_keys:
                yield dg.MaterializeResult(asset_key=asset_key, metadata=metadata)
            else:
                # The run is of no partition, for it is launched by the batch's time; of a batch's outputs all are made,
                # also where a person ran it again with some of them selected.
                context.log_event(dg.AssetMaterialization(asset_key, partition=partition, metadata=metadata))

    return outputs
