"""Sample the tables that clean-up empties all the time once their rows have been replaced, not after each tenth."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"

_TABLES = ("blocks", "block_offsets", "record_keys")


def upgrade() -> None:
    """Go to this revision."""
    for table in _TABLES:
        op.execute(f"ALTER TABLE forebay.{table} SET (autovacuum_analyze_scale_factor = 1)")


def downgrade() -> None:
    """Go back to the one before."""
    for table in _TABLES:
        op.execute(f"ALTER TABLE forebay.{table} RESET (autovacuum_analyze_scale_factor)")
