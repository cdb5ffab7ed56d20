"""Name the versions of outputs' states whose files may be deleted, and delete the rows of those that are gone.

``functions/clean_up/state_versions_to_delete.sql`` decides; it marks them first. Nothing here deletes a file: the
cleaner does, between `state_versions_to_delete` and `forget_state_version`. A crash between any two steps leaves a
marked row, which the next call returns again.

`state_frames` reads what must be there, to compare it with the block store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.receivers.leadership import LED, DeposedError
from tracker_store.schema.state_chain import CHAIN_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime, timedelta

PAGE = 100
#: The first part of the path of each file of a state.
STATES = "state"


@dataclass(frozen=True, slots=True)
class DeletableState:
    """Name a version whose files, all that are in its `folder` of the block store, may be deleted."""

    pipeline_id: int
    output: str
    batch_time: datetime
    attempt: int
    folder: str


@dataclass(frozen=True, slots=True)
class StateFrames:
    """Hold the frames of a version that a commit names, as ``StateFrame.to_row`` returned them."""

    pipeline: str
    output: str
    batch_time: datetime
    attempt: int
    frames: Sequence[list[Any]]


def state_versions_to_delete(
    connection: sa.Connection,
    *,
    restore_window: timedelta,
    keep: timedelta,
    limit: int,
    term: int | None = None,
) -> list[DeletableState]:
    """Mark versions that nothing needs any more, and return at most `limit` of all that are marked.

    `keep` is how long the state of an output stays that is not declared any more. Locks: leadership FOR SHARE, the
    outputs' heads, the marked rows. Raises DeposedError.
    """
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT outcome, pipeline_id, output, batch_time, attempt, folder
                FROM forebay.state_versions_to_delete(CAST(:term AS bigint), :window, :keep, :steps, :limit)
            """),
            {"term": term, "window": restore_window, "keep": keep, "steps": CHAIN_STEPS, "limit": limit},
        ).all()
    if any(row.outcome == "deposed" for row in rows):
        raise DeposedError(f"term {term} is over")
    return [DeletableState(row.pipeline_id, row.output, row.batch_time, row.attempt, row.folder) for row in rows]


def forget_state_version(connection: sa.Connection, state: DeletableState, *, term: int | None = None) -> None:
    """Delete the row of a version whose files are gone. Locks: leadership FOR SHARE, the row."""
    with named_failures():
        connection.execute(
            sa.text(f"""
                {LED}
                DELETE FROM forebay.state_versions
                WHERE pipeline_id = :pipeline
                  AND output = :output
                  AND batch_time = :time
                  AND attempt = :attempt
                  AND deleting_at IS NOT NULL
                  AND EXISTS (SELECT FROM led)
            """),  # noqa: S608  a constant
            {
                "term": term,
                "pipeline": state.pipeline_id,
                "output": state.output,
                "time": state.batch_time,
                "attempt": state.attempt,
            },
        )


def state_frames(connection: sa.Connection) -> Iterator[StateFrames]:
    """Yield the frames of each version that a commit names and clean-up does not delete, page by page. No locks."""
    after: tuple[object, ...] = (0, "", "-infinity", 0)
    while True:
        with named_failures():
            rows = connection.execute(
                sa.text("""
                    SELECT p.name, v.pipeline_id, v.output, v.batch_time, v.attempt, v.frames
                    FROM forebay.state_versions v
                    JOIN forebay.pipelines p ON p.id = v.pipeline_id
                    WHERE (v.pipeline_id, v.output, v.batch_time, v.attempt)
                        > (:pipeline, :output, CAST(:time AS timestamptz), :attempt)
                      AND v.committed_at IS NOT NULL
                      AND v.deleting_at IS NULL
                    ORDER BY v.pipeline_id, v.output, v.batch_time, v.attempt LIMIT :page
                """),
                {**dict(zip(("pipeline", "output", "time", "attempt"), after, strict=True)), "page": PAGE},
            ).all()
        for row in rows:
            yield StateFrames(row.name, row.output, row.batch_time, row.attempt, row.frames)
        if len(rows) < PAGE:
            return
        after = (rows[-1].pipeline_id, rows[-1].output, rows[-1].batch_time, rows[-1].attempt)


def state_folders_known(connection: sa.Connection, folders: Sequence[str]) -> set[str]:
    """Return those of `folders` that the row of a version names. No locks."""
    with named_failures():
        found = connection.execute(
            sa.text("SELECT folder FROM forebay.state_versions WHERE folder = ANY (CAST(:folders AS text[]))"),
            {"folders": list(folders)},
        ).scalars()
        return set(found)
