-- batch_inputs_of: compute which positions of its sources a batch has, from the links that came with its blocks.
--
-- One row per range without a gap. Origins are no positions: they say where reading begins, and hold other facts about a
-- source. Complete only while the blocks of the batch are there; what remains afterwards is in batch_inputs.
-- Cost: O(links of the batch), by the index on (receiver_id, sequence). Locks: none.
CREATE FUNCTION forebay.batch_inputs_of(pipeline bigint, at_time timestamptz)
RETURNS TABLE (
    stream_id bigint, source text, partition text, generation integer, from_offset bigint, to_offset bigint,
    lost bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
    WITH links AS (
        SELECT o.stream_id, o.source, o.partition, o.generation, o.from_offset, o.to_offset, o.kind
        FROM batch_allocations a
        JOIN block_offsets o ON o.receiver_id = a.receiver_id
             AND o.sequence >= lower(a.sequences) AND o.sequence < upper(a.sequences)
        WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND o.kind <> 'origin'
    ), marked AS (
        SELECT l.*, l.from_offset IS DISTINCT FROM lag(l.to_offset) OVER chain AS begins
        FROM links l
        WINDOW chain AS (PARTITION BY l.stream_id, l.source, l.partition, l.generation ORDER BY l.from_offset)
    ), numbered AS (
        SELECT m.*, count(*) FILTER (WHERE m.begins) OVER chain AS piece
        FROM marked m
        WINDOW chain AS (PARTITION BY m.stream_id, m.source, m.partition, m.generation ORDER BY m.from_offset)
    )
    SELECT n.stream_id, n.source, n.partition, n.generation, min(n.from_offset), max(n.to_offset),
           coalesce(sum(n.to_offset - n.from_offset) FILTER (WHERE n.kind = 'lost'), 0)::bigint
    FROM numbered n
    GROUP BY n.stream_id, n.source, n.partition, n.generation, n.piece
$$;
