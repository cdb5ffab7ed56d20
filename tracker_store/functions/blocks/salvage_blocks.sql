-- salvage_blocks: register blocks that an earlier process of a receiver stored in one segment and did not register.
--
-- Authority: the blocks go in under the new epoch exactly as any others do (see add_block), so a salvage whose receiver
-- was taken over meanwhile adds nothing. The same transaction records in the segment how far it is salvaged: the next
-- salvage continues from there, whatever clean-up has deleted since, and no frame is registered twice. The newest block
-- that came from the segment is recorded too: clean-up keeps the file until that block is gone, although its sequence
-- is not near those of the segment's own epoch.
-- A caller may trust "added" and "already added" for ever; a missing answer is resolved by sending the identical call
-- again.
-- Locks: the inserted rows' keys, the rows of moved channels, then the segment's row.
CREATE FUNCTION forebay.salvage_blocks(
    receiver bigint, under_epoch bigint, first_sequence bigint, segment bigint, salvaged_up_to bigint,
    -- One element per block, in the order of the file.
    record_counts bigint[], offsets bigint[], lengths bigint[], checksums bigint[],
    -- Moves of channels, as add_block takes them.
    move_blocks integer[] DEFAULT '{}', move_senders text[] DEFAULT '{}', move_channels text[] DEFAULT '{}',
    move_froms bigint[] DEFAULT '{}', move_tos bigint[] DEFAULT '{}')
RETURNS TABLE (outcome text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    many int := cardinality(offsets);
BEGIN
    SELECT a.outcome, a.detail INTO outcome, detail
    FROM add_block(
        array_fill(receiver, ARRAY[many]), array_fill(under_epoch, ARRAY[many]),
        ARRAY(SELECT first_sequence + n FROM generate_series(0, many - 1) AS n ORDER BY n),
        record_counts, lengths, array_fill(segment, ARRAY[many]), offsets, lengths, checksums,
        move_blocks => move_blocks, move_senders => move_senders, move_channels => move_channels,
        move_froms => move_froms, move_tos => move_tos) AS a;
    IF outcome IN ('added', 'already added') THEN
        UPDATE log_segments g
        SET salvaged_to = greatest(g.salvaged_to, salvaged_up_to),
            salvaged_sequence = greatest(g.salvaged_sequence, first_sequence + many - 1)
        WHERE g.id = segment AND g.receiver_id = receiver AND g.epoch < under_epoch;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'segment % is no segment of receiver % from before epoch %', segment, receiver, under_epoch
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    RETURN NEXT;
END
$$;
