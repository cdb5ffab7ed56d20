"""The views for people: stable, documented, used by `forebay status` and the runbooks."""

from __future__ import annotations

RECEIVER_STATUS = """
CREATE VIEW forebay.receiver_status AS
SELECT s.name AS stream, r.ordinal, r.id AS receiver_id, r.state, r.desired_state, r.reason, r.since,
       agent.name AS agent, agent.host, r.assignment, newest.epoch, newest.sequence AS newest_sequence,
       coalesce(newest.total_records, 0) AS records, coalesce(newest.total_bytes, 0) AS bytes,
       newest.added_at AS last_block_at, r.rate_limit, r.stream_id,
       (SELECT count(*) FROM forebay.dead_letters d WHERE d.receiver_id = r.id AND d.part = 0) AS dead_letters
FROM forebay.receivers r
JOIN forebay.streams s ON s.id = r.stream_id
LEFT JOIN forebay.processes agent ON agent.id = r.agent_id
LEFT JOIN LATERAL (
    SELECT b.epoch, b.sequence, b.total_records, b.total_bytes, b.added_at FROM forebay.blocks b
    WHERE b.receiver_id = r.id ORDER BY b.sequence DESC LIMIT 1) AS newest ON true
WHERE r.removed_at IS NULL
"""

STREAM_LAG = """
CREATE VIEW forebay.stream_lag AS
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
"""

BATCH_STATS = """
CREATE VIEW forebay.batch_stats AS
SELECT p.name AS pipeline, p.id AS pipeline_id, b.batch_time, b.oldest_time, b.state, b.attempt, b.records, b.bytes,
       b.blocks, b.reason, attempt.run_id, attempt.started_at AS processing_started_at, b.completed_at,
       attempt.started_at - b.oldest_time AS scheduling_delay,
       b.completed_at - attempt.started_at AS processing_time,
       b.completed_at - b.oldest_time AS total_delay
FROM forebay.batches b
JOIN forebay.pipelines p ON p.id = b.pipeline_id
LEFT JOIN forebay.batch_attempts attempt ON attempt.pipeline_id = b.pipeline_id
     AND attempt.batch_time = b.batch_time AND attempt.attempt = b.attempt
"""

COMMENTS = {
    "receiver_status": "Each receiver: its state and why, where it runs, and what it has registered.",
    "stream_lag": "What each pipeline has not yet given to a batch, by stream (records, bytes, oldest block).",
    "batch_stats": "Each batch: its size, state, scheduling delay, processing time and total delay.",
}

# In the order of creation; dropped in reverse.
VIEWS = {"receiver_status": RECEIVER_STATUS, "stream_lag": STREAM_LAG, "batch_stats": BATCH_STATS}
