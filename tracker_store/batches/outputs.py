"""Read and write `output_commits`: the row that makes an attempt's result the one that counts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.connection.errors import AttemptSupersededError, StateMovedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

# How `commit_output` refuses a version of an output's state.
_MOVED = ("moved elsewhere", "no version")


@dataclass(frozen=True, slots=True)
class OutputCommit:
    """Hold the result that counts for (pipeline, output, batch time). `location`: the attempt's own, immutable path."""

    output: str
    batch_time: datetime
    attempt: int
    location: str
    rows: int | None
    code_version: str | None = None
    #: The attempt that wrote the version of the output's state that goes with it; None: the output has none.
    state_attempt: int | None = None


def commit_output(
    connection: sa.Connection,
    *,
    pipeline_id: int,
    batch_time: datetime,
    attempt: int,
    output: str,
    location: str,
    rows: int | None,
    to_publish: bool = False,
    code_version: str | None = None,
    state: bool = False,
    state_attempt: int | None = None,
) -> None:
    """Commit an attempt's result, made by this code; with `to_publish` readers see it only after another step.

    `state`: the version of the output's state that this attempt wrote is in force with it. `state_attempt`: the same
    for the version of another attempt, whose commit in the target is adopted, or that a replay forward had replaced.

    Locks: the batch's row, the output's head, then the commit's. Raises AttemptSupersededError, and StateMovedError if
    the version did not read the one that is in force, or is not whole: nothing is committed then.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT outcome, detail
                FROM forebay.commit_output(
                    :pipeline, :time, :attempt, :output, :location, :rows, :to_publish, code => :code,
                    state_version => :state_attempt
                )
            """),
            {
                "pipeline": pipeline_id,
                "time": batch_time,
                "attempt": attempt,
                "output": output,
                "location": location,
                "rows": rows,
                "to_publish": to_publish,
                "code": code_version,
                "state_attempt": attempt if state and state_attempt is None else state_attempt,
            },
        ).one()
    if row.outcome in _MOVED:
        raise StateMovedError(row.detail)
    if row.outcome != "committed":
        raise AttemptSupersededError(row.detail)


def commits_of_batch(connection: sa.Connection, pipeline_id: int, batch_time: datetime) -> list[OutputCommit]:
    """Return what is committed for a batch. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT output, batch_time, attempt, location, rows, code_version, state_attempt
                FROM forebay.output_commits
                WHERE pipeline_id = :pipeline AND batch_time = :time
                ORDER BY output
            """),
            {"pipeline": pipeline_id, "time": batch_time},
        ).all()
    return [_commit(row) for row in rows]


def commit_of_output(
    connection: sa.Connection, pipeline_id: int, output: str, batch_time: datetime
) -> OutputCommit | None:
    """Return the commit that counts for an output of a batch. No locks."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT output, batch_time, attempt, location, rows, code_version, state_attempt
                FROM forebay.output_commits
                WHERE pipeline_id = :pipeline AND output = :output AND batch_time = :time
            """),
            {"pipeline": pipeline_id, "output": output, "time": batch_time},
        ).one_or_none()
    return None if row is None else _commit(row)


def _commit(row: sa.Row[Any]) -> OutputCommit:
    return OutputCommit(
        row.output, row.batch_time, row.attempt, row.location, row.rows, row.code_version, row.state_attempt
    )


def commits_to_publish(
    connection: sa.Connection, pipeline_id: int, outputs: Sequence[str], *, limit: int
) -> list[tuple[str, datetime]]:
    """Return commits of `outputs` that readers don't see yet, as (output, batch time), oldest first. No locks.

    Batches with a running attempt are left out: the process that made the commits is about to publish them, or has not
    been declared dead yet.
    """
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT c.output, c.batch_time
                FROM forebay.output_commits c
                WHERE c.pipeline_id = :pipeline
                  AND c.to_publish
                  AND c.output = ANY (:outputs)
                  AND NOT EXISTS (
                      SELECT
                      FROM forebay.batch_attempts a
                      WHERE a.pipeline_id = c.pipeline_id AND a.batch_time = c.batch_time AND a.state = 'RUNNING'
                  )
                ORDER BY c.batch_time, c.output LIMIT :limit
            """),
            {"pipeline": pipeline_id, "outputs": list(outputs), "limit": limit},
        ).all()
    return [(row.output, row.batch_time) for row in rows]


def commits_to_follow(
    connection: sa.Connection, pipeline_id: int, outputs: Sequence[str], *, within: timedelta, limit: int
) -> list[tuple[str, datetime]]:
    """Return (output, batch time) of finished batches with a failed or lost attempt newer than the row. No locks.

    Those of the newest attempt come first. Only attempts that ended at most `within` ago are returned; a running
    attempt finds out by itself.
    """
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT o.name, a.batch_time
                FROM forebay.batch_attempts a
                JOIN forebay.batches b ON b.pipeline_id = a.pipeline_id
                  AND b.batch_time = a.batch_time
                  AND b.state IN ('COMPLETED', 'QUARANTINED', 'DISCARDED')
                CROSS JOIN unnest(CAST(:outputs AS text[])) AS o(name)
                WHERE a.pipeline_id = :pipeline
                  AND a.state IN ('FAILED', 'LOST')
                  AND a.ended_at > clock_timestamp() - CAST(:within AS interval)
                  AND NOT EXISTS (
                      SELECT
                      FROM forebay.output_commits c
                      WHERE c.pipeline_id = a.pipeline_id
                        AND c.output = o.name
                        AND c.batch_time = a.batch_time
                        AND c.attempt >= a.attempt
                  )
                  AND NOT EXISTS (
                      SELECT
                      FROM forebay.batch_attempts r
                      WHERE r.pipeline_id = a.pipeline_id AND r.batch_time = a.batch_time AND r.state = 'RUNNING'
                  )
                GROUP BY o.name, a.batch_time
                ORDER BY max(a.ended_at) DESC, o.name LIMIT :limit
            """),
            {"pipeline": pipeline_id, "outputs": list(outputs), "within": within, "limit": limit},
        ).all()
    return [(row.name, row.batch_time) for row in rows]


