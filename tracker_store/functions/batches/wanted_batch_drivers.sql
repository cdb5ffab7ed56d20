-- wanted_batch_drivers: return how many batch drivers a host's agent should run, of those that all pipelines want.
--
-- That is one that the pipelines share, plus the additional ones that the scaling schedule wants, if its decision is
-- applied. The hosts that have a driver of this host's code location share them evenly; of a remainder the first hosts
-- by name get one more each. A host without a driver gets one, so that several hosts that start at once don't each
-- start all.
-- Locks: none.
CREATE FUNCTION forebay.wanted_batch_drivers(on_host text)
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
