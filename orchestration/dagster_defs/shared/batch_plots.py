"""Define what the UI plots of a pipeline: one asset with an event per batch, one with an event per minute.

A plot holds an asset's last 100 events, so `batches` shows the last 100 batches and `batches_1m` 100 minutes. The
numbers come from the driver log; use SQL for longer periods. Every number is a plain int or float, in the unit of its
name, because Dagster plots nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from orchestration.dagster_defs.shared.page_links import page_of_pipeline
from orchestration.dagster_defs.shared.stream_assets import stream_key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from orchestration.declarations.pipeline import Pipeline
    from tracker_store.reports.batch_statistics import BatchFigures, MinuteFigures

MILLISECONDS = 1000.0


def batches_key(pipeline: Pipeline) -> dg.AssetKey:
    """Return the key of the asset that each batch with records materializes."""
    return dg.AssetKey([pipeline.name, "batches"])


def minutes_key(pipeline: Pipeline) -> dg.AssetKey:
    """Return the key of the asset that each minute with batches materializes."""
    return dg.AssetKey([pipeline.name, "batches_1m"])


def plot_assets(pipeline: Pipeline) -> list[dg.AssetSpec]:
    """Return the two assets. Nothing computes them; batches and minutes are reported as their events."""
    return [
        dg.AssetSpec(
            batches_key(pipeline),
            deps=[stream_key(stream) for stream in pipeline.streams],
            group_name=pipeline.name,
            description=(
                f"Each batch of {pipeline.name} that ran: records, input rate, scheduling delay, processing time, "
                "total delay. While batches have no records, every half minute the newest of them, with zeros. The "
                "view forebay.batch_stats has all of them."
            ),
            kinds={"postgres"},
            metadata=page_of_pipeline(pipeline),
        ),
        dg.AssetSpec(
            minutes_key(pipeline),
            deps=[batches_key(pipeline)],
            group_name=pipeline.name,
            description=(
                f"Each minute of {pipeline.name}: how many batches were completed, their records, the medians of their "
                "delays and the 95th percentile of the total delay; zeros where none ran."
            ),
            kinds={"postgres"},
        ),
    ]


def batch_metadata(pipeline: Pipeline, figures: BatchFigures) -> dict[str, dg.MetadataValue]:
    """Return one batch's figures (O01, O02 of the original), and the statement that shows its blocks."""
    delays = {
        "scheduling_delay_ms": figures.scheduling_delay,
        "processing_time_ms": figures.processing_time,
        "total_delay_ms": figures.total_delay,
    }
    return {
        "batch_time": dg.MetadataValue.text(figures.batch_time.isoformat()),
        "attempt": dg.MetadataValue.int(figures.attempt),
        "records": dg.MetadataValue.int(figures.records),
        "input_rate": dg.MetadataValue.float(figures.input_rate),
        "bytes": dg.MetadataValue.int(figures.bytes),
        "blocks": dg.MetadataValue.int(figures.blocks),
        **_milliseconds(delays),
        "its_blocks": dg.MetadataValue.md(blocks_statement(pipeline, figures.batch_time)),
    }


def blocks_statement(pipeline: Pipeline, batch_time: datetime) -> str:
    """Return Markdown with the statement that shows a batch's blocks, for copying into psql."""
    return (
        "```sql\n"  # noqa: S608  shown, not run; the name is made of letters, digits and _
        'SELECT stream, receiver_id, sequence, records, bytes, path, "offset"\n'
        "FROM forebay.batch_blocks\n"
        "WHERE pipeline_id = (SELECT id FROM forebay.pipelines\n"
        f"                     WHERE name = '{pipeline.name}' AND removed_at IS NULL)\n"
        f"  AND batch_time = '{batch_time.isoformat()}'\n"
        "ORDER BY receiver_id, sequence;\n"
        "```"
    )


def batch_materialization(
    pipeline: Pipeline, figures: BatchFigures, inputs: Mapping[str, dg.MetadataValue]
) -> dg.AssetMaterialization:
    """Return the event of `batches` for a completed batch; `inputs` is what it read from its sources."""
    return dg.AssetMaterialization(batches_key(pipeline), metadata={**batch_metadata(pipeline, figures), **inputs})


def minute_materialization(pipeline: Pipeline, figures: MinuteFigures) -> dg.AssetMaterialization:
    """Return the event of `batches_1m` for a minute that is over."""
    return dg.AssetMaterialization(
        minutes_key(pipeline),
        metadata={
            "minute": dg.MetadataValue.text(figures.minute.isoformat()),
            "batches": dg.MetadataValue.int(figures.batches),
            "records": dg.MetadataValue.int(figures.records),
            "input_rate": dg.MetadataValue.float(figures.records / 60),
            "bytes": dg.MetadataValue.int(figures.bytes),
            # Where nothing ran, nothing waited.
            **_milliseconds(
                {
                    "scheduling_delay_median_ms": figures.scheduling_delay_median or 0.0,
                    "processing_time_median_ms": figures.processing_time_median or 0.0,
                    "total_delay_median_ms": figures.total_delay_median or 0.0,
                    "total_delay_p95_ms": figures.total_delay_p95 or 0.0,
                }
            ),
        },
    )


def _milliseconds(seconds: dict[str, float | None]) -> dict[str, dg.MetadataValue]:
    """Convert to milliseconds; leave out unknown values, which a plot would show as 0."""
    return {name: dg.MetadataValue.float(value * MILLISECONDS) for name, value in seconds.items() if value is not None}
