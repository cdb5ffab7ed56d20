-- seal_segments: record the final lengths of a receiver's segments. A process seals each that it wrote, and salvage seals
-- those of earlier epochs, all at once.
--
-- Authority: only the login that holds the receiver, and only segments of that receiver: of the epoch that the caller
-- has, or, in salvage, of earlier ones. They stay open for salvage if the driver log lacks `through`, the newest block
-- that the caller has added under its epoch from them (0: it has none): then the caller had an answer whose commit was
-- lost since. Markers are never cleaned up, so the newest row up to `through` has the epoch even if clean-up has
-- deleted the block.
-- A segment that is sealed already stays as it is, so repeating the call changes nothing.
-- A process that seals its own segment names the segment's blocks by codec (parallel arrays; empty: they are not counted):
-- they are added to the receiver's totals, once.
-- Outcomes: 'sealed'; 'fenced' (another epoch, or another login, has the receiver); 'lost' (the driver log lacks
-- `through`).
-- Locks: the segments' rows, by id; then the receiver's row of storage_totals, which only this receiver's process writes,
-- and clean-up. A row of `blocks` that is seen stays as it is, so none is locked.
CREATE FUNCTION forebay.seal_segments(
    receiver bigint, under_epoch bigint, is_salvage boolean, through bigint, segments bigint[], lengths bigint[],
    codecs text[] DEFAULT '{}', block_counts bigint[] DEFAULT '{}', byte_counts bigint[] DEFAULT '{}')
RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    newest blocks;
    epoch_there bigint;
BEGIN
    IF NOT holds_receiver(receiver) THEN
        RETURN 'fenced';
    END IF;
    IF through > 0 THEN
        SELECT * INTO newest FROM blocks b WHERE b.receiver_id = receiver ORDER BY b.sequence DESC LIMIT 1;
        SELECT b.epoch INTO epoch_there FROM blocks b
        WHERE b.receiver_id = receiver AND b.sequence <= through ORDER BY b.sequence DESC LIMIT 1;
        IF coalesce(newest.sequence, 0) < through OR epoch_there IS DISTINCT FROM under_epoch THEN
            RETURN CASE WHEN newest.epoch > under_epoch THEN 'fenced' ELSE 'lost' END;
        END IF;
    END IF;
    PERFORM 1 FROM log_segments g WHERE g.id = ANY (segments) ORDER BY g.id FOR UPDATE;
    UPDATE log_segments g
    SET state = 'SEALED', length = found.length, sealed_at = clock_timestamp(),
        uncompressed_bytes = CASE WHEN cardinality(codecs) > 0 THEN
            coalesce((SELECT sum(c.bytes) FROM unnest(codecs, byte_counts) AS c(codec, bytes)
                      WHERE c.codec = 'none'), 0) END
    FROM unnest(segments, lengths) AS found(id, length)
    WHERE g.id = found.id AND g.state = 'OPEN' AND g.receiver_id = receiver
      AND CASE WHEN is_salvage THEN g.epoch < under_epoch ELSE g.epoch = under_epoch END;
    IF NOT FOUND THEN
        RETURN 'sealed';
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
    WHERE t.receiver_id = receiver AND cardinality(codecs) > 0;
    RETURN 'sealed';
END
$$;
