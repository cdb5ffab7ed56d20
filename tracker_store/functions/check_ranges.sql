-- check_ranges: refuse a range that overlaps with another one of the same pipeline and receiver.
--
-- Allocation begins where the cursor stands, so only a bug can make one that does. Two ranges with the same beginning are
-- refused by batch_allocations_chain, whichever session commits first; of others, each statement looks at the last one
-- that begins before the end of what it wrote: if that one has ended before, all earlier ones have, as they don't overlap
-- with it. An index that excludes overlaps by itself would be as large as the rest of the table.
-- Cost: a probe of that index for each row. It is sought close to the row first (4 times its length), and among all only
-- if there is none: an index that is read backwards takes all that fits from its page, also for one row.
-- Locks: the rows' pipelines FOR NO KEY UPDATE, by id, which allocation has already: a statement of another session that
-- would overlap is seen, or waits.
CREATE FUNCTION forebay.check_ranges()
RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    double record;
BEGIN
    PERFORM 1 FROM pipelines p WHERE p.id IN (SELECT n.pipeline_id FROM added n) ORDER BY p.id FOR NO KEY UPDATE;
    SELECT n.receiver_id, n.batch_time, n.sequences, coalesce(near.batch_time, far.batch_time) AS other_time,
           coalesce(near.sequences, far.sequences) AS other_sequences
    INTO double
    FROM added n
    LEFT JOIN LATERAL (
        SELECT a.batch_time, a.sequences FROM batch_allocations a
        WHERE a.pipeline_id = n.pipeline_id AND a.receiver_id = n.receiver_id
          AND lower(a.sequences) >= lower(n.sequences) - 4 * (upper(n.sequences) - lower(n.sequences))
          AND lower(a.sequences) < upper(n.sequences) AND lower(a.sequences) <> lower(n.sequences)
        ORDER BY lower(a.sequences) DESC LIMIT 1) AS near ON true
    LEFT JOIN LATERAL (
        SELECT a.batch_time, a.sequences FROM batch_allocations a
        WHERE near.sequences IS NULL AND a.pipeline_id = n.pipeline_id AND a.receiver_id = n.receiver_id
          AND lower(a.sequences) < lower(n.sequences)
        ORDER BY lower(a.sequences) DESC LIMIT 1) AS far ON true
    WHERE coalesce(near.sequences, far.sequences) && n.sequences
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'batch_allocations_no_overlap: range % of batch % of receiver % overlaps with range % of batch %',
            double.sequences, double.batch_time, double.receiver_id, double.other_sequences, double.other_time
            USING ERRCODE = 'exclusion_violation', CONSTRAINT = 'batch_allocations_no_overlap';
    END IF;
    RETURN NULL;
END
$$;
