-- channel_gaps: return the gaps of many channels of a receiver's stream: offsets before the position that none registered.
--
-- `place` is that of the channel in the arrays, from 1. See `jump_channel`.
-- Locks: none.
CREATE FUNCTION forebay.channel_gaps(receiver bigint, senders text[], names text[])
RETURNS TABLE (place bigint, from_offset bigint, to_offset bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    stream bigint;
BEGIN
    SELECT r.stream_id INTO STRICT stream FROM receivers r WHERE r.id = receiver;
    -- No join: one planned while the table is almost empty would compare each with all, for hours.
    RETURN QUERY
    SELECT a.n, lower(g.gap), upper(g.gap)
    FROM unnest(senders, names) WITH ORDINALITY AS a(sender, channel, n)
    CROSS JOIN LATERAL unnest(
        (SELECT c.gaps FROM channels c WHERE c.stream_id = stream AND c.sender = a.sender AND c.channel = a.channel))
        AS g(gap)
    ORDER BY a.n, lower(g.gap);
END
$$;
