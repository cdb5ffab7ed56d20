-- commit_output: make an attempt's result the one that counts for (pipeline, output, batch time).
--
-- Authority: this row is the commit; files are its projection. A zombie attempt changes nothing: the batch's row is
-- locked first, and only the attempt that it names, or the running replay, may commit.
-- `publishes`: the files must still be published to readers; any process that finds the row does it.
-- Locks: the batch's row in the first statement, then the output's row.
CREATE FUNCTION forebay.commit_output(
    pipeline bigint, at_time timestamptz, number integer, output_name text, result_location text,
    result_rows bigint, publishes boolean DEFAULT false)
RETURNS TABLE (outcome text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    batch batches;
BEGIN
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR UPDATE;
    IF (batch.state IS DISTINCT FROM 'RUNNING' OR batch.attempt <> number) AND NOT EXISTS (
        SELECT 1 FROM batch_attempts a WHERE a.pipeline_id = pipeline AND a.batch_time = at_time
        AND a.attempt = number AND a.kind = 'replay' AND a.state = 'RUNNING') THEN
        outcome := 'superseded';
        detail := format('the batch is %s at attempt %s', coalesce(batch.state, 'not there'), batch.attempt);
        RETURN NEXT;
        RETURN;
    END IF;
    INSERT INTO output_commits AS c (pipeline_id, output, batch_time, attempt, location, rows, to_publish)
    VALUES (pipeline, output_name, at_time, number, result_location, result_rows, publishes)
    ON CONFLICT (pipeline_id, output, batch_time) DO UPDATE
    SET attempt = excluded.attempt, location = excluded.location, rows = excluded.rows,
        to_publish = excluded.to_publish, committed_at = clock_timestamp()
    WHERE c.attempt < excluded.attempt;
    outcome := 'committed';
    RETURN NEXT;
END
$$;
