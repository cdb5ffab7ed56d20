CREATE VIEW forebay.receiver_status AS
SELECT s.name AS stream, r.ordinal, r.id AS receiver_id, r.state, r.desired_state, r.reason, r.since,
       agent.name AS agent, agent.host, r.assignment, newest.epoch, newest.sequence AS newest_sequence,
       coalesce(newest.total_records, 0) AS records, coalesce(newest.total_bytes, 0) AS bytes,
       -- A marker, with which an epoch begins, has no records: it says when a process began. There may be thousands after
       -- the newest block, so its row is searched for: the first one with the total of today.
       (WITH RECURSIVE search (lowest, highest) AS (
            SELECT CASE WHEN newest.records > 0 THEN newest.sequence ELSE r.low_mark + 1 END, newest.sequence
            UNION ALL
            SELECT CASE WHEN probe.is_last THEN s.lowest ELSE middle.m + 1 END,
                   CASE WHEN probe.is_last THEN middle.m ELSE s.highest END
            FROM search s
            CROSS JOIN LATERAL (SELECT (s.lowest + s.highest) / 2) AS middle(m)
            CROSS JOIN LATERAL (
                SELECT b.total_records = newest.total_records FROM forebay.blocks b
                WHERE b.receiver_id = r.id AND b.sequence = middle.m) AS probe(is_last)
            WHERE s.lowest < s.highest)
        SELECT b.added_at FROM search s JOIN forebay.blocks b ON b.receiver_id = r.id AND b.sequence = s.lowest
        WHERE s.lowest = s.highest AND b.records > 0) AS last_block_at,
       r.rate_limit, r.stream_id,
       coalesce((SELECT t.dead_letters + t.dropped_dead_letters
                 FROM forebay.storage_totals t WHERE t.receiver_id = r.id), 0)::bigint AS dead_letters,
       error.at AS last_error_at, error.message AS last_error,
       (holder.queued ->> r.id::text)::integer AS queued_blocks,
       -- A query in the list of columns: a reader that does not ask for it does not pay for it.
       (SELECT (newest.total_records - f.total_records)
               / greatest(extract(epoch FROM clock_timestamp() - f.added_at)::double precision, 1)
        FROM forebay.blocks f
        WHERE f.receiver_id = r.id AND f.sequence = greatest(newest.sequence - 50, r.low_mark + 1)
          AND f.sequence < newest.sequence) AS records_per_second,
       holder.id AS process_id, holder.name AS process, holder.host AS process_host, holder.pid,
       holder.started_at AS process_started_at, unread.partitions, unread.amount AS unread, unread.unit AS unread_unit,
       unread.oldest_at AS oldest_unread_at,
       greatest(clock_timestamp(), unread.oldest_at) - unread.oldest_at AS source_lag,
       (holder.queued #>> ARRAY['fetched', r.id::text])::bigint AS fetched_records,
       r.desired_state <> 'running' AND r.desired_before_stop IS NULL AS is_held
FROM forebay.receivers r
JOIN forebay.streams s ON s.id = r.stream_id
-- Probes, each with OFFSET 0: a join could read all processes that ever were.
LEFT JOIN LATERAL (
    SELECT p.name, p.host FROM forebay.processes p WHERE p.id = r.agent_id OFFSET 0) AS agent ON true
LEFT JOIN LATERAL (
    SELECT p.id, p.queued, p.name, p.host, p.pid, p.started_at FROM forebay.processes p
    WHERE p.id = r.process_id AND p.ended_at IS NULL OFFSET 0) AS holder ON true
LEFT JOIN LATERAL (
    SELECT b.epoch, b.sequence, b.records, b.total_records, b.total_bytes FROM forebay.blocks b
    WHERE b.receiver_id = r.id ORDER BY b.sequence DESC LIMIT 1) AS newest ON true
-- A probe for each kind: one for both could read all of them, and sort.
LEFT JOIN LATERAL (
    SELECT e.at, e.message
    FROM (
        (SELECT v.id, v.at, v.message FROM forebay.receiver_events v
         WHERE v.receiver_id = r.id AND v.kind = 'ERROR' ORDER BY v.id DESC LIMIT 1)
        UNION ALL
        (SELECT v.id, v.at, v.message FROM forebay.receiver_events v
         WHERE v.receiver_id = r.id AND v.kind = 'FAILED' ORDER BY v.id DESC LIMIT 1)) AS e
    ORDER BY e.id DESC LIMIT 1) AS error ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS partitions, sum(l.unread)::bigint AS amount, max(l.unit) AS unit, min(l.oldest_at) AS oldest_at
    FROM forebay.source_lag l WHERE l.receiver_id = r.id) AS unread ON true
