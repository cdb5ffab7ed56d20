-- complete_batch: make a batch COMPLETED once each of its outputs has a commit, and not before.
--
-- Locks: the batch's row in the first statement; the commits are read in a later one.
CREATE FUNCTION forebay.complete_batch(
    pipeline bigint, at_time timestamptz, number integer, outputs text[])
RETURNS TABLE (outcome text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    batch batches;
    missing text;
BEGIN
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR UPDATE;
    IF batch.state = 'COMPLETED' AND batch.attempt = number THEN
        outcome := 'completed';
        RETURN NEXT;
        RETURN;
    END IF;
    IF batch.state IS DISTINCT FROM 'RUNNING' OR batch.attempt <> number THEN
        outcome := 'superseded';
        detail := format('the batch is %s at attempt %s', coalesce(batch.state, 'not there'), batch.attempt);
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT string_agg(o, ', ') INTO missing FROM unnest(outputs) AS o
    WHERE NOT EXISTS (SELECT 1 FROM output_commits c
                      WHERE c.pipeline_id = pipeline AND c.output = o AND c.batch_time = at_time);
    IF missing IS NOT NULL THEN
        outcome := 'not committed';
        detail := format('these outputs have no commit: %s', missing);
        RETURN NEXT;
        RETURN;
    END IF;
    UPDATE batch_attempts SET state = 'SUCCEEDED', ended_at = clock_timestamp()
    WHERE pipeline_id = pipeline AND batch_time = at_time AND attempt = number;
    UPDATE batches SET state = 'COMPLETED', completed_at = clock_timestamp()
    WHERE pipeline_id = pipeline AND batch_time = at_time;
    outcome := 'completed';
    RETURN NEXT;
END
$$;
