-- register_schema: check whether a receiver with these columns may begin, and record them as a version; called once per
-- start.
--
-- A column keeps its type for as long as the stream lives, so that blocks of all versions can be read together: a new
-- column, or one left out, is fine; a column of another type is refused, and so is one that differs from an older one
-- only in case (to Spark they are the same). Nothing is fenced here: a version is a fact about the stream, and what a
-- replaced process registers, its earlier blocks had already.
-- Outcomes: 'known' (changes nothing, so the call may be repeated after a lost answer), 'registered', 'conflict' with
-- the columns and types in detail.
-- Locks: none if the version is known; else the stream's row, FOR NO KEY UPDATE, and the existing versions are read in
-- the next statement: two new versions come one after the other, and the second is compared with the first.
CREATE FUNCTION forebay.register_schema(receiver bigint, of_fingerprint text, of_columns jsonb)
RETURNS TABLE (outcome text, version integer, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    stream bigint;
    known integer;
    conflicts text;
BEGIN
    SELECT r.stream_id INTO STRICT stream FROM receivers r WHERE r.id = receiver;
    SELECT s.version INTO known FROM stream_schemas s WHERE s.stream_id = stream AND s.fingerprint = of_fingerprint;
    IF found THEN
        RETURN QUERY SELECT 'known', known, NULL::text;
        RETURN;
    END IF;
    PERFORM 1 FROM streams s WHERE s.id = stream FOR NO KEY UPDATE;
    SELECT s.version INTO known FROM stream_schemas s WHERE s.stream_id = stream AND s.fingerprint = of_fingerprint;
    IF found THEN
        RETURN QUERY SELECT 'known', known, NULL::text;
        RETURN;
    END IF;
    SELECT string_agg(format('column %s is %s, the stream has %s as %s since version %s',
                             to_json(mine.value ->> 0), mine.value ->> 1, to_json(theirs.name), theirs.type,
                             theirs.version), '; ' ORDER BY mine.ordinality)
    INTO conflicts
    FROM jsonb_array_elements(of_columns) WITH ORDINALITY AS mine (value, ordinality)
    JOIN (SELECT DISTINCT ON (lower(c.value ->> 0)) c.value ->> 0 AS name, c.value ->> 1 AS type, s.version
          FROM stream_schemas s CROSS JOIN jsonb_array_elements(s.columns) c
          WHERE s.stream_id = stream ORDER BY lower(c.value ->> 0), s.version) theirs
      ON lower(theirs.name) = lower(mine.value ->> 0)
    WHERE theirs.name <> mine.value ->> 0 OR theirs.type <> mine.value ->> 1;
    IF conflicts IS NOT NULL THEN
        RETURN QUERY SELECT 'conflict', NULL::integer, conflicts;
        RETURN;
    END IF;
    RETURN QUERY
    INSERT INTO stream_schemas AS s (stream_id, version, fingerprint, columns, receiver_id)
    SELECT stream, coalesce(max(o.version), 0) + 1, of_fingerprint, of_columns, receiver
    FROM stream_schemas o WHERE o.stream_id = stream
    RETURNING 'registered', s.version, NULL::text;
END
$$;
