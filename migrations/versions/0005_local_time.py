"""Let a pipeline's batch times follow a calendar: the boundary that is next, and what was decided with each batch."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Go to this revision."""
    op.add_column(
        "pipelines",
        sa.Column(
            "next_batch_time",
            sa.DateTime(timezone=True),
            comment="The boundary after last_batch_time by its calendar; null: the next multiple of its interval",
        ),
        schema="forebay",
    )
    op.add_column(
        "batches",
        sa.Column(
            "calendar",
            JSONB,
            comment="What its pipeline's calendar decided with it: which slides end, and where windows begin; null: "
            "it has none",
        ),
        schema="forebay",
    )
    op.alter_column(
        "pipelines",
        "batch_interval",
        comment="Batch times are the multiples of this since 1970-01-01 00:00 UTC; with a calendar, its usual length",
        schema="forebay",
    )


def downgrade() -> None:
    """Go back to the one before."""
    op.drop_column("batches", "calendar", schema="forebay")
    op.drop_column("pipelines", "next_batch_time", schema="forebay")
    op.alter_column(
        "pipelines",
        "batch_interval",
        comment="Batch times are the multiples of this since 1970-01-01 00:00 UTC",
        schema="forebay",
    )
