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
-- Locks: the batch's row in the first statement, then the output's row.
CREATE FUNCTION forebay.commit_output(
    pipeline bigint, at_time timestamptz, number integer, output_name text, result_location text,
    result_rows bigint, publishes boolean DEFAULT false, has_ended boolean DEFAULT false, code text DEFAULT NULL)
RETURNS TABLE (outcome text, detail text, changed boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    batch batches;
    held batch_attempts;
BEGIN
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR UPDATE;
    SELECT * INTO held FROM batch_attempts a
    WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND a.attempt = number;
    IF (CASE WHEN has_ended THEN batch.state IN ('COMPLETED', 'QUARANTINED', 'DISCARDED') AND held.state <> 'RUNNING'
             ELSE batch.state = 'RUNNING' AND batch.attempt = number
                  OR held.kind = 'replay' AND held.state = 'RUNNING' END) IS NOT TRUE THEN
        outcome := 'superseded';
        detail := format('the batch is %s at attempt %s', coalesce(batch.state, 'not there'), batch.attempt);
        changed := false;
        RETURN NEXT;
        RETURN;
    END IF;
    INSERT INTO output_commits AS c (pipeline_id, output, batch_time, attempt, location, rows, to_publish, code_version)
    VALUES (pipeline, output_name, at_time, number, result_location, result_rows, publishes, code)
    ON CONFLICT (pipeline_id, output, batch_time) DO UPDATE
    SET attempt = excluded.attempt, location = excluded.location, rows = excluded.rows,
        to_publish = CASE WHEN has_ended THEN c.to_publish ELSE excluded.to_publish END,
        code_version = excluded.code_version, committed_at = clock_timestamp()
    WHERE c.attempt < excluded.attempt;
    outcome := 'committed';
    changed := FOUND;
    RETURN NEXT;
END
$$;
