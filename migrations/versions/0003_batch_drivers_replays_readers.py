"""What warm batches, replays and named readers need in the driver log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Go to this revision."""
    _add_batch_drivers()
    _readers()
    _completed_batches()
    _add_replays()
    _add_launches()
    _add_history()
    _add_scaling()
    _add_publishing()


def downgrade() -> None:
    """Go back to the one before."""
    _drop_batch_drivers()
    op.drop_index("output_commits_to_publish", table_name="output_commits", schema="forebay")
    op.drop_column("output_commits", "to_publish", schema="forebay")
    op.drop_table("reader_cursors", schema="forebay")
    op.drop_table("readers", schema="forebay")
    _drop_scaling()
    op.drop_column("pipelines", "history_from", schema="forebay")
    _drop_launches()
    _drop_replays()
    op.drop_index("batches_completed", table_name="batches", schema="forebay")


def _completed_batches() -> None:
    op.create_index(
        "batches_completed",
        "batches",
        ["pipeline_id", "completed_at"],
        schema="forebay",
        postgresql_where=sa.text("completed_at IS NOT NULL"),
    )


_UNFINISHED = ("ALLOCATED", "RUNNING", "FAILED")
_FINISHED = ("COMPLETED", "QUARANTINED")
_ATTEMPT = ("RUNNING", "SUCCEEDED", "FAILED")


def _add_replays() -> None:
    """Attempts that replay, batches that are BLOCKED or DISCARDED, pipelines that halt."""
    op.add_column(
        "batch_attempts",
        sa.Column(
            "kind",
            sa.Text(),
            server_default="run",
            nullable=False,
            comment="run, or replay: of a batch that is COMPLETED or QUARANTINED, which it may complete and never fails",
        ),
        schema="forebay",
    )
    op.add_column(
        "batch_attempts",
        sa.Column(
            "reach",
            sa.Interval(),
            server_default=sa.text("interval '0'"),
            nullable=False,
            comment="How far before its batch time a replay reads (its longest window): clean-up waits for it",
        ),
        schema="forebay",
    )
    op.alter_column(
        "batch_attempts",
        "state",
        existing_type=sa.Text(),
        comment="RUNNING, SUCCEEDED, FAILED or BLOCKED",
        schema="forebay",
    )
    op.create_check_constraint("batch_attempts_kind", "batch_attempts", "kind IN ('run', 'replay')", schema="forebay")
    op.add_column(
        "pipelines",
        sa.Column(
            "halted_by",
            sa.DateTime(timezone=True),
            nullable=True,
            comment='The quarantined batch that halted it (on_failure = "halt"); null while it goes on',
        ),
        schema="forebay",
    )
    op.create_table_comment(
        "kept_blocks",
        "Which blocks does a quarantined batch, or a window that ends with it, still need, after clean-up took their "
        "rows?",
        schema="forebay",
    )
    _batch_states((*_UNFINISHED, "BLOCKED"), (*_FINISHED, "DISCARDED"), (*_ATTEMPT, "BLOCKED"))


def _drop_replays() -> None:
    op.execute("UPDATE forebay.batches SET state = 'FAILED' WHERE state = 'BLOCKED'")
    op.execute("UPDATE forebay.batches SET state = 'QUARANTINED' WHERE state = 'DISCARDED'")
    op.execute("UPDATE forebay.batch_attempts SET state = 'FAILED' WHERE state = 'BLOCKED'")
    _batch_states(_UNFINISHED, _FINISHED, _ATTEMPT)
    op.create_table_comment(
        "kept_blocks",
        "Which blocks does a quarantined batch still need, after clean-up took their rows?",
        schema="forebay",
    )
    op.drop_column("pipelines", "halted_by", schema="forebay")
    op.drop_constraint("batch_attempts_kind", "batch_attempts", schema="forebay")
    op.alter_column(
        "batch_attempts",
        "state",
        existing_type=sa.Text(),
        comment="RUNNING, SUCCEEDED or FAILED",
        schema="forebay",
    )
    op.drop_column("batch_attempts", "reach", schema="forebay")
    op.drop_column("batch_attempts", "kind", schema="forebay")


def _batch_states(unfinished: tuple[str, ...], finished: tuple[str, ...], attempt: tuple[str, ...]) -> None:
    def one_of(states: tuple[str, ...]) -> str:
        return "state IN ({})".format(", ".join(f"'{state}'" for state in states))

    for table, states in (("batches", (*unfinished, *finished)), ("batch_attempts", attempt)):
        op.drop_constraint(f"{table}_state", table, schema="forebay")
        op.create_check_constraint(f"{table}_state", table, one_of(states), schema="forebay")
    op.drop_index("batches_unfinished", table_name="batches", schema="forebay")
    op.create_index(
        "batches_unfinished",
        "batches",
        ["pipeline_id", "batch_time"],
        schema="forebay",
        postgresql_where=sa.text(one_of(unfinished)),
    )


