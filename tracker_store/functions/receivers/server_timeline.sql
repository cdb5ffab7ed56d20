-- server_timeline: return which server and timeline the session is on, as 'SYSTEM IDENTIFIER/TIMELINE'.
--
-- The timeline rises by one with each promotion and each restore to a point in time; another identifier is another
-- cluster. A claim keeps it, and a process whose heartbeat gets another one claims again, because the server may lack
-- commits that the claim's process was told of.
-- The timeline is the one that is written now: the control file names it only from the next checkpoint on.
-- Null on a standby, and where the provider lets no user look: then nothing is compared.
-- Locks: none. It reads the control file.
CREATE FUNCTION forebay.server_timeline()
RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT s.system_identifier FROM pg_control_system() AS s)
           || '/' || ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer;
EXCEPTION
    WHEN insufficient_privilege OR undefined_function THEN
        RETURN NULL;
END
$$;
