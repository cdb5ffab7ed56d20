-- guard_row: hold the direct writes of a receiver's role to the rows that its login may write (called by triggers).
--
-- The functions have taken the place of these writes; receivers of the version before still send them. What a login
-- may not write stays as it is and is not an error, as if another process had been faster: such a receiver then takes
-- itself for fenced. The path of a segment never changes. The owner and the driver's role may write every row that
-- their rights let them.
-- Locks: none besides the row that is being written.
CREATE FUNCTION forebay.guard_row()
RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
DECLARE
    allowed boolean;
BEGIN
    IF pg_has_role(session_user, current_user, 'USAGE')
       OR coalesce(pg_has_role(session_user, to_regrole('forebay_driver')::oid, 'USAGE'), false) THEN
        RETURN NEW;
    END IF;
    IF TG_TABLE_NAME = 'processes' THEN
        allowed := owns_process(OLD.id);
    ELSIF TG_TABLE_NAME = 'receivers' THEN
        allowed := holds_receiver(OLD.id) AND (NEW.agent_id IS NULL OR NEW.agent_id = OLD.agent_id)
                   AND (NEW.process_id IS NULL OR NEW.process_id = OLD.process_id OR owns_process(NEW.process_id));
    ELSIF TG_OP = 'INSERT' THEN
        allowed := holds_receiver(NEW.receiver_id);
    ELSE
        allowed := holds_receiver(OLD.receiver_id) AND NEW.path = OLD.path AND OLD.state = 'OPEN';
    END IF;
    IF allowed THEN
        RETURN NEW;
    END IF;
    RAISE WARNING 'login % may not write this row of %: it belongs to processes of another login',
                  session_user, TG_TABLE_NAME;
    RETURN NULL;
END
$$;