def _add_launches() -> None:
    """Who asked Dagster for the run of a batch's next attempt."""
    for name, kind, comment in (
        ("launch_attempt", sa.Integer(), "The attempt whose run Dagster was asked for last; null: none was"),
        (
            "launched_at",
            sa.DateTime(timezone=True),
            "When that was, by the database's clock; null: it was not",
        ),
        ("launched_by", sa.Text(), "Who asked: the batch sensor, or a tracker that pushes; null: nobody has"),
    ):
        op.add_column("batches", sa.Column(name, kind, nullable=True, comment=comment), schema="forebay")
    op.create_check_constraint(
        "batches_launch_whole",
        "batches",
        "num_nulls(launch_attempt, launched_at, launched_by) IN (0, 3)",
        schema="forebay",
    )


def _drop_launches() -> None:
    op.drop_constraint("batches_launch_whole", "batches", schema="forebay")
    for name in ("launched_by", "launched_at", "launch_attempt"):
        op.drop_column("batches", name, schema="forebay")


def _add_scaling() -> None:
    """How large Spark should be, how full receivers' queues are, why a pipeline was removed."""
    op.create_table(
        "scaling_decisions",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="The pipeline whose batches it is about"),
        sa.Column(
            "ratio", sa.Double(), nullable=False, comment="Mean processing time of its newest batches to its interval"
        ),
        sa.Column("batches", sa.Integer(), nullable=False, comment="How many batches that is the mean of"),
        sa.Column(
            "executors", sa.Integer(), nullable=False, comment="Executors that Spark should have for its batches"
        ),
        sa.Column(
            "batch_drivers",
            sa.Integer(),
            nullable=False,
            comment="Batch drivers that it wants: 1 is the one that pipelines share, what is more comes on top of it",
        ),
        sa.Column("applied", sa.Boolean(), nullable=False, comment="Whether it takes effect; else it is advice"),
        sa.Column("reason", sa.Text(), nullable=False, comment="Why, and how it takes effect"),
        *(
            sa.Column(
                name,
                sa.DateTime(timezone=True),
                server_default=sa.text("clock_timestamp()"),
                nullable=False,
                comment=comment,
            )
            for name, comment in (
                ("since", "Since when these numbers are wanted"),
                ("decided_at", "When it was looked at last"),
            )
        ),
        sa.CheckConstraint("ratio >= 0 AND batches > 0", name="scaling_decisions_seen"),
        sa.CheckConstraint("executors > 0 AND batch_drivers > 0", name="scaling_decisions_positive"),
        sa.PrimaryKeyConstraint("pipeline_id"),
        schema="forebay",
        comment="How many executors, or batch drivers, should a pipeline's batches have to fit their interval (O04)?",
    )
    op.add_column(
        "processes",
        sa.Column(
            "queued",
            postgresql.JSONB(),
            nullable=True,
            comment="Blocks in the queue of each of its receivers, by id, at its newest heartbeat; null for what has "
            "none",
        ),
        schema="forebay",
    )
    op.add_column(
        "pipelines",
        sa.Column(
            "removed_why",
            sa.Text(),
            nullable=True,
            comment="By whom, and what it had not done by then; null while it is declared",
        ),
        schema="forebay",
    )


def _drop_scaling() -> None:
    op.drop_column("pipelines", "removed_why", schema="forebay")
    op.drop_column("processes", "queued", schema="forebay")
    op.drop_table("scaling_decisions", schema="forebay")


def _readers() -> None:
    op.create_table(
        "readers",
        sa.Column(
            "id",
            sa.BigInteger(),
            autoincrement=True,
            nullable=False,
            comment="The reader in every other table; one that is removed and attached again gets a new one",
        ),
        sa.Column(
            "name",
            sa.Text(),
            nullable=False,
            comment="As its query names it; unique among those that are not removed",
        ),
        sa.Column("stream_id", sa.BigInteger(), nullable=False, comment="The stream that it reads"),
        sa.Column(
            "attached_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When a query asked for it first",
        ),
        sa.Column(
            "removed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When it was removed; null while it holds blocks back",
        ),
        sa.PrimaryKeyConstraint("id"),
        schema="forebay",
        comment="Which streaming queries read a stream by a cursor of their own, that clean-up respects?",
    )
    op.create_index(
        "readers_live_name",
        "readers",
        ["name"],
        unique=True,
        schema="forebay",
        postgresql_where=sa.text("removed_at IS NULL"),
    )
    op.create_index(
        "readers_live_stream",
        "readers",
        ["stream_id"],
        unique=False,
        schema="forebay",
        postgresql_where=sa.text("removed_at IS NULL"),
    )
    op.create_table(
        "reader_cursors",
        sa.Column("reader_id", sa.BigInteger(), nullable=False, comment="The reader"),
        sa.Column("receiver_id", sa.BigInteger(), nullable=False, comment="The receiver that is read"),
        sa.Column(
            "next_sequence",
            sa.BigInteger(),
            nullable=False,
            comment="The first sequence that it may still ask for; moved by its query's commits, and only forward",
        ),
        sa.Column(
            "moved_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was moved last, or placed",
        ),
        sa.CheckConstraint("next_sequence > 0", name="reader_cursors_positive"),
        sa.PrimaryKeyConstraint("reader_id", "receiver_id"),
        schema="forebay",
        comment="Up to which block of each receiver has a named reader read?",
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "500",
            "fillfactor": "50",
        },
    )


