-- note_state_version: write down which frames an attempt has stored for its version of an output's state.
--
-- Called when they all survive a loss of power. From here on a commit may name the version. A version that a commit
-- names is never changed; the same again is no change.
-- Of an output by event time also the watermark after the batch, how far each source is, and how many records were too
-- late. Views read how far the sources are, so what they could not read is refused here.
-- Locks: the batch's row FOR SHARE, so that the attempt does not end, and nothing is committed, meanwhile; attempt and
-- version are read in later statements. Then the version's row.
CREATE FUNCTION forebay.note_state_version(
    pipeline bigint, at_time timestamptz, number integer, output_name text, stored jsonb, key_count bigint,
    changed_count bigint, deleted_count bigint, stored_bytes bigint, expires_next timestamptz,
    watermark_after timestamptz DEFAULT NULL, sources jsonb DEFAULT NULL, late_count bigint DEFAULT NULL)
RETURNS TABLE (outcome text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    batch batches;
    held batch_attempts;
    version state_versions;
    late_before bigint;
BEGIN
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR SHARE;
    SELECT * INTO held FROM batch_attempts a
    WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND a.attempt = number;
    SELECT * INTO version FROM state_versions v
    WHERE v.pipeline_id = pipeline AND v.output = output_name AND v.batch_time = at_time AND v.attempt = number;
    IF version.frames = stored
       AND (version.watermark, version.event_times, version.late)
           IS NOT DISTINCT FROM (watermark_after, sources, late_count) THEN
        outcome := 'noted';
        RETURN NEXT;
        RETURN;
    END IF;
    IF (batch.state = 'RUNNING' AND batch.attempt = number
        OR held.kind = 'replay' AND held.state = 'RUNNING') IS NOT TRUE THEN
        outcome := 'superseded';
        detail := format('the batch is %s at attempt %s', coalesce(batch.state, 'not there'), batch.attempt);
        RETURN NEXT;
        RETURN;
    END IF;
    IF EXISTS (
        SELECT FROM jsonb_to_recordset(sources)
            AS s (stream text, source text, latest timestamptz, seen timestamptz, idle boolean)
        WHERE s.stream IS NULL OR s.seen IS NULL OR s.idle IS NULL OR NOT isfinite(s.latest)
    ) THEN
        RAISE EXCEPTION 'a source of output % has no stream, seen or idle, or no finite time: %', output_name, sources
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT v.late_total INTO late_before FROM state_versions v
    WHERE v.pipeline_id = pipeline AND v.output = output_name AND v.batch_time = version.read_batch_time
      AND v.attempt = version.read_attempt;
    UPDATE state_versions
    SET frames = stored, keys = key_count, changed = changed_count, deleted = deleted_count, bytes = stored_bytes,
        next_expiry = expires_next, watermark = watermark_after, event_times = sources, late = late_count,
        late_total = CASE WHEN coalesce(late_before, late_count) IS NOT NULL
                          THEN coalesce(late_before, 0) + coalesce(late_count, 0) END
    WHERE pipeline_id = pipeline AND output = output_name AND batch_time = at_time AND attempt = number
      AND committed_at IS NULL AND deleting_at IS NULL;
    IF NOT FOUND THEN
        outcome := 'no version';
        detail := format('the version of batch %s, attempt %s is %s', at_time, number,
                         CASE WHEN version.attempt IS NULL THEN 'not begun'
                              WHEN version.deleting_at IS NULL THEN 'committed' ELSE 'being deleted' END);
        RETURN NEXT;
        RETURN;
    END IF;
    outcome := 'noted';
    RETURN NEXT;
END
$$;
