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
from tracker_store.receivers.leadership import DeposedError

if TYPE_CHECKING:
    from datetime import datetime

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
    """Take the launch of a batch's next attempt. Locks: leadership FOR SHARE (with a term), the batch's row.

    Raises DeposedError for a term that is over.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT outcome, detail
                FROM forebay.take_launch(CAST(:term AS bigint), :pipeline, :time, :attempt, :launcher, :lease)
            """),
            {
                "term": term,
                "pipeline": pipeline_id,
                "time": batch_time,
                "attempt": attempt,
                "launcher": launcher,
                "lease": lease,
            },
        ).one()
    if row.outcome == "deposed":
        raise DeposedError(f"term {term} is over")
    return LaunchAnswer(LaunchOutcome(row.outcome), row.detail or "")


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
