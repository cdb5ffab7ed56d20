"""The views for people: stable, documented, used by `forebay status` and the runbooks.

A view's comment says what it shows and what reading it costs; each column's says its unit and when it is null.
Names, once published, stay; a column is added at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class View:
    """A view: its query, what it is for, and what each of its columns means, in their order."""

    query: str
    comment: str
    columns: Mapping[str, str]


# Arms of one table each, without a condition: so the planner pushes (receiver_id, first_sequence) and `source` into
# them, and an arm of another source is not read at all.
_DRIVER_LOG = View(
    """
SELECT e.at, e.source, CASE WHEN e.marker THEN 'epoch claimed' ELSE e.event END AS event,
       s.name AS stream, r.ordinal, e.receiver_id, p.name AS pipeline, e.pipeline_id, e.batch_time, e.epoch,
       e.first_sequence, e.last_sequence, e.records, e.bytes, e.detail
FROM (
    SELECT b.added_at AS at, 'blocks'::text AS source, 'block added'::text AS event, b.segment_id IS NULL AS marker,
           b.receiver_id, NULL::bigint AS pipeline_id, NULL::timestamptz AS batch_time, b.epoch,
           b.sequence AS first_sequence, b.sequence AS last_sequence, b.records, b.bytes, ''::text AS detail
    FROM forebay.blocks b
    UNION ALL
    SELECT t.allocated_at, 'batches'::text, 'batch allocated'::text, false, NULL::bigint, t.pipeline_id, t.batch_time,
           NULL::bigint, NULL::bigint, NULL::bigint, t.records, t.bytes, format('%s sequences', t.blocks)
    FROM forebay.batches t
    UNION ALL
    SELECT c.at, 'cleanup_events'::text, 'cleaned up'::text, false, c.receiver_id, NULL::bigint, NULL::timestamptz,
           NULL::bigint, lower(c.sequences), upper(c.sequences) - 1, c.records, c.bytes,
           format('%s records had been read by no pipeline', c.unread_records)
    FROM forebay.cleanup_events c
    UNION ALL
    SELECT v.at, 'receiver_events'::text, 'receiver ' || v.kind, false, v.receiver_id, NULL::bigint,
           NULL::timestamptz, v.epoch, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, v.message
    FROM forebay.receiver_events v
    UNION ALL
    SELECT p.removed_at, 'pipelines'::text, 'pipeline removed'::text, false, NULL::bigint, p.id, NULL::timestamptz,
           NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, coalesce(p.removed_why, '')
    FROM forebay.pipelines p WHERE p.removed_at IS NOT NULL) AS e
LEFT JOIN forebay.receivers r ON r.id = e.receiver_id
LEFT JOIN forebay.streams s ON s.id = r.stream_id
LEFT JOIN forebay.pipelines p ON p.id = e.pipeline_id
""",
    "Block additions, take-overs, allocations, clean-ups and receiver events as one log; order it by at. A filter on "
    "receiver_id and first_sequence, or on source, costs what it returns; one on at alone reads every block that is "
    "kept (blocks has no index on time: it would cost each block 90 bytes of WAL). For a span of time ask "
    "driver_log_between(from_time, to_time), which finds its ends by halving.",
    {
        "at": "When, by the database's clock",
        "source": "The table that holds the event: blocks, batches, cleanup_events, receiver_events or pipelines",
        "event": "block added, epoch claimed, batch allocated, cleaned up, pipeline removed, or receiver and the kind "
        "of its event",
        "stream": "The receiver's stream; null for an allocation",
        "ordinal": "The receiver's number within its stream, from 1; null for an allocation",
        "receiver_id": "The receiver; null for an allocation, whose ranges are in batch_allocations",
        "pipeline": "The pipeline of an allocation; else null",
        "pipeline_id": "The same as an id: a pipeline that was removed and applied again is another",
        "batch_time": "The batch that was allocated; else null",
        "epoch": "The epoch that added or claimed, 0 where the tracker reports; null for allocation and clean-up",
        "first_sequence": "First of the sequences that it is about; null where it is about none",
        "last_sequence": "Last of them; the same as first_sequence for a block",
        "records": "Records added, allocated or cleaned up; null for a receiver event",
        "bytes": "The same in bytes as stored",
        "detail": "A receiver event's message, an allocation's size, a clean-up's loss, what a removed pipeline left",
    },
)

_RECEIVER_STATUS = View(
    """
