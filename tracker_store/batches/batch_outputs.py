"""Read which outputs of a batch have a result and which failed, and write `output_failures`.

A failure only informs. `output_commits` alone says which outputs have a result (``outputs``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.batches.batches import decided_times
from tracker_store.connection.engine import named_failures
from tracker_store.schema.declarations import PipelineDeclaration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tracker_store.batches.pipelines import PipelineRow
    from tracker_store.schema.states import AttemptFailure


class OutputState(StrEnum):
    """Say whether an output of a batch has a result. It is derived from the rows; no column holds it."""

    COMMITTED = "COMMITTED"
    FAILED = "FAILED"  # it has failed and has no result
    PENDING = "PENDING"  # it has no result, and no failure of its own was recorded


@dataclass(frozen=True, slots=True)
class OutputFailure:
    """Hold the newest failure of an output of a batch."""

    batch_time: datetime
    output: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """Hold an output that is due in a batch, as the driver log has it.

    `attempt`, `location` and `rows` are those of the result that counts, None if there is none. `failed_attempt` and
    `error` are those of its newest failure, which may be older or newer than the result.
    """

    output: str
    state: OutputState
    attempt: int | None
    location: str | None
    rows: int | None
    failed_attempt: int | None
    error: str


def fail_output(
    connection: sa.Connection,
    *,
    pipeline_id: int,
    batch_time: datetime,
    attempt: int,
    output: str,
    failure: AttemptFailure,
    error: str,
) -> bool:
    """Record why an output failed; returns whether that is new and the attempt runs. Locks: the batch's row."""
    with named_failures():
        recorded: bool = connection.execute(
            sa.text("SELECT forebay.fail_output(:pipeline, :time, :attempt, :output, :failure, :error)"),
            {
                "pipeline": pipeline_id,
                "time": batch_time,
                "attempt": attempt,
                "output": output,
                "failure": failure.value,
                "error": error,
            },
        ).scalar_one()
    return recorded


def newest_output_failures(
    connection: sa.Connection, pipeline_id: int, *, first: datetime, last: datetime
) -> list[OutputFailure]:
    """Return each output's newest failure in each batch from `first` to `last`. No locks; one key range."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT DISTINCT ON (f.batch_time, f.output) f.batch_time, f.output, f.attempt, f.error
                FROM forebay.output_failures f
                WHERE f.pipeline_id = :pipeline AND f.batch_time BETWEEN :first AND :last
                ORDER BY f.batch_time, f.output, f.attempt DESC
            """),
            {"pipeline": pipeline_id, "first": first, "last": last},
        ).all()
    return [OutputFailure(*row) for row in rows]


def outputs_of_batch(connection: sa.Connection, pipeline: PipelineRow, batch_time: datetime) -> list[BatchOutput]:
    """Return the outputs that are due in a batch by the pipeline's declaration. No locks."""
    declared = PipelineDeclaration.of(pipeline.declaration)
    calendar = declared.calendar
    decided = None if calendar is None else decided_times(connection, pipeline.pipeline_id, batch_time)
    due = [name for name, output in declared.outputs.items() if output.is_due(batch_time, calendar, decided)]
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT c.output, c.attempt, c.location, c.rows
                FROM forebay.output_commits c
                WHERE c.pipeline_id = :pipeline
                  AND c.output = ANY (CAST(:outputs AS text[]))
                  AND c.batch_time = :time
            """),
            {"pipeline": pipeline.pipeline_id, "outputs": due, "time": batch_time},
        ).all()
    commits = {row.output: row for row in rows}
    failures = {
        failure.output: failure
        for failure in newest_output_failures(connection, pipeline.pipeline_id, first=batch_time, last=batch_time)
    }
    found = []
    for name in due:
        commit, failure = commits.get(name), failures.get(name)
        if commit is not None:
            state = OutputState.COMMITTED
        else:
            state = OutputState.PENDING if failure is None else OutputState.FAILED
        found.append(
            BatchOutput(
                output=name,
                state=state,
                attempt=None if commit is None else commit.attempt,
                location=None if commit is None else commit.location,
                rows=None if commit is None else commit.rows,
                failed_attempt=None if failure is None else failure.attempt,
                error="" if failure is None else failure.error,
            )
        )
    return found


def quarantined_batches(connection: sa.Connection, pipeline_id: int, *, newest: int | None = None) -> list[datetime]:
    """Return the quarantined batches of a pipeline, newest first; at most `newest` of them. No locks; one index."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT b.batch_time
                FROM forebay.batches b
                WHERE b.pipeline_id = :pipeline AND b.state = 'QUARANTINED'
                ORDER BY b.batch_time DESC LIMIT :limit
            """),
            {"pipeline": pipeline_id, "limit": newest},
        ).scalars()
        return list(rows)


def partial_commit(outputs: Sequence[BatchOutput]) -> str:
    """Return a sentence on a partially committed batch; empty if all outputs have a result, or none has."""
    committed = [output.output for output in outputs if output.state is OutputState.COMMITTED]
    missing = [output.output for output in outputs if output.state is not OutputState.COMMITTED]
    if not committed or not missing:
        return ""
    return f"partially committed: {', '.join(committed)} committed; {', '.join(missing)} not"
