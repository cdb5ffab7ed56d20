-- expire_process: the leader declares a process dead whose counter did not change for the limit.
--
-- Locks: the leader's row FOR SHARE first (an unlocked sub-select let a deposed leader overwrite its successor), then
-- the receivers that were placed there or held by it, then its own row.
-- A SCHEDULED receiver names a process only while that hands it over to another agent (`take_over`). If that process is
-- silent, the receiver stays placed, and its successor claims it; if the agent is, the process is still waited for.
CREATE FUNCTION forebay.expire_process(of_term bigint, process bigint, seen_heartbeat bigint, why text)
RETURNS TABLE (outcome text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NOT leads(of_term) THEN
        outcome := 'deposed';
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM 1 FROM receivers r WHERE r.agent_id = process OR r.process_id = process ORDER BY r.id FOR UPDATE;
    UPDATE processes SET ended_at = clock_timestamp(), end_reason = why
    WHERE id = process AND heartbeat = seen_heartbeat AND ended_at IS NULL;
    IF NOT FOUND THEN
        outcome := 'moved';
        RETURN NEXT;
        RETURN;
    END IF;
    UPDATE receivers SET process_id = NULL WHERE process_id = process AND state = 'SCHEDULED';
    WITH freed AS (
        UPDATE receivers SET state = 'INACTIVE', reason = why, since = clock_timestamp(), agent_id = NULL,
                             process_id = CASE WHEN state = 'SCHEDULED' THEN process_id END,
                             assignment = assignment + 1
        WHERE (agent_id = process OR process_id = process) AND state IN ('SCHEDULED', 'ACTIVE', 'PAUSED')
        RETURNING id)
    INSERT INTO receiver_events (receiver_id, epoch, kind, message)
    SELECT id, 0, 'LEASE_EXPIRED', why FROM freed;
    outcome := 'expired';
    RETURN NEXT;
END
$$;
