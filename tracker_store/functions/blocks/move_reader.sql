-- move_reader: move a named reader's cursors to `positions` ({receiver: next sequence}), only forward.
--
-- What lies before them may be cleaned up from now on. A cursor that is already further stays: a query that continues
-- from an older checkpoint does not hold back what another has released. Returns false if the reader was removed.
-- Locks: the reader's row FOR SHARE (so it is not removed meanwhile), then its cursors.
CREATE FUNCTION forebay.move_reader(reader bigint, positions jsonb)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM 1 FROM readers d WHERE d.id = reader AND d.removed_at IS NULL FOR SHARE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO reader_cursors AS c (reader_id, receiver_id, next_sequence)
    SELECT reader, r.id, p.value::bigint
    FROM jsonb_each_text(positions) AS p
    JOIN readers d ON d.id = reader
    JOIN receivers r ON r.id = p.key::bigint AND r.stream_id = d.stream_id
    ORDER BY r.id
    ON CONFLICT (reader_id, receiver_id) DO UPDATE
    SET next_sequence = excluded.next_sequence, moved_at = clock_timestamp()
    WHERE c.next_sequence < excluded.next_sequence;
    RETURN true;
END
$$;
