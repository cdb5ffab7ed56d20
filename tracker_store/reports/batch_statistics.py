"""Read the figures for Dagster's pages: one batch, the minutes that are over, the queue of a pipeline.

Every read here takes no locks and costs what it returns. The driver log has the numbers; Dagster's events only show
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.reports.rows import only, read_statement

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """Describe a batch that ran; `interval` (what it covers) and the delays are in seconds, None while unknown."""

    batch_time: datetime
    state: str
    attempt: int
    records: int
    bytes: int
    blocks: int
    interval: float
    scheduling_delay: float | None
    processing_time: float | None
    total_delay: float | None

    @property
    def input_rate(self) -> float:
        """Return records per second of the interval (O01 of the original: the batch's records over its duration)."""
        return self.records / self.interval


@dataclass(frozen=True, slots=True)
class MinuteFigures:
    """Sum up the batches of a pipeline that completed in one minute; delays in seconds, None where nothing ran."""

    minute: datetime
    batches: int
    records: int
    bytes: int
    scheduling_delay_median: float | None
    processing_time_median: float | None
    total_delay_median: float | None
    total_delay_p95: float | None


@dataclass(frozen=True, slots=True)
class PipelineQueue:
    """Count a pipeline's queue: batches that wait or run, boundaries that are due, quarantined batches."""

    waiting: int
    running: int
    due: int
    quarantined: int
    newest_quarantined: datetime | None

    @property
    def depth(self) -> int:
        """Return the number of batches behind the one that may run."""
        return self.waiting + self.due


def database_time(connection: sa.Connection) -> datetime:
    """Return the time by the database's clock. No locks."""
    with named_failures():
        now: datetime = connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
    return now


_FIGURES = """
    SELECT b.batch_time, b.state, b.attempt, b.records, b.bytes, b.blocks,
        -- A batch that merges missed boundaries covers all their intervals.
        extract(epoch FROM b.batch_time - b.oldest_time + p.batch_interval)::float8 AS interval,
        extract(epoch FROM b.scheduling_delay)::float8 AS scheduling_delay,
        extract(epoch FROM b.processing_time)::float8 AS processing_time,
        extract(epoch FROM b.total_delay)::float8 AS total_delay
    FROM forebay.batch_stats b
    JOIN forebay.pipelines p ON p.id = b.pipeline_id
"""


def batch_figures(connection: sa.Connection, pipeline_id: int, batch_time: datetime) -> BatchFigures | None:
    """Return one batch, or None. No locks; by the primary key."""
    found = read_statement(
        connection,
        BatchFigures,
        f"""
        {_FIGURES}
        WHERE b.pipeline_id = :pipeline AND b.batch_time = :time
        """,
        {"pipeline": pipeline_id, "time": batch_time},
    )
    return only(found)


def newest_completed_batch(connection: sa.Connection, pipeline_id: int) -> BatchFigures | None:
    """Return the batch with records that completed last, or None. No locks; from the end of an index."""
    found = read_statement(
        connection,
        BatchFigures,
        f"""
        {_FIGURES}
        WHERE b.pipeline_id = :pipeline AND b.completed_at IS NOT NULL AND b.attempt > 0
        ORDER BY b.completed_at DESC LIMIT 1
        """,
        {"pipeline": pipeline_id},
    )
    return only(found)


def newest_empty_batch(connection: sa.Connection, pipeline_id: int) -> BatchFigures | None:
    """Return the newest decided batch, if it had no records and did not run; its delays are 0. No locks; one row."""
    with named_failures():
        time = connection.execute(
            sa.text("""
                SELECT b.batch_time
                FROM forebay.pipelines p
                JOIN forebay.batches b ON b.pipeline_id = p.id AND b.batch_time = p.last_batch_time
                WHERE p.id = :pipeline AND b.records = 0 AND b.state = 'COMPLETED' AND b.attempt = 0
            """),
            {"pipeline": pipeline_id},
        ).scalar_one_or_none()
    found = None if time is None else batch_figures(connection, pipeline_id, time)
    return None if found is None else replace(found, scheduling_delay=0.0, processing_time=0.0, total_delay=0.0)


def completed_minutes(
    connection: sa.Connection, pipeline_id: int, *, after: datetime, limit: int
) -> list[MinuteFigures]:
    """Return the finished minutes after `after` in which batches completed, oldest first.

    A minute is finished when no batch can be committed into it any more: a few seconds after its end, because a
    completion time is written before its transaction commits. No locks; O(batches of these minutes), by the index on
    the time of completion.
    """
    return read_statement(
        connection,
        MinuteFigures,
        """
        SELECT date_trunc('minute', b.completed_at) AS minute, count(*) AS batches,
            sum(b.records)::bigint AS records, sum(b.bytes)::bigint AS bytes,
            percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM b.scheduling_delay)::float8),
            percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM b.processing_time)::float8),
            percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM b.total_delay)::float8),
            percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM b.total_delay)::float8)
        FROM forebay.batch_stats b
        WHERE b.pipeline_id = :pipeline
          AND b.completed_at >= date_trunc('minute', CAST(:after AS timestamptz)) + interval '1 minute'
          AND b.completed_at < date_trunc('minute', clock_timestamp() - interval '5 seconds')
        GROUP BY 1
        ORDER BY 1 LIMIT :limit
        """,
        {"pipeline": pipeline_id, "after": after, "limit": limit},
    )


def pipeline_queue(connection: sa.Connection, pipeline_id: int) -> PipelineQueue:
    """Return what waits for a pipeline. No locks; reads the unfinished and the quarantined batches."""
    found = read_statement(
        connection,
        PipelineQueue,
        """
        SELECT unfinished_batches - running_batches, running_batches, due_batches, quarantined_batches,
            newest_quarantined
        FROM forebay.pipeline_status
        WHERE pipeline_id = :pipeline
        """,
        {"pipeline": pipeline_id},
    )
    return only(found) or PipelineQueue(0, 0, 0, 0, None)
