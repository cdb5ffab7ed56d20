-- open_partition: return where a source partition must be read from; its origin link goes in before the first read.
--
-- Two receivers that open a partition at the same time (a rebalance) get the same answer: the primary key decides whose
-- origin counts, and the position is read in a later statement. Nothing is fenced here: an origin is a fact about the
-- partition, not about its reader; add_block fences what is read from there.
-- Locks: the new link's key.
CREATE FUNCTION forebay.open_partition(
    receiver bigint, of_source text, of_partition text, start_offset bigint)
RETURNS TABLE (generation integer, to_offset bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    stream bigint;
BEGIN
    SELECT r.stream_id INTO STRICT stream FROM receivers r WHERE r.id = receiver;
    INSERT INTO block_offsets (stream_id, source, partition, generation, from_offset, to_offset, kind, receiver_id,
                               sequence)
    SELECT stream, of_source, of_partition, 0, -1, start_offset, 'origin', receiver, 0
    WHERE NOT EXISTS (SELECT 1 FROM block_offsets o
                      WHERE o.stream_id = stream AND o.source = of_source AND o.partition = of_partition)
    ON CONFLICT DO NOTHING;
    RETURN QUERY
    SELECT o.generation, o.to_offset FROM block_offsets o
    WHERE o.stream_id = stream AND o.source = of_source AND o.partition = of_partition
    ORDER BY o.generation DESC, o.from_offset DESC LIMIT 1;
END
$$;
