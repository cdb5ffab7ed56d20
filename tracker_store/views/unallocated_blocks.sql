CREATE VIEW forebay.unallocated_blocks AS
SELECT p.name AS pipeline, p.id AS pipeline_id, s.name AS stream, r.ordinal, b.receiver_id, b.sequence, b.epoch,
       b.added_at, b.records, b.bytes, g.path
FROM forebay.pipelines p
JOIN forebay.receivers r ON r.stream_id = ANY (p.stream_ids)
JOIN forebay.streams s ON s.id = r.stream_id
LEFT JOIN forebay.cursors c ON c.consumer_id = p.id AND c.receiver_id = r.id
JOIN forebay.blocks b ON b.receiver_id = r.id
     AND b.sequence >= greatest(coalesce(c.next_sequence, 1), r.low_mark + 1)
LEFT JOIN forebay.log_segments g ON g.id = b.segment_id
WHERE p.removed_at IS NULL AND b.segment_id IS NOT NULL;

COMMENT ON VIEW forebay.unallocated_blocks IS
    'Each block that a pipeline has not yet given to a batch, once per pipeline. Costs what waits: count with '
    'stream_lag.';
COMMENT ON COLUMN forebay.unallocated_blocks.pipeline IS 'The pipeline that it waits for';
COMMENT ON COLUMN forebay.unallocated_blocks.pipeline_id IS 'The pipeline''s id';
COMMENT ON COLUMN forebay.unallocated_blocks.stream IS 'The stream that received it';
COMMENT ON COLUMN forebay.unallocated_blocks.ordinal IS 'The receiver''s number within the stream';
COMMENT ON COLUMN forebay.unallocated_blocks.receiver_id IS 'The receiver that stored it';
COMMENT ON COLUMN forebay.unallocated_blocks.sequence IS 'Its place in the receiver''s sequence';
COMMENT ON COLUMN forebay.unallocated_blocks.epoch IS 'The epoch that added it';
COMMENT ON COLUMN forebay.unallocated_blocks.added_at IS 'When it was added; batches are cut by this';
COMMENT ON COLUMN forebay.unallocated_blocks.records IS 'How many records it has';
COMMENT ON COLUMN forebay.unallocated_blocks.bytes IS 'Its size as stored';
COMMENT ON COLUMN forebay.unallocated_blocks.path IS
    'Its segment''s file, relative to the block store''s root; null when the log does not know it';
