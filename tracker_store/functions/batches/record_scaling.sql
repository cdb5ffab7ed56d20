-- record_scaling: record what the scaling schedule decided for a pipeline, from how long its batches take.
--
-- One row per pipeline. Numbers that stay the same keep their `since`.
-- Locks: the pipeline's decision.
CREATE FUNCTION forebay.record_scaling(
    pipeline bigint, mean_ratio double precision, of_batches integer, want_executors integer, want_drivers integer,
    takes_effect boolean, why text)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    INSERT INTO scaling_decisions AS d (pipeline_id, ratio, batches, executors, batch_drivers, applied, reason)
    VALUES (pipeline, mean_ratio, of_batches, want_executors, want_drivers, takes_effect, why)
    ON CONFLICT (pipeline_id) DO UPDATE
    SET ratio = excluded.ratio, batches = excluded.batches, executors = excluded.executors,
        batch_drivers = excluded.batch_drivers, applied = excluded.applied, reason = excluded.reason,
        decided_at = clock_timestamp(),
        since = CASE WHEN (d.executors, d.batch_drivers, d.applied)
                          = (excluded.executors, excluded.batch_drivers, excluded.applied)
                     THEN d.since ELSE clock_timestamp() END;
END
$$;
