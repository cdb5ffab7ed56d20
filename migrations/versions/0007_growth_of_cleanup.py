"""Keep ranges of a quarantined batch in place of rows, and give clean-up and status an index for what they look up."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"

# Name, table, columns, condition. A new index locks its table against writes until the migration ends. So the tables
# are in the order in which most transactions first write them: allocation writes `batch_allocations`, `cursors`,
# `batches`, and what expires a process writes `processes` before `receiver_events`.
_INDEXES = (
    ("batch_allocations_receiver", "batch_allocations", ["pipeline_id", "receiver_id", "batch_time"], None),
    ("cursors_receiver", "cursors", ["receiver_id"], None),
    ("reader_cursors_receiver", "reader_cursors", ["receiver_id"], None),
    ("batches_newest", "batches", ["batch_time"], None),
    ("log_segments_receiver", "log_segments", ["receiver_id", "id"], None),
    ("log_segments_deleting", "log_segments", ["receiver_id", "id"], "state = 'DELETING'"),
    ("processes_ended", "processes", ["ended_at"], "ended_at IS NOT NULL"),
    ("receiver_events_age", "receiver_events", ["at"], None),
    ("receiver_events_newest", "receiver_events", ["receiver_id", "kind", "id"], None),
    ("cleanup_events_age", "cleanup_events", ["at"], "unread_records = 0"),
    ("dead_letters_age", "dead_letters", ["added_at"], None),
)
_HOT = {"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "500"}
_ROWS_BEFORE = (
    "Which blocks does a quarantined batch, or a window that ends with it, still need, after clean-up took their rows?"
)
_ROWS = "Which blocks does a batch still need that an earlier version quarantined? (It kept rows, not ranges.)"


def upgrade() -> None:
    """Go to this revision."""
    for name, table, columns, condition in _INDEXES:
        op.create_index(
            name,
            table,
            columns,
            unique=False,
            schema="forebay",
            postgresql_where=None if condition is None else sa.text(condition),
        )
    op.create_table(
        "kept_ranges",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The quarantined batch's pipeline"),
        sa.Column("batch_time", sa.DateTime(timezone=True), nullable=False, comment="The quarantined batch"),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver that stored the blocks"),
        sa.Column(
            "sequences",
            postgresql.INT8RANGE(),
            nullable=False,
            comment="What the batch and its longest window read, epoch markers among them; shrinks once it is released",
        ),
        sa.Column(
            "records", sa.BigInteger(), nullable=False, comment="Records in the range: a difference of running totals"
        ),
        sa.Column("bytes", sa.BigInteger(), nullable=False, comment="The same in bytes as stored"),
        sa.Column(
            "released_at",
            sa.DateTime(timezone=True),
            comment="When the batch stopped needing it: clean-up then deletes its rows; null while it is kept",
        ),
        sa.PrimaryKeyConstraint("pipeline_id", "batch_time", "receiver_id"),
        sa.CheckConstraint("NOT isempty(sequences)", name="kept_ranges_not_empty"),
        schema="forebay",
        comment="Which blocks does a quarantined batch, or a window that ends with it, still need? "
        "(Clean-up leaves them.)",
        postgresql_with=_HOT,
    )
    op.create_index("kept_ranges_receiver", "kept_ranges", ["receiver_id"], unique=False, schema="forebay")
    op.create_table(
        "kept_segments",
        sa.Column(
            "segment_id",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="The segment, whose file must stay",
        ),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver that wrote it"),
        sa.Column(
            "blocks",
            sa.BigInteger(),
            nullable=False,
            comment="How many of its blocks clean-up has passed and left; the row is deleted with the last of them",
        ),
        sa.PrimaryKeyConstraint("segment_id"),
        sa.CheckConstraint("blocks > 0", name="kept_segments_positive"),
        schema="forebay",
        comment="Which files hold blocks below the low mark that kept ranges need?",
        postgresql_with=_HOT,
    )
    # Rows that clean-up has deleted from `blocks` are only here, so they stay rows until their batch is replayed or
    # discarded. The old name becomes a view of both, which the version before reads; it writes only by functions, which
    # are replaced in this transaction. Of a function that waits for this lock the call fails, and is made again.
    op.rename_table("kept_blocks", "kept_block_rows", schema="forebay")
    op.execute("ALTER INDEX forebay.kept_blocks_pkey RENAME TO kept_block_rows_pkey")
    op.execute("ALTER INDEX forebay.kept_blocks_segment RENAME TO kept_block_rows_segment")
    op.execute(f"COMMENT ON TABLE forebay.kept_block_rows IS '{_ROWS}'")


def downgrade() -> None:
    """Go back to the one before."""
    # The rows that ranges keep become rows again. The version before never deletes a block below the low mark.
    op.execute("""
        INSERT INTO forebay.kept_block_rows (pipeline_id, batch_time, receiver_id, sequence, added_at, records, bytes,
                                             segment_id, "offset", length, crc32c)
        SELECT k.pipeline_id, k.batch_time, b.receiver_id, b.sequence, b.added_at, b.records, b.bytes,
               b.segment_id, b."offset", b.length, b.crc32c
        FROM forebay.kept_ranges k
        JOIN forebay.blocks b ON b.receiver_id = k.receiver_id
             AND b.sequence >= lower(k.sequences) AND b.sequence < upper(k.sequences)
        WHERE k.released_at IS NULL AND b.segment_id IS NOT NULL
        ON CONFLICT DO NOTHING
    """)
    op.execute("""
        DELETE FROM forebay.blocks b USING forebay.kept_ranges k, forebay.receivers r
        WHERE r.id = k.receiver_id AND b.receiver_id = k.receiver_id AND b.sequence <@ k.sequences
              AND b.sequence <= r.low_mark AND b.segment_id IS NOT NULL
    """)
    op.execute(f"COMMENT ON TABLE forebay.kept_block_rows IS '{_ROWS_BEFORE}'")
    op.execute("ALTER INDEX forebay.kept_block_rows_segment RENAME TO kept_blocks_segment")
    op.execute("ALTER INDEX forebay.kept_block_rows_pkey RENAME TO kept_blocks_pkey")
    op.rename_table("kept_block_rows", "kept_blocks", schema="forebay")
    op.drop_table("kept_segments", schema="forebay")
    op.drop_table("kept_ranges", schema="forebay")
    for name, table, _, _ in reversed(_INDEXES):
        op.drop_index(name, table_name=table, schema="forebay")
