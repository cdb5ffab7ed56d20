"""Declare the driver log's tables (docs/explanation/driver-log.md); their states and transitions are in `states`.

This module owns what the driver log *is*; it never runs a statement. Migrations create what is declared here, and a
test compares the two. Each table's comment names the one question that the table answers; each column's says what it
counts, in which unit, and when it is null.

Times are ``timestamptz`` by the database's clock. No lease, batch or cut depends on that clock never being set back.
"""

from __future__ import annotations

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
from sqlalchemy.dialects.postgresql import INT8MULTIRANGE, INT8RANGE, JSONB

from tracker_store.schema.states import (
    UNFINISHED_STATE_REPLAYS,
    UNFINISHED_STATES,
    AttemptFailure,
    AttemptKind,
    AttemptState,
    BatchDriverState,
    BatchState,
    DesiredState,
    LinkKind,
    PipelineState,
    ProcessKind,
    ReceiverEventKind,
    ReceiverState,
    SegmentState,
    StateReplayState,
)
from tracker_store.schema.storage_parameters import HOT, REPLACED

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from enum import StrEnum

SCHEMA = "forebay"

metadata = MetaData(schema=SCHEMA)


def _one_of(column: str, states: Iterable[StrEnum]) -> str:
    values = ", ".join(f"'{state.value}'" for state in states)
    return f"{column} IN ({values})"


def _identity(comment: str) -> Column[int]:
    return Column("id", BigInteger, primary_key=True, autoincrement=True, comment=comment)


def _now(name: str, comment: str) -> Column[datetime]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp(), comment=comment)


streams = Table(
    "streams",
    metadata,
    _identity("The stream in every other table; a removed stream's is never used again"),
    Column("name", Text, nullable=False, comment="As declared; unique among the streams that are not removed"),
    Column(
        "version",
        Integer,
        nullable=False,
        server_default="1",
        comment="Raised by one each time the declaration changes",
    ),
    Column(
        "declaration",
        JSONB,
        nullable=False,
        comment="Source, settings and number of receivers, as applied; secrets are references",
    ),
    Column(
        "retention",
        Interval,
        nullable=False,
        server_default=text("interval '7 days'"),
        comment="How long blocks are kept that no pipeline reads",
    ),
    _now("applied_at", "When this version was applied"),
    Column("removed_at", DateTime(timezone=True), comment="When it was removed; null while it is declared"),
    CheckConstraint("version > 0", name="streams_version_positive"),
    Index("streams_live_name", "name", unique=True, postgresql_where=text("removed_at IS NULL")),
    comment="Which streams are declared, and how (the newest applied version)?",
)

pipelines = Table(
    "pipelines",
    metadata,
    _identity("The pipeline in every other table; one that is removed and applied again gets a new one"),
    Column("name", Text, nullable=False, comment="As declared; unique among the pipelines that are not removed"),
    Column(
        "version",
        Integer,
        nullable=False,
        server_default="1",
        comment="Raised by one each time the declaration changes",
    ),
    Column(
        "declaration",
        JSONB,
        nullable=False,
        comment="Interval, outputs with inputs and sinks, retry and catch-up, as applied",
    ),
    Column(
        "stream_ids",
        ARRAY(BigInteger),
        nullable=False,
        comment="The streams it reads: a receiver of these without a row in cursors counts as a cursor at 1",
    ),
    Column(
        "batch_interval",
        Interval,
        nullable=False,
        comment="Batch times are the multiples of this since 1970-01-01 00:00 UTC; with a calendar, its usual length",
    ),
    Column(
        "retention",
        Interval,
        nullable=False,
        server_default=text("interval '0'"),
        comment="How long after its batch time a batch's blocks are kept, for windows and replay",
    ),
    Column(
        "last_batch_time",
        DateTime(timezone=True),
        nullable=False,
        comment="Every batch time up to here is decided; allocation locks this row and moves it forward",
    ),
    _now("applied_at", "When this version was applied"),
    Column("removed_at", DateTime(timezone=True), comment="When it was removed; null while it is declared"),
    Column(
        "state",
        Text,
        nullable=False,
        server_default="RUNNING",
        comment="Whether it makes batches: RUNNING, STOPPING or STOPPED (transitions: states.py)",
    ),
    _now("state_since", "When it entered that state"),
    Column(
        "ends_system",
        Boolean,
        nullable=False,
        server_default="false",
        comment="Whether all were stopped together; `forebay up` ends when every pipeline is STOPPED in this way",
    ),
    Column("removed_why", Text, comment="Who removed it, and what it had not done by then; null while it is declared"),
    Column(
        "halted_by",
        DateTime(timezone=True),
        comment='The quarantined batch that halted it (on_failure = "halt"); null while it is not halted',
    ),
    Column(
        "history_from",
        DateTime(timezone=True),
        comment="Batches before this time are deleted, except quarantined ones; null: none are deleted",
    ),
    Column(
        "next_batch_time",
        DateTime(timezone=True),
        comment="The boundary after last_batch_time by its calendar; null: the next multiple of its interval",
    ),
    Column(
        "states_after",
        JSONB,
        nullable=False,
        server_default=text("'{}'"),
        comment="By output with a state: the last batch time when it was first declared; it waits for none up to it",
    ),
    CheckConstraint("version > 0", name="pipelines_version_positive"),
    CheckConstraint(_one_of("state", PipelineState), name="pipelines_state"),
    CheckConstraint("batch_interval > interval '0'", name="pipelines_interval_positive"),
    Index("pipelines_live_name", "name", unique=True, postgresql_where=text("removed_at IS NULL")),
    comment="Which pipelines are declared, and up to which batch time are their blocks decided?",
    postgresql_with={**HOT, "fillfactor": "50"},
)

