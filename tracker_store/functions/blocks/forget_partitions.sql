-- forget_partitions: delete all links of source partitions that are over for good, such as those of deleted files.
--
-- The newest link of a partition is its position, and clean-up never deletes it; here the source says that it will not
-- ask for it again. A partition whose newest block is not cleaned up yet is left for a later call. add_block refuses a
-- late write to a forgotten partition, because there is no position from which it could continue.
-- Locks: the deleted links.
CREATE FUNCTION forebay.forget_partitions(receiver bigint, of_source text, partitions text[])
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    stream bigint;
    gone bigint;
BEGIN
    SELECT r.stream_id INTO STRICT stream FROM receivers r WHERE r.id = receiver;
    DELETE FROM block_offsets o
    WHERE o.stream_id = stream AND o.source = of_source AND o.partition IN (
        SELECT f.partition FROM unnest(partitions) AS f(partition)
        CROSS JOIN LATERAL (
            SELECT n.receiver_id, n.sequence FROM block_offsets n
            WHERE n.stream_id = stream AND n.source = of_source AND n.partition = f.partition
            ORDER BY n.generation DESC, n.from_offset DESC LIMIT 1) AS newest
        JOIN receivers w ON w.id = newest.receiver_id
        WHERE newest.sequence <= w.low_mark);
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;
