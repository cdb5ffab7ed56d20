"""Stop and start pipelines, and report how far a stop has come.

An operator's command writes the desired state (STOPPING, RUNNING) and watches; the leading tracker completes it step by
step (``functions/declarations/advance_stops.sql``). So a command that is interrupted or times out leaves nothing half
done.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.batches.pipelines import unknown_pipeline
from tracker_store.batches.received_block_tracker import known_zones
from tracker_store.connection.engine import named_failures
from tracker_store.schema.batch_calendar import BatchCalendar
from tracker_store.schema.states import PipelineState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class StopProgress:
    """Describe what keeps a pipeline from being STOPPED.

    `receivers` have not ended (STREAM/N, with their state); `waiting_records` are in blocks that no batch has;
    `unfinished_batches` are counted, and the next four fields describe the oldest. `quarantined_batches` don't delay
    the stop: they wait for a person.
    """

    pipeline: str
    state: PipelineState
    state_since: datetime
    receivers: tuple[str, ...]
    waiting_blocks: int
    waiting_records: int
    unfinished_batches: int
    batch_time: datetime | None
    batch_state: str | None
    batch_attempt: int | None
    batch_reason: str | None
    quarantined_batches: int


def stop_pipelines(connection: sa.Connection, *, name: str | None = None) -> list[str]:
    """Request the stop of one pipeline, or of all and then of the system; returns their names.

    Repeating it changes nothing. If every pipeline is removed, one of these holds the request. Locks: those pipelines'
    rows. Raises NotAppliedError for an unknown name.
    """
    with named_failures():
        names = (
            connection.execute(
                sa.text("""
                    UPDATE forebay.pipelines
                    SET ends_system = ends_system OR CAST(:name AS text) IS NULL,
                        state = CASE WHEN state = 'RUNNING' THEN 'STOPPING' ELSE state END,
                        state_since = CASE WHEN state = 'RUNNING' THEN clock_timestamp() ELSE state_since END
                    WHERE removed_at IS NULL AND (CAST(:name AS text) IS NULL OR name = :name)
                    RETURNING name
                """),
                {"name": name},
            )
            .scalars()
            .all()
        )
        if name is None and not names:
            # Hold the request where no live row can. Locks: the row of the pipeline that was applied last.
            connection.execute(
                sa.text("""
                    UPDATE forebay.pipelines
                    SET ends_system = true, state_since = clock_timestamp()
                    WHERE NOT ends_system AND removed_at IS NOT NULL
                      AND id = (SELECT max(id) FROM forebay.pipelines)
                """)
            )
    return _known(connection, names, name)


def start_pipelines(
    connection: sa.Connection, *, names: Sequence[str] | None = None, lift_halts: bool = True
) -> list[str]:
    """Let pipelines run (no names: all); returns those that were not running.

    With `lift_halts`, pipelines that a quarantined batch has halted go on too. Any start takes back the request to end
    the system.

    A pipeline that was STOPPED with nothing waiting goes on at the next batch time: no batches are made for the
    intervals in between. Locks: those pipelines' rows. Raises NotAppliedError for an unknown name.
    """
    with named_failures():
        known = set(
            connection.execute(sa.text("SELECT name FROM forebay.pipelines WHERE removed_at IS NULL")).scalars()
        )
    for name in names or ():
        _known(connection, [name] if name in known else [], name)
    with named_failures():
        if names is None or names:
            # Take the request back also where a pipeline that stays stopped, or is removed, holds it. Locks: its row.
            connection.execute(sa.text("UPDATE forebay.pipelines SET ends_system = false WHERE ends_system"))
        boundaries = json.dumps(_boundaries_of_stopped(connection))
        rows = connection.execute(
            sa.text("""
                WITH before AS (
                    SELECT p.id, p.state,
                        NOT EXISTS (
                            SELECT
                            FROM forebay.stream_lag w
                            WHERE w.pipeline_id = p.id AND w.waiting_records > 0
                        ) AS nothing_waits,
                        c.newest, c.next
                    FROM forebay.pipelines p
                    LEFT JOIN jsonb_to_recordset(CAST(:boundaries AS jsonb)) AS c (
                        id bigint, newest timestamptz, next timestamptz
                    ) ON c.id = p.id
                    WHERE p.removed_at IS NULL
                      AND (p.state <> 'RUNNING' OR p.halted_by IS NOT NULL AND :lift)
                      AND (CAST(:names AS text[]) IS NULL OR p.name = ANY (CAST(:names AS text[])))
                )
                UPDATE forebay.pipelines p
                SET state = 'RUNNING',
                    state_since = CASE WHEN p.state = 'RUNNING' THEN p.state_since ELSE clock_timestamp() END,
                    ends_system = false, halted_by = CASE WHEN :lift THEN NULL ELSE p.halted_by END,
                    last_batch_time = CASE
                        WHEN p.state = 'STOPPED' AND b.state = 'STOPPED' AND b.nothing_waits THEN greatest(
                            p.last_batch_time,
                            coalesce(
                                b.newest, date_bin(p.batch_interval, clock_timestamp(), timestamptz 'epoch')
                            )
                        )
                        ELSE p.last_batch_time
                    END,
                    next_batch_time = CASE
                        WHEN p.state = 'STOPPED' AND b.state = 'STOPPED' AND b.nothing_waits
                          AND b.newest > p.last_batch_time
                        THEN b.next
                        ELSE p.next_batch_time
                    END
                FROM before b
                WHERE b.id = p.id AND (p.state <> 'RUNNING' OR p.halted_by IS NOT NULL AND :lift)
                RETURNING p.name
            """),
            {"names": None if names is None else list(names), "lift": lift_halts, "boundaries": boundaries},
        ).scalars()
        return sorted(rows)


def _boundaries_of_stopped(connection: sa.Connection) -> list[dict[str, object]]:
    """Return for each STOPPED pipeline with a calendar its newest boundary and the next. No locks."""
    rows = connection.execute(
        sa.text("""
            SELECT p.id, p.declaration -> 'calendar' AS calendar, clock_timestamp() AS now
            FROM forebay.pipelines p
            WHERE p.removed_at IS NULL AND p.state = 'STOPPED' AND p.declaration ? 'calendar'
        """)
    ).all()
    found: list[dict[str, object]] = []
    for row in rows:
        calendar = BatchCalendar.of(row.calendar)
        if calendar is None:
            continue
        with known_zones():
            newest = calendar.newest_up_to(row.now)
            following = calendar.next_after(newest)
        found.append({"id": row.id, "newest": newest.isoformat(), "next": following.isoformat()})
    return found


def _known(connection: sa.Connection, names: Sequence[str], name: str | None) -> list[str]:
    if name is not None and not names:
        raise unknown_pipeline(connection, name)
    return sorted(names)


def advance_stops(connection: sa.Connection, *, term: int) -> list[tuple[str, int | None]]:
    """Take each stop and start one step further; returns (outcome, id of receiver or pipeline) for each change.

    Locks: leadership FOR SHARE, the pipelines that do not run, the receivers that change.
    """
    with named_failures():
        rows = connection.execute(sa.text("SELECT outcome, id FROM forebay.advance_stops(:term)"), {"term": term}).all()
    return [(row.outcome, row.id) for row in rows]


def any_stopping(connection: sa.Connection) -> bool:
    """Return whether a pipeline is on its way to STOPPED. No locks; reads the pipelines' rows."""
    with named_failures():
        stopping: bool = connection.execute(
            sa.text("SELECT EXISTS (SELECT FROM forebay.pipelines WHERE state = 'STOPPING' AND removed_at IS NULL)")
        ).scalar_one()
    return stopping