processes = Table(
    "processes",
    metadata,
    _identity("The process in every other table"),
    Column("kind", Text, nullable=False, comment="agent, receiver, batch run or batch driver"),
    Column("name", Text, nullable=False, comment="Shown to people: a host, a receiver, a pipeline and batch time"),
    Column("host", Text, nullable=False, comment="Where it runs"),
    Column("pid", Integer, nullable=False, comment="Its process id on that host"),
    Column(
        "slots",
        Integer,
        nullable=False,
        server_default="0",
        comment="How many receivers may be placed on it; 0 unless it is an agent",
    ),
    Column(
        "heartbeat",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="Raised every second; dead if it does not change within the limit, on the leader's monotonic clock",
    ),
    _now("started_at", "When it registered"),
    Column(
        "ended_at", DateTime(timezone=True), comment="When it ended itself or was declared dead; null while it is alive"
    ),
    Column("end_reason", Text, comment="Why it ended, as the process or the tracker says"),
    Column(
        "draining",
        Boolean,
        nullable=False,
        server_default="false",
        comment="A draining agent gets no receivers and hands its own over; the next agent of its name inherits this",
    ),
    Column(
        "queued",
        JSONB,
        comment="Its receivers' queues by id, in blocks, and `fetched` records, at its newest heartbeat; null: none",
    ),
    Column(
        "login",
        Text,
        nullable=False,
        server_default=text("SESSION_USER"),
        comment="The login that registered it, and may end it",
    ),
    CheckConstraint(_one_of("kind", ProcessKind), name="processes_kind"),
    CheckConstraint("slots >= 0", name="processes_slots"),
    # A starting agent looks up whether its predecessor was draining; batch runs are many, and not in this index.
    Index("processes_agents", "name", "id", postgresql_where=text("kind = 'agent'")),
    Index("processes_live", "kind", postgresql_where=text("ended_at IS NULL")),
    # Clean-up takes the ended ones by their age.
    Index("processes_ended", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
    comment="Which processes are alive (their heartbeat counter changes), where, with how many slots?",
    postgresql_with={**HOT, "fillfactor": "50"},
)

batch_drivers = Table(
    "batch_drivers",
    metadata,
    Column("process_id", BigInteger, primary_key=True, autoincrement=False, comment="The driver's process"),
    Column("location", Text, nullable=False, comment="The Dagster code location whose batch runs it takes"),
    Column(
        "state", Text, nullable=False, server_default=BatchDriverState.STARTING, comment="STARTING, READY or DRAINING"
    ),
    _now("since", "When it entered that state"),
    CheckConstraint(_one_of("state", BatchDriverState), name="batch_drivers_state"),
    comment="Which batch drivers take runs? (Those whose process has not ended.)",
    postgresql_with=HOT,
)

run_queue = Table(
    "run_queue",
    metadata,
    Column("run_id", Text, primary_key=True, comment="The Dagster run"),
    Column("location", Text, nullable=False, comment="The Dagster code location of the run"),
    Column("process_id", BigInteger, comment="The batch driver that has claimed it; null while it waits"),
    Column(
        "cancel_requested",
        Boolean,
        nullable=False,
        server_default="false",
        comment="Whether its driver must cancel it",
    ),
    _now("enqueued_at", "When the run launcher handed it over"),
    Column("claimed_at", DateTime(timezone=True), comment="When a driver took it; null while it waits"),
    CheckConstraint("(process_id IS NULL) = (claimed_at IS NULL)", name="run_queue_claimed"),
    Index("run_queue_waiting", "location", "enqueued_at", postgresql_where=text("process_id IS NULL")),
    comment="Which Dagster runs wait for a batch driver, or are in one? (A run that has ended has no row.)",
    postgresql_with=HOT,
)

leadership = Table(
    "leadership",
    metadata,
    Column("only_row", Boolean, primary_key=True, server_default="true", comment="True: there is one row"),
    Column(
        "term",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="Raised by one by each tracker that takes over; a statement of an older term changes nothing",
    ),
    Column(
        "counter",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="Raised every second by the leader; a candidate that sees no change takes the next term",
    ),
    Column("holder", Text, comment="The leading tracker's name; null after the last leader has resigned"),
    _now("since", "When this term began"),
    CheckConstraint("only_row", name="leadership_one_row"),
    comment="Which tracker leads, in which term? (One row; a guard locks it FOR SHARE.)",
    postgresql_with=HOT,
)

receivers = Table(
    "receivers",
    metadata,
    _identity("The receiver in every other table"),
    Column("stream_id", BigInteger, nullable=False, comment="The stream that it receives for"),
    Column("ordinal", Integer, nullable=False, comment="Its number within the stream, from 1"),
    Column(
        "state",
        Text,
        nullable=False,
        server_default="INACTIVE",
        comment="INACTIVE, SCHEDULED, ACTIVE, PAUSED or FAILED (transitions: states.py)",
    ),
    Column(
        "desired_state",
        Text,
        nullable=False,
        server_default="running",
        comment="What an operator wants it to be: running, paused or stopped; kept over restarts",
    ),
    Column(
        "reason",
        Text,
        nullable=False,
        server_default="",
        comment="Why it is in its state; empty if there is no reason to give",
    ),
    _now("since", "When it entered its state"),
    Column(
        "assignment",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="Raised by every placement decision; a process may claim only under the one it was started for",
    ),
    Column("agent_id", BigInteger, comment="The agent that it is placed on; null: none"),
    Column("process_id", BigInteger, comment="The process that claimed it under this assignment; null: none yet"),
    Column("rate_limit", Double, comment="Records per second that it may take in; null: no limit"),
    Column(
        "low_mark",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="Blocks up to here are deleted, markers stay; from low_mark + 1 to the newest there are no gaps",
    ),
    Column(
        "removed_at",
        DateTime(timezone=True),
        comment="When a declaration with fewer receivers removed it; null while it is declared",
    ),
    Column(
        "host",
        Text,
        comment="The only host where it may run (a listener's address, or one receiver per host); null: any host",
    ),
    Column(
        "preferred_location",
        Text,
        comment="The host that the receiver preferred at its newest start; not binding; null: none",
    ),
    Column(
        "bound_to_host",
        Boolean,
        nullable=False,
        server_default="true",
        comment="Whether it may read what only its host has, by its newest start; if so, nothing moves it unasked",
    ),
    Column(
        "desired_before_stop",
        Text,
        comment="The desired state for when a pipeline that reads it runs again; null unless all are stopped",
    ),
    Column(
        "closed_epoch",
        BigInteger,
        comment="The epoch of the marker that closed its sequence after it was removed; null: it was never closed",
    ),
    UniqueConstraint("stream_id", "ordinal", name="receivers_stream_ordinal"),
    CheckConstraint(_one_of("state", ReceiverState), name="receivers_state"),
    CheckConstraint(_one_of("desired_state", DesiredState), name="receivers_desired_state"),
    CheckConstraint(
        f"desired_before_stop IS NULL OR {_one_of('desired_before_stop', DesiredState)}",
        name="receivers_desired_before_stop",
    ),
    CheckConstraint("low_mark >= 0", name="receivers_low_mark"),
    CheckConstraint("rate_limit IS NULL OR rate_limit > 0", name="receivers_rate_limit"),
    # Partial, and of columns that only a placement or a claim changes: updates that come each second stay HOT.
    Index("receivers_of_agent", "agent_id", postgresql_where=text("agent_id IS NOT NULL")),
    Index("receivers_of_process", "process_id", postgresql_where=text("process_id IS NOT NULL")),
    Index("receivers_removed", "id", postgresql_where=text("removed_at IS NOT NULL")),
    comment="Where is each receiver placed, what should it be, and what is it?",
    postgresql_with={**HOT, "fillfactor": "50"},
)

hand_overs = Table(
    "hand_overs",
    metadata,
    _identity("The hand-over, or the request to rebalance"),
    Column("receiver_id", BigInteger, comment="The receiver that is to move; null, as the next four, in a request"),
    Column(
        "from_assignment",
        BigInteger,
        comment="Its assignment until it moves; when the receiver has another one, the hand-over is void",
    ),
    Column("agent_id", BigInteger, comment="The agent that starts its next process"),
    Column("assignment", BigInteger, comment="The assignment under which that process takes it over"),
    Column("why", Text, comment="Why it is to move; becomes the reason for its placement"),
    _now("since", "When the leader decided it, or a person requested it"),
    Column(
        "listeners",
        Boolean,
        comment="Of a request: whether receivers that listen at an address of their host may move too; else null",
    ),
    UniqueConstraint("receiver_id", name="hand_overs_receiver"),
    CheckConstraint("assignment > from_assignment", name="hand_overs_assignment"),
    CheckConstraint(
        "num_nulls(receiver_id, from_assignment, agent_id, assignment, why) "
        "= CASE WHEN listeners IS NULL THEN 0 ELSE 5 END",
        name="hand_overs_whole",
    ),
    comment="Which receiver is to move to which agent, as soon as a process there is ready, and who asked for moves?",
)

# Insert-only; the chain is the fence. No foreign key: that would lock one hot parent row per block.
blocks = Table(
    "blocks",
    metadata,
    Column("receiver_id", BigInteger, nullable=False, comment="The receiver that stored it"),
    Column(
        "sequence",
        BigInteger,
        nullable=False,
        comment="Its place in the receiver's gapless sequence, from 1; blocks and markers share it",
    ),
    Column(
        "epoch",
        BigInteger,
        nullable=False,
        comment="The claim that added it; a block follows only a row of its own epoch",
    ),
    Column(
        "added_at",
        DateTime(timezone=True),
        nullable=False,
        comment="By the database's clock, but never before the predecessor's; batches are cut by this time",
    ),
    Column("records", BigInteger, nullable=False, comment="How many records it has; 0 in a marker"),
    Column("bytes", BigInteger, nullable=False, comment="Its size as stored; 0 in a marker"),
    Column("total_records", BigInteger, nullable=False, comment="Running total: the predecessor's plus records"),
    Column("total_bytes", BigInteger, nullable=False, comment="Running total: the predecessor's plus bytes"),
    Column(
        "segment_id",
        BigInteger,
        comment="The segment that holds its frame; null in a marker, with which an epoch begins",
    ),
    Column("offset", BigInteger, comment="Where its frame begins in the segment's file, in bytes; null in a marker"),
    Column("length", BigInteger, comment="How long its frame is, in bytes; null in a marker"),
    Column("crc32c", BigInteger, comment="The checksum of its frame, header and payload; null in a marker"),
    PrimaryKeyConstraint("receiver_id", "sequence"),
    CheckConstraint("sequence > 0 AND epoch > 0", name="blocks_positive"),
    CheckConstraint("records >= 0 AND bytes >= 0", name="blocks_counts"),
    CheckConstraint('num_nulls(segment_id, "offset", length, crc32c) IN (0, 4)', name="blocks_handle_whole"),
    CheckConstraint("segment_id IS NOT NULL OR (records = 0 AND bytes = 0)", name="blocks_marker_empty"),
    comment="Which blocks does each receiver have, in which order, and where are their bytes?",
    # Insert-only: autovacuum freezes in small steps rather than all at once.
    postgresql_with={**REPLACED, "autovacuum_vacuum_insert_scale_factor": "0.05"},
)

# Insert-only, in add_block's own transaction. `partition` is text: each source names its partitions its own way.
block_offsets = Table(
    "block_offsets",
    metadata,
    Column("stream_id", BigInteger, nullable=False, comment="The stream that reads the source"),
    Column("source", Text, nullable=False, comment="The source as the receiver names it, such as a topic"),
    Column("partition", Text, nullable=False, comment="The partition's name; text, because each source names its own"),
    Column(
        "generation",
        Integer,
        nullable=False,
        comment="Raised by one when a position goes backwards: a topic created again, a replaced file, a reset",
    ),
    Column(
        "from_offset",
        BigInteger,
        nullable=False,
        comment="Exactly the to_offset of the link before; -1 in an origin link: nothing comes before it",
    ),
    Column(
        "to_offset",
        BigInteger,
        nullable=False,
        comment="The next offset to be read: everything before it is in a block, or lost",
    ),
    Column(
        "kind",
        Text,
        nullable=False,
        comment="origin (where reading begins), block (the records are in one) or lost (the source no longer had them)",
    ),
    Column("receiver_id", BigInteger, nullable=False, comment="The receiver that wrote the link"),
    Column(
        "sequence",
        BigInteger,
        nullable=False,
        comment="The block that it was registered with; 0 for an origin that was recorded before the first read",
    ),
    PrimaryKeyConstraint("stream_id", "source", "partition", "generation", "from_offset"),
    CheckConstraint(_one_of("kind", LinkKind), name="block_offsets_kind"),
    CheckConstraint("generation >= 0", name="block_offsets_generation"),
    CheckConstraint("(kind = 'origin') = (from_offset = -1)", name="block_offsets_origin"),
    CheckConstraint("to_offset >= 0 AND to_offset > from_offset", name="block_offsets_forward"),
    # Few rows, and blocks never add any: losses are counted without a scan of the chain.
    Index("block_offsets_lost", "stream_id", "source", "partition", postgresql_where=text("kind = 'lost'")),
    # One for each partition and generation: whether a removed receiver has any left.
    Index("block_offsets_origin", "receiver_id", postgresql_where=text("kind = 'origin'")),
    # What a batch read is looked up by its ranges; a stream may have a million partitions, such as files.
    Index("block_offsets_read", "receiver_id", "sequence", postgresql_where=text("kind <> 'origin'")),
    comment="Up to which position of each source partition is everything in a block? (A chain of links.)",
    postgresql_with={**REPLACED, "autovacuum_vacuum_insert_scale_factor": "0.05"},
)

record_keys = Table(
    "record_keys",
    metadata,
    Column("stream_id", BigInteger, nullable=False, comment="The stream within which the key is unique"),
    Column("key", Text, nullable=False, comment="The sender's idempotency key of one record"),
    Column("receiver_id", BigInteger, nullable=False, comment="The receiver that stored the record"),
    Column("sequence", BigInteger, nullable=False, comment="The block that holds it"),
    _now("added_at", "When it was received; deleted after the stream's key window"),
    PrimaryKeyConstraint("stream_id", "key"),
    Index("record_keys_age", "stream_id", "added_at"),
    comment="Which idempotency keys of a stream have been received, within its window?",
    postgresql_with=REPLACED,
)

# Updated in place by each block with a channel's records: room in each page keeps these updates off the index.
channels = Table(
    "channels",
    metadata,
    Column("stream_id", BigInteger, nullable=False, comment="The stream that the records are in"),
    Column("sender", Text, nullable=False, comment="The reference of the sender's token; empty: the source has none"),
    Column("channel", Text, nullable=False, comment="The channel's name, as its sender gives it"),
    Column(
        "position",
        BigInteger,
        nullable=False,
        comment="The offset of the next record: all before it are in blocks, or dead letters",
    ),
    Column("receiver_id", BigInteger, nullable=False, comment="The receiver that moved it last"),
    _now("moved_at", "When it was moved last"),
    Column(
        "gaps",
        INT8MULTIRANGE,
        nullable=False,
        server_default="{}",
        comment="Offsets before the position that a lost commit had and no block has: a salvage registers their blocks",
    ),
    PrimaryKeyConstraint("stream_id", "sender", "channel"),
    CheckConstraint("position >= 0", name="channels_position"),
    comment="Up to which offset of each channel is every record stored?",
    postgresql_with={**HOT, "fillfactor": "50"},
)

log_segments = Table(
    "log_segments",
    metadata,
    _identity("The segment in every other table; ids of a receiver's segments rise with its sequence"),
    Column("receiver_id", BigInteger, nullable=False, comment="The receiver that wrote it"),
    Column("epoch", BigInteger, nullable=False, comment="The claim under which it was made; part of its name"),
    Column("path", Text, nullable=False, comment="Its file, relative to the block store's root"),
    Column(
        "source_rule",
        Text,
        nullable=False,
        comment="Whether the source sends unregistered records again; decides which stored blocks salvage registers",
    ),
    Column("state", Text, nullable=False, server_default="OPEN", comment="OPEN, SEALED, DELETING"),
    Column("length", BigInteger, comment="Its length in bytes once sealed; null while open"),
    _now("opened_at", "When the row was made, just before the file"),
    Column("sealed_at", DateTime(timezone=True), comment="When its length became final; null while open"),
    Column(
        "store",
        Text,
        comment="The store that holds it, roots as in block_stores; missing in another proves nothing; null: unknown",
    ),
    Column(
        "durability",
        Text,
        nullable=False,
        server_default="durable",
        comment="durable, or ephemeral: not synced, so a block that a crash lost is counted and not waited for",
    ),
    Column(
        "salvaged_to",
        BigInteger,
        comment="Frames before this offset are salvaged, as blocks of later epochs; null: none are",
    ),
    Column(
        "salvaged_sequence",
        BigInteger,
        comment="The newest block salvaged from it; the file stays until that block is deleted; null: none",
    ),
    Column(
        "uncompressed_bytes",
        BigInteger,
        comment="Bytes of its blocks that are not compressed; null: open, or salvaged",
    ),
    # Written only by clean_up_receiver, under the receiver's lock: an index of blocks by segment would cost each block.
    Column(
        "kept_blocks",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="How many of its blocks kept ranges need below the low mark; the file stays for them",
    ),
    UniqueConstraint("path", name="log_segments_path"),
    CheckConstraint(_one_of("state", SegmentState), name="log_segments_state"),
    CheckConstraint("(state = 'OPEN') = (length IS NULL)", name="log_segments_length"),
    CheckConstraint("num_nulls(salvaged_to, salvaged_sequence) IN (0, 2)", name="log_segments_salvage_whole"),
    CheckConstraint("durability IN ('durable', 'ephemeral')", name="log_segments_durability"),
    CheckConstraint("kept_blocks >= 0", name="log_segments_kept_blocks"),
    Index("log_segments_kept", "receiver_id", "id", postgresql_where=text("kept_blocks > 0")),
    Index("log_segments_open", "receiver_id", "id", postgresql_where=text("state = 'OPEN'")),
    # Clean-up looks at a receiver's oldest segments, and at those that it had marked before a crash.
    Index("log_segments_receiver", "receiver_id", "id"),
    Index("log_segments_deleting", "receiver_id", "id", postgresql_where=text("state = 'DELETING'")),
    comment="Which files of the block store belong to this driver log? (A row is inserted before its file is made.)",
)

# Written only by attach_block_store.
block_stores = Table(
    "block_stores",
    metadata,
    Column("host", Text, primary_key=True, comment="The host, by its agent's name"),
    Column(
        "roots",
        ARRAY(Text),
        nullable=False,
        comment="The roots it writes blocks to, by identity: the id in a directory's file _store, or a URL",
    ),
    Column("names", ARRAY(Text), nullable=False, comment="The paths or URLs of the same roots on that host"),
    _now("attached_at", "When its agent first reported them"),
    CheckConstraint("cardinality(roots) > 0 AND cardinality(roots) = cardinality(names)", name="block_stores_roots"),
    comment="Which block store does each host with receivers see? (They must share one.)",
)

dead_letters = Table(
    "dead_letters",
    metadata,
    _identity("The dead letter"),
    Column("receiver_id", BigInteger, nullable=False, comment="The receiver that received it"),
    Column("epoch", BigInteger, nullable=False, comment="The claim under which it was stored"),
    Column("reason", Text, nullable=False, comment="Why it could not be processed"),
    Column(
        "part",
        Integer,
        nullable=False,
        comment="A record too large to hold is kept in parts, from 0; together they are the record. A group has 0",
    ),
    Column("bytes", BigInteger, nullable=False, comment="The size of this part, or of the group, as received"),
    Column("segment_id", BigInteger, nullable=False, comment="The segment that holds it"),
    Column("offset", BigInteger, nullable=False, comment="Where its frame begins in the segment's file, in bytes"),
    Column("length", BigInteger, nullable=False, comment="How long its frame is, in bytes"),
    Column("crc32c", BigInteger, nullable=False, comment="The checksum of its frame, header and payload"),
    _now("added_at", "When it was recorded"),
    Column(
        "letters",
        BigInteger,
        nullable=False,
        server_default=text("1"),
        comment="How many records the frame holds; a part of a large record counts as one, in each row",
    ),
    Column(
        "dropped",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="Records of this reason that were counted and not kept, since the row before: over their budget",
    ),
    Column("dropped_bytes", BigInteger, nullable=False, server_default=text("0"), comment="The same in bytes"),
    Column(
        "replayed_at",
        DateTime(timezone=True),
        comment="When `forebay dead-letters replay` sent or wrote it last; null: never",
    ),
    Column("replayed_to", Text, nullable=False, server_default=text("''"), comment="Where to, for people"),
    Column(
        "replay_wanted",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="Whether its receiver parses it again at its next start",
    ),
    Column(
        "left_records",
        ARRAY(BigInteger),
        comment="Numbers, from 1, of the records that did not fit when its receiver parsed it again; null: it did not",
    ),
    UniqueConstraint("segment_id", "offset", name="dead_letters_handle"),
    CheckConstraint("part >= 0 AND bytes >= 0", name="dead_letters_counts"),
    CheckConstraint("letters >= 0 AND dropped >= 0 AND dropped_bytes >= 0", name="dead_letters_group"),
    Index("dead_letters_receiver", "receiver_id", "id"),
    Index("dead_letters_age", "added_at"),
    # Partial, so that a receiver's start costs what is asked for, and no row that no statement asks for.
    Index("dead_letters_wanted", "receiver_id", "id", postgresql_where=text("replay_wanted")),
    comment="Which records could not be processed, why, and where are they kept? A row per group",
)


# Written only by report_source_lag, for people: nothing is decided by it.
source_lag = Table(
    "source_lag",
    metadata,
    Column("stream_id", BigInteger, nullable=False, comment="The stream that reads the source"),
    Column("source", Text, nullable=False, comment="The source as the receiver names it, such as a topic"),
    Column("partition", Text, nullable=False, comment="The partition, file, queue or consumer"),
    Column("receiver_id", BigInteger, nullable=False, comment="The receiver that read it last, and said so"),
    Column(
        "unread", BigInteger, nullable=False, comment="How much the source has there that the receiver has not read"
    ),
    Column("unit", Text, nullable=False, comment="What unread counts: records, bytes, files or messages"),
    Column(
        "source_position",
        BigInteger,
        comment="The position behind the newest record that the source has; null: all is read, or it has no positions",
    ),
    Column(
        "oldest_at",
        DateTime(timezone=True),
        comment="The oldest unread record came then or earlier, by the receiver's clock; null: none, or unknown",
    ),
    Column(
        "redelivered",
        BigInteger,
        comment="Messages that the source has sent again and waits for; null where it does not count them",
    ),
    _now("reported_at", "When the receiver last said something new"),
    PrimaryKeyConstraint("stream_id", "source", "partition"),
    CheckConstraint("unread >= 0", name="source_lag_unread"),
    Index("source_lag_receiver", "receiver_id"),
    comment="What does each source have that is not read yet? (As receivers last said.)",
    postgresql_with={**HOT, "fillfactor": "50"},
)


def _sum(name: str, comment: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"), comment=comment)


# Written only by the triggers of log_segments and dead_letters (keep_storage_totals), and by seal_segments.
storage_totals = Table(
    "storage_totals",
    metadata,
    Column("receiver_id", BigInteger, primary_key=True, autoincrement=False, comment="The receiver"),
    _sum("sealed_segments", "Its segments that are complete"),
    _sum("deleting_segments", "Its segments that clean-up has marked and is about to delete"),
    _sum("segment_bytes", "Length of all its segments except the open ones, in bytes"),
    _sum("dead_letters", "Its records that could not be processed and are kept aside"),
    _sum("dead_letter_bytes", "The same in bytes"),
    _sum(
        "dropped_dead_letters",
        "Its records that could not be processed and were counted only, by the rows that are kept",
    ),
    _sum("uncompressed_bytes", "The part of segment_bytes in blocks that are not compressed"),
    _sum("lz4_blocks", "Blocks stored with lz4, in segments that its processes sealed, since it was created"),
    _sum("lz4_bytes", "Their bytes as stored"),
    _sum("zstd_blocks", "Blocks stored with zstd, in segments that its processes sealed, since it was created"),
    _sum("zstd_bytes", "Their bytes as stored"),
    _sum(
        "none_blocks",
        "Blocks stored uncompressed, in segments that its processes sealed, since it was created",
    ),
    _sum("none_bytes", "Their bytes as stored"),
    comment="How many segments and dead letters does each receiver have, and which codecs did its blocks take? (Sums.)",
    postgresql_with={**HOT, "fillfactor": "50"},
)


# Insert-only, only by register_schema.
stream_schemas = Table(
    "stream_schemas",
    metadata,
    Column("stream_id", BigInteger, nullable=False, comment="The stream"),
    Column("version", Integer, nullable=False, comment="From 1, in the order in which they were registered"),
    Column(
        "fingerprint",
        Text,
        nullable=False,
        comment="A hash of names and types in order; each block carries its schema's",
    ),
    Column(
        "columns",
        JSONB,
        nullable=False,
        comment="An array of [name, Arrow type]; a name has one type in all of a stream's versions",
    ),
    Column("receiver_id", BigInteger, nullable=False, comment="The receiver that registered it first"),
    _now("registered_at", "When it was registered"),
    PrimaryKeyConstraint("stream_id", "version"),
    UniqueConstraint("stream_id", "fingerprint", name="stream_schemas_fingerprint"),
    CheckConstraint("version > 0", name="stream_schemas_version_positive"),
    CheckConstraint("jsonb_typeof(columns) = 'array'", name="stream_schemas_columns_array"),
    comment="Which columns do a stream's blocks have, in each version of its receivers' schemas?",
)

stream_rates = Table(
    "stream_rates",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False, comment="The pipeline, which has back pressure on"),
    Column("stream_id", BigInteger, nullable=False, comment="The stream that it reads"),
    Column(
        "batch_time",
        DateTime(timezone=True),
        nullable=False,
        comment="The newest batch that the estimator has used; older batches and replays change nothing",
    ),
    Column(
        "latest_at",
        DateTime(timezone=True),
        comment="The estimator's latest time: the end of the newest batch that it used; null before the first",
    ),
    Column("latest_rate", Double, comment="The estimator's latest rate, in records per second; null before the first"),
    Column(
        "latest_error", Double, comment="The estimator's latest error, in records per second; null before the first"
    ),
    Column(
        "rate_limit",
        Double,
        comment="Records per second that the stream may take in, for this pipeline; null before the second batch",
    ),
    Column(
        "expired_at",
        DateTime(timezone=True),
        comment="Since when the pipeline makes no progress, so that its rate limits no receiver; else null",
    ),
    _now("decided_at", "When this row was last changed"),
    PrimaryKeyConstraint("pipeline_id", "stream_id"),
    CheckConstraint("num_nulls(latest_at, latest_rate, latest_error) IN (0, 3)", name="stream_rates_state_whole"),
    CheckConstraint("rate_limit IS NULL OR rate_limit > 0", name="stream_rates_rate_limit"),
    comment="How fast may a stream come in so that a pipeline's batches keep up, and from which figures follows that?",
    postgresql_with={**HOT, "fillfactor": "50"},
)

cursors = Table(
    "cursors",
    metadata,
    Column(
        "consumer_id",
        BigInteger,
        nullable=False,
        comment="The pipeline or the reader; their ids come from one sequence, so that one id names either",
    ),
    Column("receiver_id", BigInteger, nullable=False, comment="The receiver that is read"),
    Column(
        "next_sequence",
        BigInteger,
        nullable=False,
        comment="The first sequence that it has not taken; only allocation, or a query's commit, moves it, and only "
        "forward",
    ),
    PrimaryKeyConstraint("consumer_id", "receiver_id"),
    CheckConstraint("next_sequence > 0", name="cursors_positive"),
    # Clean-up asks what has read a receiver; updates stay HOT, because they change neither column.
    Index("cursors_receiver", "receiver_id"),
    comment="Which block of each receiver does a pipeline, or a named reader, take next?",
    postgresql_with={**HOT, "fillfactor": "50"},
)

scaling_decisions = Table(
    "scaling_decisions",
    metadata,
    Column(
        "pipeline_id",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="The pipeline whose batches it is about",
    ),
    Column(
        "ratio", Double, nullable=False, comment="Mean processing time of its newest batches, divided by its interval"
    ),
    Column("batches", Integer, nullable=False, comment="How many batches the mean is of"),
    Column("executors", Integer, nullable=False, comment="Executors that Spark should have for its batches"),
    Column(
        "batch_drivers",
        Integer,
        nullable=False,
        comment="Batch drivers that it wants: 1 is the one that pipelines share; further ones are added to it",
    ),
    Column("applied", Boolean, nullable=False, comment="Whether it takes effect; otherwise it is advice"),
    Column("reason", Text, nullable=False, comment="Why, and how it takes effect"),
    _now("since", "Since when these numbers are the decision"),
    _now("decided_at", "When the decision was last checked"),
    CheckConstraint("ratio >= 0 AND batches > 0", name="scaling_decisions_seen"),
    CheckConstraint("executors > 0 AND batch_drivers > 0", name="scaling_decisions_positive"),
    comment="How many executors, or batch drivers, should a pipeline's batches have to fit their interval (O04)?",
)

readers = Table(
    "readers",
    metadata,
    # By the migration, its ids come from the sequence of pipelines' ids: a cursor names either by one column.
    _identity("The reader in every other table; one that is removed and attached again gets a new one"),
    Column("name", Text, nullable=False, comment="Its name in the query; unique among readers that are not removed"),
    Column("stream_id", BigInteger, nullable=False, comment="The stream that it reads"),
    _now("attached_at", "When a query first used it"),
    _now("moved_at", "When its query last committed, or was attached"),
    Column("removed_at", DateTime(timezone=True), comment="When it was removed; null while it holds blocks back"),
    Index("readers_live_name", "name", unique=True, postgresql_where=text("removed_at IS NULL")),
    Index("readers_live_stream", "stream_id", postgresql_where=text("removed_at IS NULL")),
    comment="Which streaming queries read a stream with cursors of their own, which clean-up respects?",
    postgresql_with={**HOT, "fillfactor": "50"},
)

batches = Table(
    "batches",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False, comment="The pipeline"),
    Column(
        "batch_time",
        DateTime(timezone=True),
        nullable=False,
        comment="The boundary at which its blocks were cut: they were added before it",
    ),
    Column(
        "oldest_time",
        DateTime(timezone=True),
        nullable=False,
        comment="The oldest boundary that it covers: its own, unless missed ones were merged into it",
    ),
    Column(
        "state",
        Text,
        nullable=False,
        server_default="ALLOCATED",
        comment="ALLOCATED, RUNNING, FAILED, BLOCKED, COMPLETED, QUARANTINED or DISCARDED (transitions: states.py)",
    ),
    Column(
        "attempt",
        Integer,
        nullable=False,
        server_default="0",
        comment="The number of its newest attempt; 0: none was made",
    ),
    Column("records", BigInteger, nullable=False, comment="Records in its ranges: a difference of running totals"),
    Column("bytes", BigInteger, nullable=False, comment="The same in bytes as stored"),
    Column("blocks", BigInteger, nullable=False, comment="Sequences in its ranges, epoch markers among them"),
    _now("allocated_at", "When it was decided, by the database's clock"),
    Column(
        "retry_at",
        DateTime(timezone=True),
        comment="The next attempt starts no earlier than this (backoff after a failure); null: at once",
    ),
    Column(
        "completed_at",
        DateTime(timezone=True),
        comment="When the last of its outputs was committed; null unless COMPLETED",
    ),
    Column(
        "reason",
        Text,
        nullable=False,
        server_default="",
        comment="Its most telling failure, which may be of an earlier attempt, or why nothing ran; else empty",
    ),
    Column("launch_attempt", Integer, comment="The newest attempt whose run Dagster was asked to launch; null: none"),
    Column(
        "launched_at",
        DateTime(timezone=True),
        comment="When Dagster was asked, by the database's clock; null: it was not",
    ),
    Column("launched_by", Text, comment="What asked: the batch sensor, or the leading tracker; null: nothing has"),
    Column("inputs", Integer, comment="How many rows of batch_inputs it has; null: its first attempt records them"),
    Column(
        "calendar",
        JSONB,
        comment="What its pipeline's calendar decided with it: which slides end, and where windows begin; null: "
        "it has none",
    ),
    PrimaryKeyConstraint("pipeline_id", "batch_time"),
    CheckConstraint("num_nulls(launch_attempt, launched_at, launched_by) IN (0, 3)", name="batches_launch_whole"),
    CheckConstraint(_one_of("state", BatchState), name="batches_state"),
    CheckConstraint("attempt >= 0", name="batches_attempt"),
    CheckConstraint("oldest_time <= batch_time", name="batches_oldest_time"),
    CheckConstraint("(state = 'COMPLETED') = (completed_at IS NOT NULL)", name="batches_completed_at"),
    Index(
        "batches_unfinished",
        "pipeline_id",
        "batch_time",
        postgresql_where=text(_one_of("state", UNFINISHED_STATES)),
    ),
    Index("batches_quarantined", "pipeline_id", "batch_time", postgresql_where=text("state = 'QUARANTINED'")),
    # Dagster's pages read the finished minutes.
    Index("batches_completed", "pipeline_id", "completed_at", postgresql_where=text("completed_at IS NOT NULL")),
    # The newest batches of all pipelines, for `forebay status`.
    Index("batches_newest", "batch_time"),
    # driver_log_between reads a span of time.
    Index("batches_allocated", "allocated_at"),
    comment="Which batches were made, how large are they, and in which state are they?",
)

