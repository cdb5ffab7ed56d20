-- end_processes_of_pid: end what an operating-system process had registered; its parent saw it end.
--
-- Authority: only processes that the session's login registered. One of another login on the same host is left to the
-- leader, which expires it by its heartbeat. Returns how many were still open.
-- Locks: those processes' rows.
CREATE FUNCTION forebay.end_processes_of_pid(on_hosts text[], of_pid integer, why text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
DECLARE
    ended bigint;
BEGIN
    UPDATE processes SET ended_at = clock_timestamp(), end_reason = why
    WHERE host = ANY (on_hosts) AND pid = of_pid AND ended_at IS NULL AND owns_process(id);
    GET DIAGNOSTICS ended = ROW_COUNT;
    RETURN ended;
END
$$;
