-- schedule_receiver: the leader places a receiver on an agent, under a new assignment.
--
-- The clock keeps assignments distinct after a failover or a restore that lost some, as it does epochs: an agent does
-- not start a receiver again under an assignment that it has seen refused. The clock may be set back.
-- With a host, the receiver is bound to that host from now on: a receiver that listens there is not moved to another
-- address without a request.
-- Locks: the leader's row FOR SHARE first, then the receiver's row.
CREATE FUNCTION forebay.schedule_receiver(
    of_term bigint, receiver bigint, agent bigint, why text, only_host text DEFAULT NULL)
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
    UPDATE receivers SET state = 'SCHEDULED', reason = why, since = clock_timestamp(), agent_id = agent,
                         process_id = NULL, host = coalesce(host, only_host),
                         assignment = greatest(assignment + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    WHERE id = receiver AND state = 'INACTIVE' AND removed_at IS NULL;
    IF NOT FOUND THEN
        outcome := 'not inactive';
        RETURN NEXT;
        RETURN;
    END IF;
    INSERT INTO receiver_events (receiver_id, epoch, kind, message) VALUES (receiver, 0, 'SCHEDULED', why);
    outcome := 'scheduled';
    RETURN NEXT;
END
$$;