batch_allocations = Table(
    "batch_allocations",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False, comment="The batch's pipeline"),
    Column("batch_time", DateTime(timezone=True), nullable=False, comment="The batch"),
    Column(
        "receiver_id", BigInteger, nullable=False, comment="The receiver; one without blocks for the batch has no row"
    ),
    Column("sequences", INT8RANGE, nullable=False, comment="The range of its sequences, epoch markers among them"),
    Column("records", BigInteger, nullable=False, comment="Records in the range: a difference of running totals"),
    Column("bytes", BigInteger, nullable=False, comment="The same in bytes as stored"),
    PrimaryKeyConstraint("pipeline_id", "batch_time", "receiver_id"),
    # Clean-up, kept ranges and check_ranges take a receiver's first or last range of a span of time by one probe.
    Index("batch_allocations_receiver", "pipeline_id", "receiver_id", "batch_time"),
    CheckConstraint("NOT isempty(sequences)", name="batch_allocations_not_empty"),
    comment="Which blocks of which receiver belong to a batch? (A pipeline's ranges of a receiver follow each other.)",
)

# Insert-only, by record_batch_inputs. Kept with the batch, because its links go with its blocks.
batch_inputs = Table(
    "batch_inputs",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False, comment="The batch's pipeline"),
    Column("batch_time", DateTime(timezone=True), nullable=False, comment="The batch"),
    Column("stream_id", BigInteger, nullable=False, comment="The stream that read the source"),
    Column("source", Text, nullable=False, comment="The source as the receiver names it, such as a topic"),
    Column("partition", Text, nullable=False, comment="The partition's name, such as a number or a file"),
    Column("generation", Integer, nullable=False, comment="The partition's generation, as in block_offsets"),
    Column("from_offset", BigInteger, nullable=False, comment="The first position that the batch has"),
    Column("to_offset", BigInteger, nullable=False, comment="The position after the last one"),
    Column("lost", BigInteger, nullable=False, comment="Positions in between that the source no longer had"),
    PrimaryKeyConstraint("pipeline_id", "batch_time", "stream_id", "source", "partition", "generation", "from_offset"),
    CheckConstraint("from_offset >= 0 AND to_offset > from_offset", name="batch_inputs_forward"),
    CheckConstraint("lost >= 0 AND lost <= to_offset - from_offset", name="batch_inputs_lost"),
    comment="Which positions of its sources did a batch read? (One row per range without a gap.)",
)

