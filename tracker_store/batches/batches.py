"""Read and write `batches` and `batch_attempts`: which batch is next, which run holds it, how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import sqlalchemy as sa

from tracker_store.batches.retry import LONGEST, MAX_LOST_ATTEMPTS, PAUSES
from tracker_store.connection.engine import named_failures
from tracker_store.connection.errors import (
    AttemptSupersededError,
    BatchHeldError,
    BlocksNotRetainedError,
    DriverLogError,
    StatefulReplayError,
)
from tracker_store.receivers.leadership import LED
from tracker_store.schema.batch_calendar import DecidedTimes
from tracker_store.schema.states import AttemptFailure, AttemptKind, AttemptState, BatchState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from tracker_store.schema.declarations import PipelineDeclaration

NOT_DISCARDABLE = (
    "Only a batch that is QUARANTINED or BLOCKED, and does not run, can be discarded: `forebay batches` shows them."
)
_NOT_COMMITTED = "Run all outputs of the pipeline: a batch can't complete before each of its outputs is committed."


@dataclass(frozen=True, slots=True)
class BatchRow:
    """Hold a batch as stored; `retry_due`: no backoff delays its next attempt.

    `run_id`, `attempt_state` and `attempt_error` are its newest attempt's; `reason` may be an earlier attempt's, if
    that says more. `launch_attempt` is the attempt whose run Dagster was asked for last, if any; `launch_age` is the
    time since then in seconds.
    """

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
    launch_attempt: int | None = None
    launch_age: float | None = None
    attempt_state: AttemptState | None = None
    attempt_error: str = ""


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """Hold an attempt at a batch, as stored."""

    attempt: int
    kind: AttemptKind
    state: AttemptState
    run_id: str
    started_at: datetime
    ended_at: datetime | None
    error: str


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """Identify an attempt whose process must be watched."""

    pipeline_id: int
    batch_time: datetime
    attempt: int
    run_id: str
    process_id: int


_BATCH = f"""
    SELECT b.batch_time, b.oldest_time, b.state, b.attempt, b.records, b.bytes, b.blocks, b.retry_at, b.reason,
        -- If the clock was set back, nothing may wait until it has caught up.
        b.launch_attempt, abs(extract(epoch FROM clock_timestamp() - b.launched_at))::float8 AS launch_age,
        -- A time further off than any backoff means that the clock was set back.
        b.retry_at IS NULL
            OR b.retry_at NOT BETWEEN clock_timestamp()
                AND clock_timestamp() + interval '{LONGEST.total_seconds():g} seconds' AS retry_due,
        a.run_id, a.state AS attempt_state, coalesce(a.error, '') AS attempt_error
    FROM forebay.batches b
    LEFT JOIN forebay.batch_attempts a ON a.pipeline_id = b.pipeline_id
      AND a.batch_time = b.batch_time
      AND a.attempt = b.attempt
"""  # noqa: S608  a number of ours


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
        launch_attempt=row.launch_attempt,
        launch_age=row.launch_age,
        attempt_state=None if row.attempt_state is None else AttemptState(row.attempt_state),
        attempt_error=row.attempt_error,
    )


def get_batch(connection: sa.Connection, pipeline_id: int, batch_time: datetime) -> BatchRow | None:
    """Return one batch, or None. No locks."""
    with named_failures():
        row = connection.execute(
            sa.text(f"""
                {_BATCH}
                WHERE b.pipeline_id = :pipeline AND b.batch_time = :time
            """),
            {"pipeline": pipeline_id, "time": batch_time},
        ).one_or_none()
    return None if row is None else _batch(row)


def unfinished_batches(connection: sa.Connection, pipeline_id: int, *, limit: int) -> list[BatchRow]:
    """Return the pipeline's unfinished batches, oldest first. No locks; the partial index holds few rows."""
    with named_failures():
        rows = connection.execute(
            sa.text(f"""
                {_BATCH}
                WHERE b.pipeline_id = :pipeline AND b.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
                ORDER BY b.batch_time LIMIT :limit
            """),
            {"pipeline": pipeline_id, "limit": limit},
        ).all()
    return [_batch(row) for row in rows]


