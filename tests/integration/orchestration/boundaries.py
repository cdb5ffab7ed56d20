"""How late batches are: for tests of those that launch them at their boundary."""

from __future__ import annotations

from statistics import median

import sqlalchemy as sa

# Batches of one measurement: one that was delayed by something else does not decide.
BATCHES = 9
# What docs/how-to/intervals.md says.
LATE_SECONDS = 0.2


def complete_launched(connection: sa.Connection) -> None:
    """Complete the batches that were launched, as their runs would, so that the next one may be."""
    connection.execute(
        sa.text(
            "UPDATE forebay.batches SET state = 'COMPLETED', completed_at = clock_timestamp() "
            "WHERE launched_at IS NOT NULL AND state = 'ALLOCATED'"
        )
    )


def is_in_time(connection: sa.Connection, what: str) -> bool:
    """Return whether the newest nine batches had `what` (a column) within 0.2 s of their batch time, in the median."""
    late = connection.execute(
        sa.text(
            f"SELECT extract(epoch FROM {what} - batch_time)::float8 FROM forebay.batches "
            f"WHERE {what} IS NOT NULL ORDER BY batch_time DESC LIMIT :n"
        ),
        {"n": BATCHES},
    ).scalars()
    measured = list(late)
    assert all(seconds >= 0 for seconds in measured), "a batch came before its boundary"
    return len(measured) == BATCHES and median(measured) < LATE_SECONDS
