-- remove_pipeline: a person removes a pipeline: from now on it holds no block back, and can't be started again.
--
-- Refused while it runs: its state is RUNNING, or an attempt at one of its batches is (also a replay). If it is applied
-- again, it is a new pipeline with cursors of its own. The blocks that its quarantined batches kept are released,
-- because they can't be replayed any more. Its cursors stay in their rows, where they hold nothing back: clean-up
-- counts by them what had been read.
-- Locks: the pipeline's row, so that no batch is allocated meanwhile; what waits is counted in the next statement.
CREATE FUNCTION forebay.remove_pipeline(pipeline_name text)
RETURNS TABLE (outcome text, waiting_records bigint, unfinished_batches bigint, kept_batches bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    pipeline pipelines;
BEGIN
    SELECT * INTO pipeline FROM pipelines p WHERE p.name = pipeline_name AND p.removed_at IS NULL FOR UPDATE;
    IF NOT FOUND THEN
        outcome := 'unknown';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT coalesce(sum(w.waiting_records), 0)::bigint INTO waiting_records
    FROM stream_lag w WHERE w.pipeline_id = pipeline.id;
    SELECT count(*) FILTER (WHERE b.state <> 'QUARANTINED'), count(*) FILTER (WHERE b.state = 'QUARANTINED')
    INTO unfinished_batches, kept_batches FROM batches b
    WHERE b.pipeline_id = pipeline.id AND b.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED', 'QUARANTINED');
    IF pipeline.state = 'RUNNING' THEN
        outcome := 'running';
    ELSIF EXISTS (SELECT FROM batch_attempts a WHERE a.pipeline_id = pipeline.id AND a.state = 'RUNNING') THEN
        outcome := 'batch runs';
    ELSE
        UPDATE kept_ranges k SET released_at = clock_timestamp()
        WHERE k.pipeline_id = pipeline.id AND k.released_at IS NULL;
        UPDATE pipelines p SET removed_at = clock_timestamp(),
            removed_why = format('removed by an operator: %s records had not been in a batch, %s batches were not '
                                 'complete', waiting_records, unfinished_batches + kept_batches)
        WHERE p.id = pipeline.id;
        outcome := 'removed';
    END IF;
    RETURN NEXT;
END
$$;
