-- discard_batch: a person discards a quarantined or a blocked batch; its kept blocks are released, and clean-up deletes
-- them and files that only they needed.
--
-- Refused while a replay forward is unfinished that has to run the batch again: it is in the output's state.
-- `kept` counts sequences, epoch markers among them.
-- Locks: the pipeline's row, then the batch's; whether a replay runs is read in a later statement.
CREATE FUNCTION forebay.discard_batch(pipeline bigint, at_time timestamptz)
RETURNS TABLE (outcome text, detail text, kept bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    batch batches;
    running text;
    forward bigint;
BEGIN
    PERFORM 1 FROM pipelines p WHERE p.id = pipeline FOR NO KEY UPDATE;
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR UPDATE;
    SELECT a.run_id INTO running FROM batch_attempts a
    WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND a.state = 'RUNNING';
    SELECT r.id INTO forward FROM state_replays r
    JOIN output_commits c ON c.pipeline_id = r.pipeline_id AND c.output = r.output AND c.batch_time = at_time
    WHERE r.pipeline_id = pipeline AND r.state IN ('RUNNING', 'STOPPED', 'UNDOING')
      AND at_time BETWEEN r.from_time AND r.to_time
    LIMIT 1;
    IF forward IS NOT NULL THEN
        outcome := 'refused';
        detail := format('batch %s is %s, and replay forward %s is to run it again', at_time, batch.state, forward);
        RETURN NEXT;
        RETURN;
    END IF;
    IF coalesce(batch.state NOT IN ('QUARANTINED', 'BLOCKED'), true) OR running IS NOT NULL THEN
        outcome := 'refused';
        detail := format('batch %s is %s%s', at_time, coalesce(batch.state, 'not there'),
                         CASE WHEN running IS NULL THEN '' ELSE format(', and a replay runs in run %s', running) END);
        RETURN NEXT;
        RETURN;
    END IF;
    WITH gone AS (
        UPDATE kept_ranges k SET released_at = clock_timestamp()
        WHERE k.pipeline_id = pipeline AND k.batch_time = at_time AND k.released_at IS NULL
        RETURNING upper(k.sequences) - lower(k.sequences) AS blocks)
    SELECT coalesce(sum(g.blocks), 0) INTO kept FROM gone g;
    UPDATE batches SET state = 'DISCARDED', retry_at = NULL WHERE pipeline_id = pipeline AND batch_time = at_time;
    UPDATE pipelines SET halted_by = (SELECT min(b.batch_time) FROM batches b WHERE b.pipeline_id = pipeline
                                      AND b.batch_time > at_time AND b.state = 'QUARANTINED')
    WHERE id = pipeline AND halted_by = at_time;
    outcome := 'discarded';
    RETURN NEXT;
END
$$;
