"""Decide which launcher asks Dagster for the run of a batch's next attempt.

There are two launchers: the batch sensor, and the tracker, which launches short intervals itself. One of them takes the
launch for a while; the other waits for the result. A launch says nothing about the batch: a run claims its attempt
(``functions/batches/claim_attempt.sql``) or ends, whichever launched it and however often.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.receivers.leadership import LED, DeposedError

if TYPE_CHECKING:
    from datetime import datetime

# In place of LED, for a launcher without a term: it locks nothing of the leadership.
_NO_TERM = "WITH led AS (SELECT)"
# Longer than a request to Dagster may take: after it, either the run is visible or there will be none.
LAUNCH_LEASE = timedelta(seconds=15)


class LaunchOutcome(StrEnum):
    """Say whether a run may be asked for now. AGAIN: a run was asked for before, so check first whether it exists."""

    FIRST = "first"
    AGAIN = "again"
    HELD = "held"
    NOT_DUE = "not due"


@dataclass(frozen=True, slots=True)
class LaunchAnswer:
    """Hold the answer to `take_launch`; `detail` says which launcher holds the launch, or why it is not due."""

    outcome: LaunchOutcome
    detail: str


def take_launch(
    connection: sa.Connection,
    *,
    pipeline_id: int,
    batch_time: datetime,
    attempt: int,
    launcher: str,
    term: int | None = None,
    lease: timedelta = LAUNCH_LEASE,
) -> LaunchAnswer:
    """Take the launch of a batch's next attempt, for `lease`, unless another launcher has it.

    A launcher that took it and can't say whether there is a run (no answer) leaves it alone; when the lease is over,
    another launcher looks in Dagster and asks again. With a term, the caller is the leader; raises DeposedError if that
    term is over. Locks: leadership FOR SHARE (with a term), then the batch's row.
    """
    with named_failures():
        row = connection.execute(
            sa.text(f"""
                {LED if term is not None else _NO_TERM}, batch AS MATERIALIZED (
                    SELECT b.state, b.attempt, b.launch_attempt, b.launched_by,
                        -- In both directions: a clock that was set back must not delay a launch for longer.
                        b.launched_at BETWEEN clock_timestamp() - :lease AND clock_timestamp() + :lease AS is_leased
                    FROM forebay.batches b
                    WHERE b.pipeline_id = :pipeline AND b.batch_time = :time AND EXISTS (SELECT FROM led)
                    FOR NO KEY UPDATE
                ), answer AS MATERIALIZED (
                    SELECT b.state, b.attempt, b.launched_by,
                        CASE
                            WHEN (b.state IN ('ALLOCATED', 'FAILED', 'BLOCKED') AND b.attempt = :attempt - 1)
                                IS NOT TRUE THEN 'not due'
                            WHEN b.launch_attempt = :attempt AND b.launched_by <> :launcher AND b.is_leased THEN 'held'
                            WHEN b.launch_attempt = :attempt THEN 'again'
                            ELSE 'first'
                        END AS outcome
                    FROM led
                    LEFT JOIN batch b ON true
                ), taken AS (
                    UPDATE forebay.batches b
                    SET launch_attempt = :attempt, launched_at = clock_timestamp(), launched_by = :launcher
                    FROM answer a
                    WHERE b.pipeline_id = :pipeline AND b.batch_time = :time AND a.outcome IN ('first', 'again')
                )
                SELECT outcome, state, attempt, launched_by FROM answer
            """),  # noqa: S608  constants
            {
                "term": term,
                "pipeline": pipeline_id,
                "time": batch_time,
                "attempt": attempt,
                "launcher": launcher,
                "lease": lease,
            },
        ).one_or_none()
    if row is None:
        raise DeposedError(f"term {term} is over")
    outcome, detail = LaunchOutcome(row.outcome), ""
    if outcome is LaunchOutcome.HELD:
        detail = row.launched_by
    elif outcome is LaunchOutcome.NOT_DUE:
        detail = f"attempt {attempt} was asked for; the batch is {row.state or 'not there'} at attempt {row.attempt}"
    return LaunchAnswer(outcome, detail)


def release_launch(
    connection: sa.Connection, *, pipeline_id: int, batch_time: datetime, attempt: int, launcher: str
) -> bool:
    """Give back a launch that certainly made no run. Locks: the batch's row."""
    with named_failures():
        released = connection.execute(
            sa.text("""
                UPDATE forebay.batches
                SET launch_attempt = NULL, launched_at = NULL, launched_by = NULL
                WHERE pipeline_id = :pipeline
                  AND batch_time = :time
                  AND launch_attempt = :attempt
                  AND launched_by = :launcher
                  AND state IN ('ALLOCATED', 'FAILED', 'BLOCKED')
                  AND attempt = :attempt - 1
                RETURNING attempt
            """),
            {"pipeline": pipeline_id, "time": batch_time, "attempt": attempt, "launcher": launcher},
        ).scalar()
    return released is not None
