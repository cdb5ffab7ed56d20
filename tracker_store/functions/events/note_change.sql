-- note_change: count a change of what the tracker looks at, in the sequence that the trigger names.
--
-- A sequence takes no lock that another transaction waits for, and is moved before the change is committed, or even if it
-- is undone: `read_changes` says how a reader allows for that. The triggers' conditions say what is a change.
-- Locks: none.
CREATE FUNCTION forebay.note_change()
RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    PERFORM nextval(TG_ARGV[0]::regclass);
    RETURN NULL;
END
$$;
