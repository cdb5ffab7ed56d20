"""Keep the watermark of an output by event time with each version of its state, and the records that were too late."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Go to this revision."""
    op.add_column(
        "state_versions",
        sa.Column(
            "watermark",
            sa.DateTime(timezone=True),
            comment="The watermark after its batch; null: none yet, or it is not an output by event time",
        ),
        schema="forebay",
    )
    op.add_column(
        "state_versions",
        sa.Column(
            "event_times",
            JSONB,
            comment="How far each source of its streams is: stream, source, latest (event time), seen (batch), idle; null: "
            "it is not an output by event time",
        ),
        schema="forebay",
    )
    op.add_column(
        "state_versions",
        sa.Column(
            "late",
            sa.BigInteger(),
            comment="How many records of its batch were too late; null: it is not an output by event time",
        ),
        schema="forebay",
    )
    op.add_column(
        "state_versions",
        sa.Column(
            "late_total",
            sa.BigInteger(),
            comment="The same of all batches of its chain, with this one; null: of none",
        ),
        schema="forebay",
    )


def downgrade() -> None:
    """Go back to the one before."""
    for column in ("late_total", "late", "event_times", "watermark"):
        op.drop_column("state_versions", column, schema="forebay")
