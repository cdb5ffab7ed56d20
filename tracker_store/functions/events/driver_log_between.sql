-- driver_log_between: return the view driver_log from `from_time` up to, but not including, `to_time`, in the order of
-- time.
--
-- Cost: a probe per receiver; O(log blocks) for the ends in each receiver that has added anything since `from_time`,
-- found by binary search on the primary key (added_at never decreases within a receiver's sequence); then what is
-- returned, and the markers of the cleaned-up part since `from_time`. The other tables of the log have an index on time.
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
        SELECT r.id, edge.is_end, edge.target,
               CASE WHEN newest.added_at < edge.target THEN newest.sequence ELSE r.low_mark END, newest.sequence
        FROM receivers r
        CROSS JOIN LATERAL (
            SELECT b.sequence, b.added_at FROM blocks b
            WHERE b.receiver_id = r.id ORDER BY b.sequence DESC LIMIT 1) AS newest
        CROSS JOIN (VALUES (false, from_time), (true, to_time)) AS edge(is_end, target)
        WHERE newest.added_at >= from_time
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
    ), marker (receiver_id, sequence) AS (
        -- Of the cleaned-up part only the epochs' markers are left: go back from its end to the span's begin.
        SELECT r.id, last_one.sequence
        FROM receivers r
        CROSS JOIN LATERAL (
            SELECT b.sequence, b.added_at FROM blocks b
            WHERE b.receiver_id = r.id AND b.sequence <= r.low_mark ORDER BY b.sequence DESC LIMIT 1) AS last_one
        WHERE last_one.added_at >= from_time
        UNION ALL
        SELECT m.receiver_id, one_before.sequence
        FROM marker m
        CROSS JOIN LATERAL (
            SELECT b.sequence, b.added_at FROM blocks b
            WHERE b.receiver_id = m.receiver_id AND b.sequence < m.sequence
            ORDER BY b.sequence DESC LIMIT 1) AS one_before
        WHERE one_before.added_at >= from_time
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
    SELECT l.* FROM marker m
    CROSS JOIN LATERAL (
        SELECT v.* FROM driver_log v
        WHERE v.source = 'blocks' AND v.receiver_id = m.receiver_id AND v.first_sequence = m.sequence OFFSET 0) AS l
    WHERE l.at < to_time
    UNION ALL
    SELECT l.* FROM driver_log l WHERE l.source <> 'blocks' AND l.at >= from_time AND l.at < to_time
    ORDER BY 1, 6, 11;
END
$$;
