"""Drop the index of where ranges begin: they follow each other in time, and the index by time has the same order."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

_ORDERED = "Which blocks of which receiver belong to a batch? (A pipeline's ranges of a receiver follow each other.)"
_NO_OVERLAP = "Which blocks of which receiver belong to a batch? (Ranges of one pipeline never overlap.)"


def upgrade() -> None:
    """Go to this revision."""
    op.drop_index("batch_allocations_chain", "batch_allocations", schema="forebay")
    op.create_table_comment("batch_allocations", _ORDERED, existing_comment=_NO_OVERLAP, schema="forebay")


def downgrade() -> None:
    """Go back to the one before."""
    op.create_table_comment("batch_allocations", _NO_OVERLAP, existing_comment=_ORDERED, schema="forebay")
    op.create_index(
        "batch_allocations_chain",
        "batch_allocations",
        ["pipeline_id", "receiver_id", sa.text("lower(sequences)")],
        unique=True,
        schema="forebay",
    )
