-- begin_state_replay: a person begins to run an output with a state again, from one batch up to the head's batch.
--
-- Its batches get new versions, in a chain of their own that begins with what the first batch had read, or with nothing
-- (`from_nothing`), such as when that version is gone, or was made by code that was wrong for long. The head stays
-- where it is until the last batch is committed; until then no other batch of the output commits.
-- Refused before anything is written if the first batch has no result of the output and was not quarantined, if another
-- replay of the output is unfinished, or if a version, or a block of a batch, is gone that the replay would read: for an
-- output with a window, of the batches in its first window too. From here on clean-up keeps them. `steps` is how many
-- versions are read back at most.
-- Locks: the pipeline's row FOR SHARE, so that it is not removed, and its history not forgotten, meanwhile; the rows of
-- its batches' receivers FOR SHARE, by id, which hold back clean-up of blocks; the output's head FOR UPDATE. What can
-- still be read is checked in later statements.
CREATE FUNCTION forebay.begin_state_replay(
    pipeline bigint, output_name text, from_at timestamptz, steps integer, from_nothing boolean DEFAULT false)
RETURNS TABLE (outcome text, detail text, id bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    head state_heads;
    batch batches;
    named state_versions;
    base_time timestamptz;
    base_number integer;
    unfinished state_replays;
    gone_time timestamptz;
    locked pipelines;
    window_after timestamptz;   -- the first batch reads blocks of batches after this
BEGIN
    outcome := 'refused';
    SELECT * INTO locked FROM pipelines p WHERE p.id = pipeline AND p.removed_at IS NULL FOR SHARE;
    IF NOT FOUND THEN
        detail := format('pipeline %s is not there or was removed', pipeline);
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT from_at - greatest(interval '1 us', coalesce(max((i.value ->> 'length_ms')::bigint), 0) * interval '1 ms')
    INTO window_after
    FROM jsonb_array_elements(CASE jsonb_typeof(locked.declaration #> ARRAY['outputs', output_name, 'inputs'])
                              WHEN 'array' THEN locked.declaration #> ARRAY['outputs', output_name, 'inputs']
                              ELSE '[]' END) AS i
    WHERE jsonb_typeof(i.value) = 'object';
    PERFORM 1 FROM receivers r
    WHERE r.id IN (SELECT a.receiver_id FROM batch_allocations a
                   WHERE a.pipeline_id = pipeline AND a.batch_time > window_after)
    ORDER BY r.id FOR SHARE;
    SELECT * INTO head FROM state_heads h WHERE h.pipeline_id = pipeline AND h.output = output_name FOR UPDATE;
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = from_at;
    SELECT * INTO unfinished FROM state_replays r
    WHERE r.pipeline_id = pipeline AND r.output = output_name AND r.state IN ('RUNNING', 'STOPPED', 'UNDOING');
    SELECT v.* INTO named FROM output_commits c
    JOIN state_versions v ON v.pipeline_id = c.pipeline_id AND v.output = c.output AND v.batch_time = c.batch_time
         AND v.attempt = c.state_attempt
    WHERE c.pipeline_id = pipeline AND c.output = output_name AND c.batch_time = from_at;
    detail := CASE
        WHEN head.batch_time IS NULL THEN format('output %s has no state yet', output_name)
        WHEN unfinished.id IS NOT NULL THEN
            format('replay %s of output %s is %s', unfinished.id, output_name, unfinished.state)
        WHEN batch.batch_time IS NULL THEN format('pipeline %s has no batch at %s', pipeline, from_at)
        WHEN from_at > head.batch_time THEN
            format('the newest batch in the state of output %s is %s', output_name, head.batch_time)
        WHEN named.attempt IS NULL AND batch.state <> 'QUARANTINED' THEN
            format('batch %s is %s, and made no version of the state of output %s', from_at, batch.state, output_name)
        END;
    IF detail IS NOT NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    IF from_nothing THEN
        base_time := NULL;
    ELSIF named.attempt IS NOT NULL THEN
        base_time := named.read_batch_time;
        base_number := named.read_attempt;
    ELSE
        -- It was skipped: it begins with what the batch before it made.
        SELECT c.batch_time, c.state_attempt INTO base_time, base_number FROM output_commits c
        WHERE c.pipeline_id = pipeline AND c.output = output_name AND c.batch_time < from_at
          AND c.state_attempt IS NOT NULL
        ORDER BY c.batch_time DESC LIMIT 1;
    END IF;
    WITH RECURSIVE walk AS (
        SELECT base_time AS batch_time, base_number AS attempt, 1 AS step WHERE base_time IS NOT NULL
        UNION ALL
        SELECT v.read_batch_time, v.read_attempt, w.step + 1
        FROM walk w
        JOIN state_versions v ON v.pipeline_id = pipeline AND v.output = output_name AND v.batch_time = w.batch_time
             AND v.attempt = w.attempt
        WHERE v.read_batch_time IS NOT NULL AND w.step < steps
    )
    SELECT w.batch_time INTO gone_time FROM walk w
    WHERE NOT EXISTS (SELECT FROM state_versions v WHERE v.pipeline_id = pipeline AND v.output = output_name
                      AND v.batch_time = w.batch_time AND v.attempt = w.attempt AND v.deleting_at IS NULL OFFSET 0)
    LIMIT 1;
    IF gone_time IS NOT NULL THEN
        outcome := 'not retained';
        detail := format('the state of output %s can''t be replayed from batch %s on: its version of batch %s was '
                         'cleaned up', output_name, from_at, gone_time);
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT t.batch_time INTO gone_time FROM batches t
    WHERE t.pipeline_id = pipeline AND t.batch_time BETWEEN from_at AND head.batch_time
      AND t.state IN ('COMPLETED', 'DISCARDED')
      AND EXISTS (SELECT FROM output_commits c WHERE c.pipeline_id = pipeline AND c.output = output_name
                  AND c.batch_time = t.batch_time OFFSET 0)
      -- One that was discarded after its output had been committed can't run again, and is in the state.
      AND (t.state = 'DISCARDED' OR t.records > (SELECT coalesce(sum(a.records), 0) FROM batch_allocations a
                       JOIN receivers r ON r.id = a.receiver_id
                       WHERE a.pipeline_id = pipeline AND a.batch_time = t.batch_time
                         AND lower(a.sequences) > r.low_mark))
    ORDER BY t.batch_time LIMIT 1;
    IF gone_time IS NOT NULL THEN
        outcome := 'not retained';
        detail := format('the state of output %s can''t be replayed from batch %s on: blocks of batch %s were cleaned '
                         'up, or given up', output_name, from_at, gone_time);
        RETURN NEXT;
        RETURN;
    END IF;
    -- As claim_replay, which decides it for each batch.
    SELECT t.batch_time INTO gone_time FROM batches t
    WHERE t.pipeline_id = pipeline AND t.batch_time > window_after AND t.batch_time < from_at
      AND t.records > (
          SELECT coalesce(sum(CASE WHEN lower(a.sequences) > r.low_mark THEN a.records ELSE (
                     SELECT sum(b.records) FROM blocks b
                     WHERE b.receiver_id = a.receiver_id AND b.sequence >= lower(a.sequences)
                       AND b.sequence < upper(a.sequences)) END), 0)
          FROM batch_allocations a
          JOIN receivers r ON r.id = a.receiver_id
          WHERE a.pipeline_id = pipeline AND a.batch_time = t.batch_time)
    ORDER BY t.batch_time LIMIT 1;
    IF gone_time IS NOT NULL
       OR window_after < from_at - interval '1 us' AND locked.history_from > window_after + interval '1 us' THEN
        outcome := 'not retained';
        detail := format('the state of output %s can''t be replayed from batch %s on: its window begins after %s, and %s '
                         'cleaned up', output_name, from_at, window_after,
                         CASE WHEN gone_time IS NULL THEN format('batches before %s were', locked.history_from)
                              ELSE format('blocks of batch %s were', gone_time) END);
        RETURN NEXT;
        RETURN;
    END IF;
    INSERT INTO state_replays (pipeline_id, output, from_time, to_time, old_attempt, base_batch_time, base_attempt)
    VALUES (pipeline, output_name, from_at, head.batch_time, head.attempt, base_time, base_number)
    RETURNING state_replays.id INTO begin_state_replay.id;
    outcome := 'begun';
    RETURN NEXT;
END
$$;