def running_batches(connection: sa.Connection, pipeline_id: int) -> list[datetime]:
    """Return the times of the pipeline's batches of which an attempt or a replay runs, or an attempt was launched.

    No locks; both partial indexes hold few rows.
    """
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT batch_time FROM forebay.batch_attempts WHERE pipeline_id = :pipeline AND state = 'RUNNING'
                UNION
                SELECT batch_time FROM forebay.batches
                WHERE pipeline_id = :pipeline AND state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
                  AND launch_attempt = attempt + 1
            """),
            {"pipeline": pipeline_id},
        )
    return list(rows.scalars())


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


def claim_replay(
    connection: sa.Connection,
    *,
    pipeline_id: int,
    batch_time: datetime,
    run_id: str,
    process_id: int,
    reach: timedelta,
    stateful: Sequence[str] = (),
    forward: int | None = None,
) -> int:
    """Take the next attempt of a finished batch to run it again; returns the attempt's number.

    `reach` is the longest window that it reads (0: no window). `stateful` names the outputs with a state that it would
    compute; `forward` is the replay forward that it is part of. Locks: the receivers' rows FOR SHARE, the batch's row.
    Raises BatchHeldError, BlocksNotRetainedError where a block that it would read is gone, and, without `forward`,
    StatefulReplayError where a later batch has read the state as it was.
    """
    with named_failures():
        row = connection.execute(
            sa.text(
                "SELECT outcome, detail, number FROM forebay.claim_replay("
                ":pipeline, :time, :run, :process, :reach, CAST(:stateful AS text[]), :forward)"
            ),
            {
                "pipeline": pipeline_id,
                "time": batch_time,
                "run": run_id,
                "process": process_id,
                "reach": reach,
                "stateful": list(stateful),
                "forward": forward,
            },
        ).one()
    if row.outcome == "not retained":
        raise BlocksNotRetainedError(row.detail)
    if row.outcome == "has state":
        raise StatefulReplayError(row.detail)
    if row.outcome != "claimed":
        raise BatchHeldError(row.detail)
    number: int = row.number
    return number


def decided_times(connection: sa.Connection, pipeline_id: int, batch_time: datetime) -> DecidedTimes | None:
    """Return what its pipeline's calendar decided with a batch; None: there is no calendar, or no batch. No locks."""
    with named_failures():
        stored = connection.execute(
            sa.text("SELECT calendar FROM forebay.batches WHERE pipeline_id = :pipeline AND batch_time = :time"),
            {"pipeline": pipeline_id, "time": batch_time},
        ).scalar_one_or_none()
    return DecidedTimes.of(stored)


def is_due(
    connection: sa.Connection, pipeline_id: int, declared: PipelineDeclaration, output: str, batch_time: datetime
) -> bool:
    """Return whether an output is computed in a batch, also one that is not declared any more. No locks."""
    found = declared.outputs.get(output)
    if found is None:
        return True
    calendar = declared.calendar
    decided = None if calendar is None else decided_times(connection, pipeline_id, batch_time)
    return found.is_due(batch_time, calendar, decided)


def fail_attempt(
    connection: sa.Connection,
    *,
    pipeline_id: int,
    batch_time: datetime,
    attempt: int,
    run_id: str,
    error: str,
    max_attempts: int,
    failure: AttemptFailure = AttemptFailure.FAILED,
    max_lost_attempts: int = MAX_LOST_ATTEMPTS,
    pauses: Sequence[timedelta] | None = None,
    term: int | None = None,
) -> BatchState | None:
    """End an attempt as `failure` says; returns the batch's state, or None if it was not the batch's attempt.

    FAILED attempts count in `max_attempts`, LOST ones in `max_lost_attempts`: the last one allowed leaves the batch
    QUARANTINED, an earlier one leaves it FAILED. A BLOCKED attempt (the block store can't be reached) leaves the batch
    BLOCKED and is not counted. A replay leaves the batch as it is. The next attempt waits for one of `pauses`,
    the last one at most; None: ``retry.PAUSES`` for the kind of failure. The leader passes its `term`, and the call has
    an effect only in that term; other callers pass None. Locks: leadership FOR SHARE, the pipeline's row, the batch's
    row.
    """
    with named_failures():
        outcome: str | None = connection.execute(
            sa.text(f"""
                {LED}
                SELECT forebay.end_attempt(
                    :pipeline, :time, :attempt, :run, :error, :failure, :max_attempts, :max_lost_attempts,
                    CAST(:pauses AS interval[])
                )
                FROM led
            """),  # noqa: S608  a constant
            {
                "term": term,
                "pipeline": pipeline_id,
                "time": batch_time,
                "attempt": attempt,
                "run": run_id,
                "error": error,
                "failure": failure.value,
                "max_attempts": max_attempts,
                "max_lost_attempts": max_lost_attempts,
                "pauses": list(PAUSES[failure] if pauses is None else pauses),
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
    """Complete a batch whose `outputs` are all committed. Locks: the batch's row.

    Raises AttemptSupersededError and DriverLogError.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT outcome, detail
                FROM forebay.complete_attempt(:pipeline, :time, :attempt, CAST(:outputs AS text[]))
            """),
            {"pipeline": pipeline_id, "time": batch_time, "attempt": attempt, "outputs": list(outputs)},
        ).one()
    if row.outcome == "superseded":
        raise AttemptSupersededError(row.detail)
    if row.outcome == "not committed":
        raise DriverLogError(row.detail, _NOT_COMMITTED)


