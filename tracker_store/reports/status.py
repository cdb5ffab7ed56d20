"""Read what `forebay status` and the demo show: the views for people, as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tracker_store.receivers.receivers import condition_of
from tracker_store.reports.rows import read, read_statement
from tracker_store.schema.batch_calendar import shown_calendar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import sqlalchemy as sa

# How long a pipeline may complete nothing while blocks wait for it: this time or this number of its intervals,
# whichever is longer.
STALE_AFTER = timedelta(minutes=5)
STALE_AFTER_INTERVALS = 10


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """Hold a row of the view `receiver_status`."""

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
    partitions: int = 0
    unread: int | None = None
    unread_unit: str | None = None
    source_lag: timedelta | None = None
    records_per_second: float | None = None
    is_held: bool = False

    @property
    def condition(self) -> str:
        """Return the state for people (``condition_of``)."""
        return condition_of(self.state, self.reason)


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """Hold a row of the view `pipeline_status`.

    `holds_back_for` is the time for which it has completed nothing while blocks wait. `halted_by` is the quarantined
    batch that has halted it. `due_for` is the age of the oldest batch time that is neither complete nor given up, and
    `due_batches` counts those that are not decided. `quarantine_reason` is that of `newest_quarantined`, and
    `retry_reason` that of the oldest batch that is blocked; of the oldest that has failed where none is. `calendar` is
    its interval with its time zone, if its batch times follow one.
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
    failed_batches: int = 0
    blocked_batches: int = 0
    quarantined_batches: int = 0
    newest_quarantined: datetime | None = None
    due_for: timedelta | None = None
    pipeline_id: int = 0
    due_batches: int = 0
    quarantine_reason: str = ""
    retry_reason: str = ""
    calendar: str | None = None

    @property
    def intervals_behind(self) -> int:
        """Return how many whole intervals ago the oldest batch time came that is not complete."""
        return 0 if self.due_for is None else max(0, self.due_for // self.batch_interval)

    @property
    def is_stale(self) -> bool:
        """Return whether it has held blocks back for longer than late batches explain."""
        return self.holds_back_for is not None and self.holds_back_for > max(
            STALE_AFTER, STALE_AFTER_INTERVALS * self.batch_interval
        )


@dataclass(frozen=True, slots=True)
class StreamLag:
    """Hold a row of the view `stream_lag`; `lag` is the age of the oldest block that waits."""

    pipeline: str
    stream: str
    waiting_blocks: int
    waiting_records: int
    waiting_bytes: int
    lag: timedelta | None


@dataclass(frozen=True, slots=True)
class BatchStats:
    """Hold a row of the view `batch_stats`."""

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
    """List how long a pipeline's newest completed batches took; batches without records did not run."""

    pipeline: str
    interval: timedelta
    times: list[timedelta]


# Leaves the other streams' receivers unread: the planner finds a stream by its name.
_OF_STREAMS = "WHERE stream = ANY (CAST(:streams AS text[]))"


def receiver_status(connection: sa.Connection, streams: Sequence[str] | None = None) -> list[ReceiverStatus]:
    """Return every receiver, or those of some streams. No locks."""
    source = f"FROM forebay.receiver_status {'' if streams is None else _OF_STREAMS} ORDER BY stream, ordinal"
    return read(connection, ReceiverStatus, source, {} if streams is None else {"streams": list(streams)})


@dataclass(frozen=True, slots=True)
class _Progress:
    """Hold the columns of the view `pipeline_status` that do not tell what waits."""

    pipeline: str
    state: str
    state_since: datetime
    batch_interval: timedelta
    last_batch_time: datetime
    unfinished_batches: int
    running_batches: int
    last_completed_time: datetime | None
    last_completed_at: datetime | None
    halted_by: datetime | None
    failed_batches: int
    blocked_batches: int
    quarantined_batches: int
    newest_quarantined: datetime | None
    due_for: timedelta | None
    since_progress: timedelta
    since_oldest: timedelta | None
    pipeline_id: int
    due_batches: int
    quarantine_reason: str
    retry_reason: str
    calendar: dict[str, str] | None


def pipeline_status(connection: sa.Connection) -> list[PipelineStatus]:
    """Return every declared pipeline. No locks."""
    return pipeline_status_with(connection, stream_lag(connection))


def pipeline_status_with(connection: sa.Connection, lags: Sequence[StreamLag]) -> list[PipelineStatus]:
    """Return what `pipeline_status` does, from lags that were just read: they would be read again. No locks."""
    of_pipelines: dict[str, list[StreamLag]] = {}
    for lag in lags:
        of_pipelines.setdefault(lag.pipeline, []).append(lag)
    found = read_statement(
        connection,
        _Progress,
        """
        SELECT pipeline, state, state_since, batch_interval, last_batch_time, unfinished_batches, running_batches,
            last_completed_time, last_completed_at, halted_by, failed_batches, blocked_batches, quarantined_batches,
            newest_quarantined, clock_timestamp() - oldest_due, clock_timestamp() - progress_since,
            clock_timestamp() - oldest_unfinished_at, pipeline_id, due_batches,
            -- One probe of the primary key, where there is a quarantined batch.
            coalesce(
                (
                    SELECT b.reason
                    FROM forebay.batches b
                    WHERE b.pipeline_id = s.pipeline_id AND b.batch_time = s.newest_quarantined
                ), ''),
            -- By the index of unfinished batches, where one is to be tried again.
            coalesce(
                (
                    SELECT b.reason
                    FROM forebay.batches b
                    WHERE s.blocked_batches + s.failed_batches > 0
                      AND b.pipeline_id = s.pipeline_id
                      AND b.state IN ('BLOCKED', 'FAILED')
                    ORDER BY b.state, b.batch_time
                    LIMIT 1
                ), ''),
            s.calendar
        FROM forebay.pipeline_status s
        ORDER BY pipeline
        """,
    )
    return [_status(progress, of_pipelines.get(progress.pipeline, [])) for progress in found]


def _status(progress: _Progress, lags: Sequence[StreamLag]) -> PipelineStatus:
    oldest = max((lag.lag for lag in lags if lag.lag is not None), default=None)
    waits = [span for span in (oldest, progress.since_oldest) if span is not None]
    return PipelineStatus(
        progress.pipeline,
        progress.state,
        progress.state_since,
        progress.batch_interval,
        progress.last_batch_time,
        sum(lag.waiting_blocks for lag in lags),
        sum(lag.waiting_records for lag in lags),
        sum(lag.waiting_bytes for lag in lags),
        oldest,
        progress.unfinished_batches,
        progress.running_batches,
        progress.last_completed_time,
        progress.last_completed_at,
        max(min(progress.since_progress, *waits), timedelta(0)) if waits else None,
        progress.halted_by,
        progress.failed_batches,
        progress.blocked_batches,
        progress.quarantined_batches,
        progress.newest_quarantined,
        progress.due_for,
        progress.pipeline_id,
        progress.due_batches,
        progress.quarantine_reason,
        progress.retry_reason,
        shown_calendar(progress.calendar),
    )


def stream_lag(connection: sa.Connection, streams: Sequence[str] | None = None) -> list[StreamLag]:
    """Return what waits, by pipeline and stream: of all streams, or of some. No locks."""
    return read_statement(
        connection,
        StreamLag,
        f"""
        SELECT pipeline, stream, waiting_blocks, waiting_records, waiting_bytes,
            CASE WHEN waiting_records > 0 THEN clock_timestamp() - oldest_added_at END AS lag
        FROM forebay.stream_lag
        {"" if streams is None else _OF_STREAMS}
        ORDER BY pipeline, stream
        """,  # noqa: S608  a constant
        {} if streams is None else {"streams": list(streams)},
    )


def batch_stats(connection: sa.Connection, *, limit: int = 20) -> list[BatchStats]:
    """Return the newest `limit` batches, newest first. No locks."""
    return read(
        connection,
        BatchStats,
        """
        FROM forebay.batch_stats
        -- The time of the last of them first, by an index: the view's joins then read only these batches, and those of
        -- the same time.
        WHERE batch_time >= coalesce(
            (
                SELECT b.batch_time
                FROM forebay.batches b
                ORDER BY b.batch_time DESC OFFSET CAST(:limit AS bigint) - 1 LIMIT 1
            ), '-infinity')
        ORDER BY batch_time DESC, pipeline LIMIT :limit
        """,
        {"limit": limit},
    )


def processing_times(connection: sa.Connection, *, seconds: float) -> list[PipelineProcessingTimes]:
    """Return processing times of each live pipeline's batches of the last seconds or three intervals. No locks.

    The longer of the two spans counts. Costs those batches: they are found by their times.
    """
    return read_statement(
        connection,
        PipelineProcessingTimes,
        """
        -- LATERAL probes with OFFSET 0: joins would be over the whole history, because no plan knows how few
        -- batches the time leaves. No index is searched for clock_timestamp(), which is
        -- volatile.
        SELECT p.name, p.batch_interval, array_agg(b.processing_time) AS times
        FROM forebay.pipelines p
        CROSS JOIN LATERAL (
            SELECT b.completed_at - attempt.started_at AS processing_time
            FROM forebay.batches b
            CROSS JOIN LATERAL (
                SELECT a.started_at
                FROM forebay.batch_attempts a
                WHERE a.pipeline_id = b.pipeline_id
                  AND a.batch_time = b.batch_time
                  AND a.attempt = b.attempt
                OFFSET 0
            ) AS attempt
            WHERE b.pipeline_id = p.id
              AND b.state = 'COMPLETED'
              AND b.batch_time
                  > statement_timestamp() - greatest(make_interval(secs => :seconds), 3 * p.batch_interval)
            OFFSET 0
        ) AS b
        WHERE p.removed_at IS NULL
        GROUP BY p.name, p.batch_interval
        ORDER BY p.name
        """,
        {"seconds": seconds},
    )
