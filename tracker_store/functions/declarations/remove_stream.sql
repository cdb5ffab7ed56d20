-- remove_stream: a person removes a stream: its receivers end, and clean-up takes its blocks as they age.
--
-- Refused while a live pipeline or a named reader reads it. If records wait that no pipeline has had in a batch, it is
-- refused too, unless `with_waiting`. Its receivers are removed as apply_stream removes those beyond a smaller number:
-- their processes drain and sign off. Blocks stay until the stream's retention is over. Applied again, it is a new
-- stream, whose receivers and source positions begin afresh.
-- Cost: two probes for each of its receivers, and their cursors.
-- Locks: the stream's row, which excludes apply_stream and add_host_receiver; then its receivers' rows by id, which
-- excludes claims, and a reader that is attached now. Who reads it, and what waits, are read in later statements.
CREATE FUNCTION forebay.remove_stream(stream_name text, with_waiting boolean)
RETURNS TABLE (outcome text, read_by text[], waiting_records bigint, receivers bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    stream bigint;
BEGIN
    SELECT s.id INTO stream FROM streams s WHERE s.name = stream_name AND s.removed_at IS NULL FOR UPDATE;
    IF NOT FOUND THEN
        outcome := 'unknown';
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM 1 FROM receivers r WHERE r.stream_id = stream ORDER BY r.id FOR UPDATE;
    SELECT array_agg(u.reads ORDER BY u.reads) INTO read_by
    FROM (
        SELECT 'pipeline ' || p.name FROM pipelines p WHERE p.removed_at IS NULL AND stream = ANY (p.stream_ids)
        UNION ALL
        SELECT 'reader ' || d.name FROM readers d WHERE d.removed_at IS NULL AND d.stream_id = stream
    ) AS u(reads);
    SELECT coalesce(sum(newest.total_records - first_row.total_records + first_row.records), 0)::bigint
    INTO waiting_records
    FROM receivers r
    CROSS JOIN LATERAL (
        SELECT coalesce(max(c.next_sequence), 1) AS sequence FROM cursors c JOIN pipelines p ON p.id = c.consumer_id
        WHERE c.receiver_id = r.id) AS next
    CROSS JOIN LATERAL (
        SELECT b.total_records, b.records FROM blocks b
        WHERE b.receiver_id = r.id AND b.sequence = greatest(next.sequence, r.low_mark + 1)) AS first_row
    CROSS JOIN LATERAL (
        SELECT b.total_records FROM blocks b
        WHERE b.receiver_id = r.id ORDER BY b.sequence DESC LIMIT 1) AS newest
    WHERE r.stream_id = stream;
    IF read_by IS NOT NULL THEN
        outcome := 'read';
    ELSIF waiting_records > 0 AND NOT with_waiting THEN
        outcome := 'waiting';
    ELSE
        UPDATE streams s SET removed_at = clock_timestamp() WHERE s.id = stream;
        UPDATE receivers r
        SET removed_at = clock_timestamp(), state = 'INACTIVE', reason = 'its stream was removed by an operator',
            since = clock_timestamp(), assignment = r.assignment + 1, agent_id = NULL
        WHERE r.stream_id = stream AND r.removed_at IS NULL;
        GET DIAGNOSTICS receivers = ROW_COUNT;
        DELETE FROM source_lag l WHERE l.stream_id = stream;
        outcome := 'removed';
    END IF;
    RETURN NEXT;
END
$$;