def complete_replay(
    connection: sa.Connection,
    *,
    pipeline_id: int,
    batch_time: datetime,
    attempt: int,
    outputs: Sequence[str],
    due: Sequence[str],
) -> None:
    """End a replay that has replaced `outputs`; complete a QUARANTINED batch once all outputs in `due` are committed.

    Locks: the pipeline's row, the batch's row. Raises AttemptSupersededError and DriverLogError.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT outcome, detail
                FROM forebay.complete_attempt(
                    :pipeline, :time, :attempt, CAST(:outputs AS text[]), CAST(:due AS text[])
                )
            """),
            {
                "pipeline": pipeline_id,
                "time": batch_time,
                "attempt": attempt,
                "outputs": list(outputs),
                "due": list(due),
            },
        ).one()
    if row.outcome == "superseded":
        raise AttemptSupersededError(row.detail)
    if row.outcome == "not committed":
        raise DriverLogError(row.detail, _NOT_COMMITTED)


def discard_batch(connection: sa.Connection, *, pipeline_id: int, batch_time: datetime) -> int:
    """Discard a quarantined or blocked batch; returns how many sequences were kept for it, markers too.

    Locks: the pipeline's row, the batch's row. Raises DriverLogError.
    """
    with named_failures():
        row = connection.execute(
            sa.text("SELECT outcome, detail, kept FROM forebay.discard_batch(:pipeline, :time)"),
            {"pipeline": pipeline_id, "time": batch_time},
        ).one()
    if row.outcome != "discarded":
        raise DriverLogError(row.detail, NOT_DISCARDABLE)
    kept: int = row.kept
    return kept


def list_batches(
    connection: sa.Connection,
    pipeline_id: int,
    *,
    first: datetime | None = None,
    last: datetime | None = None,
    states: Sequence[BatchState] = (),
    which: Literal["all", "ran", "with records"] = "all",
    limit: int,
) -> list[BatchRow]:
    """Return the batches from `first` to `last` in these states (none given: any), newest first. No locks.

    `which`: all, those that ran (also without records: an output's window may reach back), or those with records of
    their own interval.
    """
    with named_failures():
        rows = connection.execute(
            sa.text(f"""
                {_BATCH}
                WHERE b.pipeline_id = :pipeline
                  AND (CAST(:first AS timestamptz) IS NULL OR b.batch_time >= :first)
                  AND (CAST(:last AS timestamptz) IS NULL OR b.batch_time <= :last)
                  AND (cardinality(CAST(:states AS text[])) = 0 OR b.state = ANY (CAST(:states AS text[])))
                  AND (:which = 'all' OR b.records > 0 OR (:which = 'ran' AND b.attempt > 0))
                ORDER BY b.batch_time DESC LIMIT :limit
            """),
            {
                "pipeline": pipeline_id,
                "first": first,
                "last": last,
                "states": [state.value for state in states],
                "which": which,
                "limit": limit,
            },
        ).all()
    return [_batch(row) for row in rows]


def latest_batch(connection: sa.Connection, pipeline_id: int, states: Sequence[BatchState] = ()) -> BatchRow | None:
    """Return what people mean by the latest batch in these states (none given: any). No locks.

    It is the newest one with records of its own interval; if none has any, the newest that ran; else the newest.
    """
    kinds: tuple[Literal["with records", "ran", "all"], ...] = ("with records", "ran", "all")
    found = (list_batches(connection, pipeline_id, states=states, which=which, limit=1) for which in kinds)
    return next((rows[0] for rows in found if rows), None)


