-- clean_up_offsets: delete links of a stream's partitions whose blocks are gone, at most max_rows of them.
--
-- Each partition's newest link stays, whatever its age: it is the position. A receiver that lags keeps its own links and
-- no others: else the newest block of an idle receiver, which is never deleted, would keep every later link.
-- Cost: what is deleted, and one probe per partition: for the newest links, which stay below the low mark of an idle
-- receiver, and, in the last call, for the origins.
-- Locks: the deleted links.
CREATE FUNCTION forebay.clean_up_offsets(stream bigint, max_rows bigint)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    gone bigint;
    origins bigint;
BEGIN
    WITH old AS MATERIALIZED (
        -- By receiver and sequence up to the low mark: younger links are not read.
        SELECT link.* FROM receivers r
        CROSS JOIN LATERAL (
            SELECT o.source, o.partition, o.generation, o.from_offset FROM block_offsets o
            WHERE o.receiver_id = r.id AND o.sequence <= r.low_mark AND o.kind <> 'origin' AND o.stream_id = stream
              AND EXISTS (SELECT FROM block_offsets n
                          WHERE n.stream_id = stream AND n.source = o.source AND n.partition = o.partition
                            AND (n.generation, n.from_offset) > (o.generation, o.from_offset) OFFSET 0)
            ORDER BY o.sequence LIMIT max_rows) AS link
        WHERE r.stream_id = stream
        LIMIT max_rows
    )
    DELETE FROM block_offsets o USING old
    WHERE o.stream_id = stream AND o.source = old.source AND o.partition = old.partition
      AND o.generation = old.generation AND o.from_offset = old.from_offset;
    GET DIAGNOSTICS gone = ROW_COUNT;
    IF gone >= max_rows THEN
        RETURN gone;
    END IF;

    WITH RECURSIVE oldest (source, partition, generation, from_offset, kind, receiver_id, sequence) AS (
        -- One probe of the primary key per partition gives its oldest link, not a scan of its links.
        (SELECT o.source, o.partition, o.generation, o.from_offset, o.kind, o.receiver_id, o.sequence
         FROM block_offsets o WHERE o.stream_id = stream
         ORDER BY o.source, o.partition, o.generation, o.from_offset LIMIT 1)
        UNION ALL
        SELECT next_one.* FROM oldest p
        CROSS JOIN LATERAL (
            SELECT o.source, o.partition, o.generation, o.from_offset, o.kind, o.receiver_id, o.sequence
            FROM block_offsets o
            WHERE o.stream_id = stream AND (o.source, o.partition) > (p.source, p.partition)
            ORDER BY o.source, o.partition, o.generation, o.from_offset LIMIT 1) AS next_one
    ), old AS MATERIALIZED (
        SELECT p.source, p.partition, p.generation, p.from_offset FROM oldest p
        WHERE p.kind = 'origin'
          AND p.sequence <= (SELECT r.low_mark FROM receivers r WHERE r.id = p.receiver_id)
          AND EXISTS (SELECT FROM block_offsets n
                      WHERE n.stream_id = stream AND n.source = p.source AND n.partition = p.partition
                        AND (n.generation, n.from_offset) > (p.generation, p.from_offset) OFFSET 0)
        LIMIT max_rows - gone
    )
    DELETE FROM block_offsets o USING old
    WHERE o.stream_id = stream AND o.source = old.source AND o.partition = old.partition
      AND o.generation = old.generation AND o.from_offset = old.from_offset;
    GET DIAGNOSTICS origins = ROW_COUNT;
    RETURN gone + origins;
END
$$;
