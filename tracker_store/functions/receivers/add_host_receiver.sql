-- add_host_receiver: the leader gives a stream with one receiver per host its receiver on a host.
--
-- A receiver that was removed with its host comes back as it was: the same receiver, and the same sequence.
-- A stream that was removed meanwhile gets none.
-- Locks: the leader's row FOR SHARE first, so that only one process adds; then the stream's row FOR KEY SHARE, which
-- excludes its removal; then the receiver's row.
CREATE FUNCTION forebay.add_host_receiver(of_term bigint, stream bigint, on_host text)
RETURNS TABLE (outcome text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NOT leads(of_term) THEN
        outcome := 'deposed';
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM 1 FROM streams s WHERE s.id = stream AND s.removed_at IS NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        outcome := 'there';
        RETURN NEXT;
        RETURN;
    END IF;
    -- The shared locks of two leaders do not exclude each other, but only one of them has the term.
    UPDATE receivers SET removed_at = NULL WHERE stream_id = stream AND host = on_host;
    IF FOUND THEN
        outcome := 'there';
    ELSE
        INSERT INTO receivers (stream_id, ordinal, host)
        SELECT stream, coalesce(max(r.ordinal), 0) + 1, on_host FROM receivers r WHERE r.stream_id = stream;
        outcome := 'added';
    END IF;
    RETURN NEXT;
END
$$;
