"""Read and write the data of back pressure: what batches say about a stream's rate, and receivers' rates.

Authority: a row of `stream_rates` is what the leader decided for one pipeline and stream; `receivers.rate_limit`
follows from all of them. Both are written under the leader's term, in transactions of their own, after the batch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.schema.states import DesiredState, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class CompletedBatch:
    """Hold a completed batch as one stream sees it: `records` are that stream's. `started_at`: null if nothing ran."""

    batch_time: datetime
    oldest_time: datetime
    records: int
    started_at: datetime | None
    completed_at: datetime


@dataclass(frozen=True, slots=True)
class StreamRate:
    """Hold the decision for (pipeline, stream); rates in records per second. `latest_*` are the estimator's state."""

    pipeline_id: int
    stream_id: int
    batch_time: datetime
    latest_at: datetime | None
    latest_rate: float | None
    latest_error: float | None
    rate_limit: float | None
    expired: bool


@dataclass(frozen=True, slots=True)
class PipelineProgress:
    """Show whether a pipeline makes progress: `counter` changes with each allocation, attempt or end of a batch.

    `running`: an attempt runs now.
    """

    pipeline_id: int
    counter: int
    running: bool


@dataclass(frozen=True, slots=True)
class RatedReceiver:
    """Hold a receiver and its rate in records per second; null: no limit."""

    receiver_id: int
    stream_id: int
    state: ReceiverState
    desired_state: DesiredState
    rate_limit: float | None


