"""Record what each batch read from its sources, and every change of a state as an event for listeners."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

# Replaced by the file of this name when the functions are installed, after the last migration.
_FUNCTION = """
CREATE FUNCTION forebay.record_event() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = forebay, pg_temp
AS $$ BEGIN RETURN NULL; END $$
"""
# By table: the triggers' names, when each fires, and for which rows. A new trigger locks its table against writes until
# the migration ends. So the tables are in the order in which transactions first write them: else such a transaction and
# the migration would wait for each other. `batches` comes first, because upgrade() locks it even against reads;
# schedule_receiver and expire_process write `receivers` before `receiver_events`, clean_up_receiver writes
# `cleanup_events` before `receivers`, advance_stops writes `receivers` before `pipelines`, and what makes or ends a batch
# writes `pipelines` last. (To lock a pipeline's row first, as they do, does not hinder a new trigger.)
_TRIGGERS = {
    "batches": {
        "batch_begins": ("INSERT", "true"),
        "batch_changes": ("UPDATE OF state", "OLD.state <> NEW.state OR OLD.attempt <> NEW.attempt"),
    },
    "batch_attempts": {
        "replay_begins": ("INSERT", "NEW.kind = 'replay'"),
        "replay_changes": ("UPDATE OF state", "NEW.kind = 'replay' AND OLD.state <> NEW.state"),
    },
    "output_commits": {
        "output_begins": ("INSERT", "true"),
        "output_changes": ("UPDATE OF attempt", "OLD.attempt <> NEW.attempt"),
    },
    "cleanup_events": {"cleanup_happens": ("INSERT", "true")},
    "receivers": {
        "receiver_changes": (
            "UPDATE OF state, process_id",
            "OLD.state <> NEW.state OR NEW.state = 'ACTIVE' AND NEW.process_id IS DISTINCT FROM OLD.process_id",
        )
    },
    "receiver_events": {
        # The rest are changes of the receiver's state, which its row reports.
        "receiver_reports": (
            "INSERT",
            "NEW.kind NOT IN ('SCHEDULED', 'STARTED', 'PAUSED', 'RESUMED', 'STOPPED', 'FAILED')",
        )
    },
    "pipelines": {
        "pipeline_begins": ("INSERT", "true"),
        "pipeline_changes": (
            "UPDATE OF state, removed_at, halted_by",
            "(OLD.state, OLD.removed_at, OLD.halted_by) IS DISTINCT FROM (NEW.state, NEW.removed_at, NEW.halted_by)",
        ),
    },
    "leadership": {"leader_changes": ("UPDATE OF term", "OLD.term <> NEW.term")},
}


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "batch_inputs",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The batch's pipeline"),
        sa.Column("batch_time", sa.DateTime(timezone=True), nullable=False, comment="The batch"),
        sa.Column("stream_id", sa.BigInteger(), nullable=False, comment="The stream that read the source"),
        sa.Column("source", sa.Text(), nullable=False, comment="The source as the receiver names it, such as a topic"),
        sa.Column("partition", sa.Text(), nullable=False, comment="The partition's name, such as a number or a file"),
        sa.Column(
            "generation", sa.Integer(), nullable=False, comment="The partition's generation, as in block_offsets"
        ),
        sa.Column("from_offset", sa.BigInteger(), nullable=False, comment="The first position that the batch has"),
        sa.Column("to_offset", sa.BigInteger(), nullable=False, comment="The position after the last one"),
        sa.Column(
            "lost", sa.BigInteger(), nullable=False, comment="Positions in between that the source no longer had"
        ),
        sa.CheckConstraint("from_offset >= 0 AND to_offset > from_offset", name="batch_inputs_forward"),
        sa.CheckConstraint("lost >= 0 AND lost <= to_offset - from_offset", name="batch_inputs_lost"),
        sa.PrimaryKeyConstraint(
            "pipeline_id", "batch_time", "stream_id", "source", "partition", "generation", "from_offset"
        ),
        schema="forebay",
        comment="Which positions of its sources did a batch read? (One row per range without a gap.)",
    )
    op.add_column(
        "batches",
        sa.Column(
            "inputs", sa.Integer(), comment="How many rows of batch_inputs it has; null: its first attempt records them"
        ),
        schema="forebay",
    )
    op.create_index(
        "block_offsets_read",
        "block_offsets",
        ["receiver_id", "sequence"],
        schema="forebay",
        postgresql_where=sa.text("kind <> 'origin'"),
    )
    op.create_table(
        "events",
        sa.Column(
            "transaction_id",
            sa.BigInteger(),
            server_default=sa.text("CAST(CAST(pg_current_xact_id() AS text) AS bigint)"),
            nullable=False,
            comment="The transaction that made the change; readers wait until all up to it have ended",
        ),
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False, comment="Rises within a transaction"),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When, by the database's clock",
        ),
        sa.Column("kind", sa.Text(), nullable=False, comment="What happened, as listed in docs/how-to/listeners.md"),
        sa.Column("receiver_id", sa.BigInteger(), comment="The receiver; null if the event is about none"),
        sa.Column("pipeline_id", sa.BigInteger(), comment="The pipeline; null if the event is about none"),
        sa.Column("batch_time", sa.DateTime(timezone=True), comment="The batch; null if the event is about none"),
        sa.Column("attempt", sa.Integer(), comment="The attempt or replay; null if the event is about no batch"),
        sa.Column("output", sa.Text(), comment="The output that was committed; else null"),
        sa.Column("term", sa.BigInteger(), comment="The term of a new leader; else null"),
        sa.Column("records", sa.BigInteger(), comment="Records of the batch, the output or the clean-up; else null"),
        sa.Column("message", sa.Text(), nullable=False, comment="The reason or the place, for people; may be empty"),
        sa.PrimaryKeyConstraint("transaction_id", "id"),
        schema="forebay",
        comment="What happened to batches, receivers, pipelines and the lead, for listeners? "
        "(Read by listener_events.)",
        postgresql_with={"autovacuum_vacuum_insert_scale_factor": "0.05"},
    )
    op.execute(_FUNCTION)
    for table, triggers in _TRIGGERS.items():
        for name, (event, condition) in triggers.items():
            op.execute(
                f"CREATE TRIGGER {name} AFTER {event} ON forebay.{table} FOR EACH ROW WHEN ({condition}) "
                "EXECUTE FUNCTION forebay.record_event()"
            )


def downgrade() -> None:
    """Go back to the one before."""
    for table, triggers in _TRIGGERS.items():
        for name in triggers:
            op.execute(f"DROP TRIGGER {name} ON forebay.{table}")
    op.execute("DROP FUNCTION forebay.record_event()")
    op.drop_table("events", schema="forebay")
    op.drop_index("block_offsets_read", table_name="block_offsets", schema="forebay")
    op.drop_column("batches", "inputs", schema="forebay")
    op.drop_table("batch_inputs", schema="forebay")
