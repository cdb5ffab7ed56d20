-- wanted_batch_drivers: how many batch drivers a host's agent should run, of those that all pipelines together want.
--
-- That is the one that pipelines share, and what the scaling schedule wants beyond it for those where that takes effect.
-- The hosts that have a driver of this host's code location share it evenly, the first by name one more where it does
-- not come out even. A host that has none yet is told of one, so that several that start at once don't each begin all.
-- Locks: none.
-- Agents of an older release name no host, and are told of one.
CREATE FUNCTION forebay.wanted_batch_drivers(on_host text DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    RETURN (
        WITH wanted AS (
            SELECT 1 + coalesce(sum(d.batch_drivers - 1), 0)::integer AS drivers
            FROM scaling_decisions d JOIN pipelines p ON p.id = d.pipeline_id
            WHERE p.removed_at IS NULL AND d.applied
        ), live AS (
            SELECT DISTINCT b.location, o.host
            FROM batch_drivers b JOIN processes o ON o.id = b.process_id WHERE o.ended_at IS NULL
        ), sharing AS (
            SELECT count(DISTINCT l.host)::integer AS hosts,
                   (count(DISTINCT l.host) FILTER (WHERE l.host < on_host))::integer AS before
            FROM live l WHERE l.location IN (SELECT own.location FROM live own WHERE own.host = on_host)
        )
        SELECT CASE WHEN s.hosts = 0 THEN 1
                    ELSE w.drivers / s.hosts + CASE WHEN s.before < w.drivers % s.hosts THEN 1 ELSE 0 END END
        FROM wanted w, sharing s);
END
$$;
