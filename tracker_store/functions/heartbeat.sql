-- heartbeat: raises a process's counter by one and returns what its receivers are to do.
--
-- A counter, not a time: a process is dead when its counter has not moved for the limit on the leader's monotonic
-- clock, so a stepped clock expires nothing. A process that was declared dead is told so (no row moved).
-- Locks: the process's own row.
CREATE FUNCTION forebay.heartbeat(process bigint, receiver_ids bigint[])
RETURNS TABLE (
    alive boolean, receiver_id bigint, rate_limit double precision, desired_state text, assignment bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    UPDATE processes SET heartbeat = heartbeat + 1 WHERE id = process AND ended_at IS NULL;
    alive := FOUND;
    RETURN NEXT;
    RETURN QUERY
    SELECT alive, r.id, r.rate_limit, r.desired_state, r.assignment FROM receivers r
    WHERE r.id = ANY (receiver_ids) ORDER BY r.id;
END
$$;