batch_attempts = Table(
    "batch_attempts",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False, comment="The batch's pipeline"),
    Column("batch_time", DateTime(timezone=True), nullable=False, comment="The batch"),
    Column("attempt", Integer, nullable=False, comment="Its number, from 1"),
    Column(
        "state",
        Text,
        nullable=False,
        server_default="RUNNING",
        comment="RUNNING, SUCCEEDED, FAILED, BLOCKED (no block store, target or key) or LOST (its process died)",
    ),
    Column("run_id", Text, nullable=False, comment="The Dagster run; empty when none is known"),
    Column(
        "process_id", BigInteger, comment="The process whose heartbeat is watched; null for a run that never claimed"
    ),
    _now("started_at", "When it claimed the batch"),
    Column("ended_at", DateTime(timezone=True), comment="When it ended; null while it runs"),
    Column("error", Text, nullable=False, server_default="", comment="Why this attempt failed; else empty"),
    Column(
        "kind",
        Text,
        nullable=False,
        server_default="run",
        comment="run, or replay: of a batch that is COMPLETED or QUARANTINED, which it may complete and never fails",
    ),
    Column(
        "reach",
        Interval,
        nullable=False,
        server_default=text("interval '0'"),
        comment="How far before its batch time a replay reads (its longest window); clean-up keeps those blocks",
    ),
    PrimaryKeyConstraint("pipeline_id", "batch_time", "attempt"),
    CheckConstraint(_one_of("state", AttemptState), name="batch_attempts_state"),
    CheckConstraint(_one_of("kind", AttemptKind), name="batch_attempts_kind"),
    CheckConstraint("(state = 'RUNNING') = (ended_at IS NULL)", name="batch_attempts_ended_at"),
    Index(
        "batch_attempts_running",
        "pipeline_id",
        "batch_time",
        unique=True,
        postgresql_where=text("state = 'RUNNING'"),
    ),
    comment="Which attempts to run a batch were made, when, and how did each end? (At most one runs.)",
)

