-- clean_up_history: delete a pipeline's oldest batches that can no longer be asked for, at most max_rows of them.
--
-- A batch is deleted, with its ranges, inputs, attempts, commits and failures, when it is COMPLETED or DISCARDED, older
-- than `keep`, and so old that no window, replay or clean-up of blocks depends on it (the pipeline's retention, back
-- from the oldest unfinished batch). The newest always stays. A quarantined batch stays, with those of its window, until
-- it is replayed or discarded; so do those of a running replay's window, and a batch with a commit that readers do not see
-- yet; and those of an unfinished replay forward. From `history_from` on all batches are there. Versions of outputs' states
-- are not history: they go when nothing reads them (state_versions_to_delete), whether or not their batches are there.
-- A deleted batch can't come back: its time has passed (allocate_blocks_to_batch), and an attempt finds no batch.
-- Locks: the leader's row FOR SHARE, the pipeline's row, then the batches.
CREATE FUNCTION forebay.clean_up_history(of_term bigint, pipeline bigint, keep interval, max_rows bigint)
RETURNS TABLE (outcome text, batches bigint, more boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    locked pipelines;
    before timestamptz;
    goes_to timestamptz;
    looked_at bigint;
    gone timestamptz[];
BEGIN
    batches := 0;
    more := false;
    IF of_term IS NOT NULL AND NOT leads(of_term) THEN
        outcome := 'deposed';
        RETURN NEXT;
        RETURN;
    END IF;
    outcome := 'cleaned';
    SELECT * INTO locked FROM pipelines p WHERE p.id = pipeline FOR NO KEY UPDATE;
    before := CASE
        WHEN locked.removed_at < clock_timestamp() - keep THEN 'infinity'
        WHEN locked.removed_at IS NOT NULL THEN '-infinity'
        ELSE least(clock_timestamp() - greatest(keep, locked.retention), locked.last_batch_time - locked.retention,
                   (SELECT min(t.batch_time) FROM batches t
                    WHERE t.pipeline_id = pipeline AND t.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED'))
                   - locked.retention,
                   (SELECT min(s.from_time) FROM state_replays s
                    WHERE s.pipeline_id = pipeline AND s.state IN ('RUNNING', 'STOPPED', 'UNDOING'))
                   - locked.retention) END;
    SELECT max(o.batch_time), count(*) INTO goes_to, looked_at FROM (
        SELECT t.batch_time FROM batches t
        WHERE t.pipeline_id = pipeline AND t.batch_time < before
              AND t.batch_time >= coalesce(locked.history_from, '-infinity')
        ORDER BY t.batch_time LIMIT max_rows) AS o;
    goes_to := coalesce(goes_to, locked.history_from);
    IF goes_to IS NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT array_agg(o.batch_time) INTO gone FROM (
        SELECT t.batch_time FROM batches t
        WHERE t.pipeline_id = pipeline AND t.batch_time <= goes_to AND t.batch_time < before
              AND t.state IN ('COMPLETED', 'DISCARDED')
              -- A replay finds its window by these batches' ranges, and the blocks are kept for it.
              AND NOT EXISTS (SELECT FROM batches q WHERE q.pipeline_id = pipeline AND q.state = 'QUARANTINED'
                              AND locked.removed_at IS NULL AND q.batch_time > t.batch_time
                              AND q.batch_time < t.batch_time + locked.retention)
              -- Only this row says what must still be published.
              AND NOT EXISTS (SELECT FROM output_commits c WHERE c.pipeline_id = pipeline AND c.to_publish
                              AND locked.removed_at IS NULL AND c.batch_time = t.batch_time)
        ORDER BY t.batch_time LIMIT max_rows FOR UPDATE) AS o;
    -- A replay that began before the pipeline's row was locked is visible here: it held that row until then.
    SELECT array_agg(g.batch_time) INTO gone FROM unnest(gone) AS g(batch_time)
    WHERE NOT EXISTS (SELECT FROM batch_attempts a WHERE a.pipeline_id = pipeline AND a.state = 'RUNNING'
                      AND g.batch_time <= a.batch_time
                      AND g.batch_time > a.batch_time - greatest(a.reach, interval '1 us'));
    batches := coalesce(cardinality(gone), 0);
    more := looked_at = max_rows OR batches = max_rows;
    DELETE FROM output_commits c WHERE c.pipeline_id = pipeline AND c.batch_time = ANY (gone);
    DELETE FROM batch_inputs i WHERE i.pipeline_id = pipeline AND i.batch_time = ANY (gone);
    DELETE FROM output_failures f WHERE f.pipeline_id = pipeline AND f.batch_time = ANY (gone);
    DELETE FROM batch_allocations a WHERE a.pipeline_id = pipeline AND a.batch_time = ANY (gone);
    DELETE FROM batch_attempts a WHERE a.pipeline_id = pipeline AND a.batch_time = ANY (gone);
    DELETE FROM batches t WHERE t.pipeline_id = pipeline AND t.batch_time = ANY (gone);
    DELETE FROM state_replays s WHERE s.pipeline_id = pipeline AND s.to_time <= goes_to AND s.to_time < before
        AND s.state IN ('COMPLETED', 'UNDONE');
    IF looked_at > 0 THEN
        UPDATE pipelines SET history_from = goes_to + interval '1 us' WHERE id = pipeline;
    END IF;
    RETURN NEXT;
END
$$;
