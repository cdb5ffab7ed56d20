-- wanted_batch_drivers: how many batch drivers all pipelines together want, for agents that run them.
--
-- The one that pipelines share, and what the scaling schedule wants beyond it for those where that takes effect.
-- Locks: none.
CREATE FUNCTION forebay.wanted_batch_drivers()
RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    RETURN (SELECT 1 + coalesce(sum(d.batch_drivers - 1), 0)::integer
            FROM scaling_decisions d JOIN pipelines p ON p.id = d.pipeline_id
            WHERE p.removed_at IS NULL AND d.applied);
END
$$;