output_commits = Table(
    "output_commits",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False, comment="The batch's pipeline"),
    Column("output", Text, nullable=False, comment="The output, by name"),
    Column("batch_time", DateTime(timezone=True), nullable=False, comment="The batch"),
    Column("attempt", Integer, nullable=False, comment="The attempt whose result counts"),
    Column(
        "location",
        Text,
        nullable=False,
        comment="Where that result is: the attempt's own path, which is never written again",
    ),
    Column("rows", BigInteger, comment="How many rows it has; null if the sink can't tell"),
    _now("committed_at", "When it was committed"),
    Column(
        "to_publish",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="Whether its files are not yet published to readers; false if the sink publishes nothing",
    ),
    Column(
        "code_version",
        Text,
        comment="Which code made it: a hash of the project's modules, as `forebay up` says it; null: it is not known",
    ),
    Column(
        "state_attempt",
        Integer,
        comment="The attempt whose version of the output's state the commit made; null: the output had no state",
    ),
    PrimaryKeyConstraint("pipeline_id", "output", "batch_time"),
    Index("output_commits_to_publish", "pipeline_id", "batch_time", postgresql_where=text("to_publish")),
    # Each batch asks for its own commits.
    Index("output_commits_of_batch", "pipeline_id", "batch_time"),
    comment="Which attempt's result counts for an output and batch time? (This row is the commit.)",
)

