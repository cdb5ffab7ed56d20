-- attach_reader: create a named reader of a stream, or find it (docs/how-to/streaming-queries.md).
--
-- A reader has cursors like a pipeline: clean-up keeps what it has not read. A new one begins with the earliest
-- retained block, after the latest, or at `positions` ({receiver: next sequence}, from a query that has a checkpoint
-- and whose reader was removed): refused if clean-up has passed one of them. An existing reader keeps its cursors,
-- whatever is asked for. A receiver that comes later is read from its first block.
-- Locks: the stream's receivers FOR SHARE, in the order of their ids, so that clean-up and this call see each other;
-- low marks and newest rows are read in the next statements.
CREATE FUNCTION forebay.attach_reader(reader_name text, stream_name text, start text, positions jsonb DEFAULT NULL)
RETURNS TABLE (outcome text, detail text, reader_id bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    stream streams;
    reader readers;
    lost bigint;
BEGIN
    SELECT * INTO stream FROM streams s WHERE s.name = stream_name AND s.removed_at IS NULL;
    IF NOT FOUND THEN
        outcome := 'no stream';
        detail := format('stream %L is not in the driver log', stream_name);
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM 1 FROM receivers r WHERE r.stream_id = stream.id ORDER BY r.id FOR SHARE;
    SELECT * INTO reader FROM readers d WHERE d.name = reader_name AND d.removed_at IS NULL;
    IF NOT FOUND THEN
        -- A receiver that the checkpoint does not know came after it, and is read from its first block.
        SELECT r.id INTO lost FROM receivers r
        WHERE positions IS NOT NULL AND r.stream_id = stream.id
          AND coalesce((positions ->> r.id::text)::bigint, 1) <= r.low_mark LIMIT 1;
        IF FOUND THEN
            outcome := 'cleaned';
            detail := format('reader %L of stream %L: blocks of receiver %s that it has not read are cleaned up',
                             reader_name, stream_name, lost);
            RETURN NEXT;
            RETURN;
        END IF;
        INSERT INTO readers AS d (name, stream_id) VALUES (reader_name, stream.id)
        ON CONFLICT (name) WHERE removed_at IS NULL DO NOTHING RETURNING * INTO reader;
        IF FOUND THEN
            INSERT INTO cursors (consumer_id, receiver_id, next_sequence)
            SELECT reader.id, r.id,
                   coalesce((positions ->> r.id::text)::bigint,
                            CASE WHEN start = 'latest' AND positions IS NULL
                                 THEN coalesce(newest.sequence, 0) + 1 ELSE r.low_mark + 1 END)
            FROM receivers r
            LEFT JOIN LATERAL (SELECT b.sequence FROM blocks b WHERE b.receiver_id = r.id
                               ORDER BY b.sequence DESC LIMIT 1) AS newest ON true
            WHERE r.stream_id = stream.id;
        ELSE
            SELECT * INTO reader FROM readers d WHERE d.name = reader_name AND d.removed_at IS NULL;
        END IF;
    END IF;
    IF reader.stream_id IS DISTINCT FROM stream.id THEN
        outcome := 'other stream';
        detail := format('reader %L reads another stream than %L', reader_name, stream_name);
    ELSE
        outcome := 'attached';
        reader_id := reader.id;
    END IF;
    RETURN NEXT;
END
$$;
