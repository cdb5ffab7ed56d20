"""Keep watermarks and late records with versions of states, where a new state begins, and what runs a replay forward."""

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
    op.add_column(
        "pipelines",
        sa.Column(
            "states_after",
            JSONB,
            server_default=sa.text("'{}'"),
            nullable=False,
            comment="By output with a state: the last batch time when it was first declared; it waits for none up to it",
        ),
        schema="forebay",
    )
    op.add_column(
        "state_replays",
        sa.Column(
            "process_id",
            sa.BigInteger(),
            comment="The process that runs it, or that ran it last; null: none has begun",
        ),
        schema="forebay",
    )


def downgrade() -> None:
    """Go back to the one before."""
    op.drop_column("state_replays", "process_id", schema="forebay")
    op.drop_column("pipelines", "states_after", schema="forebay")
    for column in ("late_total", "late", "event_times", "watermark"):
        op.drop_column("state_versions", column, schema="forebay")
