-- begin_hand_over: the leader offers a receiver that runs on one agent to another agent.
--
-- The receiver goes on under its assignment. The other agent starts a process under the hand-over's assignment, and that
-- process takes the receiver over when it is ready (`take_over`). So a host on which it can't start never gets it.
-- A hand-over is void as soon as the receiver has another assignment than when it was decided; a void one is replaced.
-- Locks: the leader's row FOR SHARE first, then the receiver's row, so that its assignment can't change meanwhile; it is
-- read in the next statement, whose snapshot is from after the wait.
CREATE FUNCTION forebay.begin_hand_over(
    of_term bigint, receiver bigint, seen_assignment bigint, to_agent bigint, why text)
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
    PERFORM 1 FROM receivers r WHERE r.id = receiver FOR UPDATE;
    IF NOT EXISTS (
        SELECT FROM receivers r
        WHERE r.id = receiver AND r.assignment = seen_assignment AND r.removed_at IS NULL
              AND r.desired_state <> 'stopped' AND r.state IN ('ACTIVE', 'PAUSED')
              AND r.agent_id IS DISTINCT FROM to_agent)
    THEN
        outcome := 'changed';
        RETURN NEXT;
        RETURN;
    END IF;
    IF NOT EXISTS (
        SELECT FROM processes p
        WHERE p.id = to_agent AND p.kind = 'agent' AND p.ended_at IS NULL AND NOT p.draining)
    THEN
        outcome := 'no agent';
        RETURN NEXT;
        RETURN;
    END IF;
    -- The clock keeps the number distinct from that of an earlier hand-over that was withdrawn.
    INSERT INTO hand_overs AS h (receiver_id, from_assignment, agent_id, assignment, why)
    VALUES (receiver, seen_assignment, to_agent,
            greatest(seen_assignment + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint), why)
    ON CONFLICT (receiver_id) DO UPDATE
    SET from_assignment = excluded.from_assignment, agent_id = excluded.agent_id, assignment = excluded.assignment,
        why = excluded.why, since = clock_timestamp()
    WHERE h.from_assignment <> excluded.from_assignment;
    outcome := CASE WHEN FOUND THEN 'begun' ELSE 'under way' END;
    RETURN NEXT;
END
$$;
