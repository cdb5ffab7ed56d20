"""Keep which outputs of a batch failed in an attempt, and why: each output runs whatever another one did."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "output_failures",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The batch's pipeline"),
        sa.Column("batch_time", sa.DateTime(timezone=True), nullable=False, comment="The batch"),
        sa.Column("attempt", sa.Integer(), nullable=False, comment="The attempt in which the output failed"),
        sa.Column("output", sa.Text(), nullable=False, comment="The output, by name"),
        sa.Column(
            "failure",
            sa.Text(),
            nullable=False,
            comment="FAILED (its data or code), BLOCKED (no block store, or no key) or LOST (what it ran on ended)",
        ),
        sa.Column("error", sa.Text(), nullable=False, comment="Why it failed"),
        sa.Column(
            "failed_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it failed",
        ),
        sa.CheckConstraint("failure IN ('FAILED', 'BLOCKED', 'LOST')", name="output_failures_failure"),
        sa.PrimaryKeyConstraint("pipeline_id", "batch_time", "attempt", "output"),
        schema="forebay",
        comment="Which outputs failed in an attempt, and why? (The other outputs of the attempt ran all the same.)",
    )
    # Encrypted blocks came after the first revision.
    op.execute(
        "COMMENT ON COLUMN forebay.batch_attempts.state IS "
        "'RUNNING, SUCCEEDED, FAILED, BLOCKED (no block store, or no key) or LOST (its process or host died)'"
    )
    # Dagster's pages and checks read the quarantined batches, which are few among many.
    op.create_index(
        "batches_quarantined",
        "batches",
        ["pipeline_id", "batch_time"],
        schema="forebay",
        postgresql_where=sa.text("state = 'QUARANTINED'"),
    )
    # Each batch asks for its own commits, and the primary key has the output before the batch time.
    op.create_index("output_commits_of_batch", "output_commits", ["pipeline_id", "batch_time"], schema="forebay")


def downgrade() -> None:
    """Go back to the one before."""
    op.drop_index("output_commits_of_batch", "output_commits", schema="forebay")
    op.drop_index("batches_quarantined", "batches", schema="forebay")
    op.drop_table("output_failures", schema="forebay")
    op.execute(
        "COMMENT ON COLUMN forebay.batch_attempts.state IS "
        "'RUNNING, SUCCEEDED, FAILED, BLOCKED (no block store) or LOST (its process or host died)'"
    )
