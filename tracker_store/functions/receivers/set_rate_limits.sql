-- set_rate_limits: the leader sets receivers' rates; each receiver learns its rate with its next block or heartbeat.
--
-- Locks: the leader's row FOR SHARE first, then those receivers' rows in the order of their ids.
CREATE FUNCTION forebay.set_rate_limits(
    -- One rate per receiver, in records per second; null removes the limit.
    of_term bigint, receivers bigint[], rates double precision[])
RETURNS TABLE (outcome text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NOT leads(of_term) THEN
        outcome := 'deposed';
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM 1 FROM forebay.receivers r WHERE r.id = ANY (receivers) ORDER BY r.id FOR NO KEY UPDATE;
    UPDATE forebay.receivers r SET rate_limit = rates[u.n]
    FROM unnest(receivers) WITH ORDINALITY AS u(id, n) WHERE r.id = u.id;
    outcome := 'set';
    RETURN NEXT;
END
$$;
