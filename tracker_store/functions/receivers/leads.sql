-- leads: return whether the tracker of this term leads; if so, it leads until the caller's transaction ends.
--
-- The first statement of the leader's functions: what they read after it is from a later snapshot, so a tracker that
-- waited here while another took over changes nothing.
-- Locks: the leader's row FOR SHARE.
CREATE FUNCTION forebay.leads(of_term bigint)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    PERFORM 1 FROM leadership l WHERE l.term = of_term FOR SHARE;
    RETURN FOUND;
END
$$;
