"""Count what the tracker looks at when it changes, and find an agent's receivers without reading all of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

# Replaced by the file of this name when the functions are installed, after the last migration.
_FUNCTION = """
CREATE FUNCTION forebay.note_change() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = forebay, pg_temp
AS $$ BEGIN RETURN NULL; END $$
"""
_SEQUENCES = ("placement_changes", "batch_changes")
_OF_RECEIVERS = (
    "state",
    "desired_state",
    "desired_before_stop",
    "assignment",
    "agent_id",
    "process_id",
    "removed_at",
    "host",
    "preferred_location",
    "bound_to_host",
    "reason",
)
_OF_PIPELINES = ("state", "version", "stream_ids", "batch_interval", "removed_at", "halted_by")


def _changed(columns: tuple[str, ...]) -> tuple[str, str]:
    """Return an update's part of a trigger, and its condition: one of these columns has another value."""
    old, new = (", ".join(f"{row}.{column}" for column in columns) for row in ("OLD", "NEW"))
    return f"UPDATE OF {', '.join(columns)}", f"WHEN (({old}) IS DISTINCT FROM ({new}))"


_DIFFERS = "(OLD.ended_at, OLD.draining, OLD.slots) IS DISTINCT FROM (NEW.ended_at, NEW.draining, NEW.slots)"
# By table: the trigger's name, when, its condition, and the sequence. Heartbeats, rates, cursors, low marks and batch
# times that are decided are no changes: they come each second. In the order in which functions lock the tables.
_TRIGGERS = [
    ("pipelines", "pipeline_comes_or_goes", "INSERT OR DELETE", "", "placement_changes"),
    ("pipelines", "pipeline_is_changed", *_changed(_OF_PIPELINES), "placement_changes"),
    ("streams", "stream_is_changed", "INSERT OR UPDATE OR DELETE", "", "placement_changes"),
    ("receivers", "receiver_comes_or_goes", "INSERT OR DELETE", "", "placement_changes"),
    ("receivers", "receiver_is_changed", *_changed(_OF_RECEIVERS), "placement_changes"),
    ("hand_overs", "hand_over_is_changed", "INSERT OR UPDATE OR DELETE", "", "placement_changes"),
    ("rebalance_requests", "rebalance_is_requested", "INSERT OR DELETE", "", "placement_changes"),
    ("processes", "agent_comes", "INSERT", "WHEN (NEW.kind = 'agent')", "placement_changes"),
    (
        "processes",
        "process_is_changed",
        "UPDATE OF ended_at, draining, slots",
        f"WHEN (NEW.kind IN ('agent', 'receiver') AND {_DIFFERS})",
        "placement_changes",
    ),
    ("batches", "batch_completes", "UPDATE OF state", "WHEN (NEW.state = 'COMPLETED')", "batch_changes"),
]
# Partial, and of columns that only a placement or a claim changes: updates that come each second stay HOT.
_INDEXES = {
    "receivers_of_agent": ("agent_id", "agent_id IS NOT NULL"),
    "receivers_of_process": ("process_id", "process_id IS NOT NULL"),
    "receivers_removed": ("id", "removed_at IS NOT NULL"),
}
_CLOSED = "The epoch of the marker that closed its sequence after it was removed; null: it was never closed"


def upgrade() -> None:
    """Go to this revision."""
    for sequence in _SEQUENCES:
        op.execute(sa.schema.CreateSequence(sa.Sequence(sequence, schema="forebay")))
        # A new sequence shows its first value before and after it is first used: the first change would go unnoticed.
        op.execute(f"SELECT setval('forebay.{sequence}', 1)")
    op.execute(_FUNCTION)
    for table, name, event, condition, sequence in _TRIGGERS:
        op.execute(
            f"CREATE TRIGGER {name} AFTER {event} ON forebay.{table} FOR EACH ROW {condition} "
            f"EXECUTE FUNCTION forebay.note_change('forebay.{sequence}')"
        )
    for name, (column, condition) in _INDEXES.items():
        op.create_index(name, "receivers", [column], schema="forebay", postgresql_where=sa.text(condition))
    op.add_column("receivers", sa.Column("closed_epoch", sa.BigInteger(), comment=_CLOSED), schema="forebay")
    op.create_index(
        "block_offsets_origin",
        "block_offsets",
        ["receiver_id"],
        schema="forebay",
        postgresql_where=sa.text("kind = 'origin'"),
    )


def downgrade() -> None:
    """Go back to the one before."""
    op.drop_index("block_offsets_origin", "block_offsets", schema="forebay")
    op.drop_column("receivers", "closed_epoch", schema="forebay")
    for name in reversed(_INDEXES):
        op.drop_index(name, "receivers", schema="forebay")
    for table, name, *_ in _TRIGGERS:
        op.execute(f"DROP TRIGGER {name} ON forebay.{table}")
    op.execute("DROP FUNCTION forebay.note_change()")
    for sequence in reversed(_SEQUENCES):
        op.execute(sa.schema.DropSequence(sa.Sequence(sequence, schema="forebay")))