SELECT s.name AS stream, r.ordinal, r.id AS receiver_id, r.state, r.desired_state, r.reason, r.since,
       agent.name AS agent, agent.host, r.assignment, newest.epoch, newest.sequence AS newest_sequence,
       coalesce(newest.total_records, 0) AS records, coalesce(newest.total_bytes, 0) AS bytes,
       newest.added_at AS last_block_at, r.rate_limit, r.stream_id,
       (SELECT count(*) FROM forebay.dead_letters d WHERE d.receiver_id = r.id AND d.part = 0) AS dead_letters,
       error.at AS last_error_at, error.message AS last_error,
       (holder.queued ->> r.id::text)::integer AS queued_blocks
FROM forebay.receivers r
JOIN forebay.streams s ON s.id = r.stream_id
LEFT JOIN forebay.processes agent ON agent.id = r.agent_id
LEFT JOIN forebay.processes holder ON holder.id = r.process_id AND holder.ended_at IS NULL
LEFT JOIN LATERAL (
    SELECT b.epoch, b.sequence, b.total_records, b.total_bytes, b.added_at FROM forebay.blocks b
    WHERE b.receiver_id = r.id ORDER BY b.sequence DESC LIMIT 1) AS newest ON true
LEFT JOIN LATERAL (
    SELECT v.at, v.message FROM forebay.receiver_events v
    WHERE v.receiver_id = r.id AND v.kind IN ('ERROR', 'FAILED') ORDER BY v.id DESC LIMIT 1) AS error ON true
WHERE r.removed_at IS NULL
""",
    "Each receiver: its state and why, where it runs, what it has registered, its last error. Costs a few probes of "
    "an index per receiver, and its dead letters and events back to the last error.",
    {
        "stream": "The stream that it receives for",
        "ordinal": "Its number within the stream, from 1",
        "receiver_id": "Its id in every other table",
        "state": "INACTIVE, SCHEDULED, ACTIVE, PAUSED or FAILED",
        "desired_state": "What an operator wants of it: running, paused or stopped",
        "reason": "Why it is in its state; empty when there is nothing to say",
        "since": "When it came to its state",
        "agent": "The agent that it is placed on; null when it is on none",
        "host": "That agent's host",
        "assignment": "The placement decision that its process runs under; a newer one ends that process",
        "epoch": "Its newest epoch: the process that claimed it may add blocks; null before the first claim",
        "newest_sequence": "Its newest block or marker; null before the first claim",
        "records": "Records registered in all its life",
        "bytes": "The same in bytes as stored",
        "last_block_at": "When its newest block or marker was added",
        "rate_limit": "Records per second that it may take in; null: no limit",
        "stream_id": "The stream's id",
        "dead_letters": "Records that could not be processed and are kept aside",
        "last_error_at": "When its last error was reported; null when there was none (K07, K08 of the original)",
        "last_error": "What that error said",
        "queued_blocks": "Blocks in its process's queue that are not stored yet, at the newest heartbeat; null where "
        "no process holds it. At the stream's block_queue_size it reads no further",
    },
)

_STREAM_LAG = View(
    """
SELECT p.id AS pipeline_id, p.name AS pipeline, s.name AS stream, s.id AS stream_id,
       -- Markers count in a range of sequences; where nothing but markers waits, nothing waits.
       coalesce(sum(newest.sequence - first_row.sequence + 1) FILTER (
           WHERE newest.total_records > first_row.total_records - first_row.records), 0)::bigint AS waiting_blocks,
       coalesce(sum(newest.total_records - first_row.total_records + first_row.records), 0)::bigint
           AS waiting_records,
       coalesce(sum(newest.total_bytes - first_row.total_bytes + first_row.bytes), 0)::bigint AS waiting_bytes,
       min(first_row.added_at) AS oldest_added_at
