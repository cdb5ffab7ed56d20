CREATE VIEW forebay.batch_input_metadata AS
SELECT p.name AS pipeline, i.pipeline_id, i.batch_time, s.name AS stream, i.stream_id, i.source, i.partition,
       i.generation, i.from_offset, i.to_offset, i.to_offset - i.from_offset AS positions, i.lost
FROM forebay.batch_inputs i
JOIN forebay.pipelines p ON p.id = i.pipeline_id
JOIN forebay.streams s ON s.id = i.stream_id;

COMMENT ON VIEW forebay.batch_input_metadata IS
    'What each batch read from sources with positions: ranges of a topic''s partitions or of files, as its first attempt '
    'recorded them. It stays as long as the batch''s history. A stream without positions has no row. Where a partition has '
    'two rows, what is in the gap between them is in another batch. Ask for one pipeline_id and batch_time: it costs '
    'that batch''s ranges.';
COMMENT ON COLUMN forebay.batch_input_metadata.pipeline IS 'The batch''s pipeline';
COMMENT ON COLUMN forebay.batch_input_metadata.pipeline_id IS 'The pipeline''s id';
COMMENT ON COLUMN forebay.batch_input_metadata.batch_time IS 'The batch';
COMMENT ON COLUMN forebay.batch_input_metadata.stream IS 'The stream that read the source';
COMMENT ON COLUMN forebay.batch_input_metadata.stream_id IS 'The stream''s id';
COMMENT ON COLUMN forebay.batch_input_metadata.source IS 'The source as the receiver names it, such as a topic';
COMMENT ON COLUMN forebay.batch_input_metadata.partition IS 'The partition of a topic, or the file';
COMMENT ON COLUMN forebay.batch_input_metadata.generation IS
    'Raised by one when the position went backwards: a recreated topic, a replaced file, a reset';
COMMENT ON COLUMN forebay.batch_input_metadata.from_offset IS 'The first position: an offset, or a byte of a file';
COMMENT ON COLUMN forebay.batch_input_metadata.to_offset IS 'The position after the last one';
COMMENT ON COLUMN forebay.batch_input_metadata.positions IS
    'to_offset - from_offset. Not each of them is a record: some are lost, dead letters or a source''s own markers';
COMMENT ON COLUMN forebay.batch_input_metadata.lost IS
    'Positions in between that the source no longer had';
