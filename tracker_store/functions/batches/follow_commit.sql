-- follow_commit: make an output's row say what its target has committed, by an attempt that has ended.
--
-- Authority: a transactional target's own commit decides; an attempt that died between that and its row (commit_output)
-- left the row behind. If the batch will be tried again, the next attempt does this; the function is for the rest:
-- replays that failed, and the last attempt of a batch that is quarantined or discarded. A commit never goes back to an
-- older attempt, and a running attempt writes its row itself.
-- Locks: the batch's row in the first statement, then the output's row.
CREATE FUNCTION forebay.follow_commit(
    pipeline bigint, at_time timestamptz, number integer, output_name text, result_location text, result_rows bigint)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
DECLARE
    batch batches;
BEGIN
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR UPDATE;
    IF batch.state IS NULL OR batch.state NOT IN ('COMPLETED', 'QUARANTINED', 'DISCARDED') THEN
        RETURN false;
    END IF;
    PERFORM 1 FROM batch_attempts a
    WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND a.attempt = number AND a.state <> 'RUNNING';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO output_commits AS c (pipeline_id, output, batch_time, attempt, location, rows)
    VALUES (pipeline, output_name, at_time, number, result_location, result_rows)
    ON CONFLICT (pipeline_id, output, batch_time) DO UPDATE
    SET attempt = excluded.attempt, location = excluded.location, rows = excluded.rows,
        committed_at = clock_timestamp()
    WHERE c.attempt < excluded.attempt;
    RETURN FOUND;
END
$$;
