"""Hand-overs of receivers from agent to agent, requests to rebalance them, and receivers that are bound to a host."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Go to this revision."""
    # Lock what the revisions up to 0004 alter, in the order in which transactions first write it (see there): they are
    # one transaction, and this one alters `receivers`.
    op.execute("LOCK TABLE forebay.batches IN ACCESS EXCLUSIVE MODE")
    op.execute(
        "LOCK TABLE forebay.batch_attempts, forebay.output_commits, forebay.cleanup_events IN SHARE ROW EXCLUSIVE MODE"
    )
    op.create_table(
        "hand_overs",
        sa.Column(
            "receiver_id", sa.BigInteger(), autoincrement=False, nullable=False, comment="The receiver that is to move"
        ),
        sa.Column(
            "from_assignment",
            sa.BigInteger(),
            nullable=False,
            comment="Its assignment until it moves; when the receiver has another one, the hand-over is void",
        ),
        sa.Column("agent_id", sa.BigInteger(), nullable=False, comment="The agent that starts its next process"),
        sa.Column(
            "assignment",
            sa.BigInteger(),
            nullable=False,
            comment="The assignment under which that process takes it over",
        ),
        sa.Column("why", sa.Text(), nullable=False, comment="Why it is to move; becomes the reason for its placement"),
        sa.Column(
            "since",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When the leader decided it",
        ),
        sa.CheckConstraint("assignment > from_assignment", name="hand_overs_assignment"),
        sa.PrimaryKeyConstraint("receiver_id"),
        schema="forebay",
        comment="Which receiver is to move to which agent, as soon as a process there is ready?",
    )
    op.create_table(
        "rebalance_requests",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False, comment="The request"),
        sa.Column(
            "listeners",
            sa.Boolean(),
            nullable=False,
            comment="Whether receivers that listen at an address of their host may move too",
        ),
        sa.Column(
            "requested_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was made",
        ),
        sa.PrimaryKeyConstraint("id"),
        schema="forebay",
        comment="Which requests to rebalance has the leader not finished yet?",
    )
    op.add_column(
        "receivers",
        sa.Column(
            "bound_to_host",
            sa.Boolean(),
            server_default="true",
            nullable=False,
            comment="Whether it may read what only its host has, by its newest start; if so, nothing moves it unasked",
        ),
        schema="forebay",
    )


def downgrade() -> None:
    """Go back to the one before."""
    op.drop_column("receivers", "bound_to_host", schema="forebay")
    op.drop_table("rebalance_requests", schema="forebay")
    op.drop_table("hand_overs", schema="forebay")