def all_ended(connection: sa.Connection, *, after_seconds: float = 0.0) -> bool:
    """Return whether a stop of the system was requested and all is STOPPED or removed for `after_seconds`.

    A time in the future, from before the clock was set back, is one that has passed. No locks.
    """
    with named_failures():
        ended: bool | None = connection.execute(
            sa.text("""
                SELECT bool_or(ends_system) AND bool_and(
                    (removed_at IS NOT NULL OR ends_system AND state = 'STOPPED')
                    AND greatest(state_since, removed_at) NOT BETWEEN
                        clock_timestamp() - make_interval(secs => :seconds) AND clock_timestamp()
                )
                FROM forebay.pipelines
            """),
            {"seconds": after_seconds},
        ).scalar_one()
    return bool(ended)


def stop_progress(connection: sa.Connection, names: Sequence[str]) -> list[StopProgress]:
    """Return how far the stops of these pipelines have come. No locks; two probes per pipeline and receiver."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT p.name, p.state, p.state_since,
                    ARRAY(
                        SELECT s.name || '/' || r.ordinal || ' ' || r.state
                        FROM forebay.receivers r
                        JOIN forebay.streams s ON s.id = r.stream_id
                        WHERE r.stream_id = ANY (p.stream_ids)
                          AND r.removed_at IS NULL
                          AND r.state IN ('SCHEDULED', 'ACTIVE', 'PAUSED')
                          AND NOT EXISTS (
                              SELECT
                              FROM forebay.pipelines o
                              WHERE o.removed_at IS NULL AND o.state = 'RUNNING' AND r.stream_id = ANY (o.stream_ids)
                          )
                        ORDER BY s.name, r.ordinal
                    ) AS receivers,
                    lag.blocks, lag.records, unfinished.batches, oldest.batch_time, oldest.state AS batch_state,
                    oldest.attempt, oldest.reason, unfinished.quarantined
                FROM forebay.pipelines p
                CROSS JOIN LATERAL (
                    SELECT coalesce(sum(w.waiting_blocks), 0)::bigint AS blocks,
                        coalesce(sum(w.waiting_records), 0)::bigint AS records
                    FROM forebay.stream_lag w
                    WHERE w.pipeline_id = p.id
                      AND (
                          w.oldest_added_at < p.state_since
                          OR NOT EXISTS (
                              SELECT
                              FROM forebay.pipelines o
                              WHERE o.removed_at IS NULL AND o.state = 'RUNNING' AND w.stream_id = ANY (o.stream_ids)
                          )
                      )
                ) AS lag
                CROSS JOIN LATERAL (
                    SELECT count(*) FILTER (WHERE b.state <> 'QUARANTINED') AS batches,
                        count(*) FILTER (WHERE b.state = 'QUARANTINED') AS quarantined
                    FROM forebay.batches b
                    WHERE b.pipeline_id = p.id
                      AND b.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED', 'QUARANTINED')
                ) AS unfinished
                LEFT JOIN LATERAL (
                    SELECT b.batch_time, b.state, b.attempt, b.reason
                    FROM forebay.batches b
                    WHERE b.pipeline_id = p.id AND b.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
                    ORDER BY b.batch_time LIMIT 1
                ) AS oldest ON true
                WHERE p.removed_at IS NULL AND p.name = ANY (CAST(:names AS text[]))
                ORDER BY p.name
            """),
            {"names": list(names)},
        ).all()
    return [
        StopProgress(
            pipeline=row.name,
            state=PipelineState(row.state),
            state_since=row.state_since,
            receivers=tuple(row.receivers),
            waiting_blocks=row.blocks,
            waiting_records=row.records,
            unfinished_batches=row.batches,
            batch_time=row.batch_time,
            batch_state=row.batch_state,
            batch_attempt=row.attempt,
            batch_reason=row.reason,
            quarantined_batches=row.quarantined,
        )
        for row in rows
    ]
