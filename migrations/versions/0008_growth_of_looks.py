"""Keep sums of what storage_usage counts, index what looks at the log filter by, and leave room in pages for updates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

# Updated in place: half of each page is left for the new versions of its rows. (Pages that are full now get that room
# as their rows move.)
_ROOM = {"pipelines": True, "processes": False, "stream_rates": False}
_HOT = {"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "500"}

# Table, name, columns, condition. A new index or trigger locks its table against writes until the migration ends: the
# tables are in the order in which transactions first write them (see 0004), then those that others write alone.
_INDEXES = (
    ("batches", "batches_allocated", ["allocated_at"], None),
    ("cleanup_events", "cleanup_events_at", ["at"], None),
)

# Replaced by the file of this name when the functions are installed, after the last migration.
_FUNCTION = """
CREATE FUNCTION forebay.keep_storage_totals() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = forebay, pg_temp
AS $$ BEGIN RETURN NULL; END $$
"""
# By table: the triggers' names, the event, and the names of its rows before and after.
_TRIGGERS = {
    "log_segments": {
        "segments_come": ("INSERT", "NEW TABLE AS added"),
        "segments_change": ("UPDATE", "OLD TABLE AS gone NEW TABLE AS added"),
        "segments_go": ("DELETE", "OLD TABLE AS gone"),
    },
    "dead_letters": {
        "dead_letters_come": ("INSERT", "NEW TABLE AS added"),
        "dead_letters_go": ("DELETE", "OLD TABLE AS gone"),
    },
}
_COLUMNS = {
    "sealed_segments": "Its segments that are complete",
    "deleting_segments": "Its segments that clean-up has marked and is about to delete",
    "segment_bytes": "Length of all its segments except the open ones, in bytes",
    "dead_letters": "Its records that could not be processed and are kept aside",
    "dead_letter_bytes": "The same in bytes",
    "dropped_dead_letters": "Its records that could not be processed and were counted only, by the rows that are kept",
}
# In the order of the columns above, after the receiver.
_FILL = """
INSERT INTO forebay.storage_totals
SELECT t.receiver_id, sum(t.sealed), sum(t.deleting), sum(t.segment_bytes), sum(t.letters), sum(t.letter_bytes),
       sum(t.dropped)
FROM (
    SELECT receiver_id, (state = 'SEALED')::integer AS sealed, (state = 'DELETING')::integer AS deleting,
           coalesce(length, 0) AS segment_bytes, 0 AS letters, 0 AS letter_bytes, 0 AS dropped
    FROM forebay.log_segments
    UNION ALL
    SELECT receiver_id, 0, 0, 0, CASE WHEN part = 0 THEN letters ELSE 0 END, bytes, dropped
    FROM forebay.dead_letters) AS t
GROUP BY t.receiver_id
"""


def upgrade() -> None:
    """Go to this revision."""
    for table, autovacuum in _ROOM.items():
        parameters = {"fillfactor": "50", **(_HOT if autovacuum else {})}
        listed = ", ".join(f"{name} = {value}" for name, value in parameters.items())
        op.execute(f"ALTER TABLE forebay.{table} SET ({listed})")
    for table, name, columns, condition in _INDEXES:
        where = None if condition is None else sa.text(condition)
        op.create_index(name, table, columns, schema="forebay", postgresql_where=where)
    op.create_table(
        "storage_totals",
        sa.Column("receiver_id", sa.BigInteger(), autoincrement=False, nullable=False, comment="The receiver"),
        *(
            sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False, comment=comment)
            for name, comment in _COLUMNS.items()
        ),
        sa.PrimaryKeyConstraint("receiver_id"),
        schema="forebay",
        comment="How many segments and dead letters does each receiver have? (Sums that triggers keep.)",
        postgresql_with={**_HOT, "fillfactor": "50"},
    )
    op.execute(_FUNCTION)
    # The triggers' locks keep writers out until the migration ends, so that the sums miss no row.
    for table, triggers in _TRIGGERS.items():
        for name, (event, rows) in triggers.items():
            op.execute(
                f"CREATE TRIGGER {name} AFTER {event} ON forebay.{table} REFERENCING {rows} FOR EACH STATEMENT "
                "EXECUTE FUNCTION forebay.keep_storage_totals()"
            )
    op.execute(_FILL)


def downgrade() -> None:
    """Go back to the one before."""
    for table, triggers in _TRIGGERS.items():
        for name in triggers:
            op.execute(f"DROP TRIGGER {name} ON forebay.{table}")
    op.execute("DROP FUNCTION forebay.keep_storage_totals()")
    op.drop_table("storage_totals", schema="forebay")
    for table, name, _, _ in reversed(_INDEXES):
        op.drop_index(name, table_name=table, schema="forebay")
    for table, autovacuum in _ROOM.items():
        parameters = ("fillfactor", *(_HOT if autovacuum else ()))
        op.execute(f"ALTER TABLE forebay.{table} RESET ({', '.join(parameters)})")
