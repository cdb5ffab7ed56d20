"""Count how blocks are compressed: of each sealed segment, of what a receiver has now, and since it was created."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_HOT = {"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "500", "fillfactor": "50"}


def upgrade() -> None:
    """Go to this revision."""
    op.add_column(
        "log_segments",
        sa.Column(
            "uncompressed_bytes",
            sa.BigInteger(),
            comment="Bytes of its blocks that are not compressed; null: open, salvaged, or sealed by an older version",
        ),
        schema="forebay",
    )
    op.add_column(
        "storage_totals",
        sa.Column(
            "uncompressed_bytes",
            sa.BigInteger(),
            server_default=sa.text("0"),
            nullable=False,
            comment="The part of segment_bytes in blocks that are not compressed",
        ),
        schema="forebay",
    )
    op.create_table(
        "codec_totals",
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver"),
        sa.Column(
            "codec",
            sa.Text(),
            nullable=False,
            comment="How the blocks are compressed: lz4, zstd, or none: not at all",
        ),
        sa.Column(
            "blocks",
            sa.BigInteger(),
            server_default=sa.text("0"),
            nullable=False,
            comment="Blocks that its processes stored so, in sealed segments, since the receiver was created",
        ),
        sa.Column(
            "bytes",
            sa.BigInteger(),
            server_default=sa.text("0"),
            nullable=False,
            comment="Their bytes as stored",
        ),
        sa.PrimaryKeyConstraint("receiver_id", "codec"),
        schema="forebay",
        comment="Which codec did each receiver's blocks take? (A row per codec; a salvaged segment is not counted.)",
        postgresql_with=_HOT,
    )


def downgrade() -> None:
    """Go back to the one before."""
    op.drop_table("codec_totals", schema="forebay")
    op.drop_column("storage_totals", "uncompressed_bytes", schema="forebay")
    op.drop_column("log_segments", "uncompressed_bytes", schema="forebay")