def completed_batches(
    connection: sa.Connection, *, after: Mapping[tuple[int, int], datetime | None], limit: int
) -> dict[tuple[int, int], list[CompletedBatch]]:
    """Return completed batches of pipelines as seen from their streams, oldest first, by (pipeline, stream). No locks.

    `after`: by (pipeline, stream), the batch time after which they are wanted, at most `limit`; after None: the newest.
    One statement: it costs a probe for each pipeline and stream, and what it returns.
    """
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT w.pipeline_id, w.stream_id, b.batch_time, b.oldest_time, b.completed_at, a.started_at,
                    (
                        SELECT coalesce(sum(n.records), 0)::bigint
                        FROM forebay.batch_allocations n
                        JOIN forebay.receivers r ON r.id = n.receiver_id
                        WHERE n.pipeline_id = w.pipeline_id
                          AND n.batch_time = b.batch_time
                          AND r.stream_id = w.stream_id
                    ) AS records
                FROM unnest(
                    CAST(:pipelines AS bigint[]), CAST(:streams AS bigint[]), CAST(:after AS timestamptz[])
                ) AS w(pipeline_id, stream_id, after)
                CROSS JOIN LATERAL (
                    (
                        SELECT o.batch_time, o.oldest_time, o.completed_at, o.attempt
                        FROM forebay.batches o
                        WHERE o.pipeline_id = w.pipeline_id AND o.state = 'COMPLETED' AND o.batch_time > w.after
                        ORDER BY o.batch_time LIMIT :limit
                    )
                    UNION ALL
                    (
                        SELECT o.batch_time, o.oldest_time, o.completed_at, o.attempt
                        FROM forebay.batches o
                        WHERE o.pipeline_id = w.pipeline_id AND o.state = 'COMPLETED' AND w.after IS NULL
                        ORDER BY o.batch_time DESC LIMIT 1
                    )
                ) AS b
                LEFT JOIN forebay.batch_attempts a ON a.pipeline_id = w.pipeline_id
                  AND a.batch_time = b.batch_time
                  AND a.attempt = b.attempt
                  AND a.state = 'SUCCEEDED'
                  -- Replays are attempts too, but say nothing about how fast batches are.
                  AND a.kind = 'run'
                ORDER BY w.pipeline_id, w.stream_id, b.batch_time
            """),
            {
                "pipelines": [pipeline_id for pipeline_id, _ in after],
                "streams": [stream_id for _, stream_id in after],
                "after": list(after.values()),
                "limit": limit,
            },
        ).all()
    found: dict[tuple[int, int], list[CompletedBatch]] = {}
    for row in rows:
        batch = CompletedBatch(row.batch_time, row.oldest_time, row.records, row.started_at, row.completed_at)
        found.setdefault((row.pipeline_id, row.stream_id), []).append(batch)
    return found


def records_left_behind(connection: sa.Connection, *, pipeline_id: int, stream_id: int, batch_time: datetime) -> int:
    """Count records of a stream from before a batch's time that the batch's limit left to later batches.

    No locks. O(receivers · log blocks): the last block before the time is found by binary search, as in allocation.
    """
    with named_failures():
        records: int = connection.execute(
            sa.text("""
                WITH RECURSIVE waiting AS MATERIALIZED (
                    SELECT n.receiver_id, next_row.sequence, next_row.total_records - next_row.records AS base,
                        newest.sequence AS head
                    FROM forebay.batch_allocations n
                    JOIN forebay.receivers r ON r.id = n.receiver_id AND r.stream_id = :stream
                    JOIN forebay.blocks next_row ON next_row.receiver_id = n.receiver_id
                      AND next_row.sequence = upper(n.sequences)
                    CROSS JOIN LATERAL (
                        SELECT b.sequence
                        FROM forebay.blocks b
                        WHERE b.receiver_id = n.receiver_id
                        ORDER BY b.sequence DESC LIMIT 1
                    ) AS newest
                    WHERE n.pipeline_id = :pipeline AND n.batch_time = :time
                ), search (receiver_id, inside, outside) AS (
                    SELECT w.receiver_id, w.sequence - 1, w.head
                    FROM waiting w
                    UNION ALL
                    SELECT s.receiver_id, CASE WHEN probe.before THEN middle.m ELSE s.inside END,
                        CASE WHEN probe.before THEN s.outside ELSE middle.m - 1 END
                    FROM search s
                    CROSS JOIN LATERAL (SELECT s.inside + (s.outside - s.inside + 1) / 2) AS middle(m)
                    CROSS JOIN LATERAL (
                        SELECT b.added_at < :time AS before
                        FROM forebay.blocks b
                        WHERE b.receiver_id = s.receiver_id AND b.sequence = middle.m
                        OFFSET 0
                    ) AS probe
                    WHERE s.inside < s.outside
                )
                SELECT coalesce(sum(l.total_records - w.base), 0)::bigint
                FROM waiting w
                JOIN search s ON s.receiver_id = w.receiver_id AND s.inside >= s.outside
                JOIN forebay.blocks l ON l.receiver_id = w.receiver_id AND l.sequence = s.inside
                WHERE s.inside >= w.sequence
            """),
            {"pipeline": pipeline_id, "stream": stream_id, "time": batch_time},
        ).scalar_one()
    return records


def stream_rates(connection: sa.Connection) -> list[StreamRate]:
    """Return every decision, including removed pipelines'. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT pipeline_id, stream_id, batch_time, latest_at, latest_rate, latest_error, rate_limit,
                    expired_at IS NOT NULL AS expired
                FROM forebay.stream_rates
                ORDER BY pipeline_id, stream_id
            """)
        ).all()
    return [StreamRate(*row) for row in rows]


def pipeline_progress(connection: sa.Connection) -> list[PipelineProgress]:
    """Return the progress of each live pipeline. No locks; the partial index holds few unfinished batches."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT p.id,
                    (extract(epoch FROM p.last_batch_time) * 1000)::bigint * 1000
                        + coalesce(sum(b.attempt), 0)::bigint AS counter,
                    coalesce(bool_or(b.state = 'RUNNING'), false) AS running
                FROM forebay.pipelines p
                LEFT JOIN forebay.batches b ON b.pipeline_id = p.id
                  AND b.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
                WHERE p.removed_at IS NULL
                GROUP BY p.id
                ORDER BY p.id
            """)
        ).all()
    return [PipelineProgress(row.id, row.counter, row.running) for row in rows]


def rated_receivers(connection: sa.Connection) -> list[RatedReceiver]:
    """Return every receiver that is not removed. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT id, stream_id, state, desired_state, rate_limit
                FROM forebay.receivers
                WHERE removed_at IS NULL
                ORDER BY id
            """)
        ).all()
    return [
        RatedReceiver(row.id, row.stream_id, ReceiverState(row.state), DesiredState(row.desired_state), row.rate_limit)
        for row in rows
    ]


def record_stream_rate(connection: sa.Connection, *, term: int, decision: StreamRate) -> str:
    """Record a decision after a batch, or whether the rate of the last one is expired.

    Returns 'recorded', 'reckoned before' or 'deposed'.
    Locks: leadership FOR SHARE, the decision's row.
    """
    with named_failures():
        outcome: str = connection.execute(
            sa.text("""
                SELECT outcome
                FROM forebay.record_stream_rate(
                    :term, :pipeline, :stream, :batch_time, :latest_at, CAST(:latest_rate AS double precision),
                    CAST(:latest_error AS double precision), CAST(:rate_limit AS double precision), :expired
                )
            """),
            {
                "term": term,
                "pipeline": decision.pipeline_id,
                "stream": decision.stream_id,
                "batch_time": decision.batch_time,
                "latest_at": decision.latest_at,
                "latest_rate": decision.latest_rate,
                "latest_error": decision.latest_error,
                "rate_limit": decision.rate_limit,
                "expired": decision.expired,
            },
        ).scalar_one()
    return outcome


def set_rate_limits(connection: sa.Connection, *, term: int, rates: Mapping[int, float | None]) -> str:
    """Set the rates of receivers (by id); null: no limit. Returns 'set' or 'deposed'.

    Locks: leadership FOR SHARE, those receivers' rows by id.
    """
    with named_failures():
        outcome: str = connection.execute(
            sa.text("""
                SELECT outcome
                FROM forebay.set_rate_limits(:term, CAST(:receivers AS bigint[]), CAST(:rates AS double precision[]))
            """),
            {"term": term, "receivers": list(rates), "rates": list(rates.values())},
        ).scalar_one()
    return outcome
