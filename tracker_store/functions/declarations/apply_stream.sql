-- apply_stream: write a stream as declared, and as many receivers as it declares; returns its id.
--
-- A changed declaration gives each of its receivers a new assignment. The process that holds the receiver stays named
-- in its row: it drains and signs off, and then the tracker starts the receiver with the new declaration. Receivers
-- beyond the new number are removed in the same way. Without a number (null) there is one receiver per host, which the
-- tracker adds. All of it is one transaction: a stream is never seen without its receivers, or with those of another
-- declaration.
-- An unchanged declaration changes nothing. With the name that the stream had before, it keeps its id, and so its
-- receivers, positions and blocks; but not if a stream has the new name already.
-- Locks: the stream's row, which orders two calls for one stream; then, if the declaration changed, its receivers' rows
-- by id: a claim or a placement that holds one is waited for, and each later statement sees what it did.
CREATE FUNCTION forebay.apply_stream(
    stream_name text, declared jsonb, kept interval, receiver_count integer, preferred text,
    renamed_from text DEFAULT NULL
)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    stream bigint;
    its_version bigint;
    is_renamed boolean;
    listens boolean := coalesce((declared ->> 'listens')::boolean, false);
BEGIN
    UPDATE streams s SET name = stream_name, version = s.version + 1, applied_at = clock_timestamp()
    WHERE s.name = renamed_from AND s.removed_at IS NULL
      AND NOT EXISTS (SELECT FROM streams o WHERE o.name = stream_name AND o.removed_at IS NULL);
    is_renamed := FOUND;
    INSERT INTO streams AS s (name, declaration, retention)
    VALUES (stream_name, declared, kept)
    ON CONFLICT (name) WHERE removed_at IS NULL DO UPDATE
    SET declaration = excluded.declaration, retention = excluded.retention, version = s.version + 1,
        applied_at = clock_timestamp()
    WHERE s.declaration IS DISTINCT FROM excluded.declaration
    RETURNING s.id, s.version INTO stream, its_version;
    IF NOT FOUND THEN
        -- The conflict has locked the row, so no other call changes the stream before this one has committed.
        SELECT s.id INTO stream FROM streams s WHERE s.name = stream_name AND s.removed_at IS NULL;
    END IF;
    IF its_version > 1 OR is_renamed THEN
        PERFORM 1 FROM receivers r WHERE r.stream_id = stream ORDER BY r.id FOR UPDATE;
        UPDATE receivers r
        SET state = 'INACTIVE', reason = 'declaration changed', since = clock_timestamp(),
            assignment = r.assignment + 1, agent_id = NULL,
            preferred_location = coalesce(preferred, r.preferred_location)
        WHERE r.stream_id = stream AND r.removed_at IS NULL;
    END IF;
    INSERT INTO receivers AS r (stream_id, ordinal, preferred_location)
    SELECT stream, n, preferred
    FROM generate_series(1, coalesce(receiver_count, 0)) AS n
    ON CONFLICT (stream_id, ordinal) DO UPDATE
    SET removed_at = NULL, host = CASE WHEN listens THEN r.host END
    WHERE r.removed_at IS NOT NULL OR r.host IS NOT NULL AND NOT listens;
    UPDATE receivers r
    SET removed_at = clock_timestamp(), state = 'INACTIVE', reason = 'removed from the declaration',
        since = clock_timestamp(), assignment = r.assignment + 1, agent_id = NULL
    WHERE r.stream_id = stream AND r.removed_at IS NULL
      AND CASE WHEN receiver_count IS NULL THEN r.host IS NULL ELSE r.ordinal > receiver_count END;
    RETURN stream;
END
$$;
