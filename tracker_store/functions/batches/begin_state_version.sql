-- begin_state_version: insert the row of the version of an output's state that an attempt is about to write.
--
-- The row comes before the first file, so each file belongs to a row, and clean-up finds them by their rows. Until
-- its frames are noted, it can't be committed; until a commit names it, nothing reads it.
-- A run that was launched again under its own id begins the version of its attempt again. What the earlier launch noted
-- stays until this one notes its own: the target may have committed the result that belongs to it. It is forgotten if
-- it was made from another version, schema or number of buckets than those that are given now. A version that a commit
-- names is never changed.
-- A version that did not read what is in force is refused here, before it costs anything; but only commit_output,
-- under the head's lock, decides it.
-- With `replay`, the version continues the chain of this replay forward.
-- Locks: the batch's row FOR SHARE, so that the attempt does not end meanwhile; attempt, head and version are read in
-- later statements. Then the version's row.
CREATE FUNCTION forebay.begin_state_version(
    pipeline bigint, at_time timestamptz, number integer, output_name text, read_time timestamptz, read_number integer,
    schema_number integer, columns jsonb, bucket_count integer, in_folder text, replay bigint DEFAULT NULL)
RETURNS TABLE (outcome text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    batch batches;
    held batch_attempts;
    found_version state_versions;
    in_force state_versions;
    unfinished state_replays;
    number_in_chain integer := 1;
BEGIN
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR SHARE;
    SELECT * INTO held FROM batch_attempts a
    WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND a.attempt = number;
    IF (batch.state = 'RUNNING' AND batch.attempt = number
        OR held.kind = 'replay' AND held.state = 'RUNNING') IS NOT TRUE THEN
        outcome := 'superseded';
        detail := format('the batch is %s at attempt %s', coalesce(batch.state, 'not there'), batch.attempt);
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT * INTO found_version FROM state_versions v
    WHERE v.pipeline_id = pipeline AND v.output = output_name AND v.batch_time = at_time AND v.attempt = number;
    IF found_version.committed_at IS NOT NULL OR found_version.deleting_at IS NOT NULL THEN
        outcome := 'moved';
        detail := format('the version of batch %s, attempt %s is %s', at_time, number,
                         CASE WHEN found_version.deleting_at IS NULL THEN 'committed' ELSE 'being deleted' END);
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT * INTO unfinished FROM state_replays r
    WHERE r.pipeline_id = pipeline AND r.output = output_name AND r.state IN ('RUNNING', 'STOPPED', 'UNDOING');
    IF unfinished.id IS DISTINCT FROM replay OR unfinished.state = 'UNDOING' THEN
        outcome := 'moved';
        detail := CASE WHEN unfinished.id IS NULL THEN format('replay %s of the output is not running', replay)
                       ELSE format('replay %s of the output is %s', unfinished.id, unfinished.state) END;
        RETURN NEXT;
        RETURN;
    END IF;
    IF replay IS NULL THEN
        SELECT h.batch_time, h.attempt INTO in_force.batch_time, in_force.attempt
        FROM state_heads h WHERE h.pipeline_id = pipeline AND h.output = output_name;
    ELSE
        in_force.batch_time := coalesce(unfinished.head_batch_time, unfinished.base_batch_time);
        in_force.attempt := CASE WHEN unfinished.head_batch_time IS NULL THEN unfinished.base_attempt
                                 ELSE unfinished.head_attempt END;
    END IF;
    IF in_force.batch_time IS DISTINCT FROM read_time OR in_force.attempt IS DISTINCT FROM read_number
       OR at_time <= in_force.batch_time THEN
        outcome := 'moved';
        detail := format('batch %s read the version of %s, and that of %s is in force', at_time,
                         CASE WHEN read_time IS NULL THEN 'no batch'
                              ELSE format('batch %s, attempt %s', read_time, read_number) END,
                         CASE WHEN in_force.batch_time IS NULL THEN 'no batch'
                              ELSE format('batch %s, attempt %s', in_force.batch_time, in_force.attempt) END);
        RETURN NEXT;
        RETURN;
    END IF;
    IF read_time IS NOT NULL THEN
        SELECT v.ordinal + 1 INTO number_in_chain FROM state_versions v
        WHERE v.pipeline_id = pipeline AND v.output = output_name AND v.batch_time = read_time
          AND v.attempt = read_number AND v.deleting_at IS NULL;
        IF NOT FOUND THEN
            outcome := 'no version';
            detail := format('there is no version of batch %s, attempt %s', read_time, read_number);
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    INSERT INTO state_versions AS v (
        pipeline_id, output, batch_time, attempt, ordinal, read_batch_time, read_attempt, schema_version, schema,
        buckets, folder, replay_id)
    VALUES (pipeline, output_name, at_time, number, number_in_chain, read_time, read_number, schema_number, columns,
            bucket_count, in_folder, replay)
    ON CONFLICT (pipeline_id, output, batch_time, attempt) DO UPDATE
    SET ordinal = excluded.ordinal, read_batch_time = excluded.read_batch_time, read_attempt = excluded.read_attempt,
        schema_version = excluded.schema_version, schema = excluded.schema, buckets = excluded.buckets,
        folder = excluded.folder, replay_id = excluded.replay_id,
        frames = NULL, keys = NULL, changed = NULL, deleted = NULL, bytes = NULL, next_expiry = NULL,
        watermark = NULL, event_times = NULL, late = NULL, late_total = NULL
    WHERE (v.read_batch_time, v.read_attempt, v.schema_version, v.schema, v.buckets, v.folder, v.replay_id)
          IS DISTINCT FROM
          (excluded.read_batch_time, excluded.read_attempt, excluded.schema_version, excluded.schema,
           excluded.buckets, excluded.folder, excluded.replay_id);
    outcome := 'begun';
    RETURN NEXT;
END
$$;