state_versions = Table(
    "state_versions",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False, comment="The batch's pipeline"),
    Column("output", Text, nullable=False, comment="The output whose state it is, by name"),
    Column("batch_time", DateTime(timezone=True), nullable=False, comment="The batch"),
    Column("attempt", Integer, nullable=False, comment="The attempt or replay that made it"),
    Column(
        "ordinal",
        Integer,
        nullable=False,
        comment="Its number in its chain, from 1: one more than that of the version that it read",
    ),
    Column(
        "read_batch_time",
        DateTime(timezone=True),
        comment="The batch of the version that it read, and changes; null: it is the first",
    ),
    Column("read_attempt", Integer, comment="The attempt of that version; null with it"),
    Column("schema_version", Integer, nullable=False, comment="The state's `version`, as it was declared"),
    Column("schema", JSONB, nullable=False, comment="The key's and the value's columns, as they were declared"),
    Column("buckets", Integer, nullable=False, comment="Over how many buckets its keys are spread"),
    Column("folder", Text, nullable=False, comment="Where its files are, relative to the block store's root"),
    Column(
        "frames",
        JSONB,
        comment="Its frames, in short: bucket, path, offset …; null until all are stored: then it may count",
    ),
    Column("keys", BigInteger, comment="How many keys the state has with it; null: not known"),
    Column("changed", BigInteger, comment="How many keys it added or changed; null until its frames are noted"),
    Column("deleted", BigInteger, comment="How many keys it deleted, expired ones too; null with it"),
    Column("bytes", BigInteger, comment="The length of its frames; null with it"),
    Column("next_expiry", DateTime(timezone=True), comment="When the next key of the state expires; null: none does"),
    Column(
        "watermark",
        DateTime(timezone=True),
        comment="The watermark after its batch; null: none yet, or it is not an output by event time",
    ),
    Column(
        "event_times",
        JSONB,
        comment="How far each source of its streams is: stream, source, latest (event time), seen (batch), idle; null: "
        "it is not an output by event time",
    ),
    Column(
        "late",
        BigInteger,
        comment="How many records of its batch were too late; null: it is not an output by event time",
    ),
    Column("late_total", BigInteger, comment="The same of all batches of its chain, with this one; null: of none"),
    Column("replay_id", BigInteger, comment="The replay forward that made it; null: a batch, or a replay of one, did"),
    Column(
        "replaced_attempt",
        Integer,
        comment="Whose version its commit replaced, if a replay forward made it; null: the output had no result",
    ),
    _now("created_at", "When its attempt began to write it"),
    Column(
        "committed_at",
        DateTime(timezone=True),
        comment="When a commit named it; null: none has, or another version of the batch is in its place",
    ),
    Column("deleting_at", DateTime(timezone=True), comment="When clean-up began to delete its files; null: it has not"),
    PrimaryKeyConstraint("pipeline_id", "output", "batch_time", "attempt"),
    CheckConstraint("(read_batch_time IS NULL) = (read_attempt IS NULL)", name="state_versions_read_whole"),
    CheckConstraint("(ordinal = 1) = (read_batch_time IS NULL)", name="state_versions_ordinal"),
    CheckConstraint("committed_at IS NULL OR frames IS NOT NULL", name="state_versions_frames"),
    # Clean-up looks for the oldest of a chain, for what was in force a while ago, and for what no commit names.
    Index("state_versions_ordinal", "pipeline_id", "output", "ordinal"),
    Index(
        "state_versions_committed",
        "pipeline_id",
        "output",
        "committed_at",
        postgresql_where=text("committed_at IS NOT NULL"),
    ),
    Index(
        "state_versions_uncommitted",
        "created_at",
        postgresql_where=text("committed_at IS NULL AND deleting_at IS NULL"),
    ),
    Index("state_versions_deleting", "deleting_at", postgresql_where=text("deleting_at IS NOT NULL")),
    Index("state_versions_folder", "folder"),
    comment="Which versions of an output's state are stored, and what did each attempt read and write?",
    postgresql_with=REPLACED,
)

