-- schedule_receiver: the leader places one receiver on an agent; trackers of the version before call it.
--
-- `schedule_receivers` does it. Locks: as there.
CREATE FUNCTION forebay.schedule_receiver(
    of_term bigint, receiver bigint, agent bigint, why text, only_host text DEFAULT NULL)
RETURNS TABLE (outcome text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT s.outcome FROM schedule_receivers(
        of_term, ARRAY[receiver], ARRAY[agent], ARRAY[why], ARRAY[only_host]) AS s;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'not inactive'::text;
    END IF;
END
$$;
