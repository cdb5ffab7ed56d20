"""The driver log: tables, functions, views."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from tracker_store.programs import drop_statements, install_statements

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "batch_allocations",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False),
        sa.Column("batch_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False),
        sa.Column("sequences", postgresql.INT8RANGE(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        postgresql.ExcludeConstraint(
            (sa.text("int8range(pipeline_id, pipeline_id, '[]')"), "&&"),
            (sa.text("int8range(receiver_id, receiver_id, '[]')"), "&&"),
            (sa.text("sequences"), "&&"),
            using="gist",
            name="batch_allocations_no_overlap",
        ),
        sa.CheckConstraint("NOT isempty(sequences)", name="batch_allocations_not_empty"),
        sa.PrimaryKeyConstraint("pipeline_id", "batch_time", "receiver_id"),
        schema="forebay",
        comment="Which blocks of which receiver belong to a batch? (Ranges of one pipeline never overlap.)",
    )
    op.create_table(
        "batch_attempts",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False),
        sa.Column("batch_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), server_default="RUNNING", nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("process_id", sa.BigInteger(), nullable=True),
        sa.Column(
            "started_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), server_default="", nullable=False),
        sa.CheckConstraint("(state = 'RUNNING') = (ended_at IS NULL)", name="batch_attempts_ended_at"),
        sa.CheckConstraint("state IN ('RUNNING', 'SUCCEEDED', 'FAILED')", name="batch_attempts_state"),
        sa.PrimaryKeyConstraint("pipeline_id", "batch_time", "attempt"),
        schema="forebay",
        comment="Who has tried to run a batch, when, and how did it end? (At most one runs.)",
    )
    op.create_index(
        "batch_attempts_running",
        "batch_attempts",
        ["pipeline_id", "batch_time"],
        unique=True,
        schema="forebay",
        postgresql_where=sa.text("state = 'RUNNING'"),
    )
    op.create_table(
        "batches",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False),
        sa.Column("batch_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("oldest_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.Text(), server_default="ALLOCATED", nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("blocks", sa.BigInteger(), nullable=False),
        sa.Column(
            "allocated_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("retry_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.CheckConstraint("(state = 'COMPLETED') = (completed_at IS NOT NULL)", name="batches_completed_at"),
        sa.CheckConstraint(
            "state IN ('ALLOCATED', 'RUNNING', 'COMPLETED', 'FAILED', 'QUARANTINED')", name="batches_state"
        ),
        sa.CheckConstraint("attempt >= 0", name="batches_attempt"),
        sa.CheckConstraint("oldest_time <= batch_time", name="batches_oldest_time"),
        sa.PrimaryKeyConstraint("pipeline_id", "batch_time"),
        schema="forebay",
        comment="Which batches were made, how large are they, and what has become of them?",
    )
    op.create_index(
        "batches_unfinished",
        "batches",
        ["pipeline_id", "batch_time"],
        unique=False,
        schema="forebay",
        postgresql_where=sa.text("state IN ('ALLOCATED', 'RUNNING', 'FAILED')"),
    )
    op.create_table(
        "block_offsets",
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("from_offset", sa.BigInteger(), nullable=False),
        sa.Column("to_offset", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("(kind = 'origin') = (from_offset = -1)", name="block_offsets_origin"),
        sa.CheckConstraint("kind IN ('origin', 'block', 'lost')", name="block_offsets_kind"),
        sa.CheckConstraint("generation >= 0", name="block_offsets_generation"),
        sa.CheckConstraint("to_offset >= 0 AND to_offset > from_offset", name="block_offsets_forward"),
        sa.PrimaryKeyConstraint("stream_id", "source", "partition", "generation", "from_offset"),
        schema="forebay",
        comment="Up to which position of each source partition is everything in a block? (A chain of links.)",
        postgresql_with={"autovacuum_vacuum_insert_scale_factor": "0.05"},
    )
    op.create_table(
        "blocks",
        sa.Column("receiver_id", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("added_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("total_records", sa.BigInteger(), nullable=False),
        sa.Column("total_bytes", sa.BigInteger(), nullable=False),
        sa.Column("segment_id", sa.BigInteger(), nullable=True),
        sa.Column("offset", sa.BigInteger(), nullable=True),
        sa.Column("length", sa.BigInteger(), nullable=True),
        sa.Column("crc32c", sa.BigInteger(), nullable=True),
        sa.CheckConstraint('num_nulls(segment_id, "offset", length, crc32c) IN (0, 4)', name="blocks_handle_whole"),
        sa.CheckConstraint("records >= 0 AND bytes >= 0", name="blocks_counts"),
        sa.CheckConstraint("segment_id IS NOT NULL OR (records = 0 AND bytes = 0)", name="blocks_marker_empty"),
        sa.CheckConstraint("sequence > 0 AND epoch > 0", name="blocks_positive"),
        sa.PrimaryKeyConstraint("receiver_id", "sequence"),
        schema="forebay",
        comment="Which blocks does each receiver have, in which order, and where do their bytes lie?",
        postgresql_with={"autovacuum_vacuum_insert_scale_factor": "0.05"},
    )
    op.create_table(
        "cleanup_events",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False),
        sa.Column("sequences", postgresql.INT8RANGE(), nullable=False),
        sa.Column("blocks", sa.BigInteger(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("unread_records", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        schema="forebay",
        comment="Which blocks were cleaned away, when, and had they been read?",
    )
    op.create_index("cleanup_events_receiver", "cleanup_events", ["receiver_id", "id"], unique=False, schema="forebay")
    op.create_table(
        "cursors",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False),
        sa.Column("next_sequence", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("next_sequence > 0", name="cursors_positive"),
        sa.PrimaryKeyConstraint("pipeline_id", "receiver_id"),
        schema="forebay",
        comment="Which block of each receiver does a pipeline take next?",
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "500",
            "fillfactor": "50",
        },
    )
    op.create_table(
        "dead_letters",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("segment_id", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("crc32c", sa.BigInteger(), nullable=False),
        sa.Column("added_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.CheckConstraint("part >= 0 AND bytes >= 0", name="dead_letters_counts"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("segment_id", "offset", name="dead_letters_handle"),
        schema="forebay",
        comment="Which records could not be processed, why, and where are they kept?",
    )
    op.create_index("dead_letters_receiver", "dead_letters", ["receiver_id", "id"], unique=False, schema="forebay")
    op.create_table(
        "kept_blocks",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False),
        sa.Column("batch_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("added_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("segment_id", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("crc32c", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("pipeline_id", "batch_time", "receiver_id", "sequence"),
        schema="forebay",
        comment="Which blocks does a quarantined batch still need, after clean-up took their rows?",
    )
    op.create_index("kept_blocks_segment", "kept_blocks", ["segment_id"], unique=False, schema="forebay")
    op.create_table(
        "leadership",
        sa.Column("only_row", sa.Boolean(), server_default="true", nullable=False),
        sa.Column("term", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("counter", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("since", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.CheckConstraint("only_row", name="leadership_one_row"),
        sa.PrimaryKeyConstraint("only_row"),
        schema="forebay",
        comment="Which tracker leads, in which term? (One row; a guard locks it FOR SHARE.)",
        postgresql_with={"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "500"},
    )
    op.create_table(
        "log_segments",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("source_rule", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="OPEN", nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=True),
        sa.Column("opened_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("sealed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(state = 'OPEN') = (length IS NULL)", name="log_segments_length"),
        sa.CheckConstraint("state IN ('OPEN', 'SEALED', 'DELETING')", name="log_segments_state"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("path", name="log_segments_path"),
        schema="forebay",
        comment="Which files of the block store are ours? (A row comes before its file.)",
    )
    op.create_index(
        "log_segments_open",
        "log_segments",
        ["receiver_id", "id"],
        unique=False,
        schema="forebay",
        postgresql_where=sa.text("state = 'OPEN'"),
    )
    op.create_table(
        "output_commits",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False),
        sa.Column("output", sa.Text(), nullable=False),
        sa.Column("batch_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column(
            "committed_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("pipeline_id", "output", "batch_time"),
        schema="forebay",
        comment="Which attempt's result counts for an output and batch time? (This row is the commit.)",
    )
    op.create_table(
        "pipelines",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("declaration", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("stream_ids", sa.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("batch_interval", sa.Interval(), nullable=False),
        sa.Column("retention", sa.Interval(), server_default=sa.text("interval '0'"), nullable=False),
        sa.Column("last_batch_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "applied_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("batch_interval > interval '0'", name="pipelines_interval_positive"),
        sa.CheckConstraint("version > 0", name="pipelines_version_positive"),
        sa.PrimaryKeyConstraint("id"),
        schema="forebay",
        comment="Which pipelines are declared, and up to which batch time are their blocks decided?",
    )
    op.create_index(
        "pipelines_live_name",
        "pipelines",
        ["name"],
        unique=True,
        schema="forebay",
        postgresql_where=sa.text("removed_at IS NULL"),
    )
    op.create_table(
        "processes",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Integer(), server_default="0", nullable=False),
        sa.Column("heartbeat", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column(
            "started_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.CheckConstraint("kind IN ('agent', 'receiver', 'batch run')", name="processes_kind"),
        sa.CheckConstraint("slots >= 0", name="processes_slots"),
        sa.PrimaryKeyConstraint("id"),
        schema="forebay",
        comment="Which processes live (a heartbeat counter that moves), where, with how many slots?",
        postgresql_with={"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "500"},
    )
    op.create_index(
        "processes_live",
        "processes",
        ["kind"],
        unique=False,
        schema="forebay",
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "receiver_events",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.CheckConstraint(
            "kind IN ('SCHEDULED', 'STARTED', 'CONNECTED', 'RESTARTED', 'PAUSED', 'RESUMED', 'STOPPED', 'ERROR', 'EXITED', 'FENCED', 'FAILED', 'LEASE_EXPIRED', 'BAD_RECORD')",
            name="receiver_events_kind",
        ),
        sa.PrimaryKeyConstraint("id"),
        schema="forebay",
        comment="What happened to a receiver, and why?",
    )
    op.create_index(
        "receiver_events_receiver", "receiver_events", ["receiver_id", "id"], unique=False, schema="forebay"
    )
    op.create_table(
        "receivers",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), server_default="INACTIVE", nullable=False),
        sa.Column("desired_state", sa.Text(), server_default="running", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("assignment", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("agent_id", sa.BigInteger(), nullable=True),
        sa.Column("process_id", sa.BigInteger(), nullable=True),
        sa.Column("rate_limit", sa.Double(), nullable=True),
        sa.Column("low_mark", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("desired_state IN ('running', 'paused', 'stopped')", name="receivers_desired_state"),
        sa.CheckConstraint("state IN ('INACTIVE', 'SCHEDULED', 'ACTIVE', 'PAUSED', 'FAILED')", name="receivers_state"),
        sa.CheckConstraint("low_mark >= 0", name="receivers_low_mark"),
        sa.CheckConstraint("rate_limit IS NULL OR rate_limit > 0", name="receivers_rate_limit"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("stream_id", "ordinal", name="receivers_stream_ordinal"),
        schema="forebay",
        comment="Where is each receiver placed, what is wanted of it, and how does it fare?",
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "500",
            "fillfactor": "50",
        },
    )
    op.create_table(
        "record_keys",
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("added_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.PrimaryKeyConstraint("stream_id", "key"),
        schema="forebay",
        comment="Which idempotency keys of a stream have been received, within its window?",
    )
    op.create_index("record_keys_age", "record_keys", ["stream_id", "added_at"], unique=False, schema="forebay")
    op.create_table(
        "streams",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("declaration", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("retention", sa.Interval(), server_default=sa.text("interval '7 days'"), nullable=False),
        sa.Column(
            "applied_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("version > 0", name="streams_version_positive"),
        sa.PrimaryKeyConstraint("id"),
        schema="forebay",
        comment="Which streams are declared, and how (the newest applied version)?",
    )
    op.create_index(
        "streams_live_name",
        "streams",
        ["name"],
        unique=True,
        schema="forebay",
        postgresql_where=sa.text("removed_at IS NULL"),
    )
    op.execute("INSERT INTO forebay.leadership DEFAULT VALUES")
    for statement in install_statements():
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """Go back to the one before."""
    for statement in drop_statements():
        op.execute(statement)
    op.drop_index(
        "streams_live_name", table_name="streams", schema="forebay", postgresql_where=sa.text("removed_at IS NULL")
    )
    op.drop_table("streams", schema="forebay")
    op.drop_index("record_keys_age", table_name="record_keys", schema="forebay")
    op.drop_table("record_keys", schema="forebay")
    op.drop_table("receivers", schema="forebay")
    op.drop_index("receiver_events_receiver", table_name="receiver_events", schema="forebay")
    op.drop_table("receiver_events", schema="forebay")
    op.drop_index(
        "processes_live", table_name="processes", schema="forebay", postgresql_where=sa.text("ended_at IS NULL")
    )
    op.drop_table("processes", schema="forebay")
    op.drop_index(
        "pipelines_live_name", table_name="pipelines", schema="forebay", postgresql_where=sa.text("removed_at IS NULL")
    )
    op.drop_table("pipelines", schema="forebay")
    op.drop_table("output_commits", schema="forebay")
    op.drop_index(
        "log_segments_open", table_name="log_segments", schema="forebay", postgresql_where=sa.text("state = 'OPEN'")
    )
    op.drop_table("log_segments", schema="forebay")
    op.drop_table("leadership", schema="forebay")
    op.drop_index("kept_blocks_segment", table_name="kept_blocks", schema="forebay")
    op.drop_table("kept_blocks", schema="forebay")
    op.drop_index("dead_letters_receiver", table_name="dead_letters", schema="forebay")
    op.drop_table("dead_letters", schema="forebay")
    op.drop_table("cursors", schema="forebay")
    op.drop_index("cleanup_events_receiver", table_name="cleanup_events", schema="forebay")
    op.drop_table("cleanup_events", schema="forebay")
    op.drop_table("blocks", schema="forebay")
    op.drop_table("block_offsets", schema="forebay")
    op.drop_index(
        "batches_unfinished",
        table_name="batches",
        schema="forebay",
        postgresql_where=sa.text("state IN ('ALLOCATED', 'RUNNING', 'FAILED')"),
    )
    op.drop_table("batches", schema="forebay")
    op.drop_index(
        "batch_attempts_running",
        table_name="batch_attempts",
        schema="forebay",
        postgresql_where=sa.text("state = 'RUNNING'"),
    )
    op.drop_table("batch_attempts", schema="forebay")
    op.drop_table("batch_allocations", schema="forebay")