state_heads = Table(
    "state_heads",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False, comment="The pipeline"),
    Column("output", Text, nullable=False, comment="The output whose state it is, by name"),
    Column("batch_time", DateTime(timezone=True), nullable=False, comment="The batch of the version that is in force"),
    Column("attempt", Integer, nullable=False, comment="The attempt of that version"),
    Column(
        "generation",
        BigInteger,
        nullable=False,
        server_default="1",
        comment="Raised by one each time that a replay forward, or its undoing, puts another chain in place",
    ),
    Column("schema_version", Integer, nullable=False, comment="The version's `schema_version`"),
    Column(
        "schema", JSONB, nullable=False, comment="The version's key and value columns: what `forebay apply` compares"
    ),
    Column("buckets", Integer, nullable=False, comment="Over how many buckets its keys are spread"),
    _now("moved_at", "When it was moved last"),
    PrimaryKeyConstraint("pipeline_id", "output"),
    comment="Which version of an output's state is in force? (Only a commit moves it, from the version that it read.)",
    postgresql_with={**HOT, "fillfactor": "50"},
)

state_replays = Table(
    "state_replays",
    metadata,
    _identity("The replay forward"),
    Column("pipeline_id", BigInteger, nullable=False, comment="The pipeline"),
    Column("output", Text, nullable=False, comment="The output whose batches run again, by name"),
    Column("from_time", DateTime(timezone=True), nullable=False, comment="The first batch that runs again"),
    Column("to_time", DateTime(timezone=True), nullable=False, comment="The last one: the head's batch when it began"),
    Column("old_attempt", Integer, nullable=False, comment="The attempt of the version that was the head then"),
    Column(
        "state",
        Text,
        nullable=False,
        server_default="RUNNING",
        comment="RUNNING, STOPPED, UNDOING, COMPLETED or UNDONE (transitions: states.py)",
    ),
    Column(
        "base_batch_time", DateTime(timezone=True), comment="The batch of the version that it began with; null: none"
    ),
    Column("base_attempt", Integer, comment="The attempt of that version; null with it"),
    Column(
        "head_batch_time", DateTime(timezone=True), comment="The newest batch that it has committed; null: none yet"
    ),
    Column("head_attempt", Integer, comment="The attempt of that batch's new version; null with it"),
    Column("process_id", BigInteger, comment="The process that runs it, or that ran it last; null: none has begun"),
    _now("began_at", "When it began"),
    Column("ended_at", DateTime(timezone=True), comment="When it was COMPLETED or UNDONE; else null"),
    CheckConstraint(_one_of("state", StateReplayState), name="state_replays_state"),
    CheckConstraint("(base_batch_time IS NULL) = (base_attempt IS NULL)", name="state_replays_base_whole"),
    CheckConstraint("(head_batch_time IS NULL) = (head_attempt IS NULL)", name="state_replays_head_whole"),
    CheckConstraint("(ended_at IS NOT NULL) = (state IN ('COMPLETED', 'UNDONE'))", name="state_replays_ended_at"),
    CheckConstraint("from_time <= to_time", name="state_replays_times"),
    Index(
        "state_replays_unfinished",
        "pipeline_id",
        "output",
        unique=True,
        postgresql_where=text(_one_of("state", UNFINISHED_STATE_REPLAYS)),
    ),
    Index("state_replays_of_output", "pipeline_id", "output", "id"),
    comment="Which outputs with a state run from a batch on again, how far is each, and how did it end?",
)

