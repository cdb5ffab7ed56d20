-- close_channel_gap: note that offsets of a channel, or a part of them, are no gap any more: their block is registered.
--
-- Called after that block was registered: if the caller dies in between, the gap stays, and its file says that the block
-- was salvaged. A repeat changes nothing.
-- Locks: the channel's row.
CREATE FUNCTION forebay.close_channel_gap(
    receiver bigint, of_sender text, of_channel text, from_offset bigint, to_offset bigint)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
    UPDATE channels c SET gaps = c.gaps - int8multirange(int8range(from_offset, to_offset))
    FROM receivers r
    WHERE r.id = receiver AND c.stream_id = r.stream_id AND c.sender = of_sender AND c.channel = of_channel;
$$;
