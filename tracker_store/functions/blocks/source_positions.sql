-- source_positions: return the position of each partition of a source that a receiver's stream has read, in one answer.
--
-- For sources with very many partitions, such as files: open_partition asks for each one, and records origins.
-- Locks: none; one probe of the primary key per partition, not a scan of its links.
CREATE FUNCTION forebay.source_positions(receiver bigint, of_source text)
RETURNS TABLE (partition text, generation integer, to_offset bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
    WITH RECURSIVE of_receiver AS (
        SELECT r.stream_id FROM receivers r WHERE r.id = receiver
    ), partitions (stream_id, partition) AS (
        (SELECT o.stream_id, o.partition FROM of_receiver r
         JOIN block_offsets o ON o.stream_id = r.stream_id AND o.source = of_source ORDER BY o.partition LIMIT 1)
        UNION ALL
        SELECT p.stream_id, next_one.partition FROM partitions p
        CROSS JOIN LATERAL (
            SELECT o.partition FROM block_offsets o
            WHERE o.stream_id = p.stream_id AND o.source = of_source AND o.partition > p.partition
            ORDER BY o.partition LIMIT 1) AS next_one
    )
    SELECT p.partition, newest.generation, newest.to_offset FROM partitions p
    CROSS JOIN LATERAL (
        SELECT o.generation, o.to_offset FROM block_offsets o
        WHERE o.stream_id = p.stream_id AND o.source = of_source AND o.partition = p.partition
        ORDER BY o.generation DESC, o.from_offset DESC LIMIT 1) AS newest
$$;
