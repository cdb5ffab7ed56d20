-- holds_receiver: tell whether the session's login may write for a receiver.
--
-- Authority: it may if it registered the agent where the receiver is placed, or the process that holds the receiver
-- (it may still drain after the receiver was placed elsewhere). With a login for each host, no host can write for the
-- receivers of another. The owner of the driver log may write for every receiver.
-- Locks: none. A caller that needs a lock on the receiver's row takes it first.
CREATE FUNCTION forebay.holds_receiver(receiver bigint)
RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    RETURN pg_has_role(session_user, current_user, 'USAGE') OR EXISTS (
        SELECT FROM receivers r JOIN processes p ON p.id IN (r.agent_id, r.process_id)
        WHERE r.id = receiver AND p.login = session_user);
END
$$;
