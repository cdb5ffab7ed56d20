-- check_ranges: refuse a range that overlaps with another one of the same pipeline and receiver, or is out of order.
--
-- Allocation begins where the cursor stands, so only a bug can make one that does. A pipeline's ranges of a receiver
-- follow each other in the order of batch times. So a new one is compared with its neighbours in time: the one before
-- has to end below it, the one after to begin above it. An index that excludes overlaps by itself would be as large as
-- the rest of the table.
-- Cost: a probe of the primary key for each row, near the last one: most receivers have a range in the pipeline's last
-- batch, too. Only if one has none, its last range is sought in batch_allocations_receiver; and ranges of later batches
-- are sought only if there is any.
-- Locks: the rows' pipelines FOR NO KEY UPDATE, by id, which allocation has already: a statement of another session
-- that would overlap is seen, or waits.
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
    WITH written AS MATERIALIZED (
        SELECT n.pipeline_id, n.batch_time,
               (SELECT a.batch_time FROM batch_allocations a
                WHERE a.pipeline_id = n.pipeline_id AND a.batch_time < n.batch_time
                ORDER BY a.batch_time DESC LIMIT 1) AS time_before,
               EXISTS (SELECT FROM batch_allocations a
                       WHERE a.pipeline_id = n.pipeline_id AND a.batch_time > n.batch_time) AS is_followed
        FROM (SELECT DISTINCT a.pipeline_id, a.batch_time FROM added a) AS n
    )
    SELECT n.receiver_id, n.batch_time, n.sequences, other.batch_time AS other_time, other.sequences AS other_sequences
    INTO double
    FROM added n
    JOIN written w ON w.pipeline_id = n.pipeline_id AND w.batch_time = n.batch_time
    LEFT JOIN LATERAL (
        SELECT a.batch_time, a.sequences FROM batch_allocations a
        WHERE a.pipeline_id = n.pipeline_id AND a.batch_time = w.time_before AND a.receiver_id = n.receiver_id
        OFFSET 0) AS near ON true
    LEFT JOIN LATERAL (
        SELECT a.batch_time, a.sequences FROM batch_allocations a
        WHERE near.sequences IS NULL AND w.time_before IS NOT NULL
          AND a.pipeline_id = n.pipeline_id AND a.receiver_id = n.receiver_id AND a.batch_time < n.batch_time
        ORDER BY a.batch_time DESC LIMIT 1) AS far ON true
    LEFT JOIN LATERAL (
        SELECT a.batch_time, a.sequences FROM batch_allocations a
        WHERE w.is_followed
          AND a.pipeline_id = n.pipeline_id AND a.receiver_id = n.receiver_id AND a.batch_time > n.batch_time
        ORDER BY a.batch_time LIMIT 1) AS after ON true
    CROSS JOIN LATERAL (
        SELECT near.batch_time, near.sequences WHERE upper(near.sequences) > lower(n.sequences)
        UNION ALL
        SELECT far.batch_time, far.sequences WHERE upper(far.sequences) > lower(n.sequences)
        UNION ALL
        SELECT after.batch_time, after.sequences WHERE lower(after.sequences) < upper(n.sequences)) AS other
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION
            'batch_allocations_no_overlap: range % of batch % of receiver % and % of batch % overlap or are out of order',
            double.sequences, double.batch_time, double.receiver_id, double.other_sequences, double.other_time
            USING ERRCODE = 'exclusion_violation', CONSTRAINT = 'batch_allocations_no_overlap';
    END IF;
    RETURN NULL;
END
$$;
