"""Statements on `output_commits`: the row that makes an attempt's result the one that counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.engine import named_failures
from tracker_store.errors import AttemptSupersededError

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class OutputCommit:
    """What counts for (pipeline, output, batch time): `location` is the attempt's own, immutable path."""

    output: str
    batch_time: datetime
    attempt: int
    location: str
    rows: int | None


def commit_output(
    connection: sa.Connection,
    *,
    pipeline_id: int,
    batch_time: datetime,
    attempt: int,
    output: str,
    location: str,
    rows: int | None,
) -> None:
    """Commit an attempt's result. Locks: the batch's row, then the commit's. Raises AttemptSupersededError."""
    with named_failures():
        row = connection.execute(
            sa.text(
                "SELECT outcome, detail FROM forebay.commit_output("
                ":pipeline, :time, :attempt, :output, :location, :rows)"
            ),
            {
                "pipeline": pipeline_id,
                "time": batch_time,
                "attempt": attempt,
                "output": output,
                "location": location,
                "rows": rows,
            },
        ).one()
    if row.outcome != "committed":
        raise AttemptSupersededError(row.detail)


def commits_of_batch(connection: sa.Connection, pipeline_id: int, batch_time: datetime) -> list[OutputCommit]:
    """What is committed for a batch. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text(
                "SELECT output, batch_time, attempt, location, rows FROM forebay.output_commits "
                "WHERE pipeline_id = :pipeline AND batch_time = :time ORDER BY output"
            ),
            {"pipeline": pipeline_id, "time": batch_time},
        ).all()
    return [OutputCommit(row.output, row.batch_time, row.attempt, row.location, row.rows) for row in rows]
