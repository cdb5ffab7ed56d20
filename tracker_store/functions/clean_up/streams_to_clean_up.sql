-- streams_to_clean_up: return which of the next `max_streams` streams have links or keys that clean-up may delete now.
--
-- This is a look for the link cleaner, as receivers_to_clean_up is one for the cleaner: it decides nothing, and each
-- stream is also named once in `slices` looks, whatever it has.
-- Links: one of a block up to its receiver's low mark that is not its partition's newest; an origin only if it is its
-- partition's oldest. Keys: one that is older than the stream's `key_window`, or else than `window_of_keys`.
-- `last_id`: continue after it; null: there are no more streams.
-- Cost: a few probes for each stream and receiver, and one for each newest link that stays below a low mark, until the
-- first link that may go is found (see clean_up_offsets).
-- Locks: none.
CREATE FUNCTION forebay.streams_to_clean_up(
    window_of_keys interval, after_id bigint, max_streams bigint, slices bigint, slice bigint)
RETURNS TABLE (last_id bigint, stream_ids bigint[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    now_is timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH page AS MATERIALIZED (
        SELECT s.id,
               now_is - coalesce(make_interval(secs => (s.declaration #>> '{settings,key_window}')::float8),
                                 window_of_keys) AS keys_from
        FROM streams s WHERE s.id > after_id ORDER BY s.id LIMIT max_streams
    )
    SELECT (SELECT max(g.id) FROM page g HAVING count(*) = max_streams),
           coalesce((
               SELECT array_agg(s.id ORDER BY s.id) FROM page s
               WHERE s.id % slices = slice
                  OR EXISTS (SELECT FROM record_keys k WHERE k.stream_id = s.id AND k.added_at < s.keys_from OFFSET 0)
                  OR EXISTS (
                      SELECT FROM receivers r
                      CROSS JOIN LATERAL (
                          SELECT FROM block_offsets o
                          WHERE o.receiver_id = r.id AND o.sequence <= r.low_mark AND o.kind <> 'origin'
                            AND o.stream_id = s.id
                            AND EXISTS (SELECT FROM block_offsets n
                                        WHERE n.stream_id = s.id AND n.source = o.source AND n.partition = o.partition
                                          AND (n.generation, n.from_offset) > (o.generation, o.from_offset) OFFSET 0)
                          LIMIT 1) AS link
                      WHERE r.stream_id = s.id OFFSET 0)
                  OR EXISTS (
                      SELECT FROM receivers r
                      CROSS JOIN LATERAL (
                          SELECT FROM block_offsets o
                          WHERE o.receiver_id = r.id AND o.sequence <= r.low_mark AND o.kind = 'origin'
                            AND o.stream_id = s.id
                            AND EXISTS (SELECT FROM block_offsets n
                                        WHERE n.stream_id = s.id AND n.source = o.source AND n.partition = o.partition
                                          AND (n.generation, n.from_offset) > (o.generation, o.from_offset) OFFSET 0)
                            AND NOT EXISTS (SELECT FROM block_offsets n
                                            WHERE n.stream_id = s.id AND n.source = o.source
                                              AND n.partition = o.partition
                                              AND (n.generation, n.from_offset) < (o.generation, o.from_offset)
                                            OFFSET 0)
                          LIMIT 1) AS link
                      WHERE r.stream_id = s.id OFFSET 0)
           ), '{}');
END
$$;
