-- take_launch: decide which launcher asks Dagster for the run of a batch's next attempt: one at a time, for `lease`.
--
-- Authority: this keeps the batch sensor and the tracker, which launches short intervals itself, from asking for the
-- same run twice. It decides nothing about the batch: claim_attempt does, whatever was launched. A launcher that took
-- the launch and can't say whether there is a run (no answer) leaves it alone; when the lease is over another launcher
-- looks in Dagster, and asks again.
-- With a term, the caller is the leader, and a deposed leader launches nothing.
-- Locks: the leader's row FOR SHARE first, then the batch's row.
CREATE FUNCTION forebay.take_launch(
    of_term bigint, pipeline bigint, at_time timestamptz, number integer, launcher text, lease interval)
RETURNS TABLE (outcome text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    batch batches;
BEGIN
    IF of_term IS NOT NULL AND NOT leads(of_term) THEN
        outcome := 'deposed';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR NO KEY UPDATE;
    IF NOT FOUND OR batch.state NOT IN ('ALLOCATED', 'FAILED', 'BLOCKED') OR number <> batch.attempt + 1 THEN
        outcome := 'not due';
        detail := format('attempt %s was asked for; the batch is %s at attempt %s',
                         number, coalesce(batch.state, 'not there'), batch.attempt);
    -- In both directions: a clock that was set back must not delay a launch for longer than the lease.
    ELSIF batch.launch_attempt = number AND batch.launched_by <> launcher
          AND batch.launched_at BETWEEN clock_timestamp() - lease AND clock_timestamp() + lease THEN
        outcome := 'held';
        detail := batch.launched_by;
    ELSE
        outcome := CASE WHEN batch.launch_attempt = number THEN 'again' ELSE 'first' END;
        UPDATE batches SET launch_attempt = number, launched_at = clock_timestamp(), launched_by = launcher
        WHERE pipeline_id = pipeline AND batch_time = at_time;
    END IF;
    RETURN NEXT;
END
$$;
