-- end_processes: end processes at their own request, or because their parent saw them end; returns how many had not ended.
--
-- Authority: only processes that the session's login registered. One of another login on the same host is left to the
-- leader, which expires it by its heartbeat.
-- Locks: those processes' rows.
CREATE FUNCTION forebay.end_processes(process_ids bigint[], why text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
DECLARE
    ended bigint;
BEGIN
    UPDATE processes SET ended_at = clock_timestamp(), end_reason = why
    WHERE id = ANY (process_ids) AND ended_at IS NULL AND owns_process(id);
    GET DIAGNOSTICS ended = ROW_COUNT;
    RETURN ended;
END
$$;
