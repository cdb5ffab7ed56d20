-- fail_attempt: ends a batch's attempt as failed; the batch is retried after a backoff, or quarantined.
--
-- Called by the run itself, by the sensor for a run that ended without a word, and by the tracker for one whose
-- process is dead. An attempt that never claimed (its run died at its start) is recorded as failed all the same,
-- so that the next run key is a new one. One that found no block store (`blocked`) is tried again, and not counted.
-- A replay that fails changes nothing of its batch.
-- Locks: the pipeline's row in the first statement (a quarantined batch may halt it), then the batch's. Clean-up passes
-- over blocks of a batch that is not finished, and of its window, so they are all there to be kept.
CREATE FUNCTION forebay.fail_attempt(
    pipeline bigint, at_time timestamptz, number integer, failed_run text, message text,
    max_attempts integer, retry_after interval, blocked boolean DEFAULT false)
RETURNS TABLE (outcome text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    declared pipelines;
    batch batches;
    used integer;
    after timestamptz;
BEGIN
    SELECT * INTO declared FROM pipelines p WHERE p.id = pipeline FOR NO KEY UPDATE;
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR UPDATE;
    UPDATE batch_attempts SET state = 'FAILED', ended_at = clock_timestamp(), error = message
    WHERE pipeline_id = pipeline AND batch_time = at_time AND attempt = number AND kind = 'replay' AND state = 'RUNNING';
    IF FOUND THEN
        outcome := batch.state;
        RETURN NEXT;
        RETURN;
    END IF;
    IF batch.state = 'RUNNING' AND batch.attempt = number THEN
        UPDATE batch_attempts
        SET state = CASE WHEN blocked THEN 'BLOCKED' ELSE 'FAILED' END, ended_at = clock_timestamp(), error = message
        WHERE pipeline_id = pipeline AND batch_time = at_time AND attempt = number;
    ELSIF batch.state IN ('ALLOCATED', 'FAILED', 'BLOCKED') AND number = batch.attempt + 1 THEN
        INSERT INTO batch_attempts (pipeline_id, batch_time, attempt, state, run_id, ended_at, error)
        VALUES (pipeline, at_time, number, 'FAILED', failed_run, clock_timestamp(), message);
        blocked := false;
    ELSE
        outcome := 'not its attempt';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT count(*) INTO used FROM batch_attempts a
    WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND a.state = 'FAILED';
    outcome := CASE WHEN blocked THEN 'BLOCKED' WHEN used >= max_attempts THEN 'QUARANTINED' ELSE 'FAILED' END;
    UPDATE batches
    SET state = outcome, attempt = number, reason = message,
        retry_at = CASE WHEN outcome = 'QUARANTINED' THEN NULL ELSE clock_timestamp() + retry_after END
    WHERE pipeline_id = pipeline AND batch_time = at_time;
    IF outcome = 'QUARANTINED' THEN
        -- Its blocks, and those of its longest window, are copied, so that it holds up nobody else's clean-up.
        SELECT at_time - greatest(interval '1 us', coalesce(max((i.value ->> 'length_ms')::bigint), 0)
                                                   * interval '1 ms') INTO after
        FROM jsonb_each(CASE jsonb_typeof(declared.declaration -> 'outputs') WHEN 'object'
                        THEN declared.declaration -> 'outputs' ELSE '{}' END) AS o
        CROSS JOIN LATERAL jsonb_array_elements(o.value -> 'inputs') AS i
        WHERE jsonb_typeof(i.value) = 'object';
        INSERT INTO kept_blocks (pipeline_id, batch_time, receiver_id, sequence, added_at, records, bytes, segment_id,
                                 "offset", length, crc32c)
        SELECT pipeline, at_time, b.receiver_id, b.sequence, b.added_at, b.records, b.bytes, b.segment_id,
               b."offset", b.length, b.crc32c
        FROM batch_allocations a
        JOIN blocks b ON b.receiver_id = a.receiver_id
             AND b.sequence >= lower(a.sequences) AND b.sequence < upper(a.sequences)
        WHERE a.pipeline_id = pipeline AND a.batch_time > after AND a.batch_time <= at_time
          AND b.segment_id IS NOT NULL
        ON CONFLICT DO NOTHING;
        IF declared.declaration -> 'settings' ->> 'on_failure' = 'halt' THEN
            -- The oldest: what is replayed, or given up, lifts the halt for none but itself.
            UPDATE pipelines SET halted_by = least(halted_by, at_time) WHERE id = pipeline;
        END IF;
    END IF;
    RETURN NEXT;
END
$$;
