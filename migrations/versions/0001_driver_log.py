"""The driver log's tables; functions, views and roles follow the last migration (see ``env.py``)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "batch_allocations",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The batch's pipeline"),
        sa.Column("batch_time", sa.DateTime(timezone=True), nullable=False, comment="The batch"),
        sa.Column(
            "receiver_id",
            sa.BigInteger(),
            nullable=False,
            comment="The receiver; one without blocks for the batch has no row",
        ),
        sa.Column(
            "sequences",
            postgresql.INT8RANGE(),
            nullable=False,
            comment="The range of its sequences, epoch markers among them",
        ),
        sa.Column(
            "records", sa.BigInteger(), nullable=False, comment="Records in the range: a difference of running totals"
        ),
        sa.Column("bytes", sa.BigInteger(), nullable=False, comment="The same in bytes as stored"),
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
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The batch's pipeline"),
        sa.Column("batch_time", sa.DateTime(timezone=True), nullable=False, comment="The batch"),
        sa.Column("attempt", sa.Integer(), nullable=False, comment="Its number, from 1"),
        sa.Column(
            "state",
            sa.Text(),
            server_default="RUNNING",
            nullable=False,
            comment="RUNNING, SUCCEEDED, FAILED, BLOCKED (no block store) or LOST (its process or host died)",
        ),
        sa.Column("run_id", sa.Text(), nullable=False, comment="The Dagster run; empty when none is known"),
        sa.Column(
            "process_id",
            sa.BigInteger(),
            nullable=True,
            comment="The process whose heartbeat is watched; null for a run that never claimed",
        ),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it claimed the batch",
        ),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True, comment="When it ended; null while it runs"),
        sa.Column("error", sa.Text(), server_default="", nullable=False, comment="Why this attempt failed; else empty"),
        sa.Column(
            "kind",
            sa.Text(),
            server_default="run",
            nullable=False,
            comment="run, or replay: of a batch that is COMPLETED or QUARANTINED, which it may complete and never fails",
        ),
        sa.Column(
            "reach",
            sa.Interval(),
            server_default=sa.text("interval '0'"),
            nullable=False,
            comment="How far before its batch time a replay reads (its longest window); clean-up keeps those blocks",
        ),
        sa.CheckConstraint("(state = 'RUNNING') = (ended_at IS NULL)", name="batch_attempts_ended_at"),
        sa.CheckConstraint("kind IN ('run', 'replay')", name="batch_attempts_kind"),
        sa.CheckConstraint(
            "state IN ('RUNNING', 'SUCCEEDED', 'FAILED', 'BLOCKED', 'LOST')", name="batch_attempts_state"
        ),
        sa.PrimaryKeyConstraint("pipeline_id", "batch_time", "attempt"),
        schema="forebay",
        comment="Which attempts to run a batch were made, when, and how did each end? (At most one runs.)",
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
        "batch_drivers",
        sa.Column("process_id", sa.BigInteger(), autoincrement=False, nullable=False, comment="The driver's process"),
        sa.Column("location", sa.Text(), nullable=False, comment="The Dagster code location whose batch runs it takes"),
        sa.Column("state", sa.Text(), server_default="STARTING", nullable=False, comment="STARTING, READY or DRAINING"),
        sa.Column(
            "since",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it entered that state",
        ),
        sa.CheckConstraint("state IN ('STARTING', 'READY', 'DRAINING')", name="batch_drivers_state"),
        sa.PrimaryKeyConstraint("process_id"),
        schema="forebay",
        comment="Which batch drivers take runs? (Those whose process has not ended.)",
        postgresql_with={"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "500"},
    )
    op.create_table(
        "batches",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The pipeline"),
        sa.Column(
            "batch_time",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="The boundary at which its blocks were cut: they were added before it",
        ),
        sa.Column(
            "oldest_time",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="The oldest boundary that it covers: its own, unless missed ones were merged into it",
        ),
        sa.Column(
            "state",
            sa.Text(),
            server_default="ALLOCATED",
            nullable=False,
            comment="ALLOCATED, RUNNING, FAILED, BLOCKED, COMPLETED, QUARANTINED or DISCARDED (transitions: states.py)",
        ),
        sa.Column(
            "attempt",
            sa.Integer(),
            server_default="0",
            nullable=False,
            comment="The number of its newest attempt; 0: none was made",
        ),
        sa.Column(
            "records", sa.BigInteger(), nullable=False, comment="Records in its ranges: a difference of running totals"
        ),
        sa.Column("bytes", sa.BigInteger(), nullable=False, comment="The same in bytes as stored"),
        sa.Column(
            "blocks", sa.BigInteger(), nullable=False, comment="Sequences in its ranges, epoch markers among them"
        ),
        sa.Column(
            "allocated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was decided, by the database's clock",
        ),
        sa.Column(
            "retry_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="The next attempt starts no earlier than this (backoff after a failure); null: at once",
        ),
        sa.Column(
            "completed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When the last of its outputs was committed; null unless COMPLETED",
        ),
        sa.Column(
            "reason",
            sa.Text(),
            server_default="",
            nullable=False,
            comment="Its most telling failure, which may be of an earlier attempt, or why nothing ran; else empty",
        ),
        sa.Column(
            "launch_attempt",
            sa.Integer(),
            nullable=True,
            comment="The newest attempt whose run Dagster was asked to launch; null: none",
        ),
        sa.Column(
            "launched_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When Dagster was asked, by the database's clock; null: it was not",
        ),
        sa.Column(
            "launched_by",
            sa.Text(),
            nullable=True,
            comment="What asked: the batch sensor, or the leading tracker; null: nothing has",
        ),
        sa.CheckConstraint("(state = 'COMPLETED') = (completed_at IS NOT NULL)", name="batches_completed_at"),
        sa.CheckConstraint(
            "state IN ('ALLOCATED', 'RUNNING', 'COMPLETED', 'FAILED', 'BLOCKED', 'QUARANTINED', 'DISCARDED')",
            name="batches_state",
        ),
        sa.CheckConstraint("attempt >= 0", name="batches_attempt"),
        sa.CheckConstraint(
            "num_nulls(launch_attempt, launched_at, launched_by) IN (0, 3)", name="batches_launch_whole"
        ),
        sa.CheckConstraint("oldest_time <= batch_time", name="batches_oldest_time"),
        sa.PrimaryKeyConstraint("pipeline_id", "batch_time"),
        schema="forebay",
        comment="Which batches were made, how large are they, and in which state are they?",
    )
    op.create_index(
        "batches_completed",
        "batches",
        ["pipeline_id", "completed_at"],
        unique=False,
        schema="forebay",
        postgresql_where=sa.text("completed_at IS NOT NULL"),
    )
    op.create_index(
        "batches_unfinished",
        "batches",
        ["pipeline_id", "batch_time"],
        unique=False,
        schema="forebay",
        postgresql_where=sa.text("state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')"),
    )
    op.create_table(
        "block_offsets",
        sa.Column("stream_id", sa.BigInteger(), nullable=False, comment="The stream that reads the source"),
        sa.Column("source", sa.Text(), nullable=False, comment="The source as the receiver names it, such as a topic"),
        sa.Column(
            "partition",
            sa.Text(),
            nullable=False,
            comment="The partition's name; text, because each source names its own",
        ),
        sa.Column(
            "generation",
            sa.Integer(),
            nullable=False,
            comment="Raised by one when a position goes backwards: a topic created again, a replaced file, a reset",
        ),
        sa.Column(
            "from_offset",
            sa.BigInteger(),
            nullable=False,
            comment="Exactly the to_offset of the link before; -1 in an origin link: nothing comes before it",
        ),
        sa.Column(
            "to_offset",
            sa.BigInteger(),
            nullable=False,
            comment="The next offset to be read: everything before it is in a block, or lost",
        ),
        sa.Column(
            "kind",
            sa.Text(),
            nullable=False,
            comment="origin (where reading begins), block (the records are in one) or lost (the source no longer had them)",
        ),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver that wrote the link"),
        sa.Column(
            "sequence",
            sa.BigInteger(),
            nullable=False,
            comment="The block that it was registered with; 0 for an origin that was recorded before the first read",
        ),
        sa.CheckConstraint("(kind = 'origin') = (from_offset = -1)", name="block_offsets_origin"),
        sa.CheckConstraint("kind IN ('origin', 'block', 'lost')", name="block_offsets_kind"),
        sa.CheckConstraint("generation >= 0", name="block_offsets_generation"),
        sa.CheckConstraint("to_offset >= 0 AND to_offset > from_offset", name="block_offsets_forward"),
        sa.PrimaryKeyConstraint("stream_id", "source", "partition", "generation", "from_offset"),
        schema="forebay",
        comment="Up to which position of each source partition is everything in a block? (A chain of links.)",
        postgresql_with={"autovacuum_vacuum_insert_scale_factor": "0.05"},
    )
    op.create_index(
        "block_offsets_lost",
        "block_offsets",
        ["stream_id", "source", "partition"],
        unique=False,
        schema="forebay",
        postgresql_where=sa.text("kind = 'lost'"),
    )
    op.create_table(
        "block_stores",
        sa.Column("host", sa.Text(), nullable=False, comment="The host, by its agent's name"),
        sa.Column(
            "roots",
            sa.ARRAY(sa.Text()),
            nullable=False,
            comment="The roots it writes blocks to, by identity: the id in a directory's file _store, or a URL",
        ),
        sa.Column(
            "names", sa.ARRAY(sa.Text()), nullable=False, comment="The paths or URLs of the same roots on that host"
        ),
        sa.Column(
            "attached_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When its agent first reported them",
        ),
        sa.CheckConstraint(
            "cardinality(roots) > 0 AND cardinality(roots) = cardinality(names)", name="block_stores_roots"
        ),
        sa.PrimaryKeyConstraint("host"),
        schema="forebay",
        comment="Which block store does each host with receivers see? (They must share one.)",
    )
    op.create_table(
        "blocks",
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver that stored it"),
        sa.Column(
            "sequence",
            sa.BigInteger(),
            nullable=False,
            comment="Its place in the receiver's gapless sequence, from 1; blocks and markers share it",
        ),
        sa.Column(
            "epoch",
            sa.BigInteger(),
            nullable=False,
            comment="The claim that added it; a block follows only a row of its own epoch",
        ),
        sa.Column(
            "added_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="By the database's clock, but never before the predecessor's; batches are cut by this time",
        ),
        sa.Column("records", sa.BigInteger(), nullable=False, comment="How many records it has; 0 in a marker"),
        sa.Column("bytes", sa.BigInteger(), nullable=False, comment="Its size as stored; 0 in a marker"),
        sa.Column(
            "total_records", sa.BigInteger(), nullable=False, comment="Running total: the predecessor's plus records"
        ),
        sa.Column(
            "total_bytes", sa.BigInteger(), nullable=False, comment="Running total: the predecessor's plus bytes"
        ),
        sa.Column(
            "segment_id",
            sa.BigInteger(),
            nullable=True,
            comment="The segment that holds its frame; null in a marker, with which an epoch begins",
        ),
        sa.Column(
            "offset",
            sa.BigInteger(),
            nullable=True,
            comment="Where its frame begins in the segment's file, in bytes; null in a marker",
        ),
        sa.Column(
            "length", sa.BigInteger(), nullable=True, comment="How long its frame is, in bytes; null in a marker"
        ),
        sa.Column(
            "crc32c",
            sa.BigInteger(),
            nullable=True,
            comment="The checksum of its frame, header and payload; null in a marker",
        ),
        sa.CheckConstraint('num_nulls(segment_id, "offset", length, crc32c) IN (0, 4)', name="blocks_handle_whole"),
        sa.CheckConstraint("records >= 0 AND bytes >= 0", name="blocks_counts"),
        sa.CheckConstraint("segment_id IS NOT NULL OR (records = 0 AND bytes = 0)", name="blocks_marker_empty"),
        sa.CheckConstraint("sequence > 0 AND epoch > 0", name="blocks_positive"),
        sa.PrimaryKeyConstraint("receiver_id", "sequence"),
        schema="forebay",
        comment="Which blocks does each receiver have, in which order, and where are their bytes?",
        postgresql_with={"autovacuum_vacuum_insert_scale_factor": "0.05"},
    )
    op.create_table(
        "cleanup_events",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False, comment="The event"),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver"),
        sa.Column(
            "sequences",
            postgresql.INT8RANGE(),
            nullable=False,
            comment="The range that was deleted; epoch markers in it stay",
        ),
        sa.Column("blocks", sa.BigInteger(), nullable=False, comment="How many sequences the range has"),
        sa.Column("records", sa.BigInteger(), nullable=False, comment="Records that were deleted"),
        sa.Column("bytes", sa.BigInteger(), nullable=False, comment="The same in bytes as stored"),
        sa.Column(
            "unread_records",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="Deleted records that no pipeline had read: their stream's retention was over",
        ),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When, by the database's clock",
        ),
        sa.PrimaryKeyConstraint("id"),
        schema="forebay",
        comment="Which blocks did clean-up delete, when, and had they been read?",
    )
    op.create_index("cleanup_events_receiver", "cleanup_events", ["receiver_id", "id"], unique=False, schema="forebay")
    op.create_table(
        "cursors",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The pipeline that reads"),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver that is read"),
        sa.Column(
            "next_sequence",
            sa.BigInteger(),
            nullable=False,
            comment="The first sequence that no batch has; only allocation moves it, and only forward",
        ),
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
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False, comment="The dead letter"),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver that received it"),
        sa.Column("epoch", sa.BigInteger(), nullable=False, comment="The claim under which it was stored"),
        sa.Column("reason", sa.Text(), nullable=False, comment="Why it could not be processed"),
        sa.Column(
            "part",
            sa.Integer(),
            nullable=False,
            comment="A record too large to hold is kept in parts, from 0; together they are the record",
        ),
        sa.Column("bytes", sa.BigInteger(), nullable=False, comment="The size of this part as received"),
        sa.Column("segment_id", sa.BigInteger(), nullable=False, comment="The segment that holds it"),
        sa.Column(
            "offset", sa.BigInteger(), nullable=False, comment="Where its frame begins in the segment's file, in bytes"
        ),
        sa.Column("length", sa.BigInteger(), nullable=False, comment="How long its frame is, in bytes"),
        sa.Column("crc32c", sa.BigInteger(), nullable=False, comment="The checksum of its frame, header and payload"),
        sa.Column(
            "added_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was recorded",
        ),
        sa.CheckConstraint("part >= 0 AND bytes >= 0", name="dead_letters_counts"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("segment_id", "offset", name="dead_letters_handle"),
        schema="forebay",
        comment="Which records could not be processed, why, and where are they kept?",
    )
    op.create_index("dead_letters_receiver", "dead_letters", ["receiver_id", "id"], unique=False, schema="forebay")
    op.create_table(
        "kept_blocks",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The quarantined batch's pipeline"),
        sa.Column("batch_time", sa.DateTime(timezone=True), nullable=False, comment="The quarantined batch"),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver that stored the block"),
        sa.Column("sequence", sa.BigInteger(), nullable=False, comment="Its place in the receiver's sequence"),
        sa.Column("added_at", sa.DateTime(timezone=True), nullable=False, comment="When it was added"),
        sa.Column("records", sa.BigInteger(), nullable=False, comment="How many records it has"),
        sa.Column("bytes", sa.BigInteger(), nullable=False, comment="Its size as stored"),
        sa.Column(
            "segment_id", sa.BigInteger(), nullable=False, comment="The segment that holds it, whose file stays for it"
        ),
        sa.Column(
            "offset", sa.BigInteger(), nullable=False, comment="Where its frame begins in the segment's file, in bytes"
        ),
        sa.Column("length", sa.BigInteger(), nullable=False, comment="How long its frame is, in bytes"),
        sa.Column("crc32c", sa.BigInteger(), nullable=False, comment="The checksum of its frame, header and payload"),
        sa.PrimaryKeyConstraint("pipeline_id", "batch_time", "receiver_id", "sequence"),
        schema="forebay",
        comment="Which blocks does a quarantined batch, or a window that ends with it, still need, after clean-up took their rows?",
    )
    op.create_index("kept_blocks_segment", "kept_blocks", ["segment_id"], unique=False, schema="forebay")
    op.create_table(
        "leadership",
        sa.Column("only_row", sa.Boolean(), server_default="true", nullable=False, comment="True: there is one row"),
        sa.Column(
            "term",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="Raised by one by each tracker that takes over; a statement of an older term changes nothing",
        ),
        sa.Column(
            "counter",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="Raised every second by the leader; a candidate that sees no change takes the next term",
        ),
        sa.Column(
            "holder",
            sa.Text(),
            nullable=True,
            comment="The leading tracker's name; null after the last leader has resigned",
        ),
        sa.Column(
            "since",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When this term began",
        ),
        sa.CheckConstraint("only_row", name="leadership_one_row"),
        sa.PrimaryKeyConstraint("only_row"),
        schema="forebay",
        comment="Which tracker leads, in which term? (One row; a guard locks it FOR SHARE.)",
        postgresql_with={"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "500"},
    )
    op.create_table(
        "log_segments",
        sa.Column(
            "id",
            sa.BigInteger(),
            autoincrement=True,
            nullable=False,
            comment="The segment in every other table; ids of a receiver's segments rise with its sequence",
        ),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver that wrote it"),
        sa.Column(
            "epoch", sa.BigInteger(), nullable=False, comment="The claim under which it was made; part of its name"
        ),
        sa.Column("path", sa.Text(), nullable=False, comment="Its file, relative to the block store's root"),
        sa.Column(
            "source_rule",
            sa.Text(),
            nullable=False,
            comment="Whether the source sends unregistered records again; decides which stored blocks salvage registers",
        ),
        sa.Column("state", sa.Text(), server_default="OPEN", nullable=False, comment="OPEN, SEALED, DELETING"),
        sa.Column("length", sa.BigInteger(), nullable=True, comment="Its length in bytes once sealed; null while open"),
        sa.Column(
            "opened_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When the row was made, just before the file",
        ),
        sa.Column(
            "sealed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When its length became final; null while open",
        ),
        sa.Column(
            "store",
            sa.Text(),
            nullable=True,
            comment="The store that holds it, roots as in block_stores; missing in another proves nothing; null: unknown",
        ),
        sa.Column(
            "durability",
            sa.Text(),
            server_default="durable",
            nullable=False,
            comment="durable, or ephemeral: not synced, so a block that a crash lost is counted and not waited for",
        ),
        sa.Column(
            "salvaged_to",
            sa.BigInteger(),
            nullable=True,
            comment="Frames before this offset are salvaged, as blocks of later epochs; null: none are",
        ),
        sa.Column(
            "salvaged_sequence",
            sa.BigInteger(),
            nullable=True,
            comment="The newest block salvaged from it; the file stays until that block is deleted; null: none",
        ),
        sa.CheckConstraint("(state = 'OPEN') = (length IS NULL)", name="log_segments_length"),
        sa.CheckConstraint("durability IN ('durable', 'ephemeral')", name="log_segments_durability"),
        sa.CheckConstraint("state IN ('OPEN', 'SEALED', 'DELETING')", name="log_segments_state"),
        sa.CheckConstraint("num_nulls(salvaged_to, salvaged_sequence) IN (0, 2)", name="log_segments_salvage_whole"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("path", name="log_segments_path"),
        schema="forebay",
        comment="Which files of the block store belong to this driver log? (A row is inserted before its file is made.)",
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
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The batch's pipeline"),
        sa.Column("output", sa.Text(), nullable=False, comment="The output, by name"),
        sa.Column("batch_time", sa.DateTime(timezone=True), nullable=False, comment="The batch"),
        sa.Column("attempt", sa.Integer(), nullable=False, comment="The attempt whose result counts"),
        sa.Column(
            "location",
            sa.Text(),
            nullable=False,
            comment="Where that result is: the attempt's own path, which is never written again",
        ),
        sa.Column("rows", sa.BigInteger(), nullable=True, comment="How many rows it has; null if the sink can't tell"),
        sa.Column(
            "committed_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was committed",
        ),
        sa.Column(
            "to_publish",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="Whether its files are not yet published to readers; false if the sink publishes nothing",
        ),
        sa.PrimaryKeyConstraint("pipeline_id", "output", "batch_time"),
        schema="forebay",
        comment="Which attempt's result counts for an output and batch time? (This row is the commit.)",
    )
    op.create_index(
        "output_commits_to_publish",
        "output_commits",
        ["pipeline_id", "batch_time"],
        unique=False,
        schema="forebay",
        postgresql_where=sa.text("to_publish"),
    )
    op.create_table(
        "pipelines",
        sa.Column(
            "id",
            sa.BigInteger(),
            autoincrement=True,
            nullable=False,
            comment="The pipeline in every other table; one that is removed and applied again gets a new one",
        ),
        sa.Column(
            "name", sa.Text(), nullable=False, comment="As declared; unique among the pipelines that are not removed"
        ),
        sa.Column(
            "version",
            sa.Integer(),
            server_default="1",
            nullable=False,
            comment="Raised by one each time the declaration changes",
        ),
        sa.Column(
            "declaration",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="Interval, outputs with inputs and sinks, retry and catch-up, as applied",
        ),
        sa.Column(
            "stream_ids",
            sa.ARRAY(sa.BigInteger()),
            nullable=False,
            comment="The streams it reads: a receiver of these without a row in cursors counts as a cursor at 1",
        ),
        sa.Column(
            "batch_interval",
            sa.Interval(),
            nullable=False,
            comment="Batch times are the multiples of this since 1970-01-01 00:00 UTC",
        ),
        sa.Column(
            "retention",
            sa.Interval(),
            server_default=sa.text("interval '0'"),
            nullable=False,
            comment="How long after its batch time a batch's blocks are kept, for windows and replay",
        ),
        sa.Column(
            "last_batch_time",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="Every batch time up to here is decided; allocation locks this row and moves it forward",
        ),
        sa.Column(
            "applied_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When this version was applied",
        ),
        sa.Column(
            "removed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When it was removed; null while it is declared",
        ),
        sa.Column(
            "state",
            sa.Text(),
            server_default="RUNNING",
            nullable=False,
            comment="Whether it makes batches: RUNNING, STOPPING or STOPPED (transitions: states.py)",
        ),
        sa.Column(
            "state_since",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it entered that state",
        ),
        sa.Column(
            "ends_system",
            sa.Boolean(),
            server_default="false",
            nullable=False,
            comment="Whether all were stopped together; `forebay up` ends when every pipeline is STOPPED in this way",
        ),
        sa.Column(
            "removed_why",
            sa.Text(),
            nullable=True,
            comment="Who removed it, and what it had not done by then; null while it is declared",
        ),
        sa.Column(
            "halted_by",
            sa.DateTime(timezone=True),
            nullable=True,
            comment='The quarantined batch that halted it (on_failure = "halt"); null while it is not halted',
        ),
        sa.Column(
            "history_from",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="Batches before this time are deleted, except quarantined ones; null: none are deleted",
        ),
        sa.CheckConstraint("batch_interval > interval '0'", name="pipelines_interval_positive"),
        sa.CheckConstraint("state IN ('RUNNING', 'STOPPING', 'STOPPED')", name="pipelines_state"),
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
        sa.Column(
            "id", sa.BigInteger(), autoincrement=True, nullable=False, comment="The process in every other table"
        ),
        sa.Column("kind", sa.Text(), nullable=False, comment="agent, receiver, batch run or batch driver"),
        sa.Column(
            "name", sa.Text(), nullable=False, comment="Shown to people: a host, a receiver, a pipeline and batch time"
        ),
        sa.Column("host", sa.Text(), nullable=False, comment="Where it runs"),
        sa.Column("pid", sa.Integer(), nullable=False, comment="Its process id on that host"),
        sa.Column(
            "slots",
            sa.Integer(),
            server_default="0",
            nullable=False,
            comment="How many receivers may be placed on it; 0 unless it is an agent",
        ),
        sa.Column(
            "heartbeat",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="Raised every second; dead if it does not change within the limit, on the leader's monotonic clock",
        ),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it registered",
        ),
        sa.Column(
            "ended_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When it ended itself or was declared dead; null while it is alive",
        ),
        sa.Column("end_reason", sa.Text(), nullable=True, comment="Why it ended, as the process or the tracker says"),
        sa.Column(
            "draining",
            sa.Boolean(),
            server_default="false",
            nullable=False,
            comment="A draining agent gets no receivers and hands its own over; the next agent of its name inherits this",
        ),
        sa.Column(
            "queued",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="Blocks in the queue of each of its receivers, by id, at its newest heartbeat; null: no receivers",
        ),
        sa.CheckConstraint("kind IN ('agent', 'receiver', 'batch run', 'batch driver')", name="processes_kind"),
        sa.CheckConstraint("slots >= 0", name="processes_slots"),
        sa.PrimaryKeyConstraint("id"),
        schema="forebay",
        comment="Which processes are alive (their heartbeat counter changes), where, with how many slots?",
        postgresql_with={"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "500"},
    )
    op.create_index(
        "processes_agents",
        "processes",
        ["name", "id"],
        unique=False,
        schema="forebay",
        postgresql_where=sa.text("kind = 'agent'"),
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
        "reader_cursors",
        sa.Column("reader_id", sa.BigInteger(), nullable=False, comment="The reader"),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver that is read"),
        sa.Column(
            "next_sequence",
            sa.BigInteger(),
            nullable=False,
            comment="The first sequence that it may still ask for; moved by its query's commits, and only forward",
        ),
        sa.Column(
            "moved_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was last moved, or created",
        ),
        sa.CheckConstraint("next_sequence > 0", name="reader_cursors_positive"),
        sa.PrimaryKeyConstraint("reader_id", "receiver_id"),
        schema="forebay",
        comment="Up to which block of each receiver has a named reader read?",
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "500",
            "fillfactor": "50",
        },
    )
    op.create_table(
        "readers",
        sa.Column(
            "id",
            sa.BigInteger(),
            autoincrement=True,
            nullable=False,
            comment="The reader in every other table; one that is removed and attached again gets a new one",
        ),
        sa.Column(
            "name",
            sa.Text(),
            nullable=False,
            comment="Its name in the query; unique among readers that are not removed",
        ),
        sa.Column("stream_id", sa.BigInteger(), nullable=False, comment="The stream that it reads"),
        sa.Column(
            "attached_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When a query first used it",
        ),
        sa.Column(
            "removed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When it was removed; null while it holds blocks back",
        ),
        sa.PrimaryKeyConstraint("id"),
        schema="forebay",
        comment="Which streaming queries read a stream with their own cursor, which clean-up respects?",
    )
    op.create_index(
        "readers_live_name",
        "readers",
        ["name"],
        unique=True,
        schema="forebay",
        postgresql_where=sa.text("removed_at IS NULL"),
    )
    op.create_index(
        "readers_live_stream",
        "readers",
        ["stream_id"],
        unique=False,
        schema="forebay",
        postgresql_where=sa.text("removed_at IS NULL"),
    )
    op.create_table(
        "receiver_events",
        sa.Column(
            "id",
            sa.BigInteger(),
            autoincrement=True,
            nullable=False,
            comment="The event; ids rise in the order of insertion",
        ),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver"),
        sa.Column(
            "epoch",
            sa.BigInteger(),
            nullable=False,
            comment="The epoch of the reporting process; 0 if the tracker or an agent reports",
        ),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When, by the database's clock",
        ),
        sa.Column("kind", sa.Text(), nullable=False, comment="What happened"),
        sa.Column("message", sa.Text(), nullable=False, comment="In one sentence, for people"),
        sa.Column(
            "detail", sa.Text(), server_default="", nullable=False, comment="The rest, such as a stack; may be empty"
        ),
        sa.CheckConstraint(
            "kind IN ('SCHEDULED', 'STARTED', 'CONNECTED', 'RESTARTED', 'PAUSED', 'RESUMED', 'STOPPED', 'ERROR', 'EXITED', 'FENCED', 'FAILED', 'LEASE_EXPIRED', 'BAD_RECORD', 'SALVAGED')",
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
        sa.Column(
            "id", sa.BigInteger(), autoincrement=True, nullable=False, comment="The receiver in every other table"
        ),
        sa.Column("stream_id", sa.BigInteger(), nullable=False, comment="The stream that it receives for"),
        sa.Column("ordinal", sa.Integer(), nullable=False, comment="Its number within the stream, from 1"),
        sa.Column(
            "state",
            sa.Text(),
            server_default="INACTIVE",
            nullable=False,
            comment="INACTIVE, SCHEDULED, ACTIVE, PAUSED or FAILED (transitions: states.py)",
        ),
        sa.Column(
            "desired_state",
            sa.Text(),
            server_default="running",
            nullable=False,
            comment="What an operator wants it to be: running, paused or stopped; kept over restarts",
        ),
        sa.Column(
            "reason",
            sa.Text(),
            server_default="",
            nullable=False,
            comment="Why it is in its state; empty if there is no reason to give",
        ),
        sa.Column(
            "since",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it entered its state",
        ),
        sa.Column(
            "assignment",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="Raised by every placement decision; a process may claim only under the one it was started for",
        ),
        sa.Column("agent_id", sa.BigInteger(), nullable=True, comment="The agent that it is placed on; null: none"),
        sa.Column(
            "process_id",
            sa.BigInteger(),
            nullable=True,
            comment="The process that claimed it under this assignment; null: none yet",
        ),
        sa.Column(
            "rate_limit", sa.Double(), nullable=True, comment="Records per second that it may take in; null: no limit"
        ),
        sa.Column(
            "low_mark",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="Blocks up to here are deleted, markers stay; from low_mark + 1 to the newest there are no gaps",
        ),
        sa.Column(
            "removed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When a declaration with fewer receivers removed it; null while it is declared",
        ),
        sa.Column(
            "host",
            sa.Text(),
            nullable=True,
            comment="The only host where it may run (a listener's address, or one receiver per host); null: any host",
        ),
        sa.Column(
            "preferred_location",
            sa.Text(),
            nullable=True,
            comment="The host that the receiver preferred at its newest start; not binding; null: none",
        ),
        sa.Column(
            "desired_before_stop",
            sa.Text(),
            nullable=True,
            comment="The desired state for when a pipeline that reads it runs again; null unless all are stopped",
        ),
        sa.CheckConstraint(
            "desired_before_stop IS NULL OR desired_before_stop IN ('running', 'paused', 'stopped')",
            name="receivers_desired_before_stop",
        ),
        sa.CheckConstraint("desired_state IN ('running', 'paused', 'stopped')", name="receivers_desired_state"),
        sa.CheckConstraint("state IN ('INACTIVE', 'SCHEDULED', 'ACTIVE', 'PAUSED', 'FAILED')", name="receivers_state"),
        sa.CheckConstraint("low_mark >= 0", name="receivers_low_mark"),
        sa.CheckConstraint("rate_limit IS NULL OR rate_limit > 0", name="receivers_rate_limit"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("stream_id", "ordinal", name="receivers_stream_ordinal"),
        schema="forebay",
        comment="Where is each receiver placed, what should it be, and what is it?",
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "500",
            "fillfactor": "50",
        },
    )
    op.create_table(
        "record_keys",
        sa.Column("stream_id", sa.BigInteger(), nullable=False, comment="The stream within which the key is unique"),
        sa.Column("key", sa.Text(), nullable=False, comment="The sender's idempotency key of one record"),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver that stored the record"),
        sa.Column("sequence", sa.BigInteger(), nullable=False, comment="The block that holds it"),
        sa.Column(
            "added_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was received; deleted after the stream's key window",
        ),
        sa.PrimaryKeyConstraint("stream_id", "key"),
        schema="forebay",
        comment="Which idempotency keys of a stream have been received, within its window?",
    )
    op.create_index("record_keys_age", "record_keys", ["stream_id", "added_at"], unique=False, schema="forebay")
    op.create_table(
        "run_queue",
        sa.Column("run_id", sa.Text(), nullable=False, comment="The Dagster run"),
        sa.Column("location", sa.Text(), nullable=False, comment="The Dagster code location of the run"),
        sa.Column(
            "process_id",
            sa.BigInteger(),
            nullable=True,
            comment="The batch driver that has claimed it; null while it waits",
        ),
        sa.Column(
            "cancel_requested",
            sa.Boolean(),
            server_default="false",
            nullable=False,
            comment="Whether its driver must cancel it",
        ),
        sa.Column(
            "enqueued_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When the run launcher handed it over",
        ),
        sa.Column(
            "claimed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When a driver took it; null while it waits",
        ),
        sa.CheckConstraint("(process_id IS NULL) = (claimed_at IS NULL)", name="run_queue_claimed"),
        sa.PrimaryKeyConstraint("run_id"),
        schema="forebay",
        comment="Which Dagster runs wait for a batch driver, or are in one? (A run that has ended has no row.)",
        postgresql_with={"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "500"},
    )
    op.create_index(
        "run_queue_waiting",
        "run_queue",
        ["location", "enqueued_at"],
        unique=False,
        schema="forebay",
        postgresql_where=sa.text("process_id IS NULL"),
    )
    op.create_table(
        "scaling_decisions",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The pipeline whose batches it is about"),
        sa.Column(
            "ratio",
            sa.Double(),
            nullable=False,
            comment="Mean processing time of its newest batches, divided by its interval",
        ),
        sa.Column("batches", sa.Integer(), nullable=False, comment="How many batches the mean is of"),
        sa.Column(
            "executors", sa.Integer(), nullable=False, comment="Executors that Spark should have for its batches"
        ),
        sa.Column(
            "batch_drivers",
            sa.Integer(),
            nullable=False,
            comment="Batch drivers that it wants: 1 is the one that pipelines share; further ones are added to it",
        ),
        sa.Column("applied", sa.Boolean(), nullable=False, comment="Whether it takes effect; otherwise it is advice"),
        sa.Column("reason", sa.Text(), nullable=False, comment="Why, and how it takes effect"),
        sa.Column(
            "since",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="Since when these numbers are the decision",
        ),
        sa.Column(
            "decided_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When the decision was last checked",
        ),
        sa.CheckConstraint("executors > 0 AND batch_drivers > 0", name="scaling_decisions_positive"),
        sa.CheckConstraint("ratio >= 0 AND batches > 0", name="scaling_decisions_seen"),
        sa.PrimaryKeyConstraint("pipeline_id"),
        schema="forebay",
        comment="How many executors, or batch drivers, should a pipeline's batches have to fit their interval (O04)?",
    )
    op.create_table(
        "stream_rates",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The pipeline, which has back pressure on"),
        sa.Column("stream_id", sa.BigInteger(), nullable=False, comment="The stream that it reads"),
        sa.Column(
            "batch_time",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="The newest batch that the estimator has used; older batches and replays change nothing",
        ),
        sa.Column(
            "latest_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="The estimator's latest time: the end of the newest batch that it used; null before the first",
        ),
        sa.Column(
            "latest_rate",
            sa.Double(),
            nullable=True,
            comment="The estimator's latest rate, in records per second; null before the first",
        ),
        sa.Column(
            "latest_error",
            sa.Double(),
            nullable=True,
            comment="The estimator's latest error, in records per second; null before the first",
        ),
        sa.Column(
            "rate_limit",
            sa.Double(),
            nullable=True,
            comment="Records per second that the stream may take in, for this pipeline; null before the second batch",
        ),
        sa.Column(
            "expired_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="Since when the pipeline makes no progress, so that its rate limits no receiver; else null",
        ),
        sa.Column(
            "decided_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When this row was last changed",
        ),
        sa.CheckConstraint(
            "num_nulls(latest_at, latest_rate, latest_error) IN (0, 3)", name="stream_rates_state_whole"
        ),
        sa.CheckConstraint("rate_limit IS NULL OR rate_limit > 0", name="stream_rates_rate_limit"),
        sa.PrimaryKeyConstraint("pipeline_id", "stream_id"),
        schema="forebay",
        comment="How fast may a stream come in so that a pipeline's batches keep up, and from which figures follows that?",
        postgresql_with={"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "500"},
    )
    op.create_table(
        "stream_schemas",
        sa.Column("stream_id", sa.BigInteger(), nullable=False, comment="The stream"),
        sa.Column(
            "version", sa.Integer(), nullable=False, comment="From 1, in the order in which they were registered"
        ),
        sa.Column(
            "fingerprint",
            sa.Text(),
            nullable=False,
            comment="A hash of names and types in order; each block carries its schema's",
        ),
        sa.Column(
            "columns",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="An array of [name, Arrow type]; a name has one type in all of a stream's versions",
        ),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver that registered it first"),
        sa.Column(
            "registered_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was registered",
        ),
        sa.CheckConstraint("jsonb_typeof(columns) = 'array'", name="stream_schemas_columns_array"),
        sa.CheckConstraint("version > 0", name="stream_schemas_version_positive"),
        sa.PrimaryKeyConstraint("stream_id", "version"),
        sa.UniqueConstraint("stream_id", "fingerprint", name="stream_schemas_fingerprint"),
        schema="forebay",
        comment="Which columns do a stream's blocks have, in each version of its receivers' schemas?",
    )
    op.create_table(
        "streams",
        sa.Column(
            "id",
            sa.BigInteger(),
            autoincrement=True,
            nullable=False,
            comment="The stream in every other table; a removed stream's is never used again",
        ),
        sa.Column(
            "name", sa.Text(), nullable=False, comment="As declared; unique among the streams that are not removed"
        ),
        sa.Column(
            "version",
            sa.Integer(),
            server_default="1",
            nullable=False,
            comment="Raised by one each time the declaration changes",
        ),
        sa.Column(
            "declaration",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="Source, settings and number of receivers, as applied; secrets are references",
        ),
        sa.Column(
            "retention",
            sa.Interval(),
            server_default=sa.text("interval '7 days'"),
            nullable=False,
            comment="How long blocks are kept that no pipeline reads",
        ),
        sa.Column(
            "applied_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When this version was applied",
        ),
        sa.Column(
            "removed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When it was removed; null while it is declared",
        ),
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


def downgrade() -> None:
    """Go back to the one before."""
    for table in (
        "streams",
        "stream_schemas",
        "stream_rates",
        "scaling_decisions",
        "run_queue",
        "record_keys",
        "receivers",
        "receiver_events",
        "readers",
        "reader_cursors",
        "processes",
        "pipelines",
        "output_commits",
        "log_segments",
        "leadership",
        "kept_blocks",
        "dead_letters",
        "cursors",
        "cleanup_events",
        "blocks",
        "block_stores",
        "block_offsets",
        "batches",
        "batch_drivers",
        "batch_attempts",
        "batch_allocations",
    ):
        op.drop_table(table, schema="forebay")
