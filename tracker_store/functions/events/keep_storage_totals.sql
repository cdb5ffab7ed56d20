-- keep_storage_totals: add what a statement changed in log_segments or dead_letters to their receivers' sums.
--
-- Triggers call it once per statement, so no statement of any version changes a row without its sum, and a look at the
-- sums costs O(receivers). It decides nothing, and nothing reads the sums but people.
-- No statement updates a dead letter, so there is no trigger for that. The sums by codec are `seal_segments`'s.
-- Locks: the receivers' rows of storage_totals, in the order of receivers, after the rows that the statement wrote. A
-- receiver's process writes for itself alone; only clean-up writes for several.
CREATE FUNCTION forebay.keep_storage_totals()
RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
DECLARE
    changed storage_totals[] := '{}';
BEGIN
    -- The rows of an event can be named only in the statements that run for it.
    IF TG_TABLE_NAME = 'dead_letters' AND TG_OP = 'INSERT' THEN
        changed := ARRAY(
            SELECT ROW(a.receiver_id, 0, 0, 0, sum(CASE WHEN a.part = 0 THEN a.letters ELSE 0 END), sum(a.bytes),
                       sum(a.dropped), 0, 0, 0, 0, 0, 0, 0)::storage_totals
            FROM added a GROUP BY a.receiver_id);
    ELSIF TG_TABLE_NAME = 'dead_letters' THEN
        changed := ARRAY(
            SELECT ROW(g.receiver_id, 0, 0, 0, -sum(CASE WHEN g.part = 0 THEN g.letters ELSE 0 END), -sum(g.bytes),
                       -sum(g.dropped), 0, 0, 0, 0, 0, 0, 0)::storage_totals
            FROM gone g GROUP BY g.receiver_id);
    ELSE
        IF TG_OP <> 'DELETE' THEN
            changed := ARRAY(
                SELECT ROW(a.receiver_id, count(*) FILTER (WHERE a.state = 'SEALED'),
                           count(*) FILTER (WHERE a.state = 'DELETING'), coalesce(sum(a.length), 0), 0, 0,
                           0, coalesce(sum(a.uncompressed_bytes), 0), 0, 0, 0, 0, 0, 0)::storage_totals
                FROM added a GROUP BY a.receiver_id);
        END IF;
        IF TG_OP <> 'INSERT' THEN
            changed := changed || ARRAY(
                SELECT ROW(g.receiver_id, -count(*) FILTER (WHERE g.state = 'SEALED'),
                           -count(*) FILTER (WHERE g.state = 'DELETING'), -coalesce(sum(g.length), 0), 0, 0,
                           0, -coalesce(sum(g.uncompressed_bytes), 0), 0, 0, 0, 0, 0, 0)::storage_totals
                FROM gone g GROUP BY g.receiver_id);
        END IF;
    END IF;
    INSERT INTO storage_totals AS t
    SELECT c.receiver_id, sum(c.sealed_segments), sum(c.deleting_segments), sum(c.segment_bytes), sum(c.dead_letters),
           sum(c.dead_letter_bytes), sum(c.dropped_dead_letters), sum(c.uncompressed_bytes)
    FROM unnest(changed) AS c
    GROUP BY c.receiver_id
    -- A segment that is opened, or marked as salvaged, changes no sum.
    HAVING (sum(c.sealed_segments), sum(c.deleting_segments), sum(c.segment_bytes), sum(c.dead_letters),
            sum(c.dead_letter_bytes), sum(c.dropped_dead_letters), sum(c.uncompressed_bytes)) <> (0, 0, 0, 0, 0, 0, 0)
    ORDER BY c.receiver_id
    ON CONFLICT (receiver_id) DO UPDATE SET
        sealed_segments = t.sealed_segments + excluded.sealed_segments,
        deleting_segments = t.deleting_segments + excluded.deleting_segments,
        segment_bytes = t.segment_bytes + excluded.segment_bytes,
        dead_letters = t.dead_letters + excluded.dead_letters,
        dead_letter_bytes = t.dead_letter_bytes + excluded.dead_letter_bytes,
        dropped_dead_letters = t.dropped_dead_letters + excluded.dropped_dead_letters,
        uncompressed_bytes = t.uncompressed_bytes + excluded.uncompressed_bytes;
    RETURN NULL;
END
$$;
