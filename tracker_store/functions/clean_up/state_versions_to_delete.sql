-- state_versions_to_delete: mark versions of outputs' states that nothing can need again, and return at most max_rows of
-- them; their files are deleted next, then their rows. Marked ones that are left are returned again, in turns.
--
-- A version goes if no commit names it and its attempt, and the process that ran it, have ended `restore_window` ago: by
-- then its target has been asked for a commit of it. One that a commit named goes if it is more than `steps` versions
-- before each that may still be read: the head; what was the head `restore_window` ago (a driver log that is restored
-- from an older backup has that head); the first version that a batch which can still be replayed had read (the
-- pipeline's retention, as in clean_up_receiver); and the beginning of a replay forward that is unfinished, or can still
-- be undone. Steps are counted by ordinals: along a chain they follow each other.
-- The state of a removed pipeline goes `restore_window` after that. That of an output that is not declared any more, or
-- declared without a state, goes when it has not moved, and its pipeline was not applied, for `keep`: first the head,
-- with which its versions lose their commits, so no attempt can read what is being deleted.
-- Cost: a few probes for each head, and what is marked; versions that no commit names and that stay are of running
-- attempts, or young.
-- Locks: the leader's row FOR SHARE, then each head FOR UPDATE, which excludes commits and new replays of the output,
-- then the marked versions; what is locked already is left to the next call.
CREATE FUNCTION forebay.state_versions_to_delete(
    of_term bigint, restore_window interval, keep interval, steps integer, max_rows bigint)
RETURNS TABLE (
    outcome text, pipeline_id bigint, output text, batch_time timestamptz, attempt integer, folder text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    now_is timestamptz := clock_timestamp();
    candidate record;
    locked state_heads;
    owner pipelines;
    needed_from integer;    -- the least ordinal that is still read as a whole
    room bigint := max_rows;
    marked bigint;
BEGIN
    IF of_term IS NOT NULL AND NOT leads(of_term) THEN
        outcome := 'deposed';
        RETURN NEXT;
        RETURN;
    END IF;
    FOR candidate IN SELECT h.pipeline_id, h.output FROM state_heads h ORDER BY h.pipeline_id, h.output LOOP
        EXIT WHEN room <= 0;
        SELECT * INTO locked FROM state_heads h
        WHERE h.pipeline_id = candidate.pipeline_id AND h.output = candidate.output FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        SELECT * INTO owner FROM pipelines p WHERE p.id = locked.pipeline_id;
        IF owner.id IS NULL OR owner.removed_at < now_is - restore_window
           OR (owner.removed_at IS NULL AND greatest(locked.moved_at, owner.applied_at) < now_is - keep
               AND jsonb_typeof(owner.declaration #> ARRAY['outputs', locked.output, 'state'])
                   IS DISTINCT FROM 'object')
        THEN
            DELETE FROM state_heads h WHERE h.pipeline_id = locked.pipeline_id AND h.output = locked.output;
            DELETE FROM state_replays r WHERE r.pipeline_id = locked.pipeline_id AND r.output = locked.output;
            UPDATE state_versions v SET committed_at = NULL
            WHERE v.pipeline_id = locked.pipeline_id AND v.output = locked.output AND v.committed_at IS NOT NULL;
            CONTINUE;
        END IF;
        SELECT min(n.ordinal) INTO needed_from FROM (
            SELECT v.ordinal FROM state_versions v
            WHERE v.pipeline_id = locked.pipeline_id AND v.output = locked.output
              AND v.batch_time = locked.batch_time AND v.attempt = locked.attempt
            UNION ALL
            SELECT coalesce((
                SELECT v.ordinal FROM state_versions v
                WHERE v.pipeline_id = locked.pipeline_id AND v.output = locked.output
                  AND v.committed_at < now_is - restore_window
                ORDER BY v.committed_at DESC LIMIT 1), 0)
            UNION ALL
            (SELECT v.ordinal - 1 FROM state_versions v
             WHERE v.pipeline_id = locked.pipeline_id AND v.output = locked.output AND v.committed_at IS NOT NULL
               AND v.batch_time > least(
                       now_is - owner.retention, owner.last_batch_time - owner.retention,
                       (SELECT t.batch_time FROM batches t
                        WHERE t.pipeline_id = owner.id AND t.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
                        ORDER BY t.batch_time LIMIT 1) - owner.retention)
             ORDER BY v.batch_time LIMIT 1)
            UNION ALL
            SELECT coalesce(v.ordinal, 0)
            FROM state_replays r
            LEFT JOIN state_versions v ON v.pipeline_id = r.pipeline_id AND v.output = r.output
                 AND v.batch_time = r.base_batch_time AND v.attempt = r.base_attempt
            WHERE r.pipeline_id = locked.pipeline_id AND r.output = locked.output
              AND (r.state IN ('RUNNING', 'STOPPED', 'UNDOING')
                   OR r.state = 'COMPLETED' AND r.head_batch_time = locked.batch_time
                      AND r.head_attempt = locked.attempt)) AS n;
        UPDATE state_versions v SET deleting_at = now_is
        WHERE (v.pipeline_id, v.output, v.batch_time, v.attempt) IN (
            SELECT o.pipeline_id, o.output, o.batch_time, o.attempt FROM state_versions o
            WHERE o.pipeline_id = locked.pipeline_id AND o.output = locked.output
              AND o.ordinal <= needed_from - steps AND o.committed_at IS NOT NULL AND o.deleting_at IS NULL
            ORDER BY o.ordinal LIMIT room FOR UPDATE SKIP LOCKED);
        GET DIAGNOSTICS marked = ROW_COUNT;
        room := room - marked;
    END LOOP;
    UPDATE state_versions v SET deleting_at = now_is
    WHERE (v.pipeline_id, v.output, v.batch_time, v.attempt) IN (
        SELECT o.pipeline_id, o.output, o.batch_time, o.attempt FROM state_versions o
        LEFT JOIN LATERAL (
            SELECT a.state, a.ended_at, a.process_id FROM batch_attempts a
            WHERE a.pipeline_id = o.pipeline_id AND a.batch_time = o.batch_time AND a.attempt = o.attempt
            OFFSET 0) AS a ON true
        WHERE o.committed_at IS NULL AND o.deleting_at IS NULL AND o.created_at < now_is - restore_window
          AND (a.state IS NULL OR a.ended_at < now_is - restore_window)
          AND NOT EXISTS (SELECT FROM processes p WHERE p.id = a.process_id AND p.ended_at IS NULL OFFSET 0)
        ORDER BY o.created_at LIMIT greatest(room, 0) FOR UPDATE OF o SKIP LOCKED);
    -- The longest ago first: one that can't be deleted does not hold up the others.
    RETURN QUERY
    UPDATE state_versions v SET deleting_at = clock_timestamp()
    WHERE (v.pipeline_id, v.output, v.batch_time, v.attempt) IN (
        SELECT o.pipeline_id, o.output, o.batch_time, o.attempt FROM state_versions o
        WHERE o.deleting_at IS NOT NULL
        ORDER BY o.deleting_at LIMIT max_rows FOR UPDATE SKIP LOCKED)
    RETURNING 'marked', v.pipeline_id, v.output, v.batch_time, v.attempt, v.folder;
END
$$;
