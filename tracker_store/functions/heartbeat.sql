-- heartbeat: raises a process's counter by one and returns what its receivers are to do.
--
-- A counter, not a time: a process is dead when its counter has not moved for the limit on the leader's monotonic
-- clock, so a stepped clock expires nothing. A process that was declared dead is told so (no row moved).
-- The newest sequence of each receiver goes back: a process that knows a newer one to be registered sees by it that the
-- driver log lost its last commits, also where it has nothing to register. The primary key answers.
-- How full its receivers' queues are goes along, in the same row: for who watches, and nobody decides by it.
-- Locks: the process's own row.
CREATE FUNCTION forebay.heartbeat(process bigint, receiver_ids bigint[], in_queue integer[] DEFAULT NULL)
RETURNS TABLE (
    alive boolean, receiver_id bigint, rate_limit double precision, desired_state text, assignment bigint,
    newest_sequence bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
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
    SELECT alive, r.id, r.rate_limit, r.desired_state, r.assignment,
           coalesce((SELECT b.sequence FROM blocks b WHERE b.receiver_id = r.id ORDER BY b.sequence DESC LIMIT 1), 0)
    FROM receivers r
    WHERE r.id = ANY (receiver_ids) ORDER BY r.id;
END
$$;