def attempts_of_batch(connection: sa.Connection, pipeline_id: int, batch_time: datetime) -> list[AttemptRow]:
    """Return every attempt at a batch, in the order of their numbers. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT attempt, kind, state, run_id, started_at, ended_at, error
                FROM forebay.batch_attempts
                WHERE pipeline_id = :pipeline AND batch_time = :time
                ORDER BY attempt
            """),
            {"pipeline": pipeline_id, "time": batch_time},
        ).all()
    return [
        AttemptRow(
            attempt=row.attempt,
            kind=AttemptKind(row.kind),
            state=AttemptState(row.state),
            run_id=row.run_id,
            started_at=row.started_at,
            ended_at=row.ended_at,
            error=row.error,
        )
        for row in rows
    ]


def attempts_of_ended_processes(connection: sa.Connection) -> list[RunningAttempt]:
    """Return running attempts whose process has ended or was declared dead. No locks; O(running attempts)."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT a.pipeline_id, a.batch_time, a.attempt, a.run_id, a.process_id
                FROM forebay.batch_attempts a
                JOIN forebay.processes p ON p.id = a.process_id
                WHERE a.state = 'RUNNING' AND p.ended_at IS NOT NULL
            """)
        ).all()
    return [RunningAttempt(row.pipeline_id, row.batch_time, row.attempt, row.run_id, row.process_id) for row in rows]


def attempt_is_over(
    connection: sa.Connection, *, pipeline_id: int, batch_time: datetime, attempt: int, run_id: str, since: timedelta
) -> str | None:
    """Return how a run's attempt ended if it and its process ended at least `since` ago, else None. No locks."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT a.state, a.error
                FROM forebay.batch_attempts a
                LEFT JOIN forebay.processes p ON p.id = a.process_id
                WHERE a.pipeline_id = :pipeline
                  AND a.batch_time = :time
                  AND a.attempt = :attempt
                  AND a.run_id = :run
                  AND a.ended_at < clock_timestamp() - CAST(:since AS interval)
                  AND (p.id IS NULL OR p.ended_at < clock_timestamp() - CAST(:since AS interval))
            """),
            {"pipeline": pipeline_id, "time": batch_time, "attempt": attempt, "run": run_id, "since": since},
        ).one_or_none()
    if row is None:
        return None
    how = f"attempt {attempt} at the batch {row.state}" + (f" ({row.error})" if row.error else "")
    return f"its process is gone, and {how}"


def end_of_run(
    connection: sa.Connection, *, pipeline_id: int, run_id: str, first: datetime, last: datetime, since: timedelta
) -> tuple[AttemptState, str] | None:
    """Return how a run's newest attempt at a batch from `first` to `last` ended, and its error.

    None: it has none there, or the attempt, or its process, has not ended at least `since` ago. No locks; reads the
    attempts at these batches, and while one of the run's is RUNNING the pipeline's running ones alone (a replay of a
    month goes on for hours, and this is asked every few seconds).
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT a.state, coalesce(a.error, '') AS error,
                    a.ended_at < clock_timestamp() - CAST(:since AS interval)
                    AND (p.id IS NULL OR p.ended_at < clock_timestamp() - CAST(:since AS interval)) AS is_over
                FROM forebay.batch_attempts a
                LEFT JOIN forebay.processes p ON p.id = a.process_id
                WHERE a.pipeline_id = :pipeline
                  AND a.batch_time BETWEEN :first AND :last
                  AND a.run_id = :run
                  AND NOT EXISTS (
                      SELECT 1 FROM forebay.batch_attempts r
                      WHERE r.pipeline_id = :pipeline AND r.state = 'RUNNING' AND r.run_id = :run)
                ORDER BY a.started_at DESC LIMIT 1
            """),
            {"pipeline": pipeline_id, "first": first, "last": last, "run": run_id, "since": since},
        ).one_or_none()
    return (AttemptState(row.state), row.error) if row is not None and row.is_over else None


def runs_of_batch(connection: sa.Connection, pipeline_id: int, batch_time: datetime) -> dict[int, str]:
    """Return the run of each attempt at a batch, by the attempt's number. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT attempt, run_id
                FROM forebay.batch_attempts
                WHERE pipeline_id = :pipeline AND batch_time = :time
            """),
            {"pipeline": pipeline_id, "time": batch_time},
        ).all()
    return {row.attempt: row.run_id for row in rows}
