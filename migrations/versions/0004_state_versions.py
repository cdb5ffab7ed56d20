"""Keep the versions of outputs' states, which of them is in force, and replays forward."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Go to this revision."""
    state_attempt: sa.Column[int] = sa.Column(
        "state_attempt",
        sa.Integer(),
        comment="The attempt whose version of the output's state the commit made; null: the output had no state",
    )
    op.add_column("output_commits", state_attempt, schema="forebay")
    states_after: sa.Column[object] = sa.Column(
        "states_after",
        JSONB(),
        server_default=sa.text("'{}'"),
        nullable=False,
        comment="By output with a state: last_batch_time when it was first declared; it waits for no batch up to it",
    )
    op.add_column("pipelines", states_after, schema="forebay")
    op.create_table(
        "state_versions",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The batch's pipeline"),
        sa.Column("output", sa.Text(), nullable=False, comment="The output whose state it is, by name"),
        sa.Column("batch_time", sa.DateTime(timezone=True), nullable=False, comment="The batch"),
        sa.Column("attempt", sa.Integer(), nullable=False, comment="The attempt or replay that made it"),
        sa.Column(
            "ordinal",
            sa.Integer(),
            nullable=False,
            comment="Its number in its chain, from 1: one more than that of the version that it read",
        ),
        sa.Column(
            "read_batch_time",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="The batch of the version that it read, and changes; null: it is the first",
        ),
        sa.Column("read_attempt", sa.Integer(), nullable=True, comment="The attempt of that version; null with it"),
        sa.Column("schema_version", sa.Integer(), nullable=False, comment="The state's `version`, as it was declared"),
        sa.Column(
            "schema", JSONB(), nullable=False, comment="The key's and the value's columns, as they were declared"
        ),
        sa.Column("buckets", sa.Integer(), nullable=False, comment="Over how many buckets its keys are spread"),
        sa.Column(
            "folder", sa.Text(), nullable=False, comment="Where its files are, relative to the block store's root"
        ),
        sa.Column(
            "frames",
            JSONB(),
            nullable=True,
            comment="Its frames, in short: bucket, path, offset …; null until all are stored: then it may count",
        ),
        sa.Column(
            "keys", sa.BigInteger(), nullable=True, comment="How many keys the state has with it; null: not known"
        ),
        sa.Column(
            "changed",
            sa.BigInteger(),
            nullable=True,
            comment="How many keys it added or changed; null until its frames are noted",
        ),
        sa.Column(
            "deleted",
            sa.BigInteger(),
            nullable=True,
            comment="How many keys it deleted, expired ones too; null with it",
        ),
        sa.Column("bytes", sa.BigInteger(), nullable=True, comment="The length of its frames; null with it"),
        sa.Column(
            "next_expiry",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When the next key of the state expires; null: none does",
        ),
        sa.Column(
            "replay_id",
            sa.BigInteger(),
            nullable=True,
            comment="The replay forward that made it; null: a batch, or a replay of one, did",
        ),
        sa.Column(
            "replaced_attempt",
            sa.Integer(),
            nullable=True,
            comment="Whose version its commit replaced, if a replay forward made it; null: the output had no result",
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When its attempt began to write it",
        ),
        sa.Column(
            "committed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When a commit named it; null: none has, or another version of the batch is in its place",
        ),
        sa.Column(
            "deleting_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When clean-up began to delete its files; null: it has not",
        ),
        sa.CheckConstraint("(ordinal = 1) = (read_batch_time IS NULL)", name="state_versions_ordinal"),
        sa.CheckConstraint("(read_batch_time IS NULL) = (read_attempt IS NULL)", name="state_versions_read_whole"),
        sa.CheckConstraint("committed_at IS NULL OR frames IS NOT NULL", name="state_versions_frames"),
        sa.PrimaryKeyConstraint("pipeline_id", "output", "batch_time", "attempt"),
        schema="forebay",
        comment="Which versions of an output's state are stored, and what did each attempt read and write?",
        postgresql_with={"autovacuum_analyze_scale_factor": "1"},
    )
    op.create_index(
        "state_versions_committed",
        "state_versions",
        ["pipeline_id", "output", "committed_at"],
        schema="forebay",
        postgresql_where=sa.text("committed_at IS NOT NULL"),
    )
    op.create_index(
        "state_versions_deleting",
        "state_versions",
        ["deleting_at"],
        schema="forebay",
        postgresql_where=sa.text("deleting_at IS NOT NULL"),
    )
    op.create_index("state_versions_folder", "state_versions", ["folder"], schema="forebay")
    op.create_index("state_versions_ordinal", "state_versions", ["pipeline_id", "output", "ordinal"], schema="forebay")
    op.create_index(
        "state_versions_uncommitted",
        "state_versions",
        ["created_at"],
        schema="forebay",
        postgresql_where=sa.text("committed_at IS NULL AND deleting_at IS NULL"),
    )
    op.create_table(
        "state_heads",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The pipeline"),
        sa.Column("output", sa.Text(), nullable=False, comment="The output whose state it is, by name"),
        sa.Column(
            "batch_time",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="The batch of the version that is in force",
        ),
        sa.Column("attempt", sa.Integer(), nullable=False, comment="The attempt of that version"),
        sa.Column(
            "generation",
            sa.BigInteger(),
            server_default="1",
            nullable=False,
            comment="Raised by one each time that a replay forward, or its undoing, puts another chain in place",
        ),
        sa.Column("schema_version", sa.Integer(), nullable=False, comment="The version's `schema_version`"),
        sa.Column(
            "schema",
            JSONB(),
            nullable=False,
            comment="The version's key and value columns: what `forebay apply` compares",
        ),
        sa.Column("buckets", sa.Integer(), nullable=False, comment="Over how many buckets its keys are spread"),
        sa.Column(
            "moved_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was moved last",
        ),
        sa.PrimaryKeyConstraint("pipeline_id", "output"),
        schema="forebay",
        comment="Which version of an output's state is in force? (Only a commit moves it, from the version that it read.)",
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "500",
            "fillfactor": "50",
        },
    )
    op.create_table(
        "state_replays",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False, comment="The replay forward"),
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The pipeline"),
        sa.Column("output", sa.Text(), nullable=False, comment="The output whose batches run again, by name"),
        sa.Column("from_time", sa.DateTime(timezone=True), nullable=False, comment="The first batch that runs again"),
        sa.Column(
            "to_time",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="The last one: the head's batch when it began",
        ),
        sa.Column(
            "old_attempt", sa.Integer(), nullable=False, comment="The attempt of the version that was the head then"
        ),
        sa.Column(
            "state",
            sa.Text(),
            server_default="RUNNING",
            nullable=False,
            comment="RUNNING, STOPPED, UNDOING, COMPLETED or UNDONE (transitions: states.py)",
        ),
        sa.Column(
            "base_batch_time",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="The batch of the version that it began with; null: none",
        ),
        sa.Column("base_attempt", sa.Integer(), nullable=True, comment="The attempt of that version; null with it"),
        sa.Column(
            "head_batch_time",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="The newest batch that it has committed; null: none yet",
        ),
        sa.Column(
            "head_attempt", sa.Integer(), nullable=True, comment="The attempt of that batch's new version; null with it"
        ),
        sa.Column(
            "process_id",
            sa.BigInteger(),
            nullable=True,
            comment="The process that runs it, or that ran it last; null: none has begun",
        ),
        sa.Column(
            "began_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it began",
        ),
        sa.Column(
            "ended_at", sa.DateTime(timezone=True), nullable=True, comment="When it was COMPLETED or UNDONE; else null"
        ),
        sa.CheckConstraint(
            "(ended_at IS NOT NULL) = (state IN ('COMPLETED', 'UNDONE'))", name="state_replays_ended_at"
        ),
        sa.CheckConstraint(
            "state IN ('RUNNING', 'STOPPED', 'UNDOING', 'COMPLETED', 'UNDONE')", name="state_replays_state"
        ),
        sa.CheckConstraint("(base_batch_time IS NULL) = (base_attempt IS NULL)", name="state_replays_base_whole"),
        sa.CheckConstraint("(head_batch_time IS NULL) = (head_attempt IS NULL)", name="state_replays_head_whole"),
        sa.CheckConstraint("from_time <= to_time", name="state_replays_times"),
        sa.PrimaryKeyConstraint("id"),
        schema="forebay",
        comment="Which outputs with a state run from a batch on again, how far is each, and how did it end?",
    )
    op.create_index("state_replays_of_output", "state_replays", ["pipeline_id", "output", "id"], schema="forebay")
    op.create_index(
        "state_replays_unfinished",
        "state_replays",
        ["pipeline_id", "output"],
        unique=True,
        schema="forebay",
        postgresql_where=sa.text("state IN ('RUNNING', 'STOPPED', 'UNDOING')"),
    )


def downgrade() -> None:
    """Go back to the one before."""
    for table in ("state_replays", "state_heads", "state_versions"):
        op.drop_table(table, schema="forebay")
    op.drop_column("pipelines", "states_after", schema="forebay")
    op.drop_column("output_commits", "state_attempt", schema="forebay")
