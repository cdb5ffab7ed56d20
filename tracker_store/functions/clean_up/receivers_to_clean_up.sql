-- receivers_to_clean_up: return which of the next `max_receivers` receivers clean-up must be called for now.
--
-- This is a look for the cleaner, which would otherwise call clean_up_receiver and ask for segments for each receiver
-- in each round. It decides nothing: those two decide again, under their locks. A receiver that is named needlessly
-- costs one call. Because their rules are repeated here, each receiver is also named once in `slices` looks, whatever
-- it has: those whose id has the remainder `slice`. So nothing that this look misses stays for ever.
-- `of_blocks`: the block after the low mark is not the newest row, and every live pipeline and reader of the stream is
-- done with it; or nothing reads the stream, and that block is older than the stream's retention; or a quarantined
-- batch released some. What a running replay needs, or a pipeline that no longer reads the stream, is not asked here:
-- a receiver whose blocks only these keep is named needlessly.
-- `of_segments`: one is marked already, or one is sealed for longer than `restore_window`, lies before the first
-- remaining block, and nothing holds it. Only the receiver's first `max_segments` are looked at: if all of
-- these are held (dead letters hold theirs for days), a free one behind them waits for the receiver's slice.
-- `last_id`: continue after it; null: there are no more receivers.
-- Cost: some probes of primary keys for each receiver, and each live pipeline once a call. An aggregate brings
-- receivers and what reads them together by stream: no plan turns it into a comparison of each receiver with each
-- pipeline.
-- Locks: none.
CREATE FUNCTION forebay.receivers_to_clean_up(
    threshold timestamptz, restore_window interval, after_id bigint, max_receivers bigint, max_segments bigint,
    slices bigint, slice bigint)
