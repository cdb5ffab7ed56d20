-- lock_channels: lock the rows of channels, and make those that are missing, for a transaction that may move them.
--
-- A new row is at the position at which the channel is without its sender, from a time when the source had no tokens,
-- or else at 0: that is what channel_positions answers while there is no row.
-- It is part of the functions that call it, with their rights and settings: no role may call it.
-- One element of each array per channel; a channel may be there several times.
-- Locks: the channels' rows, by (stream, sender, channel): two calls with the same channels wait, and don't deadlock.
CREATE FUNCTION forebay.lock_channels(receiver_ids bigint[], senders text[], names text[])
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    -- A conflict with a row that another transaction is making waits for it, and makes none.
    INSERT INTO channels (stream_id, sender, channel, position, receiver_id)
    SELECT wanted.stream_id, wanted.sender, wanted.channel, coalesce(unscoped.position, 0), wanted.receiver_id
    FROM (
        SELECT DISTINCT ON (r.stream_id, a.sender, a.channel) r.stream_id, a.sender, a.channel, a.receiver_id
        FROM unnest(receiver_ids, senders, names) AS a(receiver_id, sender, channel)
        JOIN receivers r ON r.id = a.receiver_id
        WHERE (SELECT true FROM channels c
               WHERE c.stream_id = r.stream_id AND c.sender = a.sender AND c.channel = a.channel) IS NOT TRUE
        ORDER BY r.stream_id, a.sender, a.channel) AS wanted
    LEFT JOIN channels unscoped
        ON unscoped.stream_id = wanted.stream_id AND unscoped.sender = '' AND unscoped.channel = wanted.channel
    ORDER BY wanted.stream_id, wanted.sender, wanted.channel
    ON CONFLICT (stream_id, sender, channel) DO NOTHING;

    PERFORM 1 FROM channels c
    JOIN (SELECT DISTINCT r.stream_id, a.sender, a.channel
          FROM unnest(receiver_ids, senders, names) AS a(receiver_id, sender, channel)
          JOIN receivers r ON r.id = a.receiver_id) AS wanted
        ON wanted.stream_id = c.stream_id AND wanted.sender = c.sender AND wanted.channel = c.channel
    ORDER BY c.stream_id, c.sender, c.channel
    FOR UPDATE OF c;
END
$$;
