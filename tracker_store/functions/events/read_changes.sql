-- read_changes: return the counters of changes, and which transactions may not have shown theirs yet.
--
-- A counter moves before the change that moved it is committed. So a reader that sees it move looks at once, and looks
-- again until every transaction below `first_unstarted` has ended, which is when `oldest_open` has reached it.
-- The counters are read in one statement, the transactions in the next: one that moved a counter had begun by then.
-- Locks: none.
CREATE FUNCTION forebay.read_changes()
RETURNS TABLE (placement bigint, batches bigint, oldest_open bigint, first_unstarted bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    SELECT p.last_value, b.last_value INTO placement, batches FROM placement_changes p, batch_changes b;
    SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint INTO oldest_open, first_unstarted
    FROM pg_current_snapshot() AS s;
    RETURN NEXT;
END
$$;
