"""Partition output assets by batch time, if set by `Pipeline(partitions="hour" | "day")`.

A partition contains every batch whose time lies in it; Dagster's backfill of a partition replays them in one run.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

from orchestration.declarations.declaration_error import DeclarationError

if TYPE_CHECKING:
    from orchestration.declarations.pipeline import Pipeline

# Fixed, because a partition's key must not change: hourly partitions from here stay below Dagster's limit of 100,000
# until 2037.
PARTITIONS_START = datetime(2026, 1, 1, tzinfo=UTC)


def partitions_of(pipeline: Pipeline) -> dg.TimeWindowPartitionsDefinition | None:
    """Return the partitions of the pipeline's outputs, including the current hour or day; None if not partitioned."""
    return _partitions(pipeline, end_offset=1)


def past_partitions(pipeline: Pipeline) -> dg.TimeWindowPartitionsDefinition:
    """Return the partitions of an asset below the pipeline's outputs: the hours or days that are over.

    The output's partitions include the current one. Raises DeclarationError if the pipeline has no partitions.
    """
    partitions = _partitions(pipeline, end_offset=0)
    if partitions is None:
        message = f"pipeline {pipeline.name!r} has no partitions: declare it with partitions='hour' or partitions='day'"
        raise DeclarationError(message)
    return partitions


def _partitions(pipeline: Pipeline, *, end_offset: int) -> dg.TimeWindowPartitionsDefinition | None:
    # Dagster takes the start for a local time.
    start, zone = PARTITIONS_START.replace(tzinfo=None), pipeline.timezone or "UTC"
    if pipeline.settings.partitions == "hour":
        return dg.HourlyPartitionsDefinition(start, end_offset=end_offset, timezone=zone)
    if pipeline.settings.partitions == "day":
        return dg.DailyPartitionsDefinition(start, end_offset=end_offset, timezone=zone)
    return None


def partition_key(pipeline: Pipeline, batch_time: datetime) -> str | None:
    """Return the key of a batch's partition; None if it has none."""
    partitions = partitions_of(pipeline)
    if partitions is None or batch_time < partitions.start:
        return None
    # Of two hours that the clock shows alike, Dagster gives the second's key its offset.
    return partitions.get_partition_key_for_timestamp(batch_time.timestamp())
