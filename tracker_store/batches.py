"""Statements on `batches` and `batch_attempts`: which batch is next, who holds it, how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tracker_store.engine import named_failures
from tracker_store.errors import AttemptSupersededError, BatchHeldError, OutputNotCommittedError
from tracker_store.leadership import LED
from tracker_store.schema import BatchState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch as stored; `run_id` is its newest attempt's; `retry_due`: no backoff stands in the way."""

    batch_time: datetime
    oldest_time: datetime
    state: BatchState
    attempt: int
    records: int
    bytes: int
    blocks: int
    retry_due: bool
    retry_at: datetime | None
    run_id: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """An attempt whose process is to be watched."""

    pipeline_id: int
    batch_time: datetime
    attempt: int
    run_id: str
    process_id: int


_BATCH = (
    "SELECT b.batch_time, b.oldest_time, b.state, b.attempt, b.records, b.bytes, b.blocks, b.retry_at, b.reason, "
    "b.retry_at IS NULL OR b.retry_at <= clock_timestamp() AS retry_due, a.run_id "
    "FROM forebay.batches b LEFT JOIN forebay.batch_attempts a ON a.pipeline_id = b.pipeline_id "
    "AND a.batch_time = b.batch_time AND a.attempt = b.attempt "
)


def _batch(row: sa.Row[Any]) -> BatchRow:
    return BatchRow(
        batch_time=row.batch_time,
        oldest_time=row.oldest_time,
        state=BatchState(row.state),
        attempt=row.attempt,
        records=row.records,
        bytes=row.bytes,
        blocks=row.blocks,
        retry_due=row.retry_due,
        retry_at=row.retry_at,
        run_id=row.run_id,
        reason=row.reason,
    )


def get_batch(connection: sa.Connection, pipeline_id: int, batch_time: datetime) -> BatchRow | None:
    """One batch, or None. No locks."""
    with named_failures():
        row = connection.execute(
            sa.text(_BATCH + "WHERE b.pipeline_id = :pipeline AND b.batch_time = :time"),
            {"pipeline": pipeline_id, "time": batch_time},
        ).one_or_none()
    return None if row is None else _batch(row)


def oldest_unfinished_batch(connection: sa.Connection, pipeline_id: int) -> BatchRow | None:
    """The batch that the pipeline has to finish first. No locks; the partial index holds few rows."""
    with named_failures():
        row = connection.execute(
            sa.text(
                _BATCH + "WHERE b.pipeline_id = :pipeline AND b.state IN ('ALLOCATED', 'RUNNING', 'FAILED') "
                "ORDER BY b.batch_time LIMIT 1"
            ),
            {"pipeline": pipeline_id},
        ).one_or_none()
    return None if row is None else _batch(row)


def claim_attempt(
    connection: sa.Connection,
    *,
    pipeline_id: int,
    batch_time: datetime,
    attempt: int,
    run_id: str,
    process_id: int,
) -> None:
    """Take the batch's next attempt for a run. Locks: the batch's row. Raises BatchHeldError, naming the holder."""
    with named_failures():
        row = connection.execute(
            sa.text("SELECT outcome, detail FROM forebay.claim_attempt(:pipeline, :time, :attempt, :run, :process)"),
            {
                "pipeline": pipeline_id,
                "time": batch_time,
                "attempt": attempt,
                "run": run_id,
                "process": process_id,
            },
        ).one()
    if row.outcome != "claimed":
        raise BatchHeldError(row.detail)


def fail_attempt(
    connection: sa.Connection,
    *,
    pipeline_id: int,
    batch_time: datetime,
    attempt: int,
    run_id: str,
    error: str,
    max_attempts: int,
    retry_after: timedelta,
    term: int | None = None,
) -> BatchState | None:
    """End an attempt as failed; returns FAILED or QUARANTINED, or None where it was not the batch's attempt.

    With `term` it is the leader's word, and counts in that term only (None else). Locks: leadership FOR SHARE,
    the batch's row.
    """
    with named_failures():
        outcome: str | None = connection.execute(
            sa.text(
                LED
                + "SELECT forebay.fail_attempt(:pipeline, :time, :attempt, :run, :error, :max_attempts, :retry_after) "
                "FROM led"
            ),
            {
                "term": term,
                "pipeline": pipeline_id,
                "time": batch_time,
                "attempt": attempt,
                "run": run_id,
                "error": error,
                "max_attempts": max_attempts,
                "retry_after": retry_after,
            },
        ).scalar_one_or_none()
    return None if outcome in (None, "not its attempt") else BatchState(outcome)


def complete_batch(
    connection: sa.Connection,
    *,
    pipeline_id: int,
    batch_time: datetime,
    attempt: int,
    outputs: Sequence[str],
) -> None:
    """Complete a batch all of whose `outputs` are committed. Locks: the batch's row.

    Raises AttemptSupersededError and OutputNotCommittedError.
    """
    with named_failures():
        row = connection.execute(
            sa.text(
                "SELECT outcome, detail FROM forebay.complete_batch("
                ":pipeline, :time, :attempt, CAST(:outputs AS text[]))"
            ),
            {"pipeline": pipeline_id, "time": batch_time, "attempt": attempt, "outputs": list(outputs)},
        ).one()
    if row.outcome == "superseded":
        raise AttemptSupersededError(row.detail)
    if row.outcome == "not committed":
        raise OutputNotCommittedError(row.detail)


def attempts_of_ended_processes(connection: sa.Connection) -> list[RunningAttempt]:
    """Running attempts whose process has ended (or was declared dead). No locks; O(running attempts)."""
    with named_failures():
        rows = connection.execute(
            sa.text(
                "SELECT a.pipeline_id, a.batch_time, a.attempt, a.run_id, a.process_id "
                "FROM forebay.batch_attempts a JOIN forebay.processes p ON p.id = a.process_id "
                "WHERE a.state = 'RUNNING' AND p.ended_at IS NOT NULL"
            )
        ).all()
    return [RunningAttempt(row.pipeline_id, row.batch_time, row.attempt, row.run_id, row.process_id) for row in rows]
