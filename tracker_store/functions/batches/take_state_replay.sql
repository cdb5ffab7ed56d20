-- take_state_replay: a process begins to run a replay forward, or its undoing, or goes on with one that nothing runs.
--
-- Only the process that has it may claim its batches (claim_replay) or stop it (move_state_replay), so that one that was
-- paused or cut off, and declared dead, does nothing to it once another has taken it over. A process that lives keeps it.
-- Locks: the output's head FOR UPDATE, as each function that changes a replay; then the replay's row, which a claim of a
-- batch holds FOR SHARE. Whether the other process has ended is read in the statement that writes.
CREATE FUNCTION forebay.take_state_replay(replay bigint, process bigint)
RETURNS TABLE (outcome text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    found_replay state_replays;
    runner processes;
BEGIN
    SELECT * INTO found_replay FROM state_replays r WHERE r.id = replay;
    PERFORM 1 FROM state_heads h
    WHERE h.pipeline_id = found_replay.pipeline_id AND h.output = found_replay.output FOR UPDATE;
    SELECT * INTO found_replay FROM state_replays r WHERE r.id = replay FOR UPDATE;
    UPDATE state_replays r SET process_id = process
    WHERE r.id = replay AND r.state IN ('RUNNING', 'UNDOING')
      AND NOT EXISTS (SELECT FROM processes p
                      WHERE p.id = r.process_id AND p.id <> process AND p.ended_at IS NULL OFFSET 0);
    IF FOUND THEN
        outcome := 'taken';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT * INTO runner FROM processes p WHERE p.id = found_replay.process_id;
    outcome := 'refused';
    detail := CASE
        WHEN found_replay.id IS NULL THEN format('there is no replay %s', replay)
        WHEN found_replay.state NOT IN ('RUNNING', 'UNDOING')
            THEN format('replay %s is %s', replay, found_replay.state)
        ELSE format('replay %s is run by process %s on host %s', replay, runner.pid, runner.host) END;
    RETURN NEXT;
END
$$;
