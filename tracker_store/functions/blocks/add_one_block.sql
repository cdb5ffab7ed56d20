-- add_one_block: add one block, with at most one link of a source position: the most frequent call, with the least
-- work.
--
-- Authority: as add_block, under the same conditions: the newest row of the receiver is its `predecessor`, the block's
-- segment has a row of this receiver, the primary key decides every race, and a link must begin exactly where its
-- partition's newest one ended. This function names only success. Every other case goes to add_block, which tries again
-- and names the outcome.
-- The arguments are plain numbers instead of arrays, and the only setting is search_path, because each of these would
-- cost a tenth of a call. Instead the caller's session has enable_seqscan and enable_bitmapscan off, for the plan that
-- it caches.
-- Locks: only the inserted rows' keys, blocks before block_offsets.
CREATE FUNCTION forebay.add_one_block(
    new_receiver_id bigint, new_epoch bigint, new_sequence bigint, record_count bigint, byte_count bigint,
    new_segment_id bigint, new_offset bigint, new_length bigint, checksum bigint,
    link_source text DEFAULT NULL, link_partition text DEFAULT NULL, link_generation integer DEFAULT NULL,
    link_from bigint DEFAULT NULL, link_to bigint DEFAULT NULL, link_kind text DEFAULT NULL,
    OUT outcome text, OUT detail text, OUT rate_limit double precision, OUT desired_state text, OUT assignment bigint)
RETURNS record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    stream bigint;
    newest_generation integer;
    newest_to bigint;
BEGIN
    SELECT r.rate_limit, r.desired_state, r.assignment, r.stream_id
    INTO rate_limit, desired_state, assignment, stream
    FROM receivers r WHERE r.id = new_receiver_id;

    IF link_source IS NOT NULL THEN
        SELECT o.generation, o.to_offset INTO newest_generation, newest_to FROM block_offsets o
        WHERE o.stream_id = stream AND o.source = link_source AND o.partition = link_partition
        ORDER BY o.generation DESC, o.from_offset DESC LIMIT 1;
    END IF;
    -- A block without records goes to add_block too, which refuses it.
    IF record_count > 0 AND (link_source IS NULL
       OR link_kind <> 'origin' AND link_generation = newest_generation AND link_from = newest_to) THEN
        INSERT INTO blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes,
                            segment_id, "offset", length, crc32c)
        SELECT p.receiver_id, p.sequence + 1, p.epoch, greatest(p.added_at, clock_timestamp()),
               record_count, byte_count, p.total_records + record_count, p.total_bytes + byte_count,
               new_segment_id, new_offset, new_length, checksum
        FROM predecessor(new_receiver_id, new_sequence, new_epoch) AS p
        WHERE EXISTS (SELECT FROM log_segments g
                      WHERE g.id = new_segment_id AND g.receiver_id = new_receiver_id AND g.epoch <= new_epoch)
        ON CONFLICT (receiver_id, sequence) DO NOTHING;
        IF FOUND THEN
            IF link_source IS NOT NULL THEN
                INSERT INTO block_offsets (stream_id, source, partition, generation, from_offset, to_offset, kind,
                                           receiver_id, sequence)
                VALUES (stream, link_source, link_partition, link_generation, link_from, link_to, link_kind,
                        new_receiver_id, new_sequence);
            END IF;
            outcome := 'added';
            RETURN;
        END IF;
    END IF;

    SELECT a.outcome, a.detail, a.rate_limit, a.desired_state, a.assignment
    INTO outcome, detail, rate_limit, desired_state, assignment
    FROM add_block(
        ARRAY[new_receiver_id], ARRAY[new_epoch], ARRAY[new_sequence], ARRAY[record_count], ARRAY[byte_count],
        ARRAY[new_segment_id], ARRAY[new_offset], ARRAY[new_length], ARRAY[checksum],
        CASE WHEN link_source IS NULL THEN '{}' ELSE ARRAY[1] END,
        CASE WHEN link_source IS NULL THEN '{}' ELSE ARRAY[link_source] END,
        CASE WHEN link_source IS NULL THEN '{}' ELSE ARRAY[link_partition] END,
        CASE WHEN link_source IS NULL THEN '{}' ELSE ARRAY[link_generation] END,
        CASE WHEN link_source IS NULL THEN '{}' ELSE ARRAY[link_from] END,
        CASE WHEN link_source IS NULL THEN '{}' ELSE ARRAY[link_to] END,
        CASE WHEN link_source IS NULL THEN '{}' ELSE ARRAY[link_kind] END) AS a;
END
$$;
