-- complete_attempt: end an attempt as SUCCEEDED once its outputs have their commits, and not before.
--
-- A run makes its batch COMPLETED once each of `outputs` has a commit.
-- A replay (`due` is not null) ends once the commit of each output that it had to replace is its own. A COMPLETED batch
-- stays as it is, with the delays of the run that completed it first. A QUARANTINED one becomes COMPLETED once each
-- output that is `due` has a commit: its kept blocks are released, and a pipeline that it had halted goes on.
-- Locks: of a replay the pipeline's row first; then the batch's; attempt and commits are read in later statements.
CREATE FUNCTION forebay.complete_attempt(
    pipeline bigint, at_time timestamptz, number integer, outputs text[], due text[] DEFAULT NULL)
RETURNS TABLE (outcome text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    is_replay boolean := due IS NOT NULL;
    batch batches;
    held batch_attempts;
    missing text;
BEGIN
    IF is_replay THEN
        PERFORM 1 FROM pipelines p WHERE p.id = pipeline FOR NO KEY UPDATE;
    END IF;
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR UPDATE;
    SELECT * INTO held FROM batch_attempts a
    WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND a.attempt = number AND a.kind = 'replay';
    IF (CASE WHEN is_replay THEN held.state = 'SUCCEEDED'
             ELSE batch.state = 'COMPLETED' AND batch.attempt = number END) THEN
        outcome := 'completed';
        RETURN NEXT;
        RETURN;
    END IF;
    IF (CASE WHEN is_replay THEN held.state = 'RUNNING'
             ELSE batch.state = 'RUNNING' AND batch.attempt = number END) IS NOT TRUE THEN
        outcome := 'superseded';
        detail := CASE WHEN is_replay
            THEN format('replay %s of batch %s is %s', number, at_time, coalesce(held.state, 'not there'))
            ELSE format('the batch is %s at attempt %s', coalesce(batch.state, 'not there'), batch.attempt) END;
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT string_agg(o, ', ') INTO missing FROM unnest(outputs) AS o
    WHERE NOT EXISTS (SELECT 1 FROM output_commits c WHERE c.pipeline_id = pipeline AND c.output = o
                      AND c.batch_time = at_time AND (NOT is_replay OR c.attempt = number));
    IF missing IS NOT NULL THEN
        outcome := 'not committed';
        detail := format('these outputs have no commit%s: %s',
                         CASE WHEN is_replay THEN format(' of replay %s', number) ELSE '' END, missing);
        RETURN NEXT;
        RETURN;
    END IF;
    UPDATE batch_attempts SET state = 'SUCCEEDED', ended_at = clock_timestamp()
    WHERE pipeline_id = pipeline AND batch_time = at_time AND attempt = number;
    IF NOT is_replay THEN
        UPDATE batches SET state = 'COMPLETED', completed_at = clock_timestamp()
        WHERE pipeline_id = pipeline AND batch_time = at_time;
    ELSIF batch.state = 'QUARANTINED' AND NOT EXISTS (
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
