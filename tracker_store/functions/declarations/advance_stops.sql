-- advance_stops: the leader takes each stop and each start one step further; called every second until all are done.
--
-- Authority: if none of the pipelines that read a stream is RUNNING, the stream's receivers are desired stopped until
-- one of them runs again (also if all of them are removed); the desired state from before is kept. Those that
-- apply_pipeline has stopped, because nothing read their stream, go on with a named reader too. A STOPPING pipeline
-- becomes STOPPED when those receivers have ended in order (or can't, because their process is gone; then salvage is
-- the next start's), no block of theirs waits for a batch, and no batch is unfinished. Of a stream that other pipelines
-- go on reading, what came before the stop was requested must be in a batch; the rest waits behind the pipeline's
-- cursor.
-- Locks: the leader's row FOR SHARE first, then the pipelines that do not run, then the receivers that change, by id.
-- The locks on pipelines prevent allocation while the function checks whether anything waits; that check is a later
-- statement, whose snapshot is from after the wait.
CREATE FUNCTION forebay.advance_stops(of_term bigint)
RETURNS TABLE (outcome text, id bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    read bigint[];      -- streams that a RUNNING pipeline reads, or a named reader and no pipeline
    unread bigint[];    -- streams that are read, but by no RUNNING pipeline
BEGIN
    IF NOT leads(of_term) THEN
        outcome := 'deposed';
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM 1 FROM pipelines p WHERE p.state <> 'RUNNING' AND p.removed_at IS NULL ORDER BY p.id FOR NO KEY UPDATE;
    SELECT coalesce(array_agg(u.stream_id), '{}') INTO read FROM (
        SELECT unnest(p.stream_ids) AS stream_id FROM pipelines p
        WHERE p.removed_at IS NULL AND p.state = 'RUNNING'
        UNION
        SELECT d.stream_id FROM readers d
        WHERE d.removed_at IS NULL AND NOT EXISTS (
            SELECT FROM pipelines p WHERE p.removed_at IS NULL AND d.stream_id = ANY (p.stream_ids))) AS u;
    SELECT coalesce(array_agg(u.stream_id), '{}') INTO unread FROM (
        SELECT unnest(p.stream_ids) AS stream_id FROM pipelines p
        WHERE p.removed_at IS NULL AND p.state <> 'RUNNING') AS u
    WHERE u.stream_id <> ALL (read);

    PERFORM 1 FROM receivers r
    WHERE r.stream_id = ANY (unread) AND r.removed_at IS NULL AND r.desired_before_stop IS NULL
          OR r.desired_before_stop IS NOT NULL AND (r.stream_id = ANY (read) OR r.removed_at IS NOT NULL)
          OR r.desired_state = 'stopped' AND r.state = 'SCHEDULED'
    ORDER BY r.id FOR UPDATE;
    IF FOUND THEN
        RETURN QUERY
            UPDATE receivers r SET desired_before_stop = r.desired_state, desired_state = 'stopped'
            WHERE r.stream_id = ANY (unread) AND r.removed_at IS NULL AND r.desired_before_stop IS NULL
            RETURNING 'receiver stops', r.id;
        RETURN QUERY
            UPDATE receivers r SET desired_state = r.desired_before_stop, desired_before_stop = NULL
            WHERE r.desired_before_stop IS NOT NULL AND (r.stream_id = ANY (read) OR r.removed_at IS NOT NULL)
            RETURNING 'receiver goes on', r.id;
        -- No process has claimed it, or will under this assignment: so none reports that it ended. If it is being
        -- handed over, its row goes on naming the process that still drains.
        RETURN QUERY
            UPDATE receivers r SET state = 'INACTIVE', reason = 'stopped before it began', since = clock_timestamp(),
                                   agent_id = NULL, assignment = r.assignment + 1
            WHERE r.desired_state = 'stopped' AND r.state = 'SCHEDULED'
            RETURNING 'receiver ended', r.id;
    END IF;

    RETURN QUERY
        UPDATE pipelines p SET state = 'STOPPED', state_since = clock_timestamp()
        WHERE p.state = 'STOPPING' AND p.removed_at IS NULL
              AND NOT EXISTS (
                  SELECT FROM receivers r
                  WHERE r.stream_id = ANY (p.stream_ids) AND r.desired_before_stop IS NOT NULL AND (
                      r.state IN ('SCHEDULED', 'ACTIVE', 'PAUSED')
                      -- Taken from its agent, but still draining; counts for as long as a placement would wait.
                      OR r.since > clock_timestamp() - interval '20 seconds' AND EXISTS (
                          SELECT FROM processes o WHERE o.id = r.process_id AND o.ended_at IS NULL)))
              AND NOT EXISTS (
                  SELECT FROM stream_lag w
                  WHERE w.pipeline_id = p.id AND w.waiting_records > 0
                        AND (w.stream_id = ANY (unread) OR w.oldest_added_at < p.state_since))
              AND NOT EXISTS (
                  SELECT FROM batches b
                  WHERE b.pipeline_id = p.id AND b.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED'))
        RETURNING 'pipeline stopped', p.id;
END
$$;
