-- fail_output: record that an output failed in an attempt, and why, while the attempt runs.
--
-- The other outputs of the attempt go on. A record only informs: output_commits alone says which outputs have a result,
-- and the attempt's own end decides whether the batch is tried again. Nothing is recorded for an attempt that is over.
-- Locks: the batch's row FOR SHARE, so that the attempt does not end meanwhile; the attempt is read in a later
-- statement.
CREATE FUNCTION forebay.fail_output(
    pipeline bigint, at_time timestamptz, number integer, output_name text, failure text, message text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    PERFORM 1 FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR SHARE;
    INSERT INTO output_failures (pipeline_id, batch_time, attempt, output, failure, error)
    SELECT a.pipeline_id, a.batch_time, a.attempt, output_name, fail_output.failure, message
    FROM batch_attempts a
    WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND a.attempt = number AND a.state = 'RUNNING'
    ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;
