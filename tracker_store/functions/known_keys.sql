-- known_keys: which of many idempotency keys a receiver's stream has received within its window.
--
-- A sender is told that its records are stored by this answer, as by "already added": what only reads waits for no
-- synchronous standby, so that something is written where a key is found. What is not found here may be there a moment
-- later: add_block alone decides.
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
    -- No join: one that is planned while the table is near empty compares each with all, for hours.
    SELECT a.key FROM unnest(asked) AS a(key)
    WHERE (SELECT true FROM record_keys k WHERE k.stream_id = stream AND k.key = a.key);
    IF FOUND THEN
        PERFORM pg_logical_emit_message(true, 'forebay', 'known keys');
    END IF;
END
$$;