FROM forebay.pipelines p
JOIN forebay.streams s ON s.id = ANY (p.stream_ids)
LEFT JOIN forebay.receivers r ON r.stream_id = s.id
LEFT JOIN forebay.cursors c ON c.pipeline_id = p.id AND c.receiver_id = r.id
LEFT JOIN forebay.blocks first_row ON first_row.receiver_id = r.id
     AND first_row.sequence = greatest(coalesce(c.next_sequence, 1), r.low_mark + 1)
LEFT JOIN LATERAL (
    SELECT b.sequence, b.total_records, b.total_bytes FROM forebay.blocks b
    WHERE b.receiver_id = r.id AND first_row.sequence IS NOT NULL ORDER BY b.sequence DESC LIMIT 1) AS newest ON true
WHERE p.removed_at IS NULL
GROUP BY p.id, p.name, s.name, s.id
""",
    "What each pipeline has not yet given to a batch, by stream. Costs two probes per pipeline and receiver, however "
    "much waits.",
    {
        "pipeline_id": "The pipeline's id",
        "pipeline": "The pipeline",
        "stream": "A stream that it reads",
        "stream_id": "The stream's id",
        "waiting_blocks": "Sequences past the pipeline's cursors, epoch markers among them; 0 when no record waits",
        "waiting_records": "Records in them",
        "waiting_bytes": "The same in bytes as stored",
        "oldest_added_at": "When the oldest of them was added; null when nothing waits",
    },
)

_PIPELINE_STATUS = View(
    """
SELECT p.name AS pipeline, p.id AS pipeline_id, p.state, p.state_since, p.batch_interval, p.last_batch_time,
       lag.blocks AS waiting_blocks, lag.records AS waiting_records, lag.bytes AS waiting_bytes, lag.oldest_added_at,
       unfinished.batches AS unfinished_batches, unfinished.running AS running_batches,
       completed.batch_time AS last_completed_time, completed.completed_at AS last_completed_at,
       CASE WHEN lag.records > 0 OR unfinished.batches > 0 THEN greatest(
           completed.completed_at, p.applied_at, CASE WHEN p.state = 'RUNNING' THEN p.state_since END,
           least(lag.oldest_added_at, unfinished.oldest)) END AS holds_back_since,
       p.halted_by
FROM forebay.pipelines p
CROSS JOIN LATERAL (
    SELECT coalesce(sum(w.waiting_blocks), 0)::bigint AS blocks, coalesce(sum(w.waiting_records), 0)::bigint AS records,
           coalesce(sum(w.waiting_bytes), 0)::bigint AS bytes,
           min(w.oldest_added_at) FILTER (WHERE w.waiting_records > 0) AS oldest_added_at
    FROM forebay.stream_lag w WHERE w.pipeline_id = p.id) AS lag
