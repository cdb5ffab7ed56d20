CREATE VIEW forebay.stream_status AS
SELECT s.name AS stream, s.id AS stream_id, counted.receivers, counted.active, counted.scheduled, counted.paused,
       counted.inactive, counted.failed, counted.records, counted.bytes, counted.last_block_at,
       counted.uncompressed_share
FROM forebay.streams s
CROSS JOIN LATERAL (
    SELECT count(*) AS receivers, count(*) FILTER (WHERE r.state = 'ACTIVE') AS active,
           count(*) FILTER (WHERE r.state = 'SCHEDULED') AS scheduled,
           count(*) FILTER (WHERE r.state = 'PAUSED') AS paused,
           count(*) FILTER (WHERE r.state = 'INACTIVE') AS inactive,
           count(*) FILTER (WHERE r.state = 'FAILED') AS failed,
           coalesce(sum(newest.total_records), 0)::bigint AS records,
           coalesce(sum(newest.total_bytes), 0)::bigint AS bytes,
           -- As in receiver_status.
           max((WITH RECURSIVE search (lowest, highest) AS (
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
            WHERE s.lowest = s.highest AND b.records > 0)) AS last_block_at,
           (sum(stored.uncompressed) / nullif(sum(stored.bytes), 0))::double precision AS uncompressed_share
    FROM forebay.receivers r
    LEFT JOIN LATERAL (
        SELECT b.sequence, b.records, b.total_records, b.total_bytes FROM forebay.blocks b
        WHERE b.receiver_id = r.id ORDER BY b.sequence DESC LIMIT 1) AS newest ON true
    LEFT JOIN LATERAL (
        SELECT t.lz4_bytes + t.zstd_bytes + t.none_bytes AS bytes, t.none_bytes AS uncompressed
        FROM forebay.storage_totals t WHERE t.receiver_id = r.id) AS stored ON true
    WHERE r.stream_id = s.id AND r.removed_at IS NULL) AS counted
WHERE s.removed_at IS NULL;

COMMENT ON VIEW forebay.stream_status IS
    'Each stream: its receivers by state, and what they have registered. Costs a few probes per receiver.';
COMMENT ON COLUMN forebay.stream_status.stream IS 'The stream';
COMMENT ON COLUMN forebay.stream_status.stream_id IS 'The stream''s id';
COMMENT ON COLUMN forebay.stream_status.receivers IS 'How many receivers it has';
COMMENT ON COLUMN forebay.stream_status.active IS 'How many of them are ACTIVE: they receive';
COMMENT ON COLUMN forebay.stream_status.scheduled IS 'How many are SCHEDULED: placed, and about to start';
COMMENT ON COLUMN forebay.stream_status.paused IS 'How many are PAUSED';
COMMENT ON COLUMN forebay.stream_status.inactive IS 'How many are INACTIVE: placed nowhere';
COMMENT ON COLUMN forebay.stream_status.failed IS 'How many have FAILED: their restarts are used up';
COMMENT ON COLUMN forebay.stream_status.records IS 'Records registered since its receivers were created';
COMMENT ON COLUMN forebay.stream_status.bytes IS 'The same in bytes as stored';
COMMENT ON COLUMN forebay.stream_status.last_block_at IS 'When the newest block was added; null: none, or it is cleaned up';
COMMENT ON COLUMN forebay.stream_status.uncompressed_share IS
    'The part of their stored bytes in blocks that are not compressed, 0 to 1, in sealed segments; null: none is sealed';
