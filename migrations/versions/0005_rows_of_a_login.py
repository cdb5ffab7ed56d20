"""Record which login registered a process, and hold a receiver's direct writes to the rows of its login."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

# Replaced by the file of this name when the functions are installed, after the last migration.
_FUNCTION = """
CREATE FUNCTION forebay.guard_row() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = forebay, pg_temp
AS $$ BEGIN RETURN NEW; END $$
"""
_GUARDED = {"log_segments": "INSERT OR UPDATE", "processes": "UPDATE", "receivers": "UPDATE"}


def upgrade() -> None:
    """Go to this revision."""
    # Without a default first: of the processes that are there already, the login is not known.
    op.add_column(
        "processes",
        sa.Column("login", sa.Text(), comment="The login that registered it, and may end it; null: not known"),
        schema="forebay",
    )
    op.alter_column("processes", "login", server_default=sa.text("SESSION_USER"), schema="forebay")
    op.execute(_FUNCTION)
    for table, events in _GUARDED.items():
        # Inside the functions the user is the owner, who alone may TRUNCATE: they check for themselves.
        op.execute(
            f"CREATE TRIGGER guard_row BEFORE {events} ON forebay.{table} FOR EACH ROW "
            f"WHEN (NOT has_table_privilege(CURRENT_USER, 'forebay.{table}', 'TRUNCATE')) "
            "EXECUTE FUNCTION forebay.guard_row()"
        )


def downgrade() -> None:
    """Go back to the one before."""
    for table in _GUARDED:
        op.execute(f"DROP TRIGGER guard_row ON forebay.{table}")
    op.execute("DROP FUNCTION forebay.guard_row()")
    op.drop_column("processes", "login", schema="forebay")
