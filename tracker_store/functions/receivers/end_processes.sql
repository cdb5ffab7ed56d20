-- end_processes: end processes at their own request, or because their parent saw them end; returns how many had not ended.
--
-- An agent's receivers are released with it, for a new placement. A receiver's row goes on naming its process, which may
-- still drain, or belong to another agent that hands the receiver over.
-- Authority: only processes that the session's login registered. One of another login on the same host is left to the
-- leader, which expires it by its heartbeat.
-- Locks: the receivers that are placed on them, in the order of their ids, then the processes' rows: in the order in which
-- expire_process locks.
CREATE FUNCTION forebay.end_processes(process_ids bigint[], why text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
DECLARE
    -- The login of a row never changes, and an ended process never comes back: this needs no lock.
    owned bigint[] := ARRAY(
        SELECT p.id FROM processes p WHERE p.id = ANY (process_ids) AND p.ended_at IS NULL AND owns_process(p.id));
    ended bigint;
BEGIN
    PERFORM 1 FROM receivers r WHERE r.agent_id = ANY (owned) ORDER BY r.id FOR UPDATE;
    UPDATE receivers SET state = 'INACTIVE', reason = format('its agent has ended: %s', why), since = clock_timestamp(),
                         agent_id = NULL, assignment = assignment + 1
    WHERE agent_id = ANY (owned) AND state IN ('SCHEDULED', 'ACTIVE', 'PAUSED');
    UPDATE processes SET ended_at = clock_timestamp(), end_reason = why WHERE id = ANY (owned) AND ended_at IS NULL;
    GET DIAGNOSTICS ended = ROW_COUNT;
    RETURN ended;
END
$$;