RETURNS TABLE (last_id bigint, of_blocks bigint[], of_segments bigint[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
-- Made while a receiver had few rows, a plan with bitmaps would read all of its rows to find the first.
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    now_is timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH page AS MATERIALIZED (
        SELECT r.id, r.stream_id, r.low_mark FROM receivers r WHERE r.id > after_id ORDER BY r.id LIMIT max_receivers
    ), live AS MATERIALIZED (
        -- As in clean_up_receiver: a batch up to `done_with` needs its blocks no more.
        SELECT p.id, p.stream_ids,
               least(threshold - interval '1 us', now_is - p.retention - interval '1 us',
                     p.last_batch_time - p.retention,
                     (SELECT t.batch_time FROM batches t
                      WHERE t.pipeline_id = p.id AND t.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
                      ORDER BY t.batch_time LIMIT 1) - greatest(p.retention, interval '1 us'),
                     (SELECT min(s.from_time) FROM state_replays s
                      WHERE s.pipeline_id = p.id AND s.state IN ('RUNNING', 'STOPPED', 'UNDOING'))
                     - greatest(p.retention, interval '1 us')) AS done_with
        FROM pipelines p WHERE p.removed_at IS NULL
        UNION ALL
        -- A reader needs nothing of what it has read.
        SELECT d.id, ARRAY[d.stream_id], NULL FROM readers d WHERE d.removed_at IS NULL
    ), streams_of_page AS MATERIALIZED (
        SELECT u.stream_id,
               array_agg(u.receiver_id) FILTER (WHERE u.receiver_id IS NOT NULL) AS receiver_ids,
               array_agg(u.low_mark) FILTER (WHERE u.receiver_id IS NOT NULL) AS low_marks,
               array_agg(u.consumer_id) FILTER (WHERE u.consumer_id IS NOT NULL) AS consumer_ids,
               array_agg(u.done_with) FILTER (WHERE u.consumer_id IS NOT NULL) AS done_with
        FROM (
            SELECT g.stream_id, g.id, g.low_mark, NULL::bigint, NULL::timestamptz FROM page g
            UNION ALL
            SELECT s.id, NULL, NULL, l.id, l.done_with
            FROM live l CROSS JOIN LATERAL unnest(l.stream_ids) AS s(id)
        ) AS u(stream_id, receiver_id, low_mark, consumer_id, done_with)
        GROUP BY u.stream_id
    ), looked AS MATERIALIZED (
        SELECT r.id,
               r.id % slices = slice
               OR EXISTS (SELECT FROM kept_ranges k
                          WHERE k.receiver_id = r.id AND k.released_at IS NOT NULL OFFSET 0)
               OR CASE
                   -- The newest row stays whatever its age.
                   WHEN newest.sequence IS NULL OR newest.sequence <= r.low_mark + 1 THEN false
                   WHEN s.consumer_ids IS NULL THEN EXISTS (
                       SELECT FROM blocks b JOIN streams t ON t.id = s.stream_id
                       WHERE b.receiver_id = r.id AND b.sequence = r.low_mark + 1
                         AND b.added_at < least(threshold, now_is - t.retention) OFFSET 0)
                   ELSE NOT EXISTS (
                       SELECT FROM unnest(s.consumer_ids, s.done_with) AS l(id, done_with)
                       LEFT JOIN LATERAL (
                           SELECT c.next_sequence FROM cursors c
                           WHERE c.consumer_id = l.id AND c.receiver_id = r.id OFFSET 0) AS c ON true
                       LEFT JOIN LATERAL (
                           SELECT lower(a.sequences) AS sequence FROM batch_allocations a
                           WHERE a.pipeline_id = l.id AND a.receiver_id = r.id AND a.batch_time > l.done_with
                             AND c.next_sequence > r.low_mark + 1
                           ORDER BY a.batch_time LIMIT 1) AS kept ON true
                       WHERE coalesce(c.next_sequence, 1) <= r.low_mark + 1 OR kept.sequence <= r.low_mark + 1)
                  END AS blocks,
               r.id % slices = slice
               OR EXISTS (SELECT FROM log_segments g WHERE g.receiver_id = r.id AND g.state = 'DELETING' OFFSET 0)
               OR EXISTS (
                   SELECT FROM (
                       SELECT g.id, g.state, g.sealed_at, g.epoch, g.salvaged_sequence, g.kept_blocks,
                              first_left.segment_id
                       FROM (
                           SELECT (SELECT b.segment_id FROM blocks b
                                   WHERE b.receiver_id = r.id AND b.sequence > r.low_mark AND b.segment_id IS NOT NULL
                                   ORDER BY b.sequence LIMIT 1)) AS first_left(segment_id)
                       CROSS JOIN LATERAL (
                           SELECT * FROM log_segments g
                           WHERE g.receiver_id = r.id AND g.id < coalesce(first_left.segment_id, 9223372036854775807)
                           ORDER BY g.id LIMIT max_segments) AS g
                       OFFSET 0) AS g
                   WHERE g.state = 'SEALED' AND g.kept_blocks = 0 AND g.sealed_at < now_is - restore_window
                     AND (g.segment_id IS NOT NULL OR g.epoch < newest.epoch)
                     AND (g.salvaged_sequence IS NULL OR g.salvaged_sequence <= r.low_mark)
                     AND NOT EXISTS (SELECT 1 FROM dead_letters d WHERE d.segment_id = g.id OFFSET 0)
               ) AS segments
        FROM streams_of_page s
        CROSS JOIN LATERAL unnest(s.receiver_ids, s.low_marks) AS r(id, low_mark)
        LEFT JOIN LATERAL (
            SELECT b.sequence, b.epoch FROM blocks b WHERE b.receiver_id = r.id
            ORDER BY b.sequence DESC LIMIT 1) AS newest ON true
    )
    SELECT (SELECT max(g.id) FROM page g HAVING count(*) = max_receivers),
           coalesce((SELECT array_agg(k.id ORDER BY k.id) FROM looked k WHERE k.blocks), '{}'),
           coalesce((SELECT array_agg(k.id ORDER BY k.id) FROM looked k WHERE k.segments), '{}');
END
$$;
