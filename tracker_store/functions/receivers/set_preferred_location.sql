-- set_preferred_location: record the host that a receiver asks for (null: none), and whether it may read what only its
-- host has.
--
-- Authority: only the login that holds the receiver, or registered the agent to which it is offered.
-- Locks: the receiver's row, if one of them is new.
CREATE FUNCTION forebay.set_preferred_location(receiver bigint, on_host text, bound boolean)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    UPDATE receivers SET preferred_location = on_host, bound_to_host = bound
    WHERE id = receiver AND (preferred_location IS DISTINCT FROM on_host OR bound_to_host <> bound)
      AND (holds_receiver(receiver)
           OR EXISTS (SELECT FROM hand_overs h WHERE h.receiver_id = receiver AND owns_process(h.agent_id)));
    RETURN FOUND;
END
$$;
