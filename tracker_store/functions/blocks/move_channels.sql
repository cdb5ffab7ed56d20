-- move_channels: move channels on without a block, because all records of these moves became dead letters.
--
-- All or nothing: if a move does not begin where its channel is, none is made, and false is returned. A caller whose
-- answer was lost reads the positions: what is behind a position is stored, whoever moved it.
-- One move per channel.
-- Locks: the channels' rows, by (stream, sender, channel).
CREATE FUNCTION forebay.move_channels(receiver bigint, senders text[], names text[], froms bigint[], tos bigint[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    stream bigint;
BEGIN
    SELECT r.stream_id INTO STRICT stream FROM receivers r WHERE r.id = receiver;
    PERFORM lock_channels(array_fill(receiver, ARRAY[cardinality(names)]), senders, names);
    PERFORM 1 FROM unnest(senders, names, froms) AS a(sender, channel, from_offset)
    WHERE (SELECT c.position = a.from_offset FROM channels c
           WHERE c.stream_id = stream AND c.sender = a.sender AND c.channel = a.channel) IS NOT TRUE;
    IF FOUND THEN
        RETURN false;
    END IF;
    UPDATE channels c SET position = a.to_offset, receiver_id = receiver, moved_at = clock_timestamp()
    FROM unnest(senders, names, tos) AS a(sender, channel, to_offset)
    WHERE c.stream_id = stream AND c.sender = a.sender AND c.channel = a.channel;
    RETURN true;
END
$$;