WHERE r.removed_at IS NULL;

COMMENT ON VIEW forebay.receiver_status IS
    'Each receiver: its state and why, where it runs, what it has registered, its last error. Costs a few probes of '
    'an index per receiver, and a row for each of its source partitions.';
COMMENT ON COLUMN forebay.receiver_status.stream IS 'The stream that it receives for';
COMMENT ON COLUMN forebay.receiver_status.ordinal IS 'Its number within the stream, from 1';
COMMENT ON COLUMN forebay.receiver_status.receiver_id IS 'Its id in every other table';
COMMENT ON COLUMN forebay.receiver_status.state IS 'INACTIVE, SCHEDULED, ACTIVE, PAUSED or FAILED';
COMMENT ON COLUMN forebay.receiver_status.desired_state IS 'What an operator wants of it: running, paused or stopped';
COMMENT ON COLUMN forebay.receiver_status.reason IS 'Why it is in its state; empty when there is nothing to say';
COMMENT ON COLUMN forebay.receiver_status.since IS 'When it entered its state';
COMMENT ON COLUMN forebay.receiver_status.agent IS 'The agent that it is placed on; null when it is on none';
COMMENT ON COLUMN forebay.receiver_status.host IS 'That agent''s host';
COMMENT ON COLUMN forebay.receiver_status.assignment IS
    'The placement decision that its process runs under; a newer one ends that process';
COMMENT ON COLUMN forebay.receiver_status.epoch IS
    'Its newest epoch: the process that claimed it may add blocks; null before the first claim';
COMMENT ON COLUMN forebay.receiver_status.newest_sequence IS 'Its newest block or marker; null before the first claim';
COMMENT ON COLUMN forebay.receiver_status.records IS 'Records registered since it was created';
COMMENT ON COLUMN forebay.receiver_status.bytes IS 'The same in bytes as stored';
COMMENT ON COLUMN forebay.receiver_status.last_block_at IS 'When its newest block was added; null: none, or it is cleaned up';
COMMENT ON COLUMN forebay.receiver_status.rate_limit IS 'Records per second that it may take in; null: no limit';
COMMENT ON COLUMN forebay.receiver_status.stream_id IS 'The stream''s id';
COMMENT ON COLUMN forebay.receiver_status.dead_letters IS
    'Records that could not be processed: kept aside, or over their sender''s budget and counted only';
COMMENT ON COLUMN forebay.receiver_status.last_error_at IS
    'When its last error was reported; null when there was none (K07, K08 of the original)';
COMMENT ON COLUMN forebay.receiver_status.last_error IS 'What that error said';
COMMENT ON COLUMN forebay.receiver_status.queued_blocks IS
    'Blocks in its process''s queue that are not stored yet, at the newest heartbeat; null where no process holds it. '
    'At the stream''s block_queue_size it reads no further';
COMMENT ON COLUMN forebay.receiver_status.records_per_second IS
    'Records registered after its 50th newest kept block, by the time since then; null while it keeps fewer than two';
COMMENT ON COLUMN forebay.receiver_status.process_id IS
    'The process that holds it, by its id in processes; null, like the columns below, where no living process does';
COMMENT ON COLUMN forebay.receiver_status.process IS 'That process''s name';
COMMENT ON COLUMN forebay.receiver_status.process_host IS
    'The process''s host: during a planned move not yet that of the agent';
COMMENT ON COLUMN forebay.receiver_status.pid IS 'Its process id on that host';
COMMENT ON COLUMN forebay.receiver_status.process_started_at IS 'When that process registered itself';
COMMENT ON COLUMN forebay.receiver_status.partitions IS
    'How many partitions, files, queues or consumers of its source it reads, as it last said; 0: it has not said';
COMMENT ON COLUMN forebay.receiver_status.unread IS
    'How much its source has there that it has not read, as it last said, in unread_unit; null: it has not said';
COMMENT ON COLUMN forebay.receiver_status.unread_unit IS 'What unread counts: records, bytes, files or messages';
COMMENT ON COLUMN forebay.receiver_status.oldest_unread_at IS
    'The oldest unread record came then or earlier, by the receiver''s clock; null: none, or unknown';
COMMENT ON COLUMN forebay.receiver_status.source_lag IS 'The age of the oldest unread record; null as above';
COMMENT ON COLUMN forebay.receiver_status.fetched_records IS
    'Records that its client has fetched and it has not handed on, at the newest heartbeat; null: it does not say';
COMMENT ON COLUMN forebay.receiver_status.is_held IS
    'Whether a person has stopped or paused it; false for one that stops with its pipelines';
