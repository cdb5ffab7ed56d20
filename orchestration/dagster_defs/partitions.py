"""Partitions of output assets by batch time, where `Pipeline(partitions="hour" | "day")` asks for them.

A partition holds every batch whose time lies in it; Dagster's backfill of one replays them, in one run.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from orchestration.pipeline import Pipeline

# Fixed, since a partition's key must not change: hours from here stay below Dagster's 100,000 until 2037.
PARTITIONS_START = datetime(2026, 1, 1, tzinfo=UTC)


def partitions_of(pipeline: Pipeline) -> dg.TimeWindowPartitionsDefinition | None:
    """The partitions of the pipeline's outputs, the present hour or day among them; None where there are none."""
    if pipeline.settings.partitions == "hour":
        return dg.HourlyPartitionsDefinition(PARTITIONS_START, end_offset=1)
    if pipeline.settings.partitions == "day":
        return dg.DailyPartitionsDefinition(PARTITIONS_START, end_offset=1)
    return None


def partition_key(pipeline: Pipeline, batch_time: datetime) -> str | None:
    """The partition that a batch lies in; None where there are none."""
    partitions = partitions_of(pipeline)
    if partitions is None or batch_time < PARTITIONS_START:
        return None
    # The day's format leaves the hour out, the hour's has its minutes.
    return batch_time.astimezone(UTC).replace(minute=0).strftime(partitions.fmt)
