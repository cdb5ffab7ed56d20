"""One asset per output, computed together in one step per batch; one external asset per stream."""

# No `from __future__ import annotations`: Dagster reads the configuration's class off the annotation.
from collections.abc import Iterator
from datetime import UTC, datetime

import dagster as dg

from orchestration.batch_run import run_batch
from orchestration.pipeline import Pipeline, Stream
from orchestration.settings import Settings
from orchestration.spark.session import spark_session

STREAM_GROUP = "forebay_streams"


class BatchConfig(dg.Config):
    """Which attempt at which batch to run; the batch sensor fills it in."""

    batch_time: str
    attempt: int


def batch_op_name(pipeline: Pipeline) -> str:
    """The name of the step that runs a batch; its configuration stands under this name."""
    return f"{pipeline.name}__outputs"


def stream_key(stream: Stream) -> dg.AssetKey:
    """The key of a stream's external asset."""
    return dg.AssetKey(["forebay", stream.name])


def stream_asset(stream: Stream) -> dg.AssetSpec:
    """A stream, which receivers fill and Dagster does not."""
    return dg.AssetSpec(
        stream_key(stream),
        group_name=STREAM_GROUP,
        description=f"Records from {stream.source.address}, stored as blocks by {stream.receivers} receiver(s).",
        kinds={stream.source.kind},
        metadata={"source": stream.source.kind, "address": stream.source.address, "receivers": stream.receivers},
    )


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
            )
            for output in pipeline.outputs.values()
        ],
        description=f"Runs one attempt at one batch of {pipeline.name}.",
    )
    def outputs(context: dg.AssetExecutionContext, config: BatchConfig) -> Iterator[dg.MaterializeResult[None]]:
        settings = Settings()
        batch_time = datetime.fromisoformat(config.batch_time).astimezone(UTC)
        results = run_batch(
            pipeline,
            batch_time=batch_time,
            attempt=config.attempt,
            run_id=context.run.run_id,
            settings=settings,
            session=lambda: spark_session(settings, application=f"forebay {pipeline.name}"),
        )
        for result in results:
            yield dg.MaterializeResult(
                asset_key=pipeline.outputs[result.output].asset_key,
                metadata={
                    "batch_time": batch_time.isoformat(),
                    "attempt": result.attempt,
                    "location": dg.MetadataValue.path(result.location),
                    **({} if result.rows is None else {"dagster/row_count": result.rows}),
                    **(
                        {"lost_blocks": result.lost_blocks, "lost_records": result.lost_records}
                        if result.lost_blocks
                        else {}
                    ),
                },
            )

    return outputs
