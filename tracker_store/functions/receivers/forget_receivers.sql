-- forget_receivers: delete removed receivers that nothing can need or names any more, of `max_rows` after a given id.
--
-- First their sequence is closed: a marker of an epoch that no process owns, as a claim would insert it. So the block
-- before it is no longer the newest and is cleaned up like the others, and a process that comes back after days adds
-- nothing: its block would follow the marker, which is of another epoch. A receiver that is declared again is claimed as
-- ever, by a newer marker.
-- It is deleted when it was removed, and its sequence closed, `keep` ago: longer than any statement of a process of before
-- can stall (it would insert a block whose predecessor is gone). By then no block of it may be left, no segment, dead
-- letter or link, and no batch in history that has a range of it. With it go its markers, cursors and remaining events.
-- A later claim is refused, as no receiver has the assignment.
-- An origin is a fact about the partition, not about its reader, and stays for as long as nothing follows it: a mark, or
-- a partition that is empty. It is given to another receiver of the stream, and waits if there is none.
-- Locks: the leader's row FOR SHARE, then each receiver's row FOR UPDATE, which excludes a claim; what may go is read in
-- later statements. The row of who is given origins FOR KEY SHARE, so that it is not deleted meanwhile; then their links.
-- A receiver's row that is locked is left to the next call.
CREATE FUNCTION forebay.forget_receivers(of_term bigint, keep interval, after_id bigint, max_rows bigint)
RETURNS TABLE (outcome text, last_id bigint, closed bigint, forgotten bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    before timestamptz := clock_timestamp() - keep;
    candidate bigint;
    locked receivers;
    newest blocks;
    closing bigint;
    heir bigint;
BEGIN
    closed := 0;
    forgotten := 0;
    IF of_term IS NOT NULL AND NOT leads(of_term) THEN
        outcome := 'deposed';
        RETURN NEXT;
        RETURN;
    END IF;
    outcome := 'done';
    FOR candidate IN
        SELECT r.id FROM receivers r WHERE r.removed_at IS NOT NULL AND r.id > after_id ORDER BY r.id LIMIT max_rows
    LOOP
        last_id := candidate;
        SELECT * INTO locked FROM receivers r WHERE r.id = candidate FOR UPDATE SKIP LOCKED;
        -- Its process has an hour to register what it holds, and as long as it is alive.
        CONTINUE WHEN NOT FOUND OR locked.removed_at IS NULL OR locked.removed_at > clock_timestamp() - interval '1 hour'
            OR locked.state <> 'INACTIVE'
            OR EXISTS (SELECT FROM processes p WHERE p.id = locked.process_id AND p.ended_at IS NULL);
        SELECT * INTO newest FROM blocks b WHERE b.receiver_id = candidate ORDER BY b.sequence DESC LIMIT 1;
        IF FOUND AND newest.epoch IS DISTINCT FROM locked.closed_epoch THEN
            closing := greatest(newest.epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint);
            INSERT INTO blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes)
            VALUES (candidate, newest.sequence + 1, closing, greatest(newest.added_at, clock_timestamp()), 0, 0,
                    newest.total_records, newest.total_bytes)
            ON CONFLICT (receiver_id, sequence) DO NOTHING;
            IF FOUND THEN
                UPDATE receivers SET closed_epoch = closing WHERE id = candidate;
                closed := closed + 1;
            END IF;
            CONTINUE;
        END IF;
        IF EXISTS (SELECT FROM block_offsets o WHERE o.receiver_id = candidate AND o.kind = 'origin') THEN
            SELECT r.id INTO heir FROM receivers r
            WHERE r.stream_id = locked.stream_id AND r.removed_at IS NULL
            ORDER BY r.ordinal LIMIT 1 FOR KEY SHARE SKIP LOCKED;
            UPDATE block_offsets o SET receiver_id = heir
            FROM (SELECT m.stream_id, m.source, m.partition, m.generation, m.from_offset FROM block_offsets m
                  WHERE m.receiver_id = candidate AND m.kind = 'origin' AND m.sequence = 0 LIMIT max_rows) AS left_behind
            WHERE heir IS NOT NULL AND o.stream_id = left_behind.stream_id AND o.source = left_behind.source
              AND o.partition = left_behind.partition AND o.generation = left_behind.generation
              AND o.from_offset = left_behind.from_offset;
        END IF;
        CONTINUE WHEN locked.removed_at >= before OR newest.added_at >= before
            OR EXISTS (SELECT FROM blocks b WHERE b.receiver_id = candidate AND b.segment_id IS NOT NULL)
            OR EXISTS (SELECT FROM log_segments g WHERE g.receiver_id = candidate)
            OR EXISTS (SELECT FROM dead_letters d WHERE d.receiver_id = candidate)
            OR EXISTS (SELECT FROM block_offsets o WHERE o.receiver_id = candidate AND o.kind = 'origin')
            OR EXISTS (SELECT FROM block_offsets o WHERE o.receiver_id = candidate AND o.kind <> 'origin')
            OR EXISTS (SELECT FROM receiver_events v WHERE v.receiver_id = candidate AND v.at >= before)
            OR EXISTS (SELECT FROM cleanup_events c WHERE c.receiver_id = candidate AND c.at >= before)
            OR EXISTS (SELECT FROM pipelines p CROSS JOIN LATERAL (
                           SELECT FROM batch_allocations a
                           WHERE a.pipeline_id = p.id AND a.receiver_id = candidate LIMIT 1) AS named);
        DELETE FROM hand_overs h WHERE h.receiver_id = candidate;
        DELETE FROM cursors c WHERE c.receiver_id = candidate;
        DELETE FROM receiver_events v WHERE v.receiver_id = candidate;
        DELETE FROM cleanup_events c WHERE c.receiver_id = candidate;
        DELETE FROM blocks b WHERE b.receiver_id = candidate;
        DELETE FROM storage_totals t WHERE t.receiver_id = candidate;
        DELETE FROM receivers r WHERE r.id = candidate;
        forgotten := forgotten + 1;
    END LOOP;
    RETURN NEXT;
END
$$;
