"""Back pressure, draining agents, receivers that belong to one host, the columns of streams, hosts' block stores."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "stream_rates",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The pipeline that has back pressure on"),
        sa.Column("stream_id", sa.BigInteger(), nullable=False, comment="The stream that it reads"),
        sa.Column(
            "batch_time",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="The newest batch that was reckoned in; older ones, and replays, change nothing",
        ),
        sa.Column(
            "latest_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="The estimator's latest time: the end of the newest batch that counted; null before the first",
        ),
        sa.Column(
            "latest_rate",
            sa.Double(),
            nullable=True,
            comment="The estimator's latest rate, in records per second; null before the first",
        ),
        sa.Column(
            "latest_error",
            sa.Double(),
            nullable=True,
            comment="The estimator's latest error, in records per second; null before the first",
        ),
        sa.Column(
            "rate_limit",
            sa.Double(),
            nullable=True,
            comment="Records per second that the stream may take in, for this pipeline; null before the second batch",
        ),
        sa.Column(
            "expired_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="Since when the pipeline stands still, so that its rate holds nobody up; null while it goes on",
        ),
        sa.Column(
            "decided_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When this was decided",
        ),
        sa.CheckConstraint(
            "num_nulls(latest_at, latest_rate, latest_error) IN (0, 3)", name="stream_rates_state_whole"
        ),
        sa.CheckConstraint("rate_limit IS NULL OR rate_limit > 0", name="stream_rates_rate_limit"),
        sa.PrimaryKeyConstraint("pipeline_id", "stream_id"),
        schema="forebay",
        comment="How fast may a stream come in for a pipeline's batches to keep up, and from what was that reckoned?",
        postgresql_with={"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "500"},
    )
    op.add_column(
        "processes",
        sa.Column(
            "draining",
            sa.Boolean(),
            server_default="false",
            nullable=False,
            comment="An agent that gets no receivers and loses those that it has; the next agent of its name inherits it",
        ),
        schema="forebay",
    )
    op.create_index(
        "processes_agents",
        "processes",
        ["name", "id"],
        unique=False,
        schema="forebay",
        postgresql_where=sa.text("kind = 'agent'"),
    )
    op.add_column(
        "receivers",
        sa.Column(
            "preferred_location",
            sa.Text(),
            nullable=True,
            comment="The host that the receiver itself asked for at its newest start; a wish; null: none",
        ),
        schema="forebay",
    )
    op.create_table(
        "stream_schemas",
        sa.Column("stream_id", sa.BigInteger(), nullable=False, comment="The stream"),
        sa.Column(
            "version", sa.Integer(), nullable=False, comment="From 1, in the order in which they were registered"
        ),
        sa.Column(
            "fingerprint", sa.Text(), nullable=False, comment="Of names and types in order; each block carries its own"
        ),
        sa.Column(
            "columns",
            postgresql.JSONB(),
            nullable=False,
            comment="An array of [name, Arrow type]; a name has one type in all of a stream's versions",
        ),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver that came with it first"),
        sa.Column(
            "registered_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When that was",
        ),
        sa.CheckConstraint("version > 0", name="stream_schemas_version_positive"),
        sa.CheckConstraint("jsonb_typeof(columns) = 'array'", name="stream_schemas_columns_array"),
        sa.PrimaryKeyConstraint("stream_id", "version"),
        sa.UniqueConstraint("stream_id", "fingerprint", name="stream_schemas_fingerprint"),
        schema="forebay",
        comment="Which columns have a stream's blocks, in the versions of its receivers' schemas?",
    )
    op.add_column(
        "receivers",
        sa.Column(
            "host",
            sa.Text(),
            nullable=True,
            comment="The one host where it may run: a listener's address, or one of each host; null: any host will do",
        ),
        schema="forebay",
    )
    for name, kind, comment in (
        (
            "store",
            sa.Text(),
            "Where it was made, roots as in block_stores: one missing elsewhere proves nothing; null: unknown",
        ),
        (
            "salvaged_to",
            sa.BigInteger(),
            "Frames before this offset are salvaged, by blocks of later epochs; null where there are none",
        ),
        (
            "salvaged_sequence",
            sa.BigInteger(),
            "The newest block that salvage registered from it: the file stays until that is cleaned; null: none",
        ),
    ):
        op.add_column("log_segments", sa.Column(name, kind, nullable=True, comment=comment), schema="forebay")
    op.create_check_constraint(
        "log_segments_salvage_whole",
        "log_segments",
        "num_nulls(salvaged_to, salvaged_sequence) IN (0, 2)",
        schema="forebay",
    )
    op.add_column(
        "log_segments",
        sa.Column(
            "durability",
            sa.Text(),
            server_default="durable",
            nullable=False,
            comment="durable, or ephemeral: not synced, so that a block of it that a crash took is counted, not waited for",
        ),
        schema="forebay",
    )
    op.create_check_constraint(
        "log_segments_durability", "log_segments", "durability IN ('durable', 'ephemeral')", schema="forebay"
    )
    op.create_table(
        "block_stores",
        sa.Column("host", sa.Text(), nullable=False, comment="The host, as its agent is called"),
        sa.Column(
            "roots",
            postgresql.ARRAY(sa.Text()),
            nullable=False,
            comment="What it writes blocks to, by identity: the word in a directory's file _store, or a URL",
        ),
        sa.Column(
            "names",
            postgresql.ARRAY(sa.Text()),
            nullable=False,
            comment="The same roots as they are called on that host",
        ),
        sa.Column(
            "attached_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When its agent first said so",
        ),
        sa.CheckConstraint(
            "cardinality(roots) > 0 AND cardinality(roots) = cardinality(names)", name="block_stores_roots"
        ),
        sa.PrimaryKeyConstraint("host"),
        schema="forebay",
        comment="Which block store does each host with receivers see? (They must share one.)",
    )
    _event_kinds("SALVAGED")
    _stops()


def _stops() -> None:
    op.add_column(
        "pipelines",
        sa.Column(
            "state",
            sa.Text(),
            server_default="RUNNING",
            nullable=False,
            comment="Whether it makes batches: RUNNING, STOPPING or STOPPED; its transitions stand in states.py",
        ),
        schema="forebay",
    )
    op.add_column(
        "pipelines",
        sa.Column(
            "state_since",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it came to that state",
        ),
        schema="forebay",
    )
    op.add_column(
        "pipelines",
        sa.Column(
            "ends_system",
            sa.Boolean(),
            server_default="false",
            nullable=False,
            comment="Stopped with all others: `forebay up` ends when each pipeline is STOPPED and was stopped so",
        ),
        schema="forebay",
    )
    op.create_check_constraint(
        "pipelines_state", "pipelines", "state IN ('RUNNING', 'STOPPING', 'STOPPED')", schema="forebay"
    )
    op.add_column(
        "receivers",
        sa.Column(
            "desired_before_stop",
            sa.Text(),
            nullable=True,
            comment="What is wanted of it again when a pipeline that reads it runs; null unless they are all stopped",
        ),
        schema="forebay",
    )
    op.create_check_constraint(
        "receivers_desired_before_stop",
        "receivers",
        "desired_before_stop IS NULL OR desired_before_stop IN ('running', 'paused', 'stopped')",
        schema="forebay",
    )


def _event_kinds(*added: str) -> None:
    kinds = (
        *("SCHEDULED", "STARTED", "CONNECTED", "RESTARTED", "PAUSED", "RESUMED", "STOPPED", "ERROR", "EXITED"),
        *("FENCED", "FAILED", "LEASE_EXPIRED", "BAD_RECORD", *added),
    )
    op.drop_constraint("receiver_events_kind", "receiver_events", schema="forebay")
    op.create_check_constraint(
        "receiver_events_kind",
        "receiver_events",
        "kind IN ({})".format(", ".join(f"'{kind}'" for kind in kinds)),
        schema="forebay",
    )


def downgrade() -> None:
    """Go back to the one before."""
    op.drop_column("receivers", "desired_before_stop", schema="forebay")
    for name in ("ends_system", "state_since", "state"):
        op.drop_column("pipelines", name, schema="forebay")
    op.drop_table("block_stores", schema="forebay")
    op.execute("DELETE FROM forebay.receiver_events WHERE kind = 'SALVAGED'")
    _event_kinds()
    op.drop_constraint("log_segments_durability", "log_segments", schema="forebay")
    op.drop_column("log_segments", "durability", schema="forebay")
    op.drop_constraint("log_segments_salvage_whole", "log_segments", schema="forebay")
    for name in ("salvaged_sequence", "salvaged_to", "store"):
        op.drop_column("log_segments", name, schema="forebay")
    op.drop_table("stream_schemas", schema="forebay")
    op.drop_column("receivers", "preferred_location", schema="forebay")
    op.drop_column("receivers", "host", schema="forebay")
    op.drop_index(
        "processes_agents", table_name="processes", schema="forebay", postgresql_where=sa.text("kind = 'agent'")
    )
    op.drop_column("processes", "draining", schema="forebay")
    op.drop_table("stream_rates", schema="forebay")
