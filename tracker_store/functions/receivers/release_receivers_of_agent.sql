-- release_receivers_of_agent: an agent that stops gives its receivers back, for a new placement.
--
-- Authority: only the login that registered the agent. The agent's own processes have ended; a receiver that was being
-- handed over to it names a process on another agent, and goes on naming it.
-- Returns how many were released. Locks: those receivers' rows, in the order of their ids.
CREATE FUNCTION forebay.release_receivers_of_agent(agent bigint, why text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
DECLARE
    released bigint := 0;
BEGIN
    IF owns_process(agent) THEN
        PERFORM 1 FROM receivers r WHERE r.agent_id = agent ORDER BY r.id FOR UPDATE;
        UPDATE receivers SET state = 'INACTIVE', reason = why, since = clock_timestamp(), agent_id = NULL,
                             process_id = CASE WHEN state = 'SCHEDULED' THEN process_id END,
                             assignment = assignment + 1
        WHERE agent_id = agent AND state IN ('SCHEDULED', 'ACTIVE', 'PAUSED');
        GET DIAGNOSTICS released = ROW_COUNT;
    END IF;
    RETURN released;
END
$$;
