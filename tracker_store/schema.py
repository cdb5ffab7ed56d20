"""The driver log's tables, states and legal transitions (design §4).

This module owns what the driver log *is*; it never runs a statement. Migrations create what stands here, and a
test compares the two. Each table's comment names the one question that the table answers.

Times are ``timestamptz`` by the database's clock. No lease, batch or cut depends on that clock going forward.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    Index,
    Integer,
    Interval,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import INT8RANGE, JSONB, ExcludeConstraint

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = "forebay"

metadata = MetaData(schema=SCHEMA)


class DesiredState(StrEnum):
    """What an operator wants of a receiver; durable."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class ReceiverState(StrEnum):
    """What a receiver is (the original's K01, with PAUSED and FAILED added)."""

    INACTIVE = "INACTIVE"  # runs nowhere; the tracker places it if it is desired
    SCHEDULED = "SCHEDULED"  # assigned to an agent, no claim yet
    ACTIVE = "ACTIVE"  # claimed: a process holds the newest epoch
    PAUSED = "PAUSED"  # claimed, not reading, by the operator's wish
    FAILED = "FAILED"  # its restarts are used up; Dagster's receiver sensor, then a person


RECEIVER_TRANSITIONS: Mapping[ReceiverState, frozenset[ReceiverState]] = {
    ReceiverState.INACTIVE: frozenset({ReceiverState.SCHEDULED}),
    ReceiverState.SCHEDULED: frozenset({ReceiverState.ACTIVE, ReceiverState.FAILED, ReceiverState.INACTIVE}),
    ReceiverState.ACTIVE: frozenset({ReceiverState.PAUSED, ReceiverState.FAILED, ReceiverState.INACTIVE}),
    ReceiverState.PAUSED: frozenset({ReceiverState.ACTIVE, ReceiverState.FAILED, ReceiverState.INACTIVE}),
    ReceiverState.FAILED: frozenset({ReceiverState.INACTIVE}),
}


class BatchState(StrEnum):
    """The life of a batch. FAILED is between two attempts; QUARANTINED waits for a person."""

    ALLOCATED = "ALLOCATED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    QUARANTINED = "QUARANTINED"


BATCH_TRANSITIONS: Mapping[BatchState, frozenset[BatchState]] = {
    # A run may die before it claims: its attempt is recorded as failed without the batch ever RUNNING.
    BatchState.ALLOCATED: frozenset({BatchState.RUNNING, BatchState.FAILED, BatchState.QUARANTINED}),
    BatchState.RUNNING: frozenset({BatchState.COMPLETED, BatchState.FAILED, BatchState.QUARANTINED}),
    BatchState.FAILED: frozenset({BatchState.RUNNING, BatchState.FAILED, BatchState.QUARANTINED}),
    BatchState.COMPLETED: frozenset(),
    BatchState.QUARANTINED: frozenset({BatchState.COMPLETED}),
}


class AttemptState(StrEnum):
    """One attempt at a batch: it runs, and ends one way."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


class ProcessKind(StrEnum):
    """Who raises a heartbeat counter."""

    AGENT = "agent"
    RECEIVER = "receiver"
    BATCH_RUN = "batch run"


class ReceiverEventKind(StrEnum):
    """What an operator can read about a receiver, in time order."""

    SCHEDULED = "SCHEDULED"
    STARTED = "STARTED"
    CONNECTED = "CONNECTED"
    RESTARTED = "RESTARTED"
    PAUSED = "PAUSED"
    RESUMED = "RESUMED"
    STOPPED = "STOPPED"
    ERROR = "ERROR"
    EXITED = "EXITED"
    FENCED = "FENCED"
    FAILED = "FAILED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    BAD_RECORD = "BAD_RECORD"


class SegmentState(StrEnum):
    """A segment is open for the one process that made it, sealed at a known length, then deleted file first."""

    OPEN = "OPEN"
    SEALED = "SEALED"
    DELETING = "DELETING"


SEGMENT_TRANSITIONS: Mapping[SegmentState, frozenset[SegmentState]] = {
    SegmentState.OPEN: frozenset({SegmentState.SEALED}),
    SegmentState.SEALED: frozenset({SegmentState.DELETING}),
    SegmentState.DELETING: frozenset(),
}


class LinkKind(StrEnum):
    """Why a partition's position moved."""

    ORIGIN = "origin"  # where reading begins: the first of a partition, or of a new generation
    BLOCK = "block"  # the records went into a block
    LOST = "lost"  # the source no longer has them; they are counted, not stored


def _one_of(column: str, states: type[StrEnum]) -> str:
    values = ", ".join(f"'{state.value}'" for state in states)
    return f"{column} IN ({values})"


def _identity() -> Column[int]:
    return Column("id", BigInteger, primary_key=True, autoincrement=True)


