-- move_reader: move a named reader's cursors to `positions` ({receiver: next sequence}), only forward.
--
-- What lies before them may be cleaned up from now on. A cursor that is already further stays: a query that continues
-- from an older checkpoint does not hold back what another has released. Returns false if the reader was removed.
-- Locks: the reader's row (so it is not removed meanwhile), then its cursors.
CREATE FUNCTION forebay.move_reader(reader bigint, positions jsonb)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    stream bigint;
BEGIN
    UPDATE readers d SET moved_at = clock_timestamp()
    WHERE d.id = reader AND d.removed_at IS NULL
    RETURNING d.stream_id INTO stream;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO cursors AS c (consumer_id, receiver_id, next_sequence)
    SELECT reader, r.id, p.value::bigint
    FROM jsonb_each_text(positions) AS p
    JOIN receivers r ON r.id = p.key::bigint AND r.stream_id = stream
    ORDER BY r.id
    ON CONFLICT (consumer_id, receiver_id) DO UPDATE SET next_sequence = excluded.next_sequence
    WHERE c.next_sequence < excluded.next_sequence;
    RETURN true;
END
$$;
