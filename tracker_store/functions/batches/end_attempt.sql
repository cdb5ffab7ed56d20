-- end_attempt: end a batch's attempt as FAILED, BLOCKED or LOST; the batch is retried after a pause, or quarantined.
--
-- Called by the run itself, by the sensor for a run that ended without reporting, and by the tracker for a run whose
-- process is dead. An attempt that never claimed (its run died at its start) is recorded too, so that the next run key
-- is a new one. FAILED (its data or code) counts in max_attempts. LOST (its process or host died) counts in
-- max_lost_attempts. BLOCKED (no block store, target or key) is not counted. The nth failure of a kind waits for the nth of `pauses`,
-- or for the last of them.
-- The batch's reason is its most telling failure: that of the newest FAILED attempt, even if later ones were lost. A
-- BLOCKED batch says what it waits for. A batch that is quarantined while some of its due outputs have a result and
-- others don't says so first. A replay that fails changes nothing of its batch.
-- A quarantined batch keeps one range of each receiver, whatever the number of blocks in it.
-- Locks: the pipeline's row in the first statement (a quarantined batch may halt it), then the batch's. Clean-up skips
-- blocks of an unfinished batch and of its window, so they are all there to be kept; it reads the kept ranges after the
-- unfinished batches, so it sees this batch as one or the other.
CREATE FUNCTION forebay.end_attempt(
    pipeline bigint, at_time timestamptz, number integer, failed_run text, message text, failure text,
    max_attempts integer, max_lost_attempts integer, pauses interval[])
