"""Create the driver log's tables; functions, views and roles follow the last migration (see ``env.py``)."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None

# What is made here is found in the catalog, except Alembic's own table.
_DROP = """
DO $$
DECLARE
    made text;
BEGIN
    FOR made IN SELECT 'TABLE ' || c.oid::regclass FROM pg_class c
                WHERE c.relnamespace = 'forebay'::regnamespace AND c.relkind = 'r' AND c.relname <> 'alembic_version'
                UNION ALL
                SELECT 'FUNCTION ' || p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = 'forebay'::regnamespace
                UNION ALL SELECT 'SEQUENCE forebay.placement_changes' UNION ALL SELECT 'SEQUENCE forebay.batch_changes'
    LOOP
        EXECUTE 'DROP ' || made || ' CASCADE';
    END LOOP;
END
$$
"""


def upgrade() -> None:
    """Go to this revision."""
    text = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")
    op.get_bind().exec_driver_sql(text, execution_options={"no_parameters": True})


def downgrade() -> None:
    """Go back to the one before."""
    op.get_bind().exec_driver_sql(_DROP, execution_options={"no_parameters": True})
