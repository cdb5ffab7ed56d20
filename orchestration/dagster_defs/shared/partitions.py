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
    if pipeline.settings.partitions == "hour":
        return dg.HourlyPartitionsDefinition(PARTITIONS_START, end_offset=1)
    if pipeline.settings.partitions == "day":
        return dg.DailyPartitionsDefinition(PARTITIONS_START, end_offset=1)
    return None


def past_partitions(pipeline: Pipeline) -> dg.TimeWindowPartitionsDefinition:
    """Return the partitions of an asset below the pipeline's outputs: the hours or days that are over.

    The output's partitions include the current one. Raises DeclarationError if the pipeline has no partitions.
    """
    if pipeline.settings.partitions == "hour":
        return dg.HourlyPartitionsDefinition(PARTITIONS_START)
    if pipeline.settings.partitions == "day":
        return dg.DailyPartitionsDefinition(PARTITIONS_START)
    message = f"pipeline {pipeline.name!r} has no partitions: declare it with partitions='hour' or partitions='day'"
    raise DeclarationError(message)


def partition_key(pipeline: Pipeline, batch_time: datetime) -> str | None:
    """Return the key of a batch's partition; None if it has none."""
    partitions = partitions_of(pipeline)
    if partitions is None or batch_time < PARTITIONS_START:
        return None
    # The format of a day omits the hour; the format of an hour includes minutes, which must be 0.
    return batch_time.astimezone(UTC).replace(minute=0).strftime(partitions.fmt)
