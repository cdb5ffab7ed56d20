-- move_channels: move channels on without a block, because all records of these moves became dead letters.
--
-- All or nothing: if a move does not begin where its channel is, none is made, and false is returned. A caller whose
-- answer was lost reads the positions: what is behind a position is stored, whichever process moved it.
-- One move per channel.
-- Locks: the channels' rows, by (stream, sender, channel).
CREATE FUNCTION forebay.move_channels(receiver bigint, senders text[], names text[], froms bigint[], tos bigint[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    stream bigint;
BEGIN
    SELECT r.stream_id INTO STRICT stream FROM receivers r WHERE r.id = receiver;
    -- Lock the rows, and make those that are missing. No join: one planned while the table is almost empty would compare
    -- each with all, for hours. An update that is not made locks its row all the same; a row that another transaction is
    -- making is waited for, and locked. A new one is where the channel is without its sender.
    INSERT INTO channels AS c (stream_id, sender, channel, position, receiver_id)
    SELECT stream, a.sender, a.channel,
           coalesce((SELECT u.position FROM channels u
                     WHERE u.stream_id = stream AND u.sender = '' AND u.channel = a.channel), 0),
           receiver
    FROM unnest(senders, names) AS a(sender, channel)
    ORDER BY a.sender, a.channel
    ON CONFLICT (stream_id, sender, channel) DO UPDATE SET position = c.position WHERE false;
    PERFORM 1 FROM unnest(senders, names, froms) AS a(sender, channel, from_offset)
    WHERE (SELECT c.position = a.from_offset FROM channels c
           WHERE c.stream_id = stream AND c.sender = a.sender AND c.channel = a.channel) IS NOT TRUE;
    IF FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO channels (stream_id, sender, channel, position, receiver_id)
    SELECT stream, a.sender, a.channel, a.to_offset, receiver
    FROM unnest(senders, names, tos) AS a(sender, channel, to_offset)
    ON CONFLICT (stream_id, sender, channel) DO UPDATE
    SET position = excluded.position, receiver_id = excluded.receiver_id, moved_at = excluded.moved_at;
    RETURN true;
END
$$;
