-- schedule_receivers: the leader places receivers on agents, each under a new assignment; one row for each that was.
--
-- The clock keeps assignments distinct after a failover or a restore that lost some, as it does epochs: an agent does
-- not start a receiver again under an assignment that it has seen refused. The clock may be set back.
-- With a host, the receiver is bound to that host from now on: a receiver that listens there is not moved to another
-- address without a request. A receiver that is not INACTIVE any more, or is removed, stays as it is.
-- Locks: the leader's row FOR SHARE first, then those receivers' rows in the order of their ids.
CREATE FUNCTION forebay.schedule_receivers(
    of_term bigint, receiver_ids bigint[], agent_ids bigint[], whys text[], only_hosts text[])
RETURNS TABLE (outcome text, receiver_id bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    IF NOT leads(of_term) THEN
        outcome := 'deposed';
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM 1 FROM receivers r WHERE r.id = ANY (receiver_ids) ORDER BY r.id FOR UPDATE;
    RETURN QUERY
        WITH placed AS (
            UPDATE receivers AS r
            SET state = 'SCHEDULED', reason = w.why, since = clock_timestamp(), agent_id = w.agent_id,
                process_id = NULL, host = coalesce(r.host, w.only_host),
                assignment = greatest(r.assignment + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
            FROM unnest(receiver_ids, agent_ids, whys, only_hosts) AS w(id, agent_id, why, only_host)
            WHERE r.id = w.id AND r.state = 'INACTIVE' AND r.removed_at IS NULL
            RETURNING r.id, r.reason
        ), noted AS (
            INSERT INTO receiver_events (receiver_id, epoch, kind, message)
            SELECT p.id, 0, 'SCHEDULED', p.reason FROM placed p ORDER BY p.id
        )
        SELECT 'scheduled', p.id FROM placed p;
END
$$;
