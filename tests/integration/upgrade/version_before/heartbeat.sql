-- heartbeat: raises a process's counter by one and returns what its receivers are to do.
--
-- A counter, not a time: a process is dead when its counter has not moved for the limit on the leader's monotonic
-- clock, so a stepped clock expires nothing. A process that was declared dead is told so (no row moved).
-- How full its receivers' queues are goes along, in the same row: for who watches, and nobody decides by it.
-- Locks: the process's own row.
CREATE FUNCTION forebay.heartbeat(process bigint, receiver_ids bigint[], in_queue integer[] DEFAULT NULL)
RETURNS TABLE (
    alive boolean, receiver_id bigint, rate_limit double precision, desired_state text, assignment bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    UPDATE processes SET heartbeat = heartbeat + 1,
        queued = (SELECT jsonb_object_agg(q.id, q.blocks) FROM unnest(receiver_ids, in_queue) AS q(id, blocks)
                  WHERE q.blocks IS NOT NULL)
    WHERE id = process AND ended_at IS NULL;
    alive := FOUND;
    RETURN NEXT;
    RETURN QUERY
    SELECT alive, r.id, r.rate_limit, r.desired_state, r.assignment FROM receivers r
    WHERE r.id = ANY (receiver_ids) ORDER BY r.id;
END
$$;
