CREATE VIEW forebay.source_progress AS
WITH RECURSIVE partitions (stream_id, source, partition) AS (
    -- One probe of the primary key per partition, not a scan of its links.
    (SELECT o.stream_id, o.source, o.partition FROM forebay.block_offsets o
     ORDER BY o.stream_id, o.source, o.partition LIMIT 1)
    UNION ALL
    SELECT next_one.stream_id, next_one.source, next_one.partition FROM partitions f
    CROSS JOIN LATERAL (
        SELECT o.stream_id, o.source, o.partition FROM forebay.block_offsets o
        WHERE (o.stream_id, o.source, o.partition) > (f.stream_id, f.source, f.partition)
        ORDER BY o.stream_id, o.source, o.partition LIMIT 1) AS next_one
)
SELECT s.name AS stream, f.stream_id, f.source, f.partition, newest.generation, newest.to_offset AS position,
       newest.kind, newest.receiver_id, newest.sequence, b.added_at,
       coalesce(lost.records, 0)::bigint AS lost_records,
       CASE WHEN l.unread IS NOT NULL THEN greatest(l.source_position, newest.to_offset) END AS source_position,
       -- From the registered position, where the source has positions: that moves between two reports.
       CASE WHEN l.source_position IS NULL THEN l.unread
            ELSE greatest(l.source_position - newest.to_offset, 0) END AS unread,
       l.unit, l.oldest_at AS oldest_unread_at, l.redelivered, l.reported_at
FROM partitions f
JOIN forebay.streams s ON s.id = f.stream_id
CROSS JOIN LATERAL (
    SELECT o.generation, o.to_offset, o.kind, o.receiver_id, o.sequence FROM forebay.block_offsets o
    WHERE o.stream_id = f.stream_id AND o.source = f.source AND o.partition = f.partition
    ORDER BY o.generation DESC, o.from_offset DESC LIMIT 1) AS newest
LEFT JOIN forebay.blocks b ON b.receiver_id = newest.receiver_id AND b.sequence = newest.sequence
LEFT JOIN LATERAL (
    SELECT sum(o.to_offset - o.from_offset) AS records FROM forebay.block_offsets o
    WHERE o.stream_id = f.stream_id AND o.source = f.source AND o.partition = f.partition
      AND o.kind = 'lost') AS lost ON true
LEFT JOIN forebay.source_lag l ON l.stream_id = f.stream_id AND l.source = f.source AND l.partition = f.partition
-- A mark says that a source was there, not how far it is read (`receiver_runtime.reporting.source_marks`).
WHERE f.source NOT LIKE 'mark of %'
UNION ALL
-- Sources without positions, such as queues, and partitions of which nothing is registered yet.
SELECT s.name, l.stream_id, l.source, l.partition, NULL, NULL, NULL, l.receiver_id, NULL, NULL, 0, l.source_position,
       l.unread, l.unit, l.oldest_at, l.redelivered, l.reported_at
FROM forebay.source_lag l
JOIN forebay.streams s ON s.id = l.stream_id
WHERE NOT EXISTS (SELECT FROM forebay.block_offsets o
                  WHERE o.stream_id = l.stream_id AND o.source = l.source AND o.partition = l.partition);

COMMENT ON VIEW forebay.source_progress IS
    'Up to which position each source partition is in blocks, what was lost on the way, and what the source has beyond '
    'that. Costs four probes per partition, however long its chain.';
COMMENT ON COLUMN forebay.source_progress.stream IS 'The stream';
COMMENT ON COLUMN forebay.source_progress.stream_id IS 'The stream''s id';
COMMENT ON COLUMN forebay.source_progress.source IS 'The source as the receiver names it, such as a topic';
COMMENT ON COLUMN forebay.source_progress.partition IS 'The partition, as text';
COMMENT ON COLUMN forebay.source_progress.generation IS
    'Raised by one when the position went backwards: a recreated topic, a replaced file, a reset; null, like the next '
    'two and sequence, where the source has no positions';
COMMENT ON COLUMN forebay.source_progress.position IS
    'The next offset to be read; everything before it is in a block or was lost';
COMMENT ON COLUMN forebay.source_progress.kind IS 'The newest link''s: origin (nothing read yet), block or lost';
COMMENT ON COLUMN forebay.source_progress.receiver_id IS
    'The receiver that wrote the newest link, or reads a source without positions';
COMMENT ON COLUMN forebay.source_progress.sequence IS 'The block that it came with; 0 for an origin';
COMMENT ON COLUMN forebay.source_progress.added_at IS
    'When that block was added; null for an origin, and when the block is cleaned up';
COMMENT ON COLUMN forebay.source_progress.lost_records IS
    'Offsets that the source no longer had, by the links that are kept';
COMMENT ON COLUMN forebay.source_progress.source_position IS
    'The position behind the newest record that the source has; null where no receiver has said, as in the columns below';
COMMENT ON COLUMN forebay.source_progress.unread IS 'How much the source has that is not in a block, in unit';
COMMENT ON COLUMN forebay.source_progress.unit IS 'What unread counts: records, bytes, files or messages';
COMMENT ON COLUMN forebay.source_progress.oldest_unread_at IS
    'The oldest unread record came then or earlier, by the receiver''s clock; null: none, or unknown';
COMMENT ON COLUMN forebay.source_progress.redelivered IS
    'Messages that the source has sent again and waits for; null where it does not count them';
COMMENT ON COLUMN forebay.source_progress.reported_at IS 'When the receiver last said something new of it';
