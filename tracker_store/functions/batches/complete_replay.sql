-- complete_replay: end a replay as succeeded once the commit of each output that it had to replace is its own.
--
-- A COMPLETED batch stays as it is, with the delays of the run that completed it first. A QUARANTINED one becomes
-- COMPLETED once each output that is `due` has a commit: its kept blocks are released, and a pipeline that it had halted
-- goes on.
-- Locks: the pipeline's row, then the batch's; attempt and commits are read in later statements.
CREATE FUNCTION forebay.complete_replay(
    pipeline bigint, at_time timestamptz, number integer, outputs text[], due text[])
RETURNS TABLE (outcome text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    batch batches;
    held batch_attempts;
    missing text;
BEGIN
    PERFORM 1 FROM pipelines p WHERE p.id = pipeline FOR NO KEY UPDATE;
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR UPDATE;
    SELECT * INTO held FROM batch_attempts a
    WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND a.attempt = number AND a.kind = 'replay';
    IF held.state = 'SUCCEEDED' THEN
        outcome := 'completed';
        RETURN NEXT;
        RETURN;
    END IF;
    IF held.state IS DISTINCT FROM 'RUNNING' THEN
        outcome := 'superseded';
        detail := format('replay %s of batch %s is %s', number, at_time, coalesce(held.state, 'not there'));
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT string_agg(o, ', ') INTO missing FROM unnest(outputs) AS o
    WHERE NOT EXISTS (SELECT 1 FROM output_commits c WHERE c.pipeline_id = pipeline AND c.output = o
                      AND c.batch_time = at_time AND c.attempt = number);
    IF missing IS NOT NULL THEN
        outcome := 'not committed';
        detail := format('these outputs have no commit of replay %s: %s', number, missing);
        RETURN NEXT;
        RETURN;
    END IF;
    UPDATE batch_attempts SET state = 'SUCCEEDED', ended_at = clock_timestamp()
    WHERE pipeline_id = pipeline AND batch_time = at_time AND attempt = number;
    IF batch.state = 'QUARANTINED' AND NOT EXISTS (
        SELECT 1 FROM unnest(due) AS o
        WHERE NOT EXISTS (SELECT 1 FROM output_commits c
                          WHERE c.pipeline_id = pipeline AND c.output = o AND c.batch_time = at_time)) THEN
        UPDATE batches SET state = 'COMPLETED', completed_at = clock_timestamp(), attempt = number, reason = ''
        WHERE pipeline_id = pipeline AND batch_time = at_time;
        UPDATE kept_ranges k SET released_at = clock_timestamp()
        WHERE k.pipeline_id = pipeline AND k.batch_time = at_time AND k.released_at IS NULL;
        -- A batch that was quarantined after it, while the pipeline was halted, takes over the halt.
        UPDATE pipelines SET halted_by = (SELECT min(b.batch_time) FROM batches b WHERE b.pipeline_id = pipeline
                                          AND b.batch_time > at_time AND b.state = 'QUARANTINED')
        WHERE id = pipeline AND halted_by = at_time;
    END IF;
    outcome := 'completed';
    RETURN NEXT;
END
$$;
