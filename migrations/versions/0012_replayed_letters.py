"""Remember which dead letters were sent again, so that none is sent twice by accident."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Go to this revision."""
    op.add_column(
        "dead_letters",
        sa.Column(
            "replayed_at",
            sa.DateTime(timezone=True),
            comment="When `forebay dead-letters replay` sent or wrote it last; null: never",
        ),
        schema="forebay",
    )
    op.add_column(
        "dead_letters",
        sa.Column(
            "replayed_to", sa.Text(), server_default=sa.text("''"), nullable=False, comment="Where to, for people"
        ),
        schema="forebay",
    )


def downgrade() -> None:
    """Go back to the one before."""
    op.drop_column("dead_letters", "replayed_to", schema="forebay")
    op.drop_column("dead_letters", "replayed_at", schema="forebay")
