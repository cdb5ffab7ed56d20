"""Check that ranges don't overlap by two probes of a B-tree, in place of an index of ranges with half of a row's size."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

# Replaced by the file of this name when the functions are installed, after the last migration.
_FUNCTION = """
CREATE FUNCTION forebay.check_ranges() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = forebay, pg_temp
AS $$ BEGIN RETURN NULL; END $$
"""
# Of a statement with two events there are no transition tables.
_TRIGGERS = {"ranges_come": "INSERT", "ranges_change": "UPDATE"}


def upgrade() -> None:
    """Go to this revision."""
    op.drop_constraint("batch_allocations_no_overlap", "batch_allocations", schema="forebay")
    op.create_index(
        "batch_allocations_chain",
        "batch_allocations",
        ["pipeline_id", "receiver_id", sa.text("lower(sequences)")],
        unique=True,
        schema="forebay",
    )
    op.execute(_FUNCTION)
    for name, event in _TRIGGERS.items():
        op.execute(
            f"CREATE TRIGGER {name} AFTER {event} ON forebay.batch_allocations "
            "REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION forebay.check_ranges()"
        )


def downgrade() -> None:
    """Go back to the one before."""
    for name in _TRIGGERS:
        op.execute(f"DROP TRIGGER {name} ON forebay.batch_allocations")
    op.execute("DROP FUNCTION forebay.check_ranges()")
    op.drop_index("batch_allocations_chain", "batch_allocations", schema="forebay")
    op.execute("""
        ALTER TABLE forebay.batch_allocations ADD CONSTRAINT batch_allocations_no_overlap EXCLUDE USING gist (
            int8range(pipeline_id, pipeline_id, '[]') WITH &&, int8range(receiver_id, receiver_id, '[]') WITH &&,
            sequences WITH &&)
    """)
