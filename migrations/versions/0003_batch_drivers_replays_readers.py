"""What warm batches, replays and named readers need in the driver log."""

from __future__ import annotations

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Go to this revision."""


def downgrade() -> None:
    """Go back to the one before."""
