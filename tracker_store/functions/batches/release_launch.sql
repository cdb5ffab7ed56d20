-- release_launch: give back a launch that certainly made no run, so that another launcher need not wait for its lease.
--
-- Locks: the batch's row.
CREATE FUNCTION forebay.release_launch(pipeline bigint, at_time timestamptz, number integer, launcher text)
RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
    WITH released AS (
        UPDATE batches SET launch_attempt = NULL, launched_at = NULL, launched_by = NULL
        WHERE pipeline_id = pipeline AND batch_time = at_time AND launch_attempt = number AND launched_by = launcher
              AND state IN ('ALLOCATED', 'FAILED', 'BLOCKED') AND attempt = number - 1
        RETURNING 1)
    SELECT EXISTS (SELECT FROM released);
$$;