output_failures = Table(
    "output_failures",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False, comment="The batch's pipeline"),
    Column("batch_time", DateTime(timezone=True), nullable=False, comment="The batch"),
    Column("attempt", Integer, nullable=False, comment="The attempt in which the output failed"),
    Column("output", Text, nullable=False, comment="The output, by name"),
    Column(
        "failure",
        Text,
        nullable=False,
        comment="FAILED (its data or code), BLOCKED (no block store, target or key) or LOST (what it ran on ended)",
    ),
    Column("error", Text, nullable=False, comment="Why it failed"),
    _now("failed_at", "When it failed"),
    PrimaryKeyConstraint("pipeline_id", "batch_time", "attempt", "output"),
    CheckConstraint(_one_of("failure", AttemptFailure), name="output_failures_failure"),
    comment="Which outputs failed in an attempt, and why? (The other outputs of the attempt ran all the same.)",
)

kept_ranges = Table(
    "kept_ranges",
    metadata,
    Column("pipeline_id", BigInteger, nullable=False, comment="The quarantined batch's pipeline"),
    Column("batch_time", DateTime(timezone=True), nullable=False, comment="The quarantined batch"),
    Column("receiver_id", BigInteger, nullable=False, comment="The receiver that stored the blocks"),
    Column(
        "sequences",
        INT8RANGE,
        nullable=False,
        comment="What the batch and its longest window read, epoch markers among them; shrinks once it is released",
    ),
    Column("records", BigInteger, nullable=False, comment="Records in the range: a difference of running totals"),
    Column("bytes", BigInteger, nullable=False, comment="The same in bytes as stored"),
    Column(
        "released_at",
        DateTime(timezone=True),
        comment="When the batch stopped needing it: clean-up then deletes its rows; null while it is kept",
    ),
    PrimaryKeyConstraint("pipeline_id", "batch_time", "receiver_id"),
    CheckConstraint("NOT isempty(sequences)", name="kept_ranges_not_empty"),
    Index("kept_ranges_receiver", "receiver_id"),
    comment="Which blocks does a quarantined batch, or a window that ends with it, still need? (Clean-up leaves them.)",
    postgresql_with=HOT,
)

cleanup_events = Table(
    "cleanup_events",
    metadata,
    _identity("The event"),
    Column("receiver_id", BigInteger, nullable=False, comment="The receiver"),
    Column("sequences", INT8RANGE, nullable=False, comment="The range that was deleted; epoch markers in it stay"),
    Column("blocks", BigInteger, nullable=False, comment="How many sequences the range has"),
    Column("records", BigInteger, nullable=False, comment="Records that were deleted"),
    Column("bytes", BigInteger, nullable=False, comment="The same in bytes as stored"),
    Column(
        "unread_records",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="Deleted records that no pipeline had read: their stream's retention was over",
    ),
    _now("at", "When, by the database's clock"),
    Index("cleanup_events_receiver", "receiver_id", "id"),
    # Those that deleted unread records stay for ever, and are not read again.
    Index("cleanup_events_age", "at", postgresql_where=text("unread_records = 0")),
    Index("cleanup_events_at", "at"),
    comment="Which blocks did clean-up delete, when, and had they been read?",
)

# Inserted by the triggers that call record_event, so that no state changes without its event, and through the view
# receiver_events, which lets a login insert reports only.
events = Table(
    "events",
    metadata,
    Column(
        "transaction_id",
        BigInteger,
        nullable=False,
        server_default=text("CAST(CAST(pg_current_xact_id() AS text) AS bigint)"),
        comment=(
            "The transaction that made the change; readers wait until all up to it have ended. 0: too old for listeners"
        ),
    ),
    Column("id", BigInteger, autoincrement=True, nullable=False, comment="The event; rises within a transaction"),
    _now("at", "When, by the database's clock"),
    Column(
        "kind",
        Text,
        nullable=False,
        comment="What happened, as listed in docs/how-to/listeners.md; a report has the kind of receiver_events",
    ),
    Column("receiver_id", BigInteger, comment="The receiver; null if the event is about none"),
    Column("pipeline_id", BigInteger, comment="The pipeline; null if the event is about none"),
    Column("batch_time", DateTime(timezone=True), comment="The batch; null if the event is about none"),
    Column("attempt", Integer, comment="The attempt or replay; null if the event is about no batch"),
    Column("output", Text, comment="The output that was committed; else null"),
    Column("term", BigInteger, comment="The term of a new leader; else null"),
    Column("records", BigInteger, comment="Records of the batch, the output or the clean-up; else null"),
    Column("message", Text, nullable=False, comment="The reason or the place, for people; may be empty"),
    Column(
        "epoch",
        BigInteger,
        comment="Of a report on a receiver: the reporting process's epoch, 0 for the tracker or an agent; else null",
    ),
    Column(
        "detail", Text, nullable=False, server_default="", comment="The rest of a report, such as a stack; may be empty"
    ),
    PrimaryKeyConstraint("transaction_id", "id"),
    CheckConstraint(
        f"epoch IS NULL OR receiver_id IS NOT NULL AND {_one_of('kind', ReceiverEventKind)}", name="events_report"
    ),
    Index("events_report_id", "id", postgresql_where=text("epoch IS NOT NULL")),
    Index("events_report_age", "at", postgresql_where=text("epoch IS NOT NULL")),
    # The newest of a kind stays whatever its age, and status shows a receiver's last error.
    Index("events_report_newest", "receiver_id", "kind", "id", postgresql_where=text("epoch IS NOT NULL")),
    comment="What happened to batches, receivers, pipelines and the lead? (Views: listener_events, receiver_events.)",
    postgresql_with={"autovacuum_vacuum_insert_scale_factor": "0.05"},
)
