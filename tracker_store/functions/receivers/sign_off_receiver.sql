-- sign_off_receiver: a process holds nothing more of a receiver that has a newer assignment; others share the process.
--
-- Authority: only the login that registered the process. Locks: the receiver's row.
CREATE FUNCTION forebay.sign_off_receiver(receiver bigint, under_assignment bigint, process bigint)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    UPDATE receivers SET process_id = NULL
    WHERE id = receiver AND assignment > under_assignment AND process_id = process AND owns_process(process);
    RETURN FOUND;
END
$$;
