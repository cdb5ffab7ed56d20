CREATE VIEW forebay.reader_lag AS
SELECT d.id AS reader_id, d.name AS reader, s.name AS stream, s.id AS stream_id,
       coalesce(sum(newest.sequence - first_row.sequence + 1) FILTER (
           WHERE newest.total_records > first_row.total_records - first_row.records), 0)::bigint AS waiting_blocks,
       coalesce(sum(newest.total_records - first_row.total_records + first_row.records), 0)::bigint
           AS waiting_records,
       coalesce(sum(newest.total_bytes - first_row.total_bytes + first_row.bytes), 0)::bigint AS waiting_bytes,
       min(first_row.added_at) AS oldest_added_at, d.moved_at, d.attached_at
FROM forebay.readers d
JOIN forebay.streams s ON s.id = d.stream_id
LEFT JOIN forebay.receivers r ON r.stream_id = s.id
-- Probes, each with OFFSET 0: a join could read all cursors, or all blocks.
LEFT JOIN LATERAL (
    SELECT u.next_sequence FROM forebay.cursors u
    WHERE u.consumer_id = d.id AND u.receiver_id = r.id OFFSET 0) AS c ON true
LEFT JOIN LATERAL (
    SELECT b.sequence, b.added_at, b.records, b.bytes, b.total_records, b.total_bytes FROM forebay.blocks b
    WHERE b.receiver_id = r.id AND b.sequence = greatest(coalesce(c.next_sequence, 1), r.low_mark + 1)
    OFFSET 0) AS first_row ON true
LEFT JOIN LATERAL (
    SELECT b.sequence, b.total_records, b.total_bytes FROM forebay.blocks b
    WHERE b.receiver_id = r.id AND first_row.sequence IS NOT NULL ORDER BY b.sequence DESC LIMIT 1) AS newest ON true
WHERE d.removed_at IS NULL
GROUP BY d.id, d.name, s.name, s.id, d.moved_at, d.attached_at;

COMMENT ON VIEW forebay.reader_lag IS
    'What each named reader''s query has not yet committed, all of which clean-up keeps for it. Costs two probes per '
    'reader and receiver, however much waits.';
COMMENT ON COLUMN forebay.reader_lag.reader_id IS 'The reader''s id';
COMMENT ON COLUMN forebay.reader_lag.reader IS 'The reader, as its query names it';
COMMENT ON COLUMN forebay.reader_lag.stream IS 'The stream that it reads';
COMMENT ON COLUMN forebay.reader_lag.stream_id IS 'The stream''s id';
COMMENT ON COLUMN forebay.reader_lag.waiting_blocks IS
    'Sequences past the reader''s cursors, epoch markers among them; 0 when no record waits';
COMMENT ON COLUMN forebay.reader_lag.waiting_records IS 'Records in them';
COMMENT ON COLUMN forebay.reader_lag.waiting_bytes IS 'The same in bytes as stored';
COMMENT ON COLUMN forebay.reader_lag.oldest_added_at IS 'When the oldest of them was added; null when nothing waits';
COMMENT ON COLUMN forebay.reader_lag.moved_at IS
    'When its query last committed, or was attached';
COMMENT ON COLUMN forebay.reader_lag.attached_at IS 'When a query asked for it first';
