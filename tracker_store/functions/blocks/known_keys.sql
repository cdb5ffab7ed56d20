-- known_keys: return those of many idempotency keys that a receiver's stream has received within its window.
--
-- This answer acknowledges records to a sender, as "already added" does. A read-only transaction does not wait for a
-- synchronous standby, so something is written if a key is found. A key that is not found here may be there a moment
-- later: only add_block decides.
-- Locks: none.
CREATE FUNCTION forebay.known_keys(receiver bigint, asked text[])
RETURNS SETOF text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    stream bigint;
BEGIN
    SELECT r.stream_id INTO STRICT stream FROM receivers r WHERE r.id = receiver;
    RETURN QUERY
    -- No join: one planned while the table is almost empty would compare each with all, for hours.
    SELECT a.key FROM unnest(asked) AS a(key)
    WHERE (SELECT true FROM record_keys k WHERE k.stream_id = stream AND k.key = a.key);
    IF FOUND THEN
        PERFORM pg_logical_emit_message(true, 'forebay', 'known keys');
    END IF;
END
$$;
