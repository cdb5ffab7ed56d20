CREATE VIEW forebay.kept_blocks AS
SELECT k.pipeline_id, k.batch_time, b.receiver_id, b.sequence, b.added_at, b.records, b.bytes, b.segment_id,
       b."offset", b.length, b.crc32c
FROM forebay.kept_ranges k
JOIN forebay.blocks b ON b.receiver_id = k.receiver_id
     AND b.sequence >= lower(k.sequences) AND b.sequence < upper(k.sequences)
WHERE k.released_at IS NULL AND b.segment_id IS NOT NULL;

COMMENT ON VIEW forebay.kept_blocks IS
    'The blocks that quarantined batches, and the windows that end with them, keep. Ask for one pipeline_id and '
    'batch_time: it costs the blocks of that batch and its window.';
COMMENT ON COLUMN forebay.kept_blocks.pipeline_id IS 'The quarantined batch''s pipeline';
COMMENT ON COLUMN forebay.kept_blocks.batch_time IS 'The quarantined batch';
COMMENT ON COLUMN forebay.kept_blocks.receiver_id IS 'The receiver that stored the block';
COMMENT ON COLUMN forebay.kept_blocks.sequence IS 'Its place in the receiver''s sequence';
COMMENT ON COLUMN forebay.kept_blocks.added_at IS 'When it was added';
COMMENT ON COLUMN forebay.kept_blocks.records IS 'How many records it has';
COMMENT ON COLUMN forebay.kept_blocks.bytes IS 'Its size as stored';
COMMENT ON COLUMN forebay.kept_blocks.segment_id IS 'The segment that holds it, whose file stays for it';
COMMENT ON COLUMN forebay.kept_blocks."offset" IS 'Where its frame begins in the segment''s file, in bytes';
COMMENT ON COLUMN forebay.kept_blocks.length IS 'How long its frame is, in bytes';
COMMENT ON COLUMN forebay.kept_blocks.crc32c IS 'The checksum of its frame, header and payload';
