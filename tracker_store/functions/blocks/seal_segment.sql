-- seal_segment: record the final length of a segment by the process that wrote it. Repeating it changes nothing.
--
-- Authority: only the login that holds the receiver may seal, and only a segment of the receiver and epoch that it
-- names (null: not compared). The segment stays open for salvage if the driver log lacks its newest block, `through`
-- (0: it has none): then the process had an answer whose commit was lost since. Markers are never cleaned up, so the
-- newest row up to `through` has the segment's epoch even if clean-up has deleted the block.
-- With the call that seals it, the segment's blocks by codec (parallel arrays; empty: they are not counted) are added
-- to the receiver's totals.
-- Returns whether it is sealed now by this call. Locks: the segment's row, then the receiver's row of
-- storage_totals, which only this receiver's process writes, and clean-up.
CREATE FUNCTION forebay.seal_segment(
    segment bigint, its_length bigint, through bigint, receiver bigint, under_epoch bigint,
    codecs text[] DEFAULT '{}', block_counts bigint[] DEFAULT '{}', byte_counts bigint[] DEFAULT '{}')
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    its_receiver bigint;
BEGIN
    UPDATE log_segments g
    SET state = 'SEALED', length = its_length, sealed_at = clock_timestamp(),
        uncompressed_bytes = CASE WHEN cardinality(codecs) > 0 THEN
            coalesce((SELECT sum(c.bytes) FROM unnest(codecs, byte_counts) AS c(codec, bytes)
                      WHERE c.codec = 'none'), 0) END
    WHERE g.id = segment AND g.state = 'OPEN'
      AND g.receiver_id = coalesce(receiver, g.receiver_id) AND g.epoch = coalesce(under_epoch, g.epoch)
      AND holds_receiver(g.receiver_id)
      AND (through = 0
           OR (SELECT b.sequence FROM blocks b
               WHERE b.receiver_id = g.receiver_id ORDER BY b.sequence DESC LIMIT 1) >= through
          AND (SELECT b.epoch FROM blocks b
               WHERE b.receiver_id = g.receiver_id AND b.sequence <= through
               ORDER BY b.sequence DESC LIMIT 1) = g.epoch)
    RETURNING g.receiver_id INTO its_receiver;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- The row is there: the triggers of log_segments have just written it.
    UPDATE storage_totals t
    SET lz4_blocks = t.lz4_blocks + s.lz4_blocks, lz4_bytes = t.lz4_bytes + s.lz4_bytes,
        zstd_blocks = t.zstd_blocks + s.zstd_blocks, zstd_bytes = t.zstd_bytes + s.zstd_bytes,
        none_blocks = t.none_blocks + s.none_blocks, none_bytes = t.none_bytes + s.none_bytes
    FROM (SELECT coalesce(sum(c.blocks) FILTER (WHERE c.codec = 'lz4'), 0) AS lz4_blocks,
                 coalesce(sum(c.bytes) FILTER (WHERE c.codec = 'lz4'), 0) AS lz4_bytes,
                 coalesce(sum(c.blocks) FILTER (WHERE c.codec = 'zstd'), 0) AS zstd_blocks,
                 coalesce(sum(c.bytes) FILTER (WHERE c.codec = 'zstd'), 0) AS zstd_bytes,
                 coalesce(sum(c.blocks) FILTER (WHERE c.codec = 'none'), 0) AS none_blocks,
                 coalesce(sum(c.bytes) FILTER (WHERE c.codec = 'none'), 0) AS none_bytes
          FROM unnest(codecs, block_counts, byte_counts) AS c(codec, blocks, bytes)) AS s
    WHERE t.receiver_id = its_receiver AND cardinality(codecs) > 0;
    RETURN true;
END
$$;
