"""Read what `forebay status` and the demo show: the views for people, as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

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


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """Hold a row of the view `pipeline_status`.

    `holds_back_for` is the time for which it has completed nothing while blocks wait. `halted_by` is the quarantined
    batch that has halted it. `due_for` is the age of the oldest batch time that is neither complete nor given up.
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
    columns = ", ".join(ReceiverStatus.__slots__)
    with named_failures():
        rows = connection.execute(
            sa.text(f"""
                SELECT {columns}
                FROM forebay.receiver_status
                {"" if streams is None else _OF_STREAMS}
                ORDER BY stream, ordinal
            """),  # noqa: S608  our own names
            {} if streams is None else {"streams": list(streams)},
        ).all()
    return [ReceiverStatus(*row) for row in rows]


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
                    halted_by, failed_batches, blocked_batches, quarantined_batches, newest_quarantined,
                    clock_timestamp() - oldest_due AS due_for
                FROM forebay.pipeline_status
                ORDER BY pipeline
            """)
        ).all()
    return [PipelineStatus(*row) for row in rows]


def pipeline_status_with(connection: sa.Connection, lags: Sequence[StreamLag]) -> list[PipelineStatus]:
    """Return what `pipeline_status` does, from lags that were just read: the view would read them again. No locks."""
    of_pipelines: dict[str, list[StreamLag]] = {}
    for lag in lags:
        of_pipelines.setdefault(lag.pipeline, []).append(lag)
    with named_failures():
        rows = connection.execute(
            sa.text("""
                -- As in the view, except for the lag.
                SELECT p.name, p.state, p.state_since, p.batch_interval, p.last_batch_time,
                    unfinished.batches, unfinished.running, completed.batch_time, completed.completed_at,
                    clock_timestamp() - greatest(
                        completed.completed_at, p.applied_at, CASE WHEN p.state = 'RUNNING' THEN p.state_since END
                    ) AS since_progress,
                    clock_timestamp() - unfinished.oldest AS since_oldest, p.halted_by, unfinished.failed,
                    unfinished.blocked, quarantined.batches, quarantined.newest,
                    clock_timestamp() - least(
                        unfinished.oldest_time,
                        CASE
                            WHEN p.state <> 'STOPPED' AND p.last_batch_time + p.batch_interval <= clock_timestamp()
                                THEN p.last_batch_time + p.batch_interval
                        END
                    ) AS due_for
                FROM forebay.pipelines p
                CROSS JOIN LATERAL (
                    SELECT count(*) AS batches, count(*) FILTER (WHERE b.state = 'RUNNING') AS running,
                        count(*) FILTER (WHERE b.state = 'FAILED') AS failed,
                        count(*) FILTER (WHERE b.state = 'BLOCKED') AS blocked,
                        min(b.allocated_at) AS oldest, min(b.oldest_time) AS oldest_time
                    FROM forebay.batches b
                    WHERE b.pipeline_id = p.id AND b.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
                ) AS unfinished
                CROSS JOIN LATERAL (
                    SELECT count(*) AS batches, max(q.batch_time) AS newest
                    FROM forebay.batches q
                    WHERE q.pipeline_id = p.id AND q.state = 'QUARANTINED'
                ) AS quarantined
                LEFT JOIN LATERAL (
                    SELECT b.batch_time, b.completed_at
                    FROM forebay.batches b
                    WHERE b.pipeline_id = p.id AND b.state = 'COMPLETED'
                    ORDER BY b.batch_time DESC LIMIT 1
                ) AS completed ON true
                WHERE p.removed_at IS NULL
                ORDER BY p.name
            """)
        ).all()
    statuses = []
    for row in rows:
        name, state, since, interval, newest, batches, running, time, at, since_progress, since_oldest, *more = row
        found = of_pipelines.get(name, [])
        oldest = max((lag.lag for lag in found if lag.lag is not None), default=None)
        waits = [span for span in (oldest, since_oldest) if span is not None]
        statuses.append(
            PipelineStatus(
                name,
                state,
                since,
                interval,
                newest,
                sum(lag.waiting_blocks for lag in found),
                sum(lag.waiting_records for lag in found),
                sum(lag.waiting_bytes for lag in found),
                oldest,
                batches,
                running,
                time,
                at,
                max(min(since_progress, *waits), timedelta(0)) if waits else None,
                *more,
            )
        )
    return statuses


def stream_lag(connection: sa.Connection, streams: Sequence[str] | None = None) -> list[StreamLag]:
    """Return what waits, by pipeline and stream: of all streams, or of some. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text(f"""
                SELECT pipeline, stream, waiting_blocks, waiting_records, waiting_bytes,
                    CASE WHEN waiting_records > 0 THEN clock_timestamp() - oldest_added_at END AS lag
                FROM forebay.stream_lag
                {"" if streams is None else _OF_STREAMS}
                ORDER BY pipeline, stream
            """),  # noqa: S608  a constant
            {} if streams is None else {"streams": list(streams)},
        ).mappings()
        return [StreamLag(**row) for row in rows]


def batch_stats(connection: sa.Connection, *, limit: int = 20) -> list[BatchStats]:
    """Return the newest `limit` batches, newest first. No locks."""
    columns = ", ".join(BatchStats.__slots__)
    with named_failures():
        rows = connection.execute(
            sa.text(f"""
                -- The time of the last of them first, by an index: the view's joins then read only these batches, and
                -- those of the same time.
                SELECT {columns}
                FROM forebay.batch_stats
                WHERE batch_time >= coalesce(
                    (
                        SELECT b.batch_time
                        FROM forebay.batches b
                        ORDER BY b.batch_time DESC OFFSET CAST(:limit AS bigint) - 1 LIMIT 1
                    ), '-infinity')
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
            """),
            {"seconds": seconds},
        ).all()
    return [PipelineProcessingTimes(row.name, row.batch_interval, row.times) for row in rows]
