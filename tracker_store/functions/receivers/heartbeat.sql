-- heartbeat: raise a process's counter by one and return what its receivers must do.
--
-- Only processes of the release before call it: those of this release call `raise_heartbeat`.
-- A counter, not a time: a process is dead when its counter has not changed for the limit on the leader's monotonic
-- clock, so a stepped clock expires nothing. A process that was declared dead learns it from this (no row changed).
-- The answer has each receiver's newest sequence: a process that knows that a newer one was registered learns by it
-- that the driver log lost its last commits, even if it has nothing to register. The primary key answers.
-- The lengths of its receivers' queues are stored in the same row, for display only: nothing is decided by them.
-- Authority: only the login that registered the process raises its counter; for another one it counts as dead.
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
    WHERE id = process AND ended_at IS NULL
      AND (login = session_user OR pg_has_role(session_user, current_user, 'USAGE'));
    alive := FOUND;
    RETURN NEXT;
    RETURN QUERY
    SELECT alive, r.id, r.rate_limit, r.desired_state, r.assignment,
           coalesce((SELECT b.sequence FROM blocks b WHERE b.receiver_id = r.id ORDER BY b.sequence DESC LIMIT 1), 0)
    FROM receivers r
    WHERE r.id = ANY (receiver_ids) ORDER BY r.id;
END
$$;
