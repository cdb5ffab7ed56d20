"""Delete finished batches, events and ended processes that are no longer needed.

The functions decide what may go (``functions/clean_up_history.sql``, ``clean_up_events.sql``). ``cleanup`` handles
blocks and their files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.engine import named_failures
from tracker_store.leadership import DeposedError

if TYPE_CHECKING:
    from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many rows were deleted; `more`: there are more to delete now."""

    rows: int
    more: bool


def pipelines_with_history(connection: sa.Connection) -> list[int]:
    """Return every pipeline, removed ones too. No locks."""
    with named_failures():
        return list(connection.execute(sa.text("SELECT id FROM forebay.pipelines ORDER BY id")).scalars())


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
