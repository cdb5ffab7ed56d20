-- move_state_head: put the version of an output's state in force that a commit is about to name, if it may be.
--
-- commit_output alone calls it, under the lock of the batch's row; what may be put in force is said there. It also moves
-- the head of a replay forward, ends the replay with its last batch, and gives a batch its former version again while
-- the replay is undone. What the replay has committed in a target by then still gets its row, and is undone next.
-- Locks: the output's head FOR UPDATE in the first statement. Each function that changes a replay forward of the output
-- locks it too, so it is read in the next statement. If there is no head yet, the insert that makes it decides. Then
-- the versions of this batch.
CREATE FUNCTION forebay.move_state_head(
    pipeline bigint, at_time timestamptz, output_name text, number integer)
RETURNS TABLE (outcome text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    head state_heads;
    version state_versions;
    replaced state_versions;    -- the version that the batch's commit names now
    replay state_replays;
    restores boolean;           -- whether the batch gets the version again that the replay had replaced
    allowed boolean;
BEGIN
    SELECT * INTO head FROM state_heads h WHERE h.pipeline_id = pipeline AND h.output = output_name FOR UPDATE;
    SELECT * INTO replay FROM state_replays r
    WHERE r.pipeline_id = pipeline AND r.output = output_name AND r.state IN ('RUNNING', 'STOPPED', 'UNDOING');
    SELECT * INTO version FROM state_versions v
    WHERE v.pipeline_id = pipeline AND v.output = output_name AND v.batch_time = at_time AND v.attempt = number
    FOR UPDATE;
    SELECT v.* INTO replaced FROM output_commits c
    JOIN state_versions v ON v.pipeline_id = c.pipeline_id AND v.output = c.output AND v.batch_time = c.batch_time
         AND v.attempt = c.state_attempt
    WHERE c.pipeline_id = pipeline AND c.output = output_name AND c.batch_time = at_time;
    IF version.frames IS NULL OR version.deleting_at IS NOT NULL THEN
        outcome := 'no version';
        detail := format('the version of batch %s, attempt %s is %s', at_time, number,
                         CASE WHEN version.attempt IS NULL THEN 'not there'
                              WHEN version.deleting_at IS NULL THEN 'not whole' ELSE 'being deleted' END);
        RETURN NEXT;
        RETURN;
    END IF;

    restores := coalesce(
        replay.state = 'UNDOING' AND replaced.replay_id = replay.id AND replaced.replaced_attempt = number, false);
    IF restores THEN
        allowed := true;
    ELSIF replay.id IS NOT NULL THEN
        allowed := version.replay_id = replay.id AND version.committed_at IS NULL
            AND at_time BETWEEN replay.from_time AND replay.to_time
            AND (replay.head_batch_time IS NULL OR at_time > replay.head_batch_time)
            AND version.read_batch_time IS NOT DISTINCT FROM coalesce(replay.head_batch_time, replay.base_batch_time)
            AND version.read_attempt IS NOT DISTINCT FROM
                CASE WHEN replay.head_batch_time IS NULL THEN replay.base_attempt ELSE replay.head_attempt END;
    ELSIF version.replay_id IS NOT NULL THEN
        allowed := false;
    ELSE
        allowed := version.read_batch_time IS NOT DISTINCT FROM head.batch_time
                   AND version.read_attempt IS NOT DISTINCT FROM head.attempt
                   AND (head.batch_time IS NULL OR at_time > head.batch_time)
            OR head.batch_time = at_time AND head.attempt = replaced.attempt
               AND version.read_batch_time IS NOT DISTINCT FROM replaced.read_batch_time
               AND version.read_attempt IS NOT DISTINCT FROM replaced.read_attempt;
    END IF;
    IF allowed AND head.batch_time IS NULL THEN
        INSERT INTO state_heads (pipeline_id, output, batch_time, attempt, schema_version, schema, buckets)
        VALUES (pipeline, output_name, at_time, number, version.schema_version, version.schema, version.buckets)
        ON CONFLICT DO NOTHING;
        allowed := FOUND;
    END IF;
    IF allowed IS NOT TRUE THEN
        outcome := 'moved elsewhere';
        detail := CASE
            WHEN replay.id IS NOT NULL AND version.replay_id IS DISTINCT FROM replay.id
                THEN format('replay %s of the output is %s', replay.id, replay.state)
            ELSE format(
                'the version of batch %s, attempt %s read that of %s, and that of %s is in force', at_time, number,
                CASE WHEN version.read_batch_time IS NULL THEN 'no batch'
                     ELSE format('batch %s, attempt %s', version.read_batch_time, version.read_attempt) END,
                CASE WHEN replay.head_batch_time IS NOT NULL
                         THEN format('batch %s, attempt %s', replay.head_batch_time, replay.head_attempt)
                     WHEN replay.base_batch_time IS NOT NULL
                         THEN format('batch %s, attempt %s', replay.base_batch_time, replay.base_attempt)
                     WHEN replay.id IS NULL AND head.batch_time IS NOT NULL
                         THEN format('batch %s, attempt %s', head.batch_time, head.attempt)
                     ELSE 'another' END) END;
        RETURN NEXT;
        RETURN;
    END IF;

    UPDATE state_versions
    SET committed_at = CASE WHEN restores THEN committed_at ELSE clock_timestamp() END,
        replaced_attempt = CASE WHEN restores THEN replaced_attempt
                                WHEN replay.id IS NOT NULL THEN replaced.attempt END
    WHERE pipeline_id = pipeline AND output = output_name AND batch_time = at_time AND attempt = number;
    IF replay.id IS NULL OR restores THEN
        -- Nothing reads the version that was in its place.
        UPDATE state_versions SET committed_at = NULL
        WHERE pipeline_id = pipeline AND output = output_name AND batch_time = at_time AND attempt = replaced.attempt
          AND attempt <> number;
    ELSE
        UPDATE state_replays
        SET head_batch_time = at_time, head_attempt = number,
            state = CASE WHEN at_time = to_time AND state <> 'UNDOING' THEN 'COMPLETED' ELSE state END,
            ended_at = CASE WHEN at_time = to_time AND state <> 'UNDOING' THEN clock_timestamp() END
        WHERE id = replay.id AND state IN ('RUNNING', 'STOPPED', 'UNDOING');
    END IF;
    IF replay.id IS NULL OR replay.state <> 'UNDOING' AND at_time = replay.to_time THEN
        UPDATE state_heads
        SET batch_time = at_time, attempt = number, schema_version = version.schema_version, schema = version.schema,
            buckets = version.buckets, moved_at = clock_timestamp(),
            generation = generation + CASE WHEN replay.id IS NULL THEN 0 ELSE 1 END
        WHERE pipeline_id = pipeline AND output = output_name;
    END IF;
    outcome := 'moved';
    RETURN NEXT;
END
$$;