_PROCESS_KINDS = ("agent", "receiver", "batch run")
# Small, and changed with every batch.
_HOT = {"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "500"}


def _process_kinds(*kinds: str) -> None:
    op.drop_constraint("processes_kind", "processes", schema="forebay")
    op.create_check_constraint(
        "processes_kind",
        "processes",
        "kind IN ({})".format(", ".join(f"'{kind}'" for kind in kinds)),
        schema="forebay",
    )


def _add_batch_drivers() -> None:
    """Processes that run batches with everything loaded, and the queue that they take them from."""
    _process_kinds(*_PROCESS_KINDS, "batch driver")
    op.alter_column(
        "processes",
        "kind",
        existing_type=sa.Text(),
        comment="agent, receiver, batch run or batch driver",
        schema="forebay",
    )
    op.create_table(
        "batch_drivers",
        sa.Column("process_id", sa.BigInteger(), autoincrement=False, nullable=False, comment="The driver's process"),
        sa.Column("location", sa.Text(), nullable=False, comment="The Dagster code location whose batch runs it takes"),
        sa.Column(
            "state",
            sa.Text(),
            server_default="STARTING",
            nullable=False,
            comment="STARTING, READY or DRAINING",
        ),
        sa.Column(
            "since",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it came to that state",
        ),
        sa.CheckConstraint("state IN ('STARTING', 'READY', 'DRAINING')", name="batch_drivers_state"),
        sa.PrimaryKeyConstraint("process_id"),
        schema="forebay",
        comment="Which batch drivers take runs? (Those whose process has not ended.)",
        postgresql_with=_HOT,
    )
    op.create_table(
        "run_queue",
        sa.Column("run_id", sa.Text(), nullable=False, comment="The Dagster run"),
        sa.Column("location", sa.Text(), nullable=False, comment="The code location that it is of"),
        sa.Column(
            "process_id",
            sa.BigInteger(),
            nullable=True,
            comment="The batch driver that has claimed it; null while it waits",
        ),
        sa.Column(
            "cancel_requested",
            sa.Boolean(),
            server_default="false",
            nullable=False,
            comment="Its driver is to cancel it",
        ),
        sa.Column(
            "enqueued_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was handed over",
        ),
        sa.Column(
            "claimed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When a driver took it; null while it waits",
        ),
        sa.CheckConstraint("(process_id IS NULL) = (claimed_at IS NULL)", name="run_queue_claimed"),
        sa.PrimaryKeyConstraint("run_id"),
        schema="forebay",
        comment="Which Dagster runs wait for a batch driver, or are in one? (A run that has ended has no row.)",
        postgresql_with=_HOT,
    )
    op.create_index(
        "run_queue_waiting",
        "run_queue",
        ["location", "enqueued_at"],
        schema="forebay",
        postgresql_where=sa.text("process_id IS NULL"),
    )


def _drop_batch_drivers() -> None:
    op.drop_table("run_queue", schema="forebay")
    op.drop_table("batch_drivers", schema="forebay")
    op.execute("DELETE FROM forebay.processes WHERE kind = 'batch driver'")
    op.alter_column(
        "processes", "kind", existing_type=sa.Text(), comment="agent, receiver or batch run", schema="forebay"
    )
    _process_kinds(*_PROCESS_KINDS)


def _add_publishing() -> None:
    """Which committed results readers do not see yet."""
    op.add_column(
        "output_commits",
        sa.Column(
            "to_publish",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="Whether its files are still to be shown to readers; false where the sink publishes nothing",
        ),
        schema="forebay",
    )
    op.create_index(
        "output_commits_to_publish",
        "output_commits",
        ["pipeline_id", "batch_time"],
        schema="forebay",
        postgresql_where=sa.text("to_publish"),
    )


def _add_history() -> None:
    """From where on all of a pipeline's batches are there."""
    op.add_column(
        "pipelines",
        sa.Column(
            "history_from",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="Batches before this are forgotten, but for those that are quarantined; null: none are",
        ),
        schema="forebay",
    )