def _now(name: str) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp())


# Small, hot, updated in place: autovacuum after a fixed number of dead rows, whatever the table's size.
HOT = {"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "500"}

streams = Table(
    "streams",
    metadata,
    _identity(),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("declaration", JSONB, nullable=False),
    # How long blocks are kept that no pipeline reads.
    Column("retention", Interval, nullable=False, server_default=text("interval '7 days'")),
    _now("applied_at"),
    Column("removed_at", DateTime(timezone=True)),
    CheckConstraint("version > 0", name="streams_version_positive"),
    Index("streams_live_name", "name", unique=True, postgresql_where=text("removed_at IS NULL")),
    comment="Which streams are declared, and how (the newest applied version)?",
)

pipelines = Table(
    "pipelines",
    metadata,
    _identity(),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("declaration", JSONB, nullable=False),
    # The streams it reads: a receiver of these without a row in cursors counts as a cursor at 1.
    Column("stream_ids", ARRAY(BigInteger), nullable=False),
    Column("batch_interval", Interval, nullable=False),
    # How long after its batch time a batch's blocks are kept, for windows and replay.
    Column("retention", Interval, nullable=False, server_default=text("interval '0'")),
    # Every batch time up to here is decided; allocation locks this row and moves it forward.
    Column("last_batch_time", DateTime(timezone=True), nullable=False),
    _now("applied_at"),
    Column("removed_at", DateTime(timezone=True)),
    CheckConstraint("version > 0", name="pipelines_version_positive"),
    CheckConstraint("batch_interval > interval '0'", name="pipelines_interval_positive"),
    Index("pipelines_live_name", "name", unique=True, postgresql_where=text("removed_at IS NULL")),
    comment="Which pipelines are declared, and up to which batch time are their blocks decided?",
)

processes = Table(
    "processes",
    metadata,
    _identity(),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("slots", Integer, nullable=False, server_default="0"),
    # A process is dead when this has not moved for the limit, on the leader's monotonic clock.
    Column("heartbeat", BigInteger, nullable=False, server_default="0"),
    _now("started_at"),
    Column("ended_at", DateTime(timezone=True)),
    Column("end_reason", Text),
    CheckConstraint(_one_of("kind", ProcessKind), name="processes_kind"),
    CheckConstraint("slots >= 0", name="processes_slots"),
    Index("processes_live", "kind", postgresql_where=text("ended_at IS NULL")),
    comment="Which processes live (a heartbeat counter that moves), where, with how many slots?",
    postgresql_with=HOT,
)

leadership = Table(
    "leadership",
    metadata,
    Column("only_row", Boolean, primary_key=True, server_default="true"),
    Column("term", BigInteger, nullable=False, server_default="0"),
    Column("counter", BigInteger, nullable=False, server_default="0"),
    Column("holder", Text),
    _now("since"),
    CheckConstraint("only_row", name="leadership_one_row"),
    comment="Which tracker leads, in which term? (One row; a guard locks it FOR SHARE.)",
    postgresql_with=HOT,
)

receivers = Table(
    "receivers",
    metadata,
    _identity(),
    Column("stream_id", BigInteger, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("state", Text, nullable=False, server_default="INACTIVE"),
    Column("desired_state", Text, nullable=False, server_default="running"),
    Column("reason", Text, nullable=False, server_default=""),
    _now("since"),
    # Raised by every placement decision; a process may claim only under the one it was started for.
    Column("assignment", BigInteger, nullable=False, server_default="0"),
    Column("agent_id", BigInteger),
    Column("process_id", BigInteger),
    Column("rate_limit", Double),
    # Blocks up to here are cleaned away; gapless means from low_mark + 1 to the newest.
    Column("low_mark", BigInteger, nullable=False, server_default="0"),
    Column("removed_at", DateTime(timezone=True)),
    UniqueConstraint("stream_id", "ordinal", name="receivers_stream_ordinal"),
    CheckConstraint(_one_of("state", ReceiverState), name="receivers_state"),
    CheckConstraint(_one_of("desired_state", DesiredState), name="receivers_desired_state"),
    CheckConstraint("low_mark >= 0", name="receivers_low_mark"),
    CheckConstraint("rate_limit IS NULL OR rate_limit > 0", name="receivers_rate_limit"),
    comment="Where is each receiver placed, what is wanted of it, and how does it fare?",
    postgresql_with={**HOT, "fillfactor": "50"},
)

# Insert-only; the chain is the fence. No foreign key: it would lock one hot parent row per block.
blocks = Table(
    "blocks",
    metadata,
    Column("receiver_id", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("added_at", DateTime(timezone=True), nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("total_records", BigInteger, nullable=False),
    Column("total_bytes", BigInteger, nullable=False),
    # The handle; all null in a marker row, with which an epoch begins.
    Column("segment_id", BigInteger),
    Column("offset", BigInteger),
    Column("length", BigInteger),
    Column("crc32c", BigInteger),
    PrimaryKeyConstraint("receiver_id", "sequence"),
    CheckConstraint("sequence > 0 AND epoch > 0", name="blocks_positive"),
    CheckConstraint("records >= 0 AND bytes >= 0", name="blocks_counts"),
    CheckConstraint('num_nulls(segment_id, "offset", length, crc32c) IN (0, 4)', name="blocks_handle_whole"),
    CheckConstraint("segment_id IS NOT NULL OR (records = 0 AND bytes = 0)", name="blocks_marker_empty"),
    comment="Which blocks does each receiver have, in which order, and where do their bytes lie?",
    # Insert-only: freeze in small steps rather than in one storm.
    postgresql_with={"autovacuum_vacuum_insert_scale_factor": "0.05"},
)

# Insert-only, in add_block's own transaction. `partition` is text: sources count theirs as they like.
block_offsets = Table(
    "block_offsets",
    metadata,
    Column("stream_id", BigInteger, nullable=False),
    Column("source", Text, nullable=False),
    Column("partition", Text, nullable=False),
    # Opened by one when a position goes backwards: a topic made anew, a replaced file, a reset.
    Column("generation", Integer, nullable=False),
    # -1 in an origin link: nothing comes before it.
    Column("from_offset", BigInteger, nullable=False),
    Column("to_offset", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("receiver_id", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    PrimaryKeyConstraint("stream_id", "source", "partition", "generation", "from_offset"),
    CheckConstraint(_one_of("kind", LinkKind), name="block_offsets_kind"),
    CheckConstraint("generation >= 0", name="block_offsets_generation"),
    CheckConstraint("(kind = 'origin') = (from_offset = -1)", name="block_offsets_origin"),
    CheckConstraint("to_offset >= 0 AND to_offset > from_offset", name="block_offsets_forward"),
    comment="Up to which position of each source partition is everything in a block? (A chain of links.)",
    postgresql_with={"autovacuum_vacuum_insert_scale_factor": "0.05"},
)

record_keys = Table(
    "record_keys",
    metadata,
    Column("stream_id", BigInteger, nullable=False),
    Column("key", Text, nullable=False),
    Column("receiver_id", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    _now("added_at"),
    PrimaryKeyConstraint("stream_id", "key"),
    Index("record_keys_age", "stream_id", "added_at"),
    comment="Which idempotency keys of a stream have been received, within its window?",
)

log_segments = Table(
    "log_segments",
    metadata,
    _identity(),
    Column("receiver_id", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("path", Text, nullable=False),
    Column("source_rule", Text, nullable=False),
    Column("state", Text, nullable=False, server_default="OPEN"),
    Column("length", BigInteger),
    _now("opened_at"),
    Column("sealed_at", DateTime(timezone=True)),
    UniqueConstraint("path", name="log_segments_path"),
    CheckConstraint(_one_of("state", SegmentState), name="log_segments_state"),
    CheckConstraint("(state = 'OPEN') = (length IS NULL)", name="log_segments_length"),
    Index("log_segments_open", "receiver_id", "id", postgresql_where=text("state = 'OPEN'")),
    comment="Which files of the block store are ours? (A row comes before its file.)",
)

dead_letters = Table(
    "dead_letters",
    metadata,
    _identity(),
    Column("receiver_id", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    # A record too large to hold is kept in parts, from 0; together they are the record.
    Column("part", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("segment_id", BigInteger, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("length", BigInteger, nullable=False),
    Column("crc32c", BigInteger, nullable=False),
    _now("added_at"),
    UniqueConstraint("segment_id", "offset", name="dead_letters_handle"),
    CheckConstraint("part >= 0 AND bytes >= 0", name="dead_letters_counts"),
    Index("dead_letters_receiver", "receiver_id", "id"),
    comment="Which records could not be processed, why, and where are they kept?",
)

cursors = Table(
    "cursors",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False),
    Column("receiver_id", BigInteger, nullable=False),
    Column("next_sequence", BigInteger, nullable=False),
    PrimaryKeyConstraint("pipeline_id", "receiver_id"),
    CheckConstraint("next_sequence > 0", name="cursors_positive"),
    comment="Which block of each receiver does a pipeline take next?",
    postgresql_with={**HOT, "fillfactor": "50"},
)

batches = Table(
    "batches",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False),
    Column("batch_time", DateTime(timezone=True), nullable=False),
    # The oldest boundary that this batch stands for: its own, unless missed ones were merged into it.
    Column("oldest_time", DateTime(timezone=True), nullable=False),
    Column("state", Text, nullable=False, server_default="ALLOCATED"),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("records", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("blocks", BigInteger, nullable=False),
    _now("allocated_at"),
    # Not before this may the next attempt start (backoff after a failure).
    Column("retry_at", DateTime(timezone=True)),
    Column("completed_at", DateTime(timezone=True)),
    Column("reason", Text, nullable=False, server_default=""),
    PrimaryKeyConstraint("pipeline_id", "batch_time"),
    CheckConstraint(_one_of("state", BatchState), name="batches_state"),
    CheckConstraint("attempt >= 0", name="batches_attempt"),
    CheckConstraint("oldest_time <= batch_time", name="batches_oldest_time"),
    CheckConstraint("(state = 'COMPLETED') = (completed_at IS NOT NULL)", name="batches_completed_at"),
    Index(
        "batches_unfinished",
        "pipeline_id",
        "batch_time",
        postgresql_where=text("state IN ('ALLOCATED', 'RUNNING', 'FAILED')"),
    ),
    comment="Which batches were made, how large are they, and what has become of them?",
)

batch_allocations = Table(
    "batch_allocations",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False),
    Column("batch_time", DateTime(timezone=True), nullable=False),
    Column("receiver_id", BigInteger, nullable=False),
    Column("sequences", INT8RANGE, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    PrimaryKeyConstraint("pipeline_id", "batch_time", "receiver_id"),
    CheckConstraint("NOT isempty(sequences)", name="batch_allocations_not_empty"),
    # Core operators only: the embedded server has no btree_gist.
    ExcludeConstraint(
        (text("int8range(pipeline_id, pipeline_id, '[]')"), "&&"),
        (text("int8range(receiver_id, receiver_id, '[]')"), "&&"),
        (text("sequences"), "&&"),
        name="batch_allocations_no_overlap",
        using="gist",
    ),
    comment="Which blocks of which receiver belong to a batch? (Ranges of one pipeline never overlap.)",
)

batch_attempts = Table(
    "batch_attempts",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False),
    Column("batch_time", DateTime(timezone=True), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("state", Text, nullable=False, server_default="RUNNING"),
    Column("run_id", Text, nullable=False),
    Column("process_id", BigInteger),
    _now("started_at"),
    Column("ended_at", DateTime(timezone=True)),
    Column("error", Text, nullable=False, server_default=""),
    PrimaryKeyConstraint("pipeline_id", "batch_time", "attempt"),
    CheckConstraint(_one_of("state", AttemptState), name="batch_attempts_state"),
    CheckConstraint("(state = 'RUNNING') = (ended_at IS NULL)", name="batch_attempts_ended_at"),
    Index(
        "batch_attempts_running",
        "pipeline_id",
        "batch_time",
        unique=True,
        postgresql_where=text("state = 'RUNNING'"),
    ),
    comment="Who has tried to run a batch, when, and how did it end? (At most one runs.)",
)

output_commits = Table(
    "output_commits",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False),
    Column("output", Text, nullable=False),
    Column("batch_time", DateTime(timezone=True), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("location", Text, nullable=False),
    Column("rows", BigInteger),
    _now("committed_at"),
    PrimaryKeyConstraint("pipeline_id", "output", "batch_time"),
    comment="Which attempt's result counts for an output and batch time? (This row is the commit.)",
)

kept_blocks = Table(
    "kept_blocks",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False),
    Column("batch_time", DateTime(timezone=True), nullable=False),
    Column("receiver_id", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("added_at", DateTime(timezone=True), nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("segment_id", BigInteger, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("length", BigInteger, nullable=False),
    Column("crc32c", BigInteger, nullable=False),
    PrimaryKeyConstraint("pipeline_id", "batch_time", "receiver_id", "sequence"),
    Index("kept_blocks_segment", "segment_id"),
    comment="Which blocks does a quarantined batch still need, after clean-up took their rows?",
)

cleanup_events = Table(
    "cleanup_events",
    metadata,
    _identity(),
    Column("receiver_id", BigInteger, nullable=False),
    Column("sequences", INT8RANGE, nullable=False),
    Column("blocks", BigInteger, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    # Records that went without any pipeline having read them: their stream's retention was over.
    Column("unread_records", BigInteger, nullable=False, server_default="0"),
    _now("at"),
    Index("cleanup_events_receiver", "receiver_id", "id"),
    comment="Which blocks were cleaned away, when, and had they been read?",
)

receiver_events = Table(
    "receiver_events",
    metadata,
    _identity(),
    Column("receiver_id", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    _now("at"),
    Column("kind", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("detail", Text, nullable=False, server_default=""),
    CheckConstraint(_one_of("kind", ReceiverEventKind), name="receiver_events_kind"),
    Index("receiver_events_receiver", "receiver_id", "id"),
    comment="What happened to a receiver, and why?",
)
