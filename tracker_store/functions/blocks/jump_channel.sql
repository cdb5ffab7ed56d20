-- jump_channel: move a channel over offsets that no receiver has registered, and record them as a gap.
--
-- For salvage only, where the driver log has lost its last commits: the records of the gap were acknowledged, and are in
-- another receiver's files, which did not come in time. That receiver's salvage registers them although the channel is
-- behind them (`channel_gaps`), and closes the gap (`close_channel_gap`).
-- Returns false, and changes nothing, if the channel is not where the gap begins. A repeat after a lost answer returns
-- false, too: read the position again.
-- Locks: the channel's row.
CREATE FUNCTION forebay.jump_channel(
    receiver bigint, of_sender text, of_channel text, from_offset bigint, to_offset bigint)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
DECLARE
    stream bigint;
BEGIN
    SELECT r.stream_id INTO STRICT stream FROM receivers r WHERE r.id = receiver;
    IF NOT move_channels(receiver, ARRAY[of_sender], ARRAY[of_channel], ARRAY[from_offset], ARRAY[to_offset]) THEN
        RETURN false;
    END IF;
    UPDATE channels c SET gaps = c.gaps + int8multirange(int8range(from_offset, to_offset))
    WHERE c.stream_id = stream AND c.sender = of_sender AND c.channel = of_channel;
    RETURN true;
END
$$;
