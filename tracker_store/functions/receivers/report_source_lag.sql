-- report_source_lag: record what sources have that a process's receivers have not read, as far as it has changed.
--
-- `reports`: an array of {"receiver", "whole", "gone": [{"source", "partition"}], "rows": [the columns of source_lag]}.
-- With `whole`, the first report under a claim, everything that the receiver said under an earlier one is forgotten,
-- and what removed receivers of its stream said. A partition that another receiver has taken over is that one's: `gone`
-- leaves it. Returns the receivers whose report is recorded: those that the process holds.
-- Only for display: the commit does not wait for the disk.
-- Cost: what has changed; with `whole`, the receiver's rows.
-- Authority: only the login that registered the process, and only for receivers that the process holds.
-- Locks: the written rows, of each receiver in the order of source and partition. It waits for a second at most: a
-- heartbeat comes after it on the same connection, and this is only for display.
CREATE FUNCTION forebay.report_source_lag(process bigint, reports jsonb)
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
SET lock_timeout = 1000
AS $$
DECLARE
    one record;
    stream bigint;
    recorded bigint[] := '{}';
BEGIN
    -- Until the end of this transaction.
    PERFORM set_config('synchronous_commit', 'off', true);
    IF NOT owns_process(process) THEN
        RETURN recorded;
    END IF;
    FOR one IN
        SELECT t.receiver, t.whole, t.gone, t.rows
        FROM jsonb_to_recordset(reports) AS t(receiver bigint, whole boolean, gone jsonb, rows jsonb)
        ORDER BY t.receiver
    LOOP
        SELECT r.stream_id INTO stream FROM receivers r
        WHERE r.id = one.receiver AND r.process_id = process AND r.removed_at IS NULL;
        CONTINUE WHEN NOT FOUND;
        IF one.whole THEN
            DELETE FROM source_lag l
            WHERE l.receiver_id IN (
                SELECT r.id FROM receivers r
                WHERE r.id = one.receiver OR (r.stream_id = stream AND r.removed_at IS NOT NULL));
        END IF;
        DELETE FROM source_lag l
        USING jsonb_to_recordset(one.gone) AS g(source text, partition text)
        WHERE l.stream_id = stream AND l.source = g.source AND l.partition = g.partition
          AND l.receiver_id = one.receiver;
        INSERT INTO source_lag AS l (stream_id, source, partition, receiver_id, unread, unit, source_position,
                                     oldest_at, redelivered)
        SELECT stream, n.source, n.partition, one.receiver, n.unread, n.unit, n.source_position,
               to_timestamp(n.oldest_at), n.redelivered
        FROM jsonb_to_recordset(one.rows) AS n(
            source text, partition text, unread bigint, unit text, source_position bigint, oldest_at double precision,
            redelivered bigint)
        ORDER BY n.source, n.partition
        ON CONFLICT (stream_id, source, partition) DO UPDATE
        SET receiver_id = excluded.receiver_id, unread = excluded.unread, unit = excluded.unit,
            source_position = excluded.source_position, oldest_at = excluded.oldest_at,
            redelivered = excluded.redelivered, reported_at = excluded.reported_at;
        recorded := recorded || one.receiver;
    END LOOP;
    RETURN recorded;
END
$$;
