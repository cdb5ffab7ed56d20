-- fail_attempt: ends a batch's attempt as failed; the batch is retried after a backoff, or quarantined.
--
-- Called by the run itself, by the sensor for a run that ended without a word, and by the tracker for one whose
-- process is dead. An attempt that never claimed (its run died at its start) is recorded as failed all the same,
-- so that the next run key is a new one.
-- Locks: the batch's row in the first statement. Clean-up passes over blocks of a batch that is not finished, so they
-- are all there to be kept.
CREATE FUNCTION forebay.fail_attempt(
    pipeline bigint, at_time timestamptz, number integer, failed_run text, message text,
    max_attempts integer, retry_after interval)
RETURNS TABLE (outcome text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    batch batches;
BEGIN
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR UPDATE;
    IF batch.state = 'RUNNING' AND batch.attempt = number THEN
        UPDATE batch_attempts SET state = 'FAILED', ended_at = clock_timestamp(), error = message
        WHERE pipeline_id = pipeline AND batch_time = at_time AND attempt = number;
    ELSIF batch.state IN ('ALLOCATED', 'FAILED') AND number = batch.attempt + 1 THEN
        INSERT INTO batch_attempts (pipeline_id, batch_time, attempt, state, run_id, ended_at, error)
        VALUES (pipeline, at_time, number, 'FAILED', failed_run, clock_timestamp(), message);
    ELSE
        outcome := 'not its attempt';
        RETURN NEXT;
        RETURN;
    END IF;
    outcome := CASE WHEN number >= max_attempts THEN 'QUARANTINED' ELSE 'FAILED' END;
    UPDATE batches
    SET state = outcome, attempt = number, reason = message,
        retry_at = CASE WHEN number >= max_attempts THEN NULL ELSE clock_timestamp() + retry_after END
    WHERE pipeline_id = pipeline AND batch_time = at_time;
    IF outcome = 'QUARANTINED' THEN
        -- Its blocks are copied, so that it holds up nobody else's clean-up.
        INSERT INTO kept_blocks (pipeline_id, batch_time, receiver_id, sequence, added_at, records, bytes, segment_id,
                                 "offset", length, crc32c)
        SELECT pipeline, at_time, b.receiver_id, b.sequence, b.added_at, b.records, b.bytes, b.segment_id,
               b."offset", b.length, b.crc32c
        FROM batch_allocations a
        JOIN blocks b ON b.receiver_id = a.receiver_id
             AND b.sequence >= lower(a.sequences) AND b.sequence < upper(a.sequences)
        WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND b.segment_id IS NOT NULL
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NEXT;
END
$$;
