-- channel_positions: return the positions of many channels of a receiver's stream, in the order in which they are asked.
--
-- A channel that nothing was stored of is at 0. Of one with a sender and no row of its own it is the position that it has
-- without a sender: the source had no tokens then.
-- This answer acknowledges records to a sender, as "already added" does. A read-only transaction does not wait for a
-- synchronous standby, so something is written if a channel is found. A position may have moved a moment later: only
-- add_block decides.
-- Locks: none.
CREATE FUNCTION forebay.channel_positions(receiver bigint, senders text[], names text[])
RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    stream bigint;
    found_positions bigint[];
BEGIN
    SELECT r.stream_id INTO STRICT stream FROM receivers r WHERE r.id = receiver;
    -- No join: one planned while the table is almost empty would compare each with all, for hours.
    SELECT array_agg(coalesce(
        (SELECT c.position FROM channels c WHERE c.stream_id = stream AND c.sender = a.sender AND c.channel = a.channel),
        (SELECT c.position FROM channels c WHERE c.stream_id = stream AND c.sender = '' AND c.channel = a.channel),
        0) ORDER BY a.n)
    INTO found_positions
    FROM unnest(senders, names) WITH ORDINALITY AS a(sender, channel, n);
    IF 0 < ANY (found_positions) THEN
        PERFORM pg_logical_emit_message(true, 'forebay', 'channel positions');
    END IF;
    RETURN QUERY SELECT p.position FROM unnest(found_positions) WITH ORDINALITY AS p(position, n) ORDER BY p.n;
END
$$;
