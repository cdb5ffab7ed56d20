-- Each is one row. By LEFT JOIN, what a reader does not ask for is not computed, such as what waits.
CREATE VIEW forebay.pipeline_status AS
SELECT p.name AS pipeline, p.id AS pipeline_id, p.state, p.state_since, p.batch_interval, p.last_batch_time,
       lag.blocks AS waiting_blocks, lag.records AS waiting_records, lag.bytes AS waiting_bytes, lag.oldest_added_at,
       unfinished.batches AS unfinished_batches, unfinished.running AS running_batches,
       completed.batch_time AS last_completed_time, completed.completed_at AS last_completed_at,
       CASE WHEN lag.records > 0 OR unfinished.batches > 0 THEN greatest(
           completed.completed_at, p.applied_at, CASE WHEN p.state = 'RUNNING' THEN p.state_since END,
           least(lag.oldest_added_at, unfinished.oldest)) END AS holds_back_since,
       p.halted_by, unfinished.failed AS failed_batches, unfinished.blocked AS blocked_batches,
       quarantined.batches AS quarantined_batches, quarantined.newest AS newest_quarantined, due.oldest AS oldest_due,
       coalesce(floor(extract(epoch FROM clock_timestamp() - due.oldest)
                      / extract(epoch FROM p.batch_interval)), 0)::bigint AS intervals_behind,
       CASE WHEN p.state = 'STOPPED' OR p.next_batch_time > clock_timestamp() THEN 0
            WHEN p.next_batch_time IS NOT NULL
            THEN 1 + floor(extract(epoch FROM clock_timestamp() - p.next_batch_time)
                           / extract(epoch FROM p.batch_interval))::bigint
            ELSE greatest(0, floor(extract(epoch FROM clock_timestamp() - p.last_batch_time)
                                   / extract(epoch FROM p.batch_interval)))::bigint END AS due_batches,
       greatest(completed.completed_at, p.applied_at, CASE WHEN p.state = 'RUNNING' THEN p.state_since END)
           AS progress_since,
       unfinished.oldest AS oldest_unfinished_at,
       p.declaration -> 'calendar' AS calendar
FROM forebay.pipelines p
LEFT JOIN LATERAL (
    SELECT coalesce(sum(w.waiting_blocks), 0)::bigint AS blocks, coalesce(sum(w.waiting_records), 0)::bigint AS records,
           coalesce(sum(w.waiting_bytes), 0)::bigint AS bytes,
           min(w.oldest_added_at) FILTER (WHERE w.waiting_records > 0) AS oldest_added_at
    FROM forebay.stream_lag w WHERE w.pipeline_id = p.id) AS lag ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS batches, count(*) FILTER (WHERE b.state = 'RUNNING') AS running,
           count(*) FILTER (WHERE b.state = 'FAILED') AS failed, count(*) FILTER (WHERE b.state = 'BLOCKED') AS blocked,
           min(b.allocated_at) AS oldest, min(b.oldest_time) AS oldest_time
    FROM forebay.batches b
    WHERE b.pipeline_id = p.id AND b.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')) AS unfinished ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS batches, max(q.batch_time) AS newest
    FROM forebay.batches q WHERE q.pipeline_id = p.id AND q.state = 'QUARANTINED') AS quarantined ON true
LEFT JOIN LATERAL (
    SELECT least(unfinished.oldest_time, CASE
        WHEN p.state <> 'STOPPED'
             AND coalesce(p.next_batch_time, p.last_batch_time + p.batch_interval) <= clock_timestamp()
        THEN coalesce(p.next_batch_time, p.last_batch_time + p.batch_interval) END) AS oldest) AS due ON true
LEFT JOIN LATERAL (
    SELECT b.batch_time, b.completed_at FROM forebay.batches b
    WHERE b.pipeline_id = p.id AND b.state = 'COMPLETED' ORDER BY b.batch_time DESC LIMIT 1) AS completed ON true
WHERE p.removed_at IS NULL;

COMMENT ON VIEW forebay.pipeline_status IS
    'Each pipeline: its state, what waits for it, what it has completed, and since when it holds blocks back. Costs '
    'two probes per pipeline and receiver, its unfinished and quarantined batches, and its batches back to the newest that completed.';
COMMENT ON COLUMN forebay.pipeline_status.pipeline IS 'The pipeline';
COMMENT ON COLUMN forebay.pipeline_status.pipeline_id IS 'The pipeline''s id';
COMMENT ON COLUMN forebay.pipeline_status.state IS 'RUNNING, STOPPING or STOPPED';
COMMENT ON COLUMN forebay.pipeline_status.state_since IS 'When it entered that state';
COMMENT ON COLUMN forebay.pipeline_status.batch_interval IS
    'Batch times are its multiples; with a calendar, its usual length';
COMMENT ON COLUMN forebay.pipeline_status.last_batch_time IS
    'Its cursor in time: every batch time up to here is decided';
COMMENT ON COLUMN forebay.pipeline_status.waiting_blocks IS
    'Sequences past its cursors, epoch markers among them; 0 when no record waits';
COMMENT ON COLUMN forebay.pipeline_status.waiting_records IS 'Records in them';
COMMENT ON COLUMN forebay.pipeline_status.waiting_bytes IS 'The same in bytes as stored';
COMMENT ON COLUMN forebay.pipeline_status.oldest_added_at IS
    'When the oldest of them was added; null when nothing waits';
COMMENT ON COLUMN forebay.pipeline_status.unfinished_batches IS
    'Batches that are allocated and neither complete nor given up';
COMMENT ON COLUMN forebay.pipeline_status.running_batches IS 'Those of them that run now';
COMMENT ON COLUMN forebay.pipeline_status.last_completed_time IS 'Its newest completed batch; null before the first';
COMMENT ON COLUMN forebay.pipeline_status.last_completed_at IS 'When that was complete';
COMMENT ON COLUMN forebay.pipeline_status.holds_back_since IS
    'Since when it has completed nothing while blocks wait for it or for its batches, which clean-up must keep; null '
    'when nothing waits';
COMMENT ON COLUMN forebay.pipeline_status.halted_by IS
    'The quarantined batch that has halted it (on_failure = halt); null while it goes on';
COMMENT ON COLUMN forebay.pipeline_status.failed_batches IS 'Unfinished batches between two attempts';
COMMENT ON COLUMN forebay.pipeline_status.blocked_batches IS
    'Unfinished batches that wait for their block store, or for a block''s key';
COMMENT ON COLUMN forebay.pipeline_status.quarantined_batches IS
    'Batches that have used up their attempts and wait for a person';
COMMENT ON COLUMN forebay.pipeline_status.newest_quarantined IS 'The newest of them; null if there is none';
COMMENT ON COLUMN forebay.pipeline_status.oldest_due IS
    'The oldest batch time that has passed and is neither complete nor given up; null when none is';
COMMENT ON COLUMN forebay.pipeline_status.intervals_behind IS
    'Whole intervals since oldest_due: 0 while the newest batch runs within its interval';
COMMENT ON COLUMN forebay.pipeline_status.due_batches IS
    'Batch times that have come and are not decided yet; 0 while it is stopped';
COMMENT ON COLUMN forebay.pipeline_status.progress_since IS
    'The latest of: its newest completed batch, its last change, the beginning of its RUNNING';
COMMENT ON COLUMN forebay.pipeline_status.oldest_unfinished_at IS
    'When the oldest of its unfinished batches was allocated; null: there is none';
COMMENT ON COLUMN forebay.pipeline_status.calendar IS
    'Its interval and time zone, if its batch times follow a calendar; null: they are multiples of batch_interval';
