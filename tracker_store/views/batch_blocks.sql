CREATE VIEW forebay.batch_blocks AS
SELECT p.name AS pipeline, a.pipeline_id, a.batch_time, s.name AS stream, r.ordinal, b.receiver_id, b.sequence,
       b.added_at, b.records, b.bytes, g.path, b.segment_id, b."offset", b.length, b.crc32c,
       b.sequence <= r.low_mark AS kept
FROM forebay.batch_allocations a
JOIN forebay.receivers r ON r.id = a.receiver_id
JOIN forebay.blocks b ON b.receiver_id = a.receiver_id
     AND b.sequence >= lower(a.sequences) AND b.sequence < upper(a.sequences)
JOIN forebay.pipelines p ON p.id = a.pipeline_id
JOIN forebay.streams s ON s.id = r.stream_id
LEFT JOIN forebay.log_segments g ON g.id = b.segment_id
WHERE b.segment_id IS NOT NULL;

COMMENT ON VIEW forebay.batch_blocks IS
    'The blocks of each batch with their handles, as far as they are kept. Ask for one pipeline_id and batch_time: it '
    'costs that batch''s blocks.';
COMMENT ON COLUMN forebay.batch_blocks.pipeline IS 'The batch''s pipeline';
COMMENT ON COLUMN forebay.batch_blocks.pipeline_id IS 'The pipeline''s id';
COMMENT ON COLUMN forebay.batch_blocks.batch_time IS 'The batch';
COMMENT ON COLUMN forebay.batch_blocks.stream IS 'The stream that received the block';
COMMENT ON COLUMN forebay.batch_blocks.ordinal IS 'The receiver''s number within the stream';
COMMENT ON COLUMN forebay.batch_blocks.receiver_id IS 'The receiver that stored it';
COMMENT ON COLUMN forebay.batch_blocks.sequence IS 'Its place in the receiver''s sequence';
COMMENT ON COLUMN forebay.batch_blocks.added_at IS 'When it was added, before batch_time';
COMMENT ON COLUMN forebay.batch_blocks.records IS 'How many records it has';
COMMENT ON COLUMN forebay.batch_blocks.bytes IS 'Its size as stored';
COMMENT ON COLUMN forebay.batch_blocks.path IS
    'Its segment''s file, relative to the block store''s root; null when the log does not know it';
COMMENT ON COLUMN forebay.batch_blocks.segment_id IS 'Its segment in log_segments';
COMMENT ON COLUMN forebay.batch_blocks."offset" IS 'Where its frame begins in the file, in bytes';
COMMENT ON COLUMN forebay.batch_blocks.length IS 'How long its frame is, in bytes';
COMMENT ON COLUMN forebay.batch_blocks.crc32c IS 'The checksum of its frame';
COMMENT ON COLUMN forebay.batch_blocks.kept IS
    'True if only a quarantine keeps it: clean-up has passed';
