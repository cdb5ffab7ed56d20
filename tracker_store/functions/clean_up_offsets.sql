-- clean_up_offsets: delete links of a stream's partitions whose blocks are gone, at most max_rows of them.
--
-- Each partition's newest link stays, whatever its age: it is the position. Links are deleted from the oldest of each
-- partition on, and only up to the first whose block is still there, so younger ones are not read.
-- Locks: the deleted links.
CREATE FUNCTION forebay.clean_up_offsets(stream bigint, max_rows bigint)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    gone bigint;
BEGIN
    WITH RECURSIVE partitions (source, partition) AS (
        -- One probe of the primary key per partition, not a scan of its links.
        (SELECT o.source, o.partition FROM block_offsets o WHERE o.stream_id = stream
         ORDER BY o.source, o.partition LIMIT 1)
        UNION ALL
        SELECT next_one.source, next_one.partition FROM partitions p
        CROSS JOIN LATERAL (
            SELECT o.source, o.partition FROM block_offsets o
            WHERE o.stream_id = stream AND (o.source, o.partition) > (p.source, p.partition)
            ORDER BY o.source, o.partition LIMIT 1) AS next_one
    ), old AS (
        SELECT oldest.* FROM partitions p
        CROSS JOIN LATERAL (
            SELECT o.source, o.partition, o.generation, o.from_offset FROM block_offsets o
            WHERE o.stream_id = stream AND o.source = p.source AND o.partition = p.partition
            ORDER BY o.generation DESC, o.from_offset DESC LIMIT 1) AS newest
        CROSS JOIN LATERAL (
            SELECT o.source, o.partition, o.generation, o.from_offset, o.sequence <= r.low_mark AS block_is_gone
            FROM block_offsets o JOIN receivers r ON r.id = o.receiver_id
            WHERE o.stream_id = stream AND o.source = p.source AND o.partition = p.partition
              AND (o.generation, o.from_offset) < (newest.generation, newest.from_offset)
            ORDER BY o.generation, o.from_offset LIMIT max_rows) AS oldest
        WHERE oldest.block_is_gone
        LIMIT max_rows
    )
    DELETE FROM block_offsets o USING old
    WHERE o.stream_id = stream AND o.source = old.source AND o.partition = old.partition
      AND o.generation = old.generation AND o.from_offset = old.from_offset;
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;
