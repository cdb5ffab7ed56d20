"""Let a receiver parse dead letters again: which rows are to be, and which of their records were left."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Go to this revision."""
    wanted: sa.Column[bool] = sa.Column(
        "replay_wanted",
        sa.Boolean(),
        nullable=False,
        server_default=sa.text("false"),
        comment="Whether its receiver parses it again at its next start",
    )
    left: sa.Column[list[int]] = sa.Column(
        "left_records",
        sa.ARRAY(sa.BigInteger()),
        comment="Numbers, from 1, of the records that did not fit when its receiver parsed it again; null: it did not",
    )
    for column in (wanted, left):
        op.add_column("dead_letters", column, schema="forebay")
    op.create_index(
        "dead_letters_wanted",
        "dead_letters",
        ["receiver_id", "id"],
        schema="forebay",
        postgresql_where=sa.text("replay_wanted"),
    )


def downgrade() -> None:
    """Go back to the one before."""
    op.drop_index("dead_letters_wanted", table_name="dead_letters", schema="forebay")
    for column in ("left_records", "replay_wanted"):
        op.drop_column("dead_letters", column, schema="forebay")
