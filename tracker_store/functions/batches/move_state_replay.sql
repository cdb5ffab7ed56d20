-- move_state_replay: stop a replay forward, resume it, begin to undo it, or end its undoing.
--
-- A stopped one holds back the output's new batches all the same: its results are those of two chains. A batch that runs
-- meanwhile may still commit, and may be the last. One that is undone gives each of its batches the former result again
-- (move_state_head), by a replay of each; batches that had none keep theirs, which the state then does not have.
-- A COMPLETED one can be undone as long as no later batch has read its chain. When its undoing ends, the head is where
-- it was when the replay began.
-- `process` is the one that asks on behalf of the run that it has; null: a person does. One that has lost the replay to
-- another moves nothing, and a person does not undo what a live process runs: it would compute the former results.
-- Locks: the output's head FOR UPDATE, which every commit of the output holds; the replay is read in the next statement.
CREATE FUNCTION forebay.move_state_replay(replay bigint, wanted text, process bigint DEFAULT NULL)
RETURNS TABLE (outcome text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    found_replay state_replays;
    head state_heads;
    old state_versions;
    left_to_undo timestamptz;
    discarded timestamptz;
    runner processes;           -- that lives
BEGIN
    SELECT * INTO found_replay FROM state_replays r WHERE r.id = replay;
    SELECT * INTO head FROM state_heads h
    WHERE h.pipeline_id = found_replay.pipeline_id AND h.output = found_replay.output FOR UPDATE;
    SELECT * INTO found_replay FROM state_replays r WHERE r.id = replay;
    IF found_replay.state = wanted THEN
        outcome := 'moved';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT min(v.batch_time), min(v.batch_time) FILTER (WHERE b.state = 'DISCARDED') INTO left_to_undo, discarded
    FROM state_versions v
    JOIN batches b ON b.pipeline_id = v.pipeline_id AND b.batch_time = v.batch_time
    JOIN output_commits c ON c.pipeline_id = v.pipeline_id AND c.output = v.output AND c.batch_time = v.batch_time
         AND c.state_attempt = v.attempt
    WHERE v.pipeline_id = found_replay.pipeline_id AND v.output = found_replay.output
      AND v.batch_time BETWEEN found_replay.from_time AND found_replay.head_batch_time
      AND v.replay_id = replay AND v.replaced_attempt IS NOT NULL;
    SELECT * INTO runner FROM processes p WHERE p.id = found_replay.process_id AND p.ended_at IS NULL;
    outcome := 'refused';
    detail := CASE
        WHEN found_replay.id IS NULL THEN format('there is no replay %s', replay)
        WHEN process <> found_replay.process_id
            THEN format('replay %s was taken over by process %s', replay, found_replay.process_id)
        WHEN wanted = 'UNDOING' AND found_replay.state = 'RUNNING' AND runner.id IS NOT NULL AND process IS NULL
            THEN format('replay %s is run by process %s on host %s: end that first', replay, runner.pid, runner.host)
        WHEN (found_replay.state, wanted) NOT IN (
                ('RUNNING', 'STOPPED'), ('STOPPED', 'RUNNING'), ('RUNNING', 'UNDOING'), ('STOPPED', 'UNDOING'),
                ('COMPLETED', 'UNDOING'), ('UNDOING', 'UNDONE'))
            THEN format('replay %s is %s', replay, found_replay.state)
        WHEN found_replay.state = 'COMPLETED' AND (head.batch_time, head.attempt)
                IS DISTINCT FROM (found_replay.head_batch_time, found_replay.head_attempt)
            THEN format('a later batch, %s, has read what replay %s made', head.batch_time, replay)
        WHEN found_replay.state = 'COMPLETED' AND EXISTS (
                SELECT FROM state_replays r
                WHERE r.pipeline_id = found_replay.pipeline_id AND r.output = found_replay.output
                  AND r.state IN ('RUNNING', 'STOPPED', 'UNDOING'))
            THEN format('another replay of output %s has begun', found_replay.output)
        WHEN wanted = 'UNDOING' AND discarded IS NOT NULL
            THEN format('batch %s was discarded since, and can''t run again', discarded)
        WHEN wanted = 'UNDONE' AND left_to_undo IS NOT NULL
            THEN format('batch %s has still the result of replay %s', left_to_undo, replay) END;
    IF detail IS NOT NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    UPDATE state_replays
    SET state = wanted, ended_at = CASE WHEN wanted = 'UNDONE' THEN clock_timestamp() END
    WHERE id = replay AND state IN ('RUNNING', 'STOPPED', 'UNDOING', 'COMPLETED');
    IF wanted = 'UNDONE' THEN
        UPDATE output_commits c SET state_attempt = NULL
        FROM state_versions v
        WHERE v.pipeline_id = found_replay.pipeline_id AND v.output = found_replay.output
          AND v.batch_time BETWEEN found_replay.from_time AND found_replay.head_batch_time AND v.replay_id = replay
          AND c.pipeline_id = v.pipeline_id AND c.output = v.output AND c.batch_time = v.batch_time
          AND c.state_attempt = v.attempt;
        UPDATE state_versions SET committed_at = NULL
        WHERE pipeline_id = found_replay.pipeline_id AND output = found_replay.output
          AND batch_time BETWEEN found_replay.from_time AND found_replay.head_batch_time AND replay_id = replay;
        IF (head.batch_time, head.attempt) = (found_replay.head_batch_time, found_replay.head_attempt) THEN
            SELECT * INTO old FROM state_versions v
            WHERE v.pipeline_id = found_replay.pipeline_id AND v.output = found_replay.output
              AND v.batch_time = found_replay.to_time AND v.attempt = found_replay.old_attempt;
            UPDATE state_heads
            SET batch_time = old.batch_time, attempt = old.attempt, schema_version = old.schema_version,
                schema = old.schema, buckets = old.buckets, generation = generation + 1, moved_at = clock_timestamp()
            WHERE pipeline_id = found_replay.pipeline_id AND output = found_replay.output;
        END IF;
    END IF;
    outcome := 'moved';
    detail := NULL;
    RETURN NEXT;
END
$$;
