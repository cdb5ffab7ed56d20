-- start_at_latest: put a new pipeline's cursors after the newest block of each receiver of its streams.
--
-- Without this a pipeline begins with the earliest retained block. A receiver that has a cursor keeps it.
-- Locks: those receivers' rows FOR SHARE, in the order of their ids, so that clean-up and this call see each other; the
-- newest rows are read in the next statement.
CREATE FUNCTION forebay.start_at_latest(pipeline bigint)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    placed bigint;
BEGIN
    PERFORM 1 FROM receivers r JOIN pipelines p ON r.stream_id = ANY (p.stream_ids)
    WHERE p.id = pipeline ORDER BY r.id FOR SHARE OF r;
    INSERT INTO cursors (pipeline_id, receiver_id, next_sequence)
    SELECT pipeline, r.id, coalesce(newest.sequence, 0) + 1
    FROM pipelines p
    JOIN receivers r ON r.stream_id = ANY (p.stream_ids)
    LEFT JOIN LATERAL (SELECT b.sequence FROM blocks b WHERE b.receiver_id = r.id
                       ORDER BY b.sequence DESC LIMIT 1) AS newest ON true
    WHERE p.id = pipeline
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS placed = ROW_COUNT;
    RETURN placed;
END
$$;
