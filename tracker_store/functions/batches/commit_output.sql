-- commit_output: make an attempt's result the one that counts for (pipeline, output, batch time).
--
-- Authority: this row is the commit; files are its projection. A zombie attempt changes nothing: the batch's row is
-- locked first, and only the attempt that it names, or the running replay, may commit.
-- `publishes`: the files must still be published to readers; any process that finds the row does it.
-- With `has_ended`, the row is made to say what the output's target has committed, by an attempt that has ended: a
-- transactional target's own commit decides, and an attempt that died between that and this call left the row behind.
-- If the batch will be tried again, the next attempt does this; it is for the rest: replays that failed, and the last
-- attempt of a batch that is quarantined or discarded.
-- `code` is the version of the code that made the result; null where only the target knows of it.
-- A commit never goes back to an older attempt; `changed` is false if it stayed as it is.
--
-- `state_version` is the attempt that wrote the version of the output's state which belongs to the result: this one, or
-- the one that a target's commit is adopted from. The head moves to it in the same transaction, or nothing is committed:
-- - the version that it read must be the head, and the batch later than the head's;
-- - or the head is this batch's own version, and the new one read what that one had read: it takes its place;
-- - of a replay forward, the same holds for the replay's own head. The commit of its last batch puts its chain in force;
-- - while it is undone, a batch gets the version again that the replay had replaced.
-- With `has_ended` an output with a state has the version of that attempt. Without one, or if it did not read the head,
-- the row stays as it is: the result and the state would not be of the same attempt.
-- Locks: the batch's row in the first statement, then the output's head, which is also the lock of its replays, then the
-- versions, then the output's row.
CREATE FUNCTION forebay.commit_output(
    pipeline bigint, at_time timestamptz, number integer, output_name text, result_location text,
    result_rows bigint, publishes boolean DEFAULT false, has_ended boolean DEFAULT false, code text DEFAULT NULL,
    state_version integer DEFAULT NULL)
RETURNS TABLE (outcome text, detail text, changed boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    batch batches;
    held batch_attempts;
    moved record;
    present integer;
BEGIN
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR UPDATE;
    SELECT * INTO held FROM batch_attempts a
    WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND a.attempt = number;
    changed := false;
    IF (CASE WHEN has_ended THEN batch.state IN ('COMPLETED', 'QUARANTINED', 'DISCARDED') AND held.state <> 'RUNNING'
             ELSE batch.state = 'RUNNING' AND batch.attempt = number
                  OR held.kind = 'replay' AND held.state = 'RUNNING' END) IS NOT TRUE THEN
        outcome := 'superseded';
        detail := format('the batch is %s at attempt %s', coalesce(batch.state, 'not there'), batch.attempt);
        RETURN NEXT;
        RETURN;
    END IF;
    IF has_ended AND state_version IS NULL AND (
        EXISTS (SELECT FROM state_versions v WHERE v.pipeline_id = pipeline AND v.output = output_name
                AND v.batch_time = at_time AND v.attempt = number)
        OR EXISTS (SELECT FROM pipelines p WHERE p.id = pipeline
                   AND jsonb_typeof(p.declaration #> ARRAY['outputs', output_name, 'state']) = 'object')) THEN
        state_version := number;
    END IF;
    IF state_version IS NOT NULL THEN
        -- Nothing moves where this attempt, or a newer one, has committed: the head may have gone on since.
        SELECT c.attempt INTO present FROM output_commits c
        WHERE c.pipeline_id = pipeline AND c.output = output_name AND c.batch_time = at_time;
        IF present >= number THEN
            outcome := 'committed';
            RETURN NEXT;
            RETURN;
        END IF;
        SELECT * INTO moved FROM move_state_head(pipeline, at_time, output_name, state_version);
        IF moved.outcome <> 'moved' THEN
            outcome := moved.outcome;
            detail := moved.detail;
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    INSERT INTO output_commits AS c (pipeline_id, output, batch_time, attempt, location, rows, to_publish, code_version,
                                     state_attempt)
    VALUES (pipeline, output_name, at_time, number, result_location, result_rows, publishes, code, state_version)
    ON CONFLICT (pipeline_id, output, batch_time) DO UPDATE
    SET attempt = excluded.attempt, location = excluded.location, rows = excluded.rows,
        to_publish = CASE WHEN has_ended THEN c.to_publish ELSE excluded.to_publish END,
        code_version = excluded.code_version, state_attempt = excluded.state_attempt, committed_at = clock_timestamp()
    WHERE c.attempt < excluded.attempt;
    outcome := 'committed';
    changed := FOUND;
    RETURN NEXT;
END
$$;
