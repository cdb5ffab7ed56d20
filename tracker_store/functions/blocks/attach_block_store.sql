-- attach_block_store: a host that is to have receivers says which block store it sees, or learns which host sees
-- another.
--
-- Authority: a host's blocks are of use only if other hosts can read them. Two hosts share a block store if they have
-- at least one root in common, by the identity stored in it (see block_store/identity.py). A host whose agent lives, or
-- whose files the log still names, must share a root with each host that comes. A refused call writes nothing.
-- A host that comes back with a different store is not compared with its own past: its files may have been moved.
-- Locks: the table against other calls of this, so that of two hosts that come at once one sees the other.
CREATE FUNCTION forebay.attach_block_store(here text, root_ids text[], root_names text[])
RETURNS TABLE (refused_by text, its_roots text[], it_lives boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    LOCK TABLE block_stores IN SHARE ROW EXCLUSIVE MODE;
    SELECT s.host, s.names, s.lives INTO refused_by, its_roots, it_lives
    FROM (SELECT b.host, b.names, b.roots, EXISTS (
              SELECT FROM processes p
              WHERE p.kind = 'agent' AND p.ended_at IS NULL AND p.host = b.host AND p.slots > 0) AS lives
          FROM block_stores b WHERE b.host <> here AND NOT b.roots && root_ids) AS s
    WHERE s.lives OR EXISTS (
        SELECT FROM log_segments g WHERE string_to_array(g.store, ',') && s.roots)
    ORDER BY s.lives DESC, s.host LIMIT 1;
    IF FOUND THEN
        RETURN NEXT;
        RETURN;
    END IF;
    INSERT INTO block_stores AS b (host, roots, names) VALUES (here, root_ids, root_names)
    ON CONFLICT (host) DO UPDATE SET roots = excluded.roots, names = excluded.names, attached_at = clock_timestamp()
    WHERE (b.roots, b.names) IS DISTINCT FROM (excluded.roots, excluded.names);
END
$$;
