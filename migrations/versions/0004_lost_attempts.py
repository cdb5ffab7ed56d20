"""Attempts that were lost: what they ran on died under them, which says nothing about their batch."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_STATES = ("RUNNING", "SUCCEEDED", "FAILED", "BLOCKED")
_COMMENTS = (
    (
        "batch_attempts",
        "state",
        "RUNNING, SUCCEEDED, FAILED or BLOCKED",
        "RUNNING, SUCCEEDED, FAILED, BLOCKED (no block store) or LOST (what it ran on died under it)",
    ),
    ("batch_attempts", "error", "Why it failed; else empty", "Why this attempt failed; else empty"),
    (
        "batches",
        "reason",
        "Why it failed, or why nothing ran; else empty",
        "Its most telling failure, which may be an earlier attempt's, or why nothing ran; else empty",
    ),
)


def upgrade() -> None:
    """Go to this revision."""
    _attempt_states((*_STATES, "LOST"))
    for table, column, _, comment in _COMMENTS:
        _comment(table, column, comment)


def downgrade() -> None:
    """Go back to the one before."""
    op.execute("UPDATE forebay.batch_attempts SET state = 'FAILED' WHERE state = 'LOST'")
    _attempt_states(_STATES)
    for table, column, comment, _ in _COMMENTS:
        _comment(table, column, comment)


def _attempt_states(states: tuple[str, ...]) -> None:
    one_of = "state IN ({})".format(", ".join(f"'{state}'" for state in states))
    op.drop_constraint("batch_attempts_state", "batch_attempts", schema="forebay")
    op.create_check_constraint("batch_attempts_state", "batch_attempts", one_of, schema="forebay")


def _comment(table: str, column: str, comment: str) -> None:
    op.alter_column(table, column, existing_type=sa.Text(), comment=comment, schema="forebay")
