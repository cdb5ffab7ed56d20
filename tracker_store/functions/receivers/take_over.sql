-- take_over: a process that is ready takes the receiver that its agent was offered; the receiver's process before it
-- drains.
--
-- The receiver's row gets the hand-over's assignment and agent, and goes on naming the process before, until that has
-- signed off. The new process waits for that before it claims; `claim` fences the old one in any case.
-- A repeated call after a lost answer returns the same. Refused when the hand-over is void or withdrawn, or when the
-- receiver is to stop, or when the agent to which it was offered is another login's.
-- A receiver that is bound to a host belongs to the new host from now on.
-- Locks: the receiver's row, so that one of two decisions about it waits for the other; everything is read in the next
-- statement, whose snapshot is from after the wait. Then the hand-over's row.
CREATE FUNCTION forebay.take_over(receiver bigint, under_assignment bigint)
RETURNS TABLE (outcome text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    offered hand_overs;
    from_host text;
    to_host text;
BEGIN
    PERFORM 1 FROM receivers r WHERE r.id = receiver FOR UPDATE;
    IF holds_receiver(receiver) AND EXISTS (
        SELECT FROM receivers r
        WHERE r.id = receiver AND r.assignment = under_assignment AND r.state = 'SCHEDULED' AND r.removed_at IS NULL)
    THEN
        outcome := 'taken over';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT h.* INTO offered FROM hand_overs h WHERE h.receiver_id = receiver AND h.assignment = under_assignment
    FOR UPDATE;
    SELECT p.host INTO to_host FROM processes p
    WHERE p.id = offered.agent_id AND p.ended_at IS NULL AND owns_process(p.id);
    SELECT p.host INTO from_host FROM receivers r JOIN processes p ON p.id = r.agent_id WHERE r.id = receiver;
    UPDATE receivers SET state = 'SCHEDULED', reason = offered.why, since = clock_timestamp(),
                         agent_id = offered.agent_id, assignment = offered.assignment,
                         host = CASE WHEN host IS NOT NULL THEN to_host END
    WHERE id = receiver AND assignment = offered.from_assignment AND removed_at IS NULL AND to_host IS NOT NULL
          AND desired_state <> 'stopped' AND state IN ('SCHEDULED', 'ACTIVE', 'PAUSED');
    IF NOT FOUND THEN
        outcome := 'not offered';
        RETURN NEXT;
        RETURN;
    END IF;
    DELETE FROM hand_overs WHERE receiver_id = receiver;
    INSERT INTO receiver_events (receiver_id, epoch, kind, message, detail)
    VALUES (receiver, 0, 'SCHEDULED', format('moved from %s to %s', coalesce(from_host, 'no host'), to_host),
            offered.why);
    outcome := 'taken over';
    RETURN NEXT;
END
$$;
