-- release_receivers: the leader takes the receivers from an agent that is draining, or has ended.
--
-- A receiver's row keeps naming its process until that has signed off, so that the next placement can wait for it.
-- Locks: the leader's row FOR SHARE first, then those receivers' rows in the order of their ids.
CREATE FUNCTION forebay.release_receivers(of_term bigint, agent bigint, why text)
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
    PERFORM 1 FROM receivers r WHERE r.agent_id = agent ORDER BY r.id FOR UPDATE;
    UPDATE receivers SET state = 'INACTIVE', reason = why, since = clock_timestamp(), agent_id = NULL,
                         assignment = assignment + 1
    WHERE agent_id = agent AND state IN ('SCHEDULED', 'ACTIVE', 'PAUSED');
    outcome := CASE WHEN FOUND THEN 'released' ELSE 'nothing' END;
    RETURN NEXT;
END
$$;
