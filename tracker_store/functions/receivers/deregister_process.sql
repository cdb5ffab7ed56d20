-- deregister_process: end a process at its own request.
--
-- Authority: only the login that registered the process. Returns false if it had ended, or is another login's.
-- Locks: the process's row.
CREATE FUNCTION forebay.deregister_process(process bigint, why text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    UPDATE processes SET ended_at = clock_timestamp(), end_reason = why
    WHERE id = process AND ended_at IS NULL AND owns_process(id);
    RETURN FOUND;
END
$$;
