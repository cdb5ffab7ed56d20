-- owns_process: tell whether the session's login registered a process, and may therefore end it or act in its name.
--
-- Authority: `processes.login` is the login of the session that registered the process; no role may write it.
-- The owner of the driver log owns every process.
-- Locks: none.
CREATE FUNCTION forebay.owns_process(process bigint)
RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    RETURN pg_has_role(session_user, current_user, 'USAGE') OR EXISTS (
        SELECT FROM processes p WHERE p.id = process AND p.login = session_user);
END
$$;
