"""Delete finished batches, events, ended processes and removed receivers that are no longer needed.

The functions decide what may go (``functions/clean_up/clean_up_history.sql``, ``clean_up_events.sql``,
``forget_receivers.sql``). ``cleanup`` handles blocks and their files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.receivers.leadership import DeposedError

if TYPE_CHECKING:
    from datetime import timedelta

    from tracker_store.retention.cleanup import Slice


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Count the rows that were deleted; `more`: there are more to delete now."""

    rows: int
    more: bool


def pipelines_with_history(connection: sa.Connection, *, keep: timedelta, part: Slice) -> list[int]:
    """Return the pipelines of which `clean_up_history` would take something, and those of the `part`; removed ones too.

    May return a pipeline that has nothing to take: what a quarantined batch or a replay holds is not asked. No locks.
    Cost: a few probes for each pipeline, and its quarantined batches that are older than `keep`.
    """
    with named_failures():
        return list(
            connection.execute(
                sa.text("""
                    SELECT p.id
                    FROM forebay.pipelines p
                    -- As in clean_up_history: only batches before this time may go.
                    CROSS JOIN LATERAL (
                        SELECT CASE
                            WHEN p.removed_at < clock_timestamp() - CAST(:keep AS interval) THEN 'infinity'
                            WHEN p.removed_at IS NOT NULL THEN '-infinity'
                            ELSE least(
                                clock_timestamp() - greatest(CAST(:keep AS interval), p.retention),
                                p.last_batch_time - p.retention,
                                (
                                    SELECT t.batch_time
                                    FROM forebay.batches t
                                    WHERE t.pipeline_id = p.id
                                      AND t.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
                                    ORDER BY t.batch_time LIMIT 1
                                ) - p.retention,
                                (
                                    SELECT min(s.from_time)
                                    FROM forebay.state_replays s
                                    WHERE s.pipeline_id = p.id AND s.state IN ('RUNNING', 'STOPPED', 'UNDOING')
                                ) - p.retention
                            ) END AS before
                        OFFSET 0
                    ) AS may_go
                    WHERE mod(p.id, :slices) = :slice
                       -- Any batch that it has not looked at yet; and of the earlier ones, those that are finished now.
                       OR EXISTS (
                           SELECT
                           FROM forebay.batches t
                           WHERE t.pipeline_id = p.id
                             AND t.batch_time < may_go.before
                             AND (
                                 t.batch_time >= coalesce(p.history_from, '-infinity')
                                 OR t.state IN ('COMPLETED', 'DISCARDED')
                             )
                           OFFSET 0
                       )
                    ORDER BY p.id
                """),
                {"keep": keep, "slices": part.slices, "slice": part.number},
            ).scalars()
        )


def clean_up_history(
    connection: sa.Connection, *, pipeline_id: int, keep: timedelta, max_rows: int, term: int | None = None
) -> Forgotten:
    """Delete a pipeline's old batches. Locks: leadership FOR SHARE (with a term), the pipeline's row, the batches.

    Raises DeposedError.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT outcome, batches, more
                FROM forebay.clean_up_history(CAST(:term AS bigint), :pipeline, :keep, :rows)
            """),
            {"term": term, "pipeline": pipeline_id, "keep": keep, "rows": max_rows},
        ).one()
    if row.outcome == "deposed":
        raise DeposedError(f"term {term} is over")
    return Forgotten(row.batches, row.more)


@dataclass(frozen=True, slots=True)
class ForgottenReceivers:
    """Count what one call did with removed receivers: sequences that it closed, receivers that it deleted.

    `last_id`: continue after it; null: there are no more.
    """

    last_id: int | None
    closed: int
    forgotten: int


def forget_receivers(
    connection: sa.Connection, *, keep: timedelta, max_rows: int, after_id: int = 0, term: int | None = None
) -> ForgottenReceivers:
    """Delete those of the next `max_rows` removed receivers that nothing needs, and close the sequences of the others.

    Locks: leadership FOR SHARE (with a term), those receivers' rows. Raises DeposedError.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT outcome, last_id, closed, forgotten
                FROM forebay.forget_receivers(CAST(:term AS bigint), :keep, :after, :rows)
            """),
            {"term": term, "keep": keep, "after": after_id, "rows": max_rows},
        ).one()
    if row.outcome == "deposed":
        raise DeposedError(f"term {term} is over")
    return ForgottenReceivers(row.last_id, row.closed, row.forgotten)


def clean_up_events(connection: sa.Connection, *, keep: timedelta, max_rows: int, term: int | None = None) -> Forgotten:
    """Delete old events, dead letters and ended processes. Locks: leadership FOR SHARE (with a term).

    Raises DeposedError.
    """
    with named_failures():
        row = connection.execute(
            sa.text("SELECT outcome, events, more FROM forebay.clean_up_events(CAST(:term AS bigint), :keep, :rows)"),
            {"term": term, "keep": keep, "rows": max_rows},
        ).one()
    if row.outcome == "deposed":
        raise DeposedError(f"term {term} is over")
    return Forgotten(row.events, row.more)
