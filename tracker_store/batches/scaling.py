"""Read and write `scaling_decisions`: how large Spark should be for a pipeline's batches, and why.

Authority: a pipeline's row is what its scaling schedule decided last. A process that makes a Spark session, or starts
batch drivers, reads it at that time; no process waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures

if TYPE_CHECKING:
    from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """Hold a pipeline's newest decision; `since`: when these numbers were decided first.

    `age`: how long ago it was decided, by the database's clock. `newest_batches`: how many batches, of at most ten, ran
    to their end in the last three minutes, or ten intervals or ten processing times if these are longer; after a start
    there are few.
    """

    pipeline: str
    ratio: float
    batches: int
    executors: int
    batch_drivers: int
    applied: bool
    reason: str
    since: datetime
    decided_at: datetime
    age: timedelta
    newest_batches: int


def processing_times_since(
    connection: sa.Connection, pipeline_id: int, *, after: datetime | None, seconds: float
) -> list[timedelta]:
    """Return how long the batches ran that completed after `after` (None: in the last seconds). No locks.

    Costs those batches. Batches without records ran nowhere, and a replay says nothing about the interval: neither is
    included.
    """
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT b.completed_at - a.started_at
                FROM forebay.batches b
                JOIN forebay.batch_attempts a ON a.pipeline_id = b.pipeline_id
                  AND a.batch_time = b.batch_time
                  AND a.attempt = b.attempt
                  AND a.state = 'SUCCEEDED'
                  AND a.kind = 'run'
                WHERE b.pipeline_id = :pipeline
                  AND b.state = 'COMPLETED'
                  AND b.completed_at > coalesce(
                      -- No index is searched for clock_timestamp(), which is volatile.
                      CAST(:after AS timestamptz), statement_timestamp() - make_interval(secs => :seconds)
                  )
                ORDER BY b.completed_at
            """),
            {"pipeline": pipeline_id, "after": after, "seconds": seconds},
        ).scalars()
        return list(rows)


def scaling_decisions(connection: sa.Connection) -> list[ScalingDecision]:
    """Return the newest decision for each declared pipeline that has one. No locks; costs its `newest_batches`."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT p.name, d.ratio, d.batches, d.executors, d.batch_drivers, d.applied, d.reason, d.since,
                    d.decided_at, clock_timestamp() - d.decided_at,
                    (
                        SELECT count(*)
                        FROM (
                            SELECT
                            FROM forebay.batches b
                            WHERE b.pipeline_id = p.id
                              AND b.attempt > 0
                              -- No index is searched for clock_timestamp(), which is volatile.
                              AND b.completed_at > statement_timestamp()
                                  - greatest(interval '3 min', 10 * p.batch_interval * greatest(1, d.ratio))
                            ORDER BY b.completed_at DESC
                            LIMIT 10
                        ) AS newest
                    )
                FROM forebay.scaling_decisions d
                JOIN forebay.pipelines p ON p.id = d.pipeline_id
                WHERE p.removed_at IS NULL
                ORDER BY p.name
            """)
        ).all()
    return [ScalingDecision(*row) for row in rows]


def scaling_decision(connection: sa.Connection, pipeline: str) -> ScalingDecision | None:
    """Return the newest decision for a pipeline; None if there is none yet. No locks."""
    return next((row for row in scaling_decisions(connection) if row.pipeline == pipeline), None)


def wanted_batch_drivers(connection: sa.Connection, host: str) -> int:
    """Return a host's share of the batch drivers that all pipelines need: one, plus the applied decisions' extras.

    No locks.
    """
    with named_failures():
        wanted: int = connection.execute(
            sa.text("SELECT forebay.wanted_batch_drivers(:host)"), {"host": host}
        ).scalar_one()
    return wanted


def record_scaling(
    connection: sa.Connection,
    *,
    pipeline_id: int,
    ratio: float,
    batches: int,
    executors: int,
    batch_drivers: int,
    applied: bool,
    reason: str,
) -> None:
    """Record a decision; numbers that stay the same keep their `since`. Locks: the pipeline's decision."""
    with named_failures():
        connection.execute(
            sa.text("""
                INSERT INTO forebay.scaling_decisions AS d (
                    pipeline_id, ratio, batches, executors, batch_drivers, applied, reason
                )
                VALUES (:pipeline, :ratio, :batches, :executors, :drivers, :applied, :reason)
                ON CONFLICT (pipeline_id) DO UPDATE
                SET ratio = excluded.ratio, batches = excluded.batches, executors = excluded.executors,
                    batch_drivers = excluded.batch_drivers, applied = excluded.applied, reason = excluded.reason,
                    decided_at = clock_timestamp(),
                    since = CASE WHEN (d.executors, d.batch_drivers, d.applied)
                        = (excluded.executors, excluded.batch_drivers, excluded.applied)
                        THEN d.since ELSE clock_timestamp() END
            """),
            {
                "pipeline": pipeline_id,
                "ratio": ratio,
                "batches": batches,
                "executors": executors,
                "drivers": batch_drivers,
                "applied": applied,
                "reason": reason,
            },
        )
