"""Keep the position of each channel: a sender's sequence of records, of which none is stored twice."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import INT8MULTIRANGE

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "channels",
        sa.Column("stream_id", sa.BigInteger(), nullable=False, comment="The stream that the records are in"),
        sa.Column(
            "sender",
            sa.Text(),
            nullable=False,
            comment="The reference of the sender's token; empty: the source has none",
        ),
        sa.Column("channel", sa.Text(), nullable=False, comment="The channel's name, as its sender gives it"),
        sa.Column(
            "position",
            sa.BigInteger(),
            nullable=False,
            comment="The offset of the next record: all before it are in blocks, or dead letters",
        ),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver that moved it last"),
        sa.Column(
            "moved_at",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.func.clock_timestamp(),
            comment="When it was moved last",
        ),
        sa.Column(
            "gaps",
            INT8MULTIRANGE(),
            nullable=False,
            server_default="{}",
            comment="Offsets before the position that a lost commit had and no block has: a salvage registers their blocks",
        ),
        sa.PrimaryKeyConstraint("stream_id", "sender", "channel", name="channels_pkey"),
        sa.CheckConstraint("position >= 0", name="channels_position"),
        schema="forebay",
        comment="Up to which offset of each channel is every record stored?",
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "500",
            "fillfactor": "50",
        },
    )


def downgrade() -> None:
    """Go back to the one before."""
    op.drop_table("channels", schema="forebay")
