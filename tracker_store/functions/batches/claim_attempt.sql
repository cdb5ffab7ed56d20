-- claim_attempt: a run takes a batch's next attempt, or learns which run holds the batch.
--
-- A removed pipeline gets no run any more: clean-up keeps nothing for it.
-- Locks: the pipeline's row FOR KEY SHARE, so that it is not removed meanwhile; the batch's row in the next statement,
-- held to the end; everything else is read and written after it.
-- A run that was launched again under its own id (its daemon crashed) gets the attempt that it already has, once the
-- process that held it has ended: two processes that execute one run must not both commit the same attempt.
CREATE FUNCTION forebay.claim_attempt(
    pipeline bigint, at_time timestamptz, number integer, claiming_run text, claiming_process bigint)
RETURNS TABLE (outcome text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    batch batches;
    held batch_attempts;
BEGIN
    PERFORM 1 FROM pipelines p WHERE p.id = pipeline AND p.removed_at IS NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        outcome := 'no pipeline';
        detail := format('pipeline %s is not there or was removed', pipeline);
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR UPDATE;
    IF NOT FOUND THEN
        outcome := 'no batch';
        detail := format('pipeline %s has no batch at %s', pipeline, at_time);
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT * INTO held FROM batch_attempts a
    WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND a.attempt = batch.attempt;

    IF batch.state IN ('ALLOCATED', 'FAILED', 'BLOCKED') AND number = batch.attempt + 1 THEN
        INSERT INTO batch_attempts (pipeline_id, batch_time, attempt, run_id, process_id)
        VALUES (pipeline, at_time, number, claiming_run, claiming_process);
        UPDATE batches SET state = 'RUNNING', attempt = number, retry_at = NULL, reason = ''
        WHERE pipeline_id = pipeline AND batch_time = at_time;
        outcome := 'claimed';
    ELSIF batch.state = 'RUNNING' AND number = batch.attempt AND held.run_id = claiming_run
          -- An ended process never comes back: this needs no lock.
          AND NOT EXISTS (SELECT 1 FROM processes p WHERE p.id = held.process_id AND p.id <> claiming_process
                          AND p.ended_at IS NULL) THEN
        UPDATE batch_attempts SET process_id = claiming_process
        WHERE pipeline_id = pipeline AND batch_time = at_time AND attempt = number;
        outcome := 'claimed';
    ELSE
        outcome := 'held';
        detail := format('attempt %s was asked for; the batch is %s, its attempt %s is run %s',
                         number, batch.state, batch.attempt, coalesce(held.run_id, 'none'));
    END IF;
    RETURN NEXT;
END
$$;
