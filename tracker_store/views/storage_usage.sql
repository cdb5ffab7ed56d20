CREATE VIEW forebay.storage_usage AS
SELECT s.name AS stream, r.ordinal, r.id AS receiver_id, r.stream_id,
       coalesce(newest.sequence - r.low_mark, 0)::bigint AS blocks,
       coalesce(newest.total_records - oldest.total_records + oldest.records, 0)::bigint AS records,
       coalesce(newest.total_bytes - oldest.total_bytes + oldest.bytes, 0)::bigint AS bytes,
       oldest.added_at AS oldest_added_at,
       coalesce(unsealed.open, 0)::bigint AS open_segments, coalesce(unsealed.segments, 0)::bigint AS left_segments,
       coalesce(t.sealed_segments, 0)::bigint AS sealed_segments,
       coalesce(t.deleting_segments, 0)::bigint AS deleting_segments,
       coalesce(t.segment_bytes, 0)::bigint AS segment_bytes,
       coalesce(k.blocks, 0)::bigint AS kept_blocks, coalesce(k.bytes, 0)::bigint AS kept_bytes,
       coalesce(t.dead_letters, 0)::bigint AS dead_letters,
       coalesce(t.dead_letter_bytes, 0)::bigint AS dead_letter_bytes,
       coalesce(t.dropped_dead_letters, 0)::bigint AS dropped_dead_letters,
       coalesce(t.uncompressed_bytes, 0)::bigint AS uncompressed_bytes
FROM forebay.receivers r
JOIN forebay.streams s ON s.id = r.stream_id
LEFT JOIN LATERAL (
    SELECT b.sequence, b.epoch, b.total_records, b.total_bytes FROM forebay.blocks b
    WHERE b.receiver_id = r.id ORDER BY b.sequence DESC LIMIT 1) AS newest ON true
LEFT JOIN LATERAL (
    SELECT b.records, b.bytes, b.total_records, b.total_bytes, b.added_at FROM forebay.blocks b
    WHERE b.receiver_id = r.id AND b.sequence > r.low_mark ORDER BY b.sequence LIMIT 1) AS oldest ON true
LEFT JOIN LATERAL (
    SELECT * FROM forebay.storage_totals u WHERE u.receiver_id = r.id OFFSET 0) AS t ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS open, count(*) FILTER (
               WHERE r.state IN ('INACTIVE', 'FAILED') OR l.epoch < newest.epoch) AS segments
    FROM forebay.log_segments l
    WHERE l.receiver_id = r.id AND l.state = 'OPEN') AS unsealed ON true
LEFT JOIN (
    SELECT q.receiver_id, sum(upper(q.sequences) - lower(q.sequences)) AS blocks, sum(q.bytes) AS bytes
    FROM forebay.kept_ranges q WHERE q.released_at IS NULL
    GROUP BY q.receiver_id) AS k ON k.receiver_id = r.id;

COMMENT ON VIEW forebay.storage_usage IS
    'What each receiver keeps: blocks, segment files by state, kept blocks, dead letters; removed receivers too. '
    'Costs a scan of kept_ranges, the open segments, and a few probes per receiver.';
COMMENT ON COLUMN forebay.storage_usage.stream IS 'The stream';
COMMENT ON COLUMN forebay.storage_usage.ordinal IS 'The receiver''s number within the stream';
COMMENT ON COLUMN forebay.storage_usage.receiver_id IS 'The receiver';
COMMENT ON COLUMN forebay.storage_usage.stream_id IS 'The stream''s id';
COMMENT ON COLUMN forebay.storage_usage.blocks IS 'Sequences above the low mark, epoch markers among them';
COMMENT ON COLUMN forebay.storage_usage.records IS 'Records in them';
COMMENT ON COLUMN forebay.storage_usage.bytes IS 'The same in bytes as stored';
COMMENT ON COLUMN forebay.storage_usage.oldest_added_at IS 'When the oldest of them was added; null when there is none';
COMMENT ON COLUMN forebay.storage_usage.open_segments IS
    'Segment files that are being written, or that a process left unsealed';
COMMENT ON COLUMN forebay.storage_usage.left_segments IS
    'Those of them that no process holds: they may contain blocks that no row names, which the receiver''s next '
    'process salvages; a removed receiver has none';
COMMENT ON COLUMN forebay.storage_usage.sealed_segments IS 'Segment files that are complete';
COMMENT ON COLUMN forebay.storage_usage.deleting_segments IS
    'Segment files that clean-up has marked and is about to delete';
COMMENT ON COLUMN forebay.storage_usage.segment_bytes IS 'The length of all segments except the open ones, in bytes';
COMMENT ON COLUMN forebay.storage_usage.kept_blocks IS 'Sequences that quarantined batches keep, epoch markers among them, once per batch';
COMMENT ON COLUMN forebay.storage_usage.kept_bytes IS 'The same in bytes as stored';
COMMENT ON COLUMN forebay.storage_usage.dead_letters IS 'Records that could not be processed and are kept aside';
COMMENT ON COLUMN forebay.storage_usage.dead_letter_bytes IS 'The same in bytes';
COMMENT ON COLUMN forebay.storage_usage.dropped_dead_letters IS
    'Records that could not be processed and were counted only: their senders had used up their budgets';
COMMENT ON COLUMN forebay.storage_usage.uncompressed_bytes IS
    'The part of segment_bytes in blocks that are not compressed; those of salvaged segments are not counted';