CROSS JOIN LATERAL (
    SELECT count(*) AS batches, count(*) FILTER (WHERE b.state = 'RUNNING') AS running, min(b.allocated_at) AS oldest
    FROM forebay.batches b
    WHERE b.pipeline_id = p.id AND b.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')) AS unfinished
LEFT JOIN LATERAL (
    SELECT b.batch_time, b.completed_at FROM forebay.batches b
    WHERE b.pipeline_id = p.id AND b.state = 'COMPLETED' ORDER BY b.batch_time DESC LIMIT 1) AS completed ON true
WHERE p.removed_at IS NULL
""",
    "Each pipeline: its state, what waits for it, what it has completed, and since when it holds blocks back. Costs "
    "two probes per pipeline and receiver, its unfinished batches, and its batches back to the newest that completed.",
    {
        "pipeline": "The pipeline",
        "pipeline_id": "The pipeline's id",
        "state": "RUNNING, STOPPING or STOPPED",
        "state_since": "When it came to that state",
        "batch_interval": "Batch times are its multiples",
        "last_batch_time": "Its cursor in time: every batch time up to here is decided",
        "waiting_blocks": "Sequences past its cursors, epoch markers among them; 0 when no record waits",
        "waiting_records": "Records in them",
        "waiting_bytes": "The same in bytes as stored",
        "oldest_added_at": "When the oldest of them was added; null when nothing waits",
        "unfinished_batches": "Batches that are allocated and neither complete nor given up",
        "running_batches": "Those of them that run now",
        "last_completed_time": "Its newest completed batch; null before the first",
        "last_completed_at": "When that was complete",
        "holds_back_since": "Since when it has completed nothing while blocks wait for it or for its batches, which "
        "clean-up must keep; null when nothing waits",
        "halted_by": "The quarantined batch that has halted it (on_failure = halt); null while it goes on",
    },
)

_READER_LAG = View(
    """
SELECT d.id AS reader_id, d.name AS reader, s.name AS stream, s.id AS stream_id,
       coalesce(sum(newest.sequence - first_row.sequence + 1) FILTER (
           WHERE newest.total_records > first_row.total_records - first_row.records), 0)::bigint AS waiting_blocks,
       coalesce(sum(newest.total_records - first_row.total_records + first_row.records), 0)::bigint
           AS waiting_records,
       coalesce(sum(newest.total_bytes - first_row.total_bytes + first_row.bytes), 0)::bigint AS waiting_bytes,
       min(first_row.added_at) AS oldest_added_at, max(c.moved_at) AS moved_at, d.attached_at
FROM forebay.readers d
JOIN forebay.streams s ON s.id = d.stream_id
LEFT JOIN forebay.receivers r ON r.stream_id = s.id
LEFT JOIN forebay.reader_cursors c ON c.reader_id = d.id AND c.receiver_id = r.id
LEFT JOIN forebay.blocks first_row ON first_row.receiver_id = r.id
     AND first_row.sequence = greatest(coalesce(c.next_sequence, 1), r.low_mark + 1)
LEFT JOIN LATERAL (
    SELECT b.sequence, b.total_records, b.total_bytes FROM forebay.blocks b
    WHERE b.receiver_id = r.id AND first_row.sequence IS NOT NULL ORDER BY b.sequence DESC LIMIT 1) AS newest ON true
WHERE d.removed_at IS NULL
GROUP BY d.id, d.name, s.name, s.id, d.attached_at
""",
    "What each named reader's query has not yet committed, all of which clean-up keeps for it. Costs two probes per "
    "reader and receiver, however much waits.",
    {
        "reader_id": "The reader's id",
        "reader": "The reader, as its query names it",
        "stream": "The stream that it reads",
        "stream_id": "The stream's id",
        "waiting_blocks": "Sequences past the reader's cursors, epoch markers among them; 0 when no record waits",
        "waiting_records": "Records in them",
        "waiting_bytes": "The same in bytes as stored",
        "oldest_added_at": "When the oldest of them was added; null when nothing waits",
        "moved_at": "When its query moved a cursor last; null when its stream had no receiver yet",
        "attached_at": "When a query asked for it first",
    },
)

_UNALLOCATED_BLOCKS = View(
    """
SELECT p.name AS pipeline, p.id AS pipeline_id, s.name AS stream, r.ordinal, b.receiver_id, b.sequence, b.epoch,
       b.added_at, b.records, b.bytes, g.path
FROM forebay.pipelines p
JOIN forebay.receivers r ON r.stream_id = ANY (p.stream_ids)
JOIN forebay.streams s ON s.id = r.stream_id
LEFT JOIN forebay.cursors c ON c.pipeline_id = p.id AND c.receiver_id = r.id
JOIN forebay.blocks b ON b.receiver_id = r.id
     AND b.sequence >= greatest(coalesce(c.next_sequence, 1), r.low_mark + 1)
LEFT JOIN forebay.log_segments g ON g.id = b.segment_id
WHERE p.removed_at IS NULL AND b.segment_id IS NOT NULL
""",
    "Each block that a pipeline has not yet given to a batch, once per pipeline. Costs what waits: count with "
    "stream_lag.",
    {
        "pipeline": "The pipeline that it waits for",
        "pipeline_id": "The pipeline's id",
        "stream": "The stream that it came by",
        "ordinal": "The receiver's number within the stream",
        "receiver_id": "The receiver that stored it",
        "sequence": "Its place in the receiver's sequence",
        "epoch": "The epoch that added it",
        "added_at": "When it was added; batches are cut by this",
        "records": "How many records it has",
        "bytes": "Its size as stored",
        "path": "Its segment's file, relative to the block store's root; null when the log does not know it",
    },
)

_BATCH_BLOCKS = View(
    """
SELECT p.name AS pipeline, e.pipeline_id, e.batch_time, s.name AS stream, r.ordinal, e.receiver_id, e.sequence,
       e.added_at, e.records, e.bytes, g.path, e.segment_id, e."offset", e.length, e.crc32c, e.kept
FROM (
    SELECT a.pipeline_id, a.batch_time, b.receiver_id, b.sequence, b.added_at, b.records, b.bytes, b.segment_id,
           b."offset", b.length, b.crc32c, false AS kept
    FROM forebay.batch_allocations a
    JOIN forebay.blocks b ON b.receiver_id = a.receiver_id
         AND b.sequence >= lower(a.sequences) AND b.sequence < upper(a.sequences)
    WHERE b.segment_id IS NOT NULL
    UNION ALL
    SELECT k.pipeline_id, k.batch_time, k.receiver_id, k.sequence, k.added_at, k.records, k.bytes, k.segment_id,
           k."offset", k.length, k.crc32c, true
    FROM forebay.kept_blocks k
    JOIN forebay.batch_allocations a ON a.pipeline_id = k.pipeline_id AND a.batch_time = k.batch_time
         AND a.receiver_id = k.receiver_id AND k.sequence <@ a.sequences
    WHERE NOT EXISTS (SELECT 1 FROM forebay.blocks b WHERE b.receiver_id = k.receiver_id AND b.sequence = k.sequence)
    ) AS e
JOIN forebay.pipelines p ON p.id = e.pipeline_id
JOIN forebay.receivers r ON r.id = e.receiver_id
JOIN forebay.streams s ON s.id = r.stream_id
LEFT JOIN forebay.log_segments g ON g.id = e.segment_id
""",
    "The blocks of each batch with their handles, as far as they are kept. Ask for one pipeline_id and batch_time: "
    "it costs that batch's blocks.",
    {
        "pipeline": "The batch's pipeline",
        "pipeline_id": "The pipeline's id",
        "batch_time": "The batch",
        "stream": "The stream that the block came by",
        "ordinal": "The receiver's number within the stream",
        "receiver_id": "The receiver that stored it",
        "sequence": "Its place in the receiver's sequence",
        "added_at": "When it was added, before batch_time",
        "records": "How many records it has",
        "bytes": "Its size as stored",
        "path": "Its segment's file, relative to the block store's root; null when the log does not know it",
        "segment_id": "Its segment in log_segments",
        "offset": "Where its frame begins in the file, in bytes",
        "length": "How long its frame is, in bytes",
        "crc32c": "The checksum of its frame",
        "kept": "Whether only kept_blocks has it any more (the batch was quarantined, and clean-up has passed)",
    },
)

_BATCH_STATS = View(
    """
SELECT p.name AS pipeline, p.id AS pipeline_id, b.batch_time, b.oldest_time, b.state, b.attempt, b.records, b.bytes,
       b.blocks, b.reason, attempt.run_id, attempt.started_at AS processing_started_at, b.completed_at,
       attempt.started_at - b.oldest_time AS scheduling_delay,
       b.completed_at - attempt.started_at AS processing_time,
       CASE WHEN attempt.started_at IS NOT NULL THEN b.completed_at - b.oldest_time END AS total_delay,
       attempt.kind,
       (SELECT count(*) FROM forebay.batch_attempts n WHERE n.pipeline_id = b.pipeline_id
        AND n.batch_time = b.batch_time AND n.kind = 'replay') AS replays
FROM forebay.batches b
JOIN forebay.pipelines p ON p.id = b.pipeline_id
LEFT JOIN forebay.batch_attempts attempt ON attempt.pipeline_id = b.pipeline_id
     AND attempt.batch_time = b.batch_time AND attempt.attempt = b.attempt
""",
    "Each batch: its size, state and delays; one without records ran nowhere and has no delays. Costs the batches "
    "that are asked for.",
    {
        "pipeline": "The pipeline",
        "pipeline_id": "The pipeline's id",
        "batch_time": "The boundary at which its blocks were cut: they were added before it",
        "oldest_time": "The oldest boundary that it stands for; before batch_time when missed ones were merged",
        "state": "ALLOCATED, RUNNING, COMPLETED, FAILED (between two attempts), BLOCKED (its block store is away), "
        "QUARANTINED or DISCARDED",
        "attempt": "The number of the attempt that brought it out, or else of its newest one; 0: none was made",
        "records": "Records allocated to it",
        "bytes": "The same in bytes as stored",
        "blocks": "Sequences allocated to it, epoch markers among them",
        "reason": "Its most telling failure, which may be an earlier attempt's, or why nothing ran",
        "run_id": "The Dagster run of that attempt; null before the first",
        "processing_started_at": "When that attempt started",
        "completed_at": "When the last of its outputs was committed; null until then",
        "scheduling_delay": "processing_started_at - oldest_time: how long its records waited for a run",
        "processing_time": "completed_at - processing_started_at",
        "total_delay": "scheduling_delay + processing_time",
        "kind": "run, or replay where one brought it out after it was quarantined; null before the first attempt",
        "replays": "How many replays of it were made; those of a COMPLETED batch change nothing else here",
    },
)

_BATCH_HISTORY = View(
    """
SELECT p.name AS pipeline, b.pipeline_id, b.batch_time, b.state, b.records, a.attempt, a.kind, a.state AS attempt_state,
       a.run_id, a.started_at, a.ended_at, a.ended_at - a.started_at AS duration, a.error,
       (SELECT array_agg(c.output ORDER BY c.output) FROM forebay.output_commits c
        WHERE c.pipeline_id = a.pipeline_id AND c.batch_time = a.batch_time AND c.attempt = a.attempt) AS outputs,
       r.name AS process, r.host
FROM forebay.batches b
JOIN forebay.pipelines p ON p.id = b.pipeline_id
LEFT JOIN forebay.batch_attempts a ON a.pipeline_id = b.pipeline_id AND a.batch_time = b.batch_time
LEFT JOIN forebay.processes r ON r.id = a.process_id
""",
    "Each batch with every attempt and replay of it: the run, when, how it ended, and which outputs it brought out. "
    "Order it by batch_time and attempt. Costs the batches that are asked for: name pipeline_id and a span of "
    "batch_time.",
    {
        "pipeline": "The pipeline",
        "pipeline_id": "The pipeline's id",
        "batch_time": "The batch",
        "state": "The batch's state now, as in batch_stats",
        "records": "Records allocated to it",
        "attempt": "The attempt's number, replays counted too; null for a batch that nothing has run",
        "kind": "run, or replay: of a batch that was COMPLETED or QUARANTINED",
        "attempt_state": "RUNNING, SUCCEEDED, FAILED (counted in max_attempts), BLOCKED (its block store was away: not "
        "counted) or LOST (its process or Spark died: counted in max_lost_attempts)",
        "run_id": "The Dagster run, or who else ran it (`forebay batches replay …`); empty where none is known",
        "started_at": "When it claimed the batch",
        "ended_at": "When it ended; null while it runs",
        "duration": "ended_at - started_at",
        "error": "Why it failed; else empty",
        "outputs": "The outputs whose result is this attempt's; null where later ones replaced all, or it had none",
        "process": "The process that ran it; null once that is forgotten, and where it never claimed",
        "host": "That process's host",
    },
)

_SOURCE_PROGRESS = View(
    """
WITH RECURSIVE partitions (stream_id, source, partition) AS (
    -- One probe of the primary key per partition, not a scan of its links.
    (SELECT o.stream_id, o.source, o.partition FROM forebay.block_offsets o
     ORDER BY o.stream_id, o.source, o.partition LIMIT 1)
    UNION ALL
    SELECT next_one.stream_id, next_one.source, next_one.partition FROM partitions f
    CROSS JOIN LATERAL (
        SELECT o.stream_id, o.source, o.partition FROM forebay.block_offsets o
        WHERE (o.stream_id, o.source, o.partition) > (f.stream_id, f.source, f.partition)
        ORDER BY o.stream_id, o.source, o.partition LIMIT 1) AS next_one
)
SELECT s.name AS stream, f.stream_id, f.source, f.partition, newest.generation, newest.to_offset AS position,
       newest.kind, newest.receiver_id, newest.sequence, b.added_at,
       coalesce(lost.records, 0)::bigint AS lost_records
FROM partitions f
JOIN forebay.streams s ON s.id = f.stream_id
CROSS JOIN LATERAL (
    SELECT o.generation, o.to_offset, o.kind, o.receiver_id, o.sequence FROM forebay.block_offsets o
    WHERE o.stream_id = f.stream_id AND o.source = f.source AND o.partition = f.partition
    ORDER BY o.generation DESC, o.from_offset DESC LIMIT 1) AS newest
LEFT JOIN forebay.blocks b ON b.receiver_id = newest.receiver_id AND b.sequence = newest.sequence
LEFT JOIN LATERAL (
    SELECT sum(o.to_offset - o.from_offset) AS records FROM forebay.block_offsets o
    WHERE o.stream_id = f.stream_id AND o.source = f.source AND o.partition = f.partition
      AND o.kind = 'lost') AS lost ON true
""",
    "Up to which position each source partition is in blocks, and what was lost on the way. Costs three probes per "
    "partition, however long its chain.",
    {
        "stream": "The stream",
        "stream_id": "The stream's id",
        "source": "The source as the receiver names it, such as a topic",
        "partition": "The partition, as text",
        "generation": "Raised by one when the position went backwards: a topic made anew, a replaced file, a reset",
        "position": "The next offset to be read; everything before it is in a block or was lost",
        "kind": "The newest link's: origin (nothing read yet), block or lost",
        "receiver_id": "The receiver that wrote the newest link",
        "sequence": "The block that it came with; 0 for an origin",
        "added_at": "When that block was added; null for an origin, and when the block is cleaned up",
        "lost_records": "Offsets that the source no longer had, by the links that are kept",
    },
)

_STORAGE_USAGE = View(
    """
SELECT s.name AS stream, r.ordinal, r.id AS receiver_id, r.stream_id,
       coalesce(newest.sequence - r.low_mark, 0)::bigint AS blocks,
       coalesce(newest.total_records - oldest.total_records + oldest.records, 0)::bigint AS records,
       coalesce(newest.total_bytes - oldest.total_bytes + oldest.bytes, 0)::bigint AS bytes,
       oldest.added_at AS oldest_added_at,
       coalesce(g.open, 0)::bigint AS open_segments, coalesce(unsealed.segments, 0)::bigint AS left_segments,
       coalesce(g.sealed, 0)::bigint AS sealed_segments,
       coalesce(g.deleting, 0)::bigint AS deleting_segments, coalesce(g.bytes, 0)::bigint AS segment_bytes,
       coalesce(k.blocks, 0)::bigint AS kept_blocks, coalesce(k.bytes, 0)::bigint AS kept_bytes,
       coalesce(d.records, 0)::bigint AS dead_letters, coalesce(d.bytes, 0)::bigint AS dead_letter_bytes
FROM forebay.receivers r
JOIN forebay.streams s ON s.id = r.stream_id
LEFT JOIN LATERAL (
    SELECT b.sequence, b.epoch, b.total_records, b.total_bytes FROM forebay.blocks b
    WHERE b.receiver_id = r.id ORDER BY b.sequence DESC LIMIT 1) AS newest ON true
LEFT JOIN LATERAL (
    SELECT b.records, b.bytes, b.total_records, b.total_bytes, b.added_at FROM forebay.blocks b
    WHERE b.receiver_id = r.id AND b.sequence > r.low_mark ORDER BY b.sequence LIMIT 1) AS oldest ON true
LEFT JOIN (
    SELECT l.receiver_id, count(*) FILTER (WHERE l.state = 'OPEN') AS open,
           count(*) FILTER (WHERE l.state = 'SEALED') AS sealed,
           count(*) FILTER (WHERE l.state = 'DELETING') AS deleting, sum(l.length) AS bytes
    FROM forebay.log_segments l GROUP BY l.receiver_id) AS g ON g.receiver_id = r.id
LEFT JOIN LATERAL (
    SELECT count(*) AS segments FROM forebay.log_segments l
    WHERE l.receiver_id = r.id AND l.state = 'OPEN'
      AND (r.state IN ('INACTIVE', 'FAILED') OR l.epoch < newest.epoch)) AS unsealed ON true
LEFT JOIN (
    SELECT l.receiver_id, count(*) AS blocks, sum(l.bytes) AS bytes
    FROM forebay.kept_blocks l GROUP BY l.receiver_id) AS k ON k.receiver_id = r.id
LEFT JOIN (
    SELECT l.receiver_id, count(*) FILTER (WHERE l.part = 0) AS records, sum(l.bytes) AS bytes
    FROM forebay.dead_letters l GROUP BY l.receiver_id) AS d ON d.receiver_id = r.id
""",
    "What each receiver keeps: blocks, segment files by state, kept blocks, dead letters; removed receivers too. "
    "Costs a scan of log_segments, kept_blocks and dead_letters, and two probes of blocks per receiver.",
    {
        "stream": "The stream",
        "ordinal": "The receiver's number within the stream",
        "receiver_id": "The receiver",
        "stream_id": "The stream's id",
        "blocks": "Sequences above the low mark, epoch markers among them",
        "records": "Records in them",
        "bytes": "The same in bytes as stored",
        "oldest_added_at": "When the oldest of them was added; null when there is none",
        "open_segments": "Segment files that are being written, or that a process left unsealed",
        "left_segments": "Those of them that no process holds: blocks may lie there that no row names, which the "
        "receiver's next process looks for; a removed receiver has none",
        "sealed_segments": "Segment files that are whole",
        "deleting_segments": "Segment files that clean-up has marked and is about to delete",
        "segment_bytes": "The length of all segments but the open ones, in bytes",
        "kept_blocks": "Blocks that quarantined batches keep, once per batch",
        "kept_bytes": "The same in bytes as stored",
        "dead_letters": "Records that could not be processed and are kept aside",
        "dead_letter_bytes": "The same in bytes",
    },
)

# In the order of creation; dropped in reverse.
VIEWS: Mapping[str, View] = {
    "driver_log": _DRIVER_LOG,
    "receiver_status": _RECEIVER_STATUS,
    "stream_lag": _STREAM_LAG,
    "pipeline_status": _PIPELINE_STATUS,
    "reader_lag": _READER_LAG,
    "unallocated_blocks": _UNALLOCATED_BLOCKS,
    "batch_blocks": _BATCH_BLOCKS,
    "batch_stats": _BATCH_STATS,
    "batch_history": _BATCH_HISTORY,
    "source_progress": _SOURCE_PROGRESS,
    "storage_usage": _STORAGE_USAGE,
}