RETURNS TABLE (outcome text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    declared pipelines;
    batch batches;
    counted integer;    -- attempts that ended in the same state as this one
    telling text;       -- the error of the newest FAILED attempt
    committed text[];   -- the outputs that have a result, if it is quarantined and others that are due have none
    after timestamptz;
BEGIN
    SELECT * INTO declared FROM pipelines p WHERE p.id = pipeline FOR NO KEY UPDATE;
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR UPDATE;
    UPDATE batch_attempts
    SET state = CASE failure WHEN 'LOST' THEN 'LOST' ELSE 'FAILED' END, ended_at = clock_timestamp(), error = message
    WHERE pipeline_id = pipeline AND batch_time = at_time AND attempt = number AND kind = 'replay' AND state = 'RUNNING';
    IF FOUND THEN
        outcome := batch.state;
        RETURN NEXT;
        RETURN;
    END IF;
    IF batch.state = 'RUNNING' AND batch.attempt = number THEN
        UPDATE batch_attempts SET state = failure, ended_at = clock_timestamp(), error = message
        WHERE pipeline_id = pipeline AND batch_time = at_time AND attempt = number;
    ELSIF batch.state IN ('ALLOCATED', 'FAILED', 'BLOCKED') AND number = batch.attempt + 1 THEN
        -- It never claimed, so it can't have found the block store unreachable.
        failure := CASE failure WHEN 'BLOCKED' THEN 'LOST' ELSE failure END;
        INSERT INTO batch_attempts (pipeline_id, batch_time, attempt, state, run_id, ended_at, error)
        VALUES (pipeline, at_time, number, failure, failed_run, clock_timestamp(), message);
    ELSE
        outcome := 'not its attempt';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT count(*) FILTER (WHERE a.state = failure),
           (array_agg(a.error ORDER BY a.attempt DESC) FILTER (WHERE a.state = 'FAILED'))[1]
    INTO counted, telling
    FROM batch_attempts a WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND a.kind = 'run';
    outcome := CASE
        WHEN failure = 'BLOCKED' THEN 'BLOCKED'
        WHEN counted >= CASE failure WHEN 'LOST' THEN max_lost_attempts ELSE max_attempts END THEN 'QUARANTINED'
        ELSE 'FAILED' END;
    IF outcome = 'QUARANTINED' THEN
        SELECT array_agg(c.output ORDER BY c.output) INTO committed
        FROM output_commits c WHERE c.pipeline_id = pipeline AND c.batch_time = at_time
        HAVING EXISTS (
            SELECT FROM jsonb_each(CASE jsonb_typeof(declared.declaration -> 'outputs') WHEN 'object'
                                   THEN declared.declaration -> 'outputs' ELSE '{}' END) AS o
            -- An output with a slide is due at its multiples only, or where its calendar said so with the batch
            -- (OutputDeclaration.is_due).
            CROSS JOIN LATERAL (
                SELECT max(nullif((i.value ->> 'slide_ms')::bigint, 0)) * 1000 AS microseconds,
                       bool_and((batch.calendar -> 'slides' ->> (i.value ->> 'slide'))::boolean) AS by_calendar
                FROM jsonb_array_elements(o.value -> 'inputs') AS i WHERE jsonb_typeof(i.value) = 'object') AS slide
            WHERE slide.by_calendar IS NOT FALSE
              AND (slide.microseconds IS NULL
                   OR (extract(epoch FROM at_time) * 1000000)::bigint % slide.microseconds = 0)
              AND o.key <> ALL (array_agg(c.output)));
    END IF;
    UPDATE batches
    SET state = outcome, attempt = number,
        reason = CASE WHEN cardinality(committed) > 0
            THEN format('partially committed (only %s): ', array_to_string(committed, ', ')) ELSE '' END || CASE
            WHEN failure = 'BLOCKED' OR failure = 'FAILED' THEN message
            WHEN outcome = 'FAILED' THEN coalesce(telling, message)
            WHEN telling IS NULL THEN
                format('%s attempts were lost (max_lost_attempts=%s), the last one: %s', counted, max_lost_attempts,
                       message)
            -- First, because a stack may follow the failure's first line.
            ELSE format('%s attempts were lost, which ended it (max_lost_attempts=%s); another one failed: %s', counted,
                        max_lost_attempts, telling) END,
        retry_at = CASE WHEN outcome = 'QUARANTINED' THEN NULL
                   ELSE clock_timestamp() + pauses[least(counted, cardinality(pauses))] END
    WHERE pipeline_id = pipeline AND batch_time = at_time;
    IF outcome = 'QUARANTINED' THEN
        -- Keep its blocks, and those of its longest window, so that the batch does not hold back clean-up.
        SELECT at_time - greatest(interval '1 us', coalesce(max((i.value ->> 'length_ms')::bigint), 0)
                                                   * interval '1 ms') INTO after
        FROM jsonb_each(CASE jsonb_typeof(declared.declaration -> 'outputs') WHEN 'object'
                        THEN declared.declaration -> 'outputs' ELSE '{}' END) AS o
        CROSS JOIN LATERAL jsonb_array_elements(o.value -> 'inputs') AS i
        WHERE jsonb_typeof(i.value) = 'object';
        -- A pipeline's ranges of a receiver follow each other, so the first and the last of the window give its ends. No
        -- locks on receivers: what a window that was made longer meanwhile finds below the low mark is gone already.
        INSERT INTO kept_ranges (pipeline_id, batch_time, receiver_id, sequences, records, bytes)
        SELECT pipeline, at_time, c.receiver_id, int8range(span.first, span.after_last),
               coalesce(newest.total_records - oldest.total_records + oldest.records, 0),
               coalesce(newest.total_bytes - oldest.total_bytes + oldest.bytes, 0)
        FROM cursors c
        JOIN receivers r ON r.id = c.receiver_id
        CROSS JOIN LATERAL (
            SELECT lower(a.sequences) AS sequence FROM batch_allocations a
            WHERE a.pipeline_id = pipeline AND a.receiver_id = c.receiver_id
              AND a.batch_time > after AND a.batch_time <= at_time
            ORDER BY a.batch_time LIMIT 1) AS first
        CROSS JOIN LATERAL (
            SELECT upper(a.sequences) AS sequence FROM batch_allocations a
            WHERE a.pipeline_id = pipeline AND a.receiver_id = c.receiver_id
              AND a.batch_time > after AND a.batch_time <= at_time
            ORDER BY a.batch_time DESC LIMIT 1) AS after_last
        CROSS JOIN LATERAL (
            SELECT greatest(first.sequence, r.low_mark + 1) AS first, after_last.sequence AS after_last) AS span
        LEFT JOIN blocks oldest ON oldest.receiver_id = c.receiver_id AND oldest.sequence = span.first
        LEFT JOIN blocks newest ON newest.receiver_id = c.receiver_id AND newest.sequence = span.after_last - 1
        WHERE c.consumer_id = pipeline AND span.first < span.after_last
        ON CONFLICT DO NOTHING;
        IF declared.declaration -> 'settings' ->> 'on_failure' = 'halt' THEN
            -- The oldest: replaying or discarding a batch lifts only its own halt.
            UPDATE pipelines SET halted_by = least(halted_by, at_time) WHERE id = pipeline;
        END IF;
    END IF;
    RETURN NEXT;
END
$$;
