-- open_segment: insert the row of a segment before its file is made, or return the row that is there (a lost answer).
--
-- Authority: only the login that holds the receiver may open a segment for it, and a path that names a receiver names
-- this one. The path of a row never changes. A path leads nowhere outside the block store.
-- Outcomes: 'open'; 'sealed' (salvage has dealt with the segment, so nothing would look for what is written now, or the
-- path belongs to another receiver or epoch); 'not held'.
-- Locks: the new row, or the one that is there.
CREATE FUNCTION forebay.open_segment(
    receiver bigint, under_epoch bigint, its_path text, its_source_rule text, its_store text, its_durability text)
RETURNS TABLE (outcome text, segment_id bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF its_path ~ '^/|(^|/)\.\.?(/|$)' OR its_path = ''
       OR substring(its_path FROM '^receiver-([0-9]+)/') <> receiver::text THEN
        RAISE EXCEPTION 'path % is no path of a segment of receiver %', quote_literal(its_path), receiver
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT holds_receiver(receiver) THEN
        outcome := 'not held';
        RETURN NEXT;
        RETURN;
    END IF;
    INSERT INTO log_segments AS g (receiver_id, epoch, path, source_rule, store, durability)
    VALUES (receiver, under_epoch, its_path, its_source_rule, its_store, its_durability)
    ON CONFLICT (path) DO UPDATE SET path = excluded.path
    WHERE g.state = 'OPEN' AND g.receiver_id = excluded.receiver_id AND g.epoch = excluded.epoch
    RETURNING g.id INTO segment_id;
    outcome := CASE WHEN FOUND THEN 'open' ELSE 'sealed' END;
    RETURN NEXT;
END
$$;