def follow_commit(
    connection: sa.Connection,
    *,
    pipeline_id: int,
    batch_time: datetime,
    attempt: int,
    output: str,
    location: str,
    rows: int | None,
) -> bool:
    """Record what a target committed by an ended attempt; False if it is known, or must not be recorded.

    Locks: the batch's row, the output's head, then the commit's. Raises StateMovedError where the output has a state,
    and the attempt's version can't be put in force with it: the state would not be of the result's attempt.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT outcome, detail, changed
                FROM forebay.commit_output(
                    :pipeline, :time, :attempt, :output, :location, :rows, has_ended => true
                )
            """),
            {
                "pipeline": pipeline_id,
                "time": batch_time,
                "attempt": attempt,
                "output": output,
                "location": location,
                "rows": rows,
            },
        ).one()
    if row.outcome in _MOVED:
        raise StateMovedError(row.detail)
    return bool(row.changed)


def oldest_attempt(connection: sa.Connection, pipeline_id: int) -> datetime:
    """Return when the oldest attempt began that may still commit, as a run or a replay; now if there is none. No locks.

    An attempt that claims its batch meanwhile begins a moment before at the earliest.
    """
    with named_failures():
        found: datetime = connection.execute(
            sa.text("""
                SELECT coalesce(min(a.started_at), clock_timestamp())
                FROM forebay.batch_attempts a
                WHERE a.pipeline_id = :pipeline AND a.state = 'RUNNING'
            """),
            {"pipeline": pipeline_id},
        ).scalar_one()
    return found


def hold_publishing(connection: sa.Connection, pipeline_id: int, output: str, hour: datetime | None) -> None:
    """Exclude other changes to what readers see of an output's hour while this transaction lasts; None: other upkeep.

    Locks: an advisory lock, before any row.
    """
    with named_failures():
        connection.execute(
            sa.text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"),
            {"name": f"forebay publish {pipeline_id} {output} {hour and hour.astimezone(UTC).isoformat()}"},
        )


def still_connected(connection: sa.Connection) -> None:
    """Check that the transaction lasts; raises OutcomeUnknownError if the server has ended it. No locks."""
    with named_failures():
        connection.execute(sa.text("SELECT 1"))


def note_published(
    connection: sa.Connection, pipeline_id: int, output: str, batch_time: datetime, *, attempt: int
) -> None:
    """Note that readers see what `attempt` committed, unless a newer one has committed. Locks: the row."""
    with named_failures():
        connection.execute(
            sa.text("""
                UPDATE forebay.output_commits
                SET to_publish = false
                WHERE pipeline_id = :pipeline
                  AND output = :output
                  AND batch_time = :time
                  AND attempt = :attempt
                  AND to_publish
            """),
            {"pipeline": pipeline_id, "output": output, "time": batch_time, "attempt": attempt},
        )


def commits_of_closed_hour(
    connection: sa.Connection, pipeline_id: int, output: str, hour: datetime, end: datetime | None = None
) -> dict[datetime, int] | None:
    """Return an output's attempts that count in an hour, by batch; None while the hour is open. No locks.

    `end`: where it ends, if not after 60 minutes: an hour that the clock shows twice is one.

    An hour is closed when its last batch is made, none of its batches is unfinished or being replayed, and all is
    published.
    """
    times = {"hour": hour, "end": end or hour + timedelta(hours=1)}
    with named_failures():
        closed = connection.execute(
            sa.text("""
                SELECT p.last_batch_time >= :end
                    AND NOT EXISTS (
                        SELECT
                        FROM forebay.batches b
                        WHERE b.pipeline_id = p.id
                          AND b.batch_time >= :hour
                          AND b.batch_time < :end
                          AND b.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
                    )
                    AND NOT EXISTS (
                        SELECT
                        FROM forebay.batch_attempts a
                        WHERE a.pipeline_id = p.id
                          AND a.batch_time >= :hour
                          AND a.batch_time < :end
                          AND a.state = 'RUNNING'
                    )
                    AND NOT EXISTS (
                        SELECT
                        FROM forebay.output_commits c
                        WHERE c.pipeline_id = p.id
                          AND c.to_publish
                          AND c.output = :output
                          AND c.batch_time >= :hour
                          AND c.batch_time < :end
                    )
                FROM forebay.pipelines p
                WHERE p.id = :pipeline
            """),
            {"pipeline": pipeline_id, "output": output, **times},
        ).scalar_one_or_none()
        if not closed:
            return None
        rows = connection.execute(
            sa.text("""
                SELECT batch_time, attempt
                FROM forebay.output_commits
                WHERE pipeline_id = :pipeline AND output = :output AND batch_time >= :hour AND batch_time < :end
            """),
            {"pipeline": pipeline_id, "output": output, **times},
        ).all()
    return {row.batch_time: row.attempt for row in rows}
