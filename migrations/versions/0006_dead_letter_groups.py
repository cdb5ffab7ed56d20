"""Keep dead letters in groups, a row for each, and count those that were over their sender's budget."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_COLUMNS = {
    # Receivers of the version before store one record in each row.
    "letters": ("1", "How many records the frame holds; a part of a large record counts as one, in each row"),
    "dropped": ("0", "Records of this reason that were counted and not kept, since the row before: over their budget"),
    "dropped_bytes": ("0", "The same in bytes"),
}


def upgrade() -> None:
    """Go to this revision."""
    for name, (default, comment) in _COLUMNS.items():
        op.add_column(
            "dead_letters",
            sa.Column(name, sa.BigInteger(), server_default=sa.text(default), nullable=False, comment=comment),
            schema="forebay",
        )
    op.create_check_constraint(
        "dead_letters_group",
        "dead_letters",
        "letters >= 0 AND dropped >= 0 AND dropped_bytes >= 0",
        schema="forebay",
    )
    op.execute(
        "COMMENT ON COLUMN forebay.dead_letters.part IS 'A record too large to hold is kept in parts, from 0; together "
        "they are the record. A group has 0'"
    )
    op.execute("COMMENT ON COLUMN forebay.dead_letters.bytes IS 'The size of this part, or of the group, as received'")
    op.execute(
        "COMMENT ON TABLE forebay.dead_letters IS "
        "'Which records could not be processed, why, and where are they kept? A row per group'"
    )


def downgrade() -> None:
    """Go back to the one before."""
    # The comments stay: they are true of rows of one record too.
    op.drop_constraint("dead_letters_group", "dead_letters", schema="forebay")
    for name in reversed(_COLUMNS):
        op.drop_column("dead_letters", name, schema="forebay")
