-- driver_log_between: return the view driver_log from `from_time` up to, but not including, `to_time`, in the order of
-- time.
--
-- Cost: O(receivers · log blocks) for the ends, found by binary search on the primary key (added_at never decreases
-- within a receiver's sequence), then what is returned. The other tables of the log are small, and are filtered by
-- time.
-- Locks: none.
CREATE FUNCTION forebay.driver_log_between(from_time timestamptz, to_time timestamptz DEFAULT 'infinity')
RETURNS TABLE (
    at timestamptz, source text, event text, stream text, ordinal integer, receiver_id bigint, pipeline text,
    pipeline_id bigint, batch_time timestamptz, epoch bigint, first_sequence bigint, last_sequence bigint,
    records bigint, bytes bigint, detail text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE search (receiver_id, is_end, target, inside, outside) AS (
        -- Everything up to `inside` is before the target, everything above `outside` is not: halve what is between.
        SELECT r.id, edge.is_end, edge.target, r.low_mark, newest.sequence
        FROM receivers r
        CROSS JOIN LATERAL (
            SELECT b.sequence FROM blocks b WHERE b.receiver_id = r.id ORDER BY b.sequence DESC LIMIT 1) AS newest
        CROSS JOIN (VALUES (false, from_time), (true, to_time)) AS edge(is_end, target)
        UNION ALL
        SELECT s.receiver_id, s.is_end, s.target, CASE WHEN probe.before THEN middle.m ELSE s.inside END,
               CASE WHEN probe.before THEN s.outside ELSE middle.m - 1 END
        FROM search s
        CROSS JOIN LATERAL (SELECT s.inside + (s.outside - s.inside + 1) / 2) AS middle(m)
        -- OFFSET 0: without it each step is a join with all blocks while there are some ten thousand.
        CROSS JOIN LATERAL (
            SELECT b.added_at < s.target AS before FROM blocks b
            WHERE b.receiver_id = s.receiver_id AND b.sequence = middle.m OFFSET 0) AS probe
        WHERE s.inside < s.outside
    ), edges AS (
        SELECT s.receiver_id, max(s.inside) FILTER (WHERE NOT s.is_end) AS before,
               max(s.inside) FILTER (WHERE s.is_end) AS last
        FROM search s WHERE s.inside >= s.outside GROUP BY s.receiver_id
    )
    SELECT b.* FROM edges e
    CROSS JOIN LATERAL (
        SELECT l.* FROM driver_log l
        WHERE l.source = 'blocks' AND l.receiver_id = e.receiver_id
          AND l.first_sequence > e.before AND l.first_sequence <= e.last OFFSET 0) AS b
    UNION ALL
    -- Of the cleaned-up part only the epochs' markers are left.
    SELECT m.* FROM receivers r
    CROSS JOIN LATERAL (
        SELECT l.* FROM driver_log l
        WHERE l.source = 'blocks' AND l.receiver_id = r.id AND l.first_sequence <= r.low_mark OFFSET 0) AS m
    WHERE m.at >= from_time AND m.at < to_time
    UNION ALL
    SELECT l.* FROM driver_log l WHERE l.source <> 'blocks' AND l.at >= from_time AND l.at < to_time
    ORDER BY 1, 6, 11;
END
$$;
