CREATE VIEW forebay.stream_lag AS
SELECT p.id AS pipeline_id, p.name AS pipeline, s.name AS stream, s.id AS stream_id,
       -- Markers count as sequences; but if only markers wait, nothing waits.
       coalesce(sum(newest.sequence - first_row.sequence + 1) FILTER (
           WHERE newest.total_records > first_row.total_records - first_row.records), 0)::bigint AS waiting_blocks,
       coalesce(sum(newest.total_records - first_row.total_records + first_row.records), 0)::bigint
           AS waiting_records,
       coalesce(sum(newest.total_bytes - first_row.total_bytes + first_row.bytes), 0)::bigint AS waiting_bytes,
       min(first_row.added_at) AS oldest_added_at
FROM forebay.pipelines p
CROSS JOIN LATERAL (SELECT DISTINCT id FROM unnest(p.stream_ids) AS id) AS of_pipeline
JOIN forebay.streams s ON s.id = of_pipeline.id
LEFT JOIN forebay.receivers r ON r.stream_id = s.id
-- Probes, each with OFFSET 0: a join could read all cursors, or all blocks.
LEFT JOIN LATERAL (
    SELECT u.next_sequence FROM forebay.cursors u
    WHERE u.consumer_id = p.id AND u.receiver_id = r.id OFFSET 0) AS c ON true
LEFT JOIN LATERAL (
    SELECT b.sequence, b.added_at, b.records, b.bytes, b.total_records, b.total_bytes FROM forebay.blocks b
    WHERE b.receiver_id = r.id AND b.sequence = greatest(coalesce(c.next_sequence, 1), r.low_mark + 1)
    OFFSET 0) AS first_row ON true
LEFT JOIN LATERAL (
    SELECT b.sequence, b.total_records, b.total_bytes FROM forebay.blocks b
    WHERE b.receiver_id = r.id AND first_row.sequence IS NOT NULL ORDER BY b.sequence DESC LIMIT 1) AS newest ON true
WHERE p.removed_at IS NULL
GROUP BY p.id, p.name, s.name, s.id;

COMMENT ON VIEW forebay.stream_lag IS
    'What each pipeline has not yet given to a batch, by stream. Costs two probes per pipeline and receiver, however '
    'much waits.';
COMMENT ON COLUMN forebay.stream_lag.pipeline_id IS 'The pipeline''s id';
COMMENT ON COLUMN forebay.stream_lag.pipeline IS 'The pipeline';
COMMENT ON COLUMN forebay.stream_lag.stream IS 'A stream that it reads';
COMMENT ON COLUMN forebay.stream_lag.stream_id IS 'The stream''s id';
COMMENT ON COLUMN forebay.stream_lag.waiting_blocks IS
    'Sequences past the pipeline''s cursors, epoch markers among them; 0 when no record waits';
COMMENT ON COLUMN forebay.stream_lag.waiting_records IS 'Records in them';
COMMENT ON COLUMN forebay.stream_lag.waiting_bytes IS 'The same in bytes as stored';
COMMENT ON COLUMN forebay.stream_lag.oldest_added_at IS 'When the oldest of them was added; null when nothing waits';
