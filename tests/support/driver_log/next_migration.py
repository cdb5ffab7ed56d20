"""A migration that expands, as the version after this one may have it: columns, an index, values, a table."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "next"
down_revision = "REVISION_BEFORE"  # the test writes the newest one here

_DESIRED_STATES = ("running", "paused", "stopped")


def upgrade() -> None:
    """Go to this revision."""
    # In this order, which a test needs that lets a writer take these tables in the other one.
    for table in ("dead_letters", "log_segments"):
        op.add_column(table, sa.Column("next_column", sa.Text()), schema="forebay")
    op.add_column("blocks", sa.Column("next_block", sa.Text()), schema="forebay")
    op.add_column("receivers", sa.Column("next_receiver", sa.Integer(), server_default="7"), schema="forebay")
    op.create_index("processes_next", "processes", ["host"], schema="forebay")
    op.create_table("next_table", sa.Column("id", sa.BigInteger(), primary_key=True), schema="forebay")
    _allow_desired_states(*_DESIRED_STATES, "next")


def downgrade() -> None:
    """Go back to the one before."""
    _allow_desired_states(*_DESIRED_STATES)
    op.drop_table("next_table", schema="forebay")
    op.drop_index("processes_next", table_name="processes", schema="forebay")
    op.drop_column("receivers", "next_receiver", schema="forebay")
    op.drop_column("blocks", "next_block", schema="forebay")
    for table in ("log_segments", "dead_letters"):
        op.drop_column(table, "next_column", schema="forebay")


def _allow_desired_states(*states: str) -> None:
    one_of = "desired_state IN ({})".format(", ".join(f"'{state}'" for state in states))
    op.drop_constraint("receivers_desired_state", "receivers", schema="forebay")
    op.create_check_constraint("receivers_desired_state", "receivers", one_of, schema="forebay")
