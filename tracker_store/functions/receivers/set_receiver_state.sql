-- set_receiver_state: move a receiver within its assignment, along the transitions of states.py (a test compares them).
--
-- Authority: only the login that holds the receiver, under the assignment in force, and in the name of a process that
-- this login registered. `held_by` (null: any) is the process that must hold it. Moving to the same state is a success.
-- Returns false if nothing moved. Locks: the receiver's row.
CREATE FUNCTION forebay.set_receiver_state(
    receiver bigint, under_assignment bigint, to_state text, why text, process bigint, held_by bigint)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    PERFORM 1 FROM receivers r WHERE r.id = receiver FOR UPDATE;
    IF NOT holds_receiver(receiver) OR NOT (process IS NULL OR owns_process(process)) THEN
        RETURN false;
    END IF;
    UPDATE receivers r
    SET state = to_state, reason = why,
        since = CASE WHEN r.state = to_state THEN r.since ELSE clock_timestamp() END,
        process_id = process,
        agent_id = CASE WHEN to_state IN ('INACTIVE', 'FAILED') THEN NULL ELSE r.agent_id END
    WHERE r.id = receiver AND r.assignment = under_assignment
      AND (held_by IS NULL OR r.process_id = held_by)
      AND (r.state = to_state OR (r.state, to_state) IN (
          ('INACTIVE', 'SCHEDULED'),
          ('SCHEDULED', 'ACTIVE'), ('SCHEDULED', 'FAILED'), ('SCHEDULED', 'INACTIVE'),
          ('ACTIVE', 'PAUSED'), ('ACTIVE', 'FAILED'), ('ACTIVE', 'INACTIVE'), ('ACTIVE', 'SCHEDULED'),
          ('PAUSED', 'ACTIVE'), ('PAUSED', 'FAILED'), ('PAUSED', 'INACTIVE'), ('PAUSED', 'SCHEDULED'),
          ('FAILED', 'INACTIVE')));
    RETURN FOUND;
END
$$;
