"""Read what `forebay status` and the demo show: the views for people, as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.engine import named_failures

if TYPE_CHECKING:
    from datetime import datetime

# How long a pipeline may complete nothing while blocks wait for it: this time or this number of its intervals,
# whichever is longer.
STALE_AFTER = timedelta(minutes=5)
STALE_AFTER_INTERVALS = 10


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """A row of the view `receiver_status`."""

    stream: str
    ordinal: int
    receiver_id: int
    state: str
    desired_state: str
    reason: str
    agent: str | None
    host: str | None
    epoch: int | None
    newest_sequence: int | None
    records: int
    bytes: int
    last_block_at: datetime | None
    dead_letters: int
    rate_limit: float | None
    queued_blocks: int | None


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """A row of the view `pipeline_status`.

    `holds_back_for` is the time for which it has completed nothing while blocks wait. `halted_by` is the quarantined
    batch that has halted it.
    """

    pipeline: str
    state: str
    state_since: datetime
    batch_interval: timedelta
    last_batch_time: datetime
    waiting_blocks: int
    waiting_records: int
    waiting_bytes: int
    lag: timedelta | None
    unfinished_batches: int
    running_batches: int
    last_completed_time: datetime | None
    last_completed_at: datetime | None
    holds_back_for: timedelta | None
    halted_by: datetime | None = None

    @property
    def is_stale(self) -> bool:
        """Return whether it has held blocks back for longer than late batches explain."""
        return self.holds_back_for is not None and self.holds_back_for > max(
            STALE_AFTER, STALE_AFTER_INTERVALS * self.batch_interval
        )


@dataclass(frozen=True, slots=True)
class StreamLag:
    """A row of the view `stream_lag`; `lag` is the age of the oldest block that waits."""

    pipeline: str
    stream: str
    waiting_blocks: int
    waiting_records: int
    waiting_bytes: int
    lag: timedelta | None


@dataclass(frozen=True, slots=True)
class BatchStats:
    """A row of the view `batch_stats`."""

    pipeline: str
    batch_time: datetime
    state: str
    attempt: int
    records: int
    bytes: int
    blocks: int
    reason: str
    run_id: str | None
    scheduling_delay: timedelta | None
    processing_time: timedelta | None
    total_delay: timedelta | None


@dataclass(frozen=True, slots=True)
class PipelineProcessingTimes:
    """How long a pipeline's newest completed batches took; batches without records did not run."""

    pipeline: str
    interval: timedelta
    times: list[timedelta]


def receiver_status(connection: sa.Connection) -> list[ReceiverStatus]:
    """Return every receiver. No locks."""
    columns = ", ".join(ReceiverStatus.__slots__)
    with named_failures():
        rows = connection.execute(
            sa.text(f"SELECT {columns} FROM forebay.receiver_status ORDER BY stream, ordinal")  # noqa: S608  our own names
        ).mappings()
        return [ReceiverStatus(**row) for row in rows]


def pipeline_status(connection: sa.Connection) -> list[PipelineStatus]:
    """Return every declared pipeline. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT pipeline, state, state_since, batch_interval, last_batch_time, waiting_blocks, waiting_records,
                    waiting_bytes, clock_timestamp() - oldest_added_at AS lag, unfinished_batches, running_batches,
                    last_completed_time, last_completed_at,
                    CASE WHEN holds_back_since IS NOT NULL
                        THEN greatest(clock_timestamp() - holds_back_since, interval '0')
                    END AS holds_back_for,
                    halted_by
                FROM forebay.pipeline_status
                ORDER BY pipeline
            """)
        ).all()
    return [PipelineStatus(*row) for row in rows]


def stream_lag(connection: sa.Connection) -> list[StreamLag]:
    """Return what waits, by pipeline and stream. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT pipeline, stream, waiting_blocks, waiting_records, waiting_bytes,
                    CASE WHEN waiting_records > 0 THEN clock_timestamp() - oldest_added_at END AS lag
                FROM forebay.stream_lag
                ORDER BY pipeline, stream
            """)
        ).mappings()
        return [StreamLag(**row) for row in rows]


def batch_stats(connection: sa.Connection, *, limit: int = 20) -> list[BatchStats]:
    """Return the newest `limit` batches, newest first. No locks."""
    columns = ", ".join(BatchStats.__slots__)
    with named_failures():
        rows = connection.execute(
            sa.text(f"""
                SELECT {columns}
                FROM forebay.batch_stats
                ORDER BY batch_time DESC, pipeline LIMIT :limit
            """),  # noqa: S608  our own names
            {"limit": limit},
        ).mappings()
        return [BatchStats(**row) for row in rows]


def processing_times(connection: sa.Connection, *, seconds: float) -> list[PipelineProcessingTimes]:
    """Return processing times of each live pipeline's batches of the last seconds or three intervals. No locks.

    The longer of the two spans counts. Costs those batches: they are found by their times.
    """
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT p.name, p.batch_interval, array_agg(b.processing_time) AS times
                FROM forebay.pipelines p
                JOIN forebay.batch_stats b ON b.pipeline_id = p.id
                  AND b.state = 'COMPLETED'
                  AND b.processing_time IS NOT NULL
                  AND b.batch_time > clock_timestamp() - greatest(make_interval(secs => :seconds), 3 * p.batch_interval)
                WHERE p.removed_at IS NULL
                GROUP BY p.name, p.batch_interval
                ORDER BY p.name
            """),
            {"seconds": seconds},
        ).all()
    return [PipelineProcessingTimes(row.name, row.batch_interval, row.times) for row in rows]
