-- allocate_blocks_to_batch: allocate every block that was added before a batch's time to the batch, once
-- (docs/parity.md, T04).
--
-- Authority: what is decided for (pipeline, batch time) is decided for ever; a repeated call returns the stored batch.
-- The cut is by added_at, so it is the same however late the first call comes, with one exception: a block whose add
-- was uncommitted at that moment goes whole into the next batch.
-- The clock may be set back. Blocks whose time lies in the future were added before now, whatever the clock says: they
-- go with the batch that has all blocks before them. If the last batch time is more than an interval ahead, the next
-- boundary is due two intervals after the last allocation, so that batches go on and the clock catches up with them.
-- Cost: O(receivers · log waiting): the head of each receiver, and a binary search on the primary key only if the head
-- is past the cut. Each look-up is a LATERAL probe with OFFSET 0, which no plan turns into a join over all receivers or
-- all blocks: not a custom one, nor the generic one that a session has from its sixth call on. The head is sought from
-- the first waiting block on: an index that is read backwards takes all that fits from its page, also for one row.
-- Counts are differences of running totals, based on the range's first row (its predecessor may have been cleaned up).
-- An interval without records is a completed batch that needs no run, unless a window's content changed since its output
-- was last due: it got records, or lost some. So a window that lost its last content runs once more, and its output is
-- replaced by an empty one. That compares batches that are decided already, and so has one answer whenever it is asked;
-- `retention` keeps their ranges until then, and a batch of which a range is gone counts as a change.
-- It also runs if a key of an output's state expires by then, unless `run_empty_batches` is declared as false: a key whose
-- time is up is given in the first batch after it. Of an output that is not due, or has no state any more, nothing expires.
-- Of a pipeline with a calendar the caller says what the calendar decides, because only Python knows the rules of zones:
-- the boundary that is next, kept in the pipeline's row, so that hosts whose rules differ cut at the same instant; and
-- which slides end and where windows begin, kept in the batch's row, so that no later rules change a batch that is made.
-- Whatever times it says, a batch is after the last one and its time has come, so each block is in one batch.
-- Locks: the pipeline's row in the first statement; heads are read in a later one, whose snapshot is from after the
-- wait (in one statement, they gave a second sensor an empty batch and moved a cursor back).
CREATE FUNCTION forebay.allocate_blocks_to_batch(
    pipeline bigint, at_time timestamptz, oldest timestamptz,
    -- Cut each receiver's range at its share of these, but never before its first block with records.
    max_records bigint DEFAULT NULL, max_bytes bigint DEFAULT NULL,
    -- True: an interval without records is a batch that runs.
    run_empty boolean DEFAULT false,
    -- The windows for which it runs if their content changed: [{stream, length, slide}], the stream by its name, slide
    -- null if the output is computed in every batch. By a calendar: [{stream, due, before, start, before_start}]:
    -- whether its output is due now, when it was before (null: at the last batch time), and where its window began.
    windows jsonb DEFAULT NULL,
    -- The boundary after at_time; null: the pipeline has no calendar.
    next_boundary timestamptz DEFAULT NULL,
    -- What is kept with the batch (DecidedTimes).
    decided jsonb DEFAULT NULL)
RETURNS TABLE (outcome text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
-- A plan cached while the tables were almost empty would scan them for hours, or all that waits to find its newest row.
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    locked pipelines;
    now_is timestamptz;
    allocated record;
    runs boolean;
BEGIN
    SELECT * INTO locked FROM pipelines p WHERE p.id = pipeline AND p.removed_at IS NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        outcome := 'no pipeline';
        detail := format('pipeline %s is not there or was removed', pipeline);
        RETURN NEXT;
        RETURN;
    END IF;
    IF at_time <= locked.last_batch_time THEN
        IF EXISTS (SELECT 1 FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time) THEN
            outcome := 'decided before';
        ELSE
            outcome := 'passed';
            detail := format('batch time %s is not after the last, %s', at_time, locked.last_batch_time);
        END IF;
        RETURN NEXT;
        RETURN;
    END IF;
    IF locked.state = 'STOPPED' THEN
        outcome := 'stopped';
        detail := format('pipeline %s is stopped and makes no batch at %s', locked.name, at_time);
        RETURN NEXT;
        RETURN;
    END IF;
    now_is := clock_timestamp();
    IF at_time > now_is AND NOT (
        locked.last_batch_time > now_is + locked.batch_interval
        AND at_time = coalesce(locked.next_batch_time,
                               date_bin(locked.batch_interval, locked.last_batch_time, timestamptz 'epoch')
                               + locked.batch_interval)
        AND NOT EXISTS (SELECT 1 FROM batches b
                        WHERE b.pipeline_id = pipeline AND b.batch_time = locked.last_batch_time
                          AND b.allocated_at <= now_is AND b.allocated_at > now_is - 2 * locked.batch_interval)) THEN
        outcome := 'future';
        detail := format('batch time %s has not come yet by the database''s clock, %s', at_time, now_is);
        RETURN NEXT;
        RETURN;
    END IF;

    WITH RECURSIVE waiting AS MATERIALIZED (
        SELECT r.id AS receiver_id, c.row AS cursor_row, first_row.sequence AS next_sequence,
               first_row.added_at AS first_added_at,
               -- Not `now_is`: blocks that came between that reading of the clock and this snapshot count too.
               CASE WHEN first_row.added_at > clock_timestamp() THEN 'infinity' ELSE at_time END AS cut_time,
               first_row.total_records - first_row.records AS base_records,
               first_row.total_bytes - first_row.bytes AS base_bytes,
               head.sequence AS head, head.added_at AS head_added_at,
               head.total_records AS head_records, head.total_bytes AS head_bytes
        FROM receivers r
        LEFT JOIN LATERAL (
            SELECT u.ctid AS row, u.next_sequence FROM cursors u
            WHERE u.consumer_id = pipeline AND u.receiver_id = r.id OFFSET 0) AS c ON true
        CROSS JOIN LATERAL (SELECT greatest(coalesce(c.next_sequence, 1), r.low_mark + 1)) AS start (sequence)
        CROSS JOIN LATERAL (
            SELECT b.sequence, b.added_at, b.records, b.bytes, b.total_records, b.total_bytes FROM blocks b
            WHERE b.receiver_id = r.id AND b.sequence >= start.sequence ORDER BY b.sequence DESC LIMIT 1) AS head
        CROSS JOIN LATERAL (
            SELECT head.* WHERE head.sequence = start.sequence
            UNION ALL
            SELECT b.sequence, b.added_at, b.records, b.bytes, b.total_records, b.total_bytes FROM blocks b
            WHERE head.sequence > start.sequence AND b.receiver_id = r.id AND b.sequence = start.sequence) AS first_row
        WHERE r.stream_id = ANY (locked.stream_ids)
    ), share AS MATERIALIZED (
        SELECT max_records / greatest(1, count(*)) AS records, max_bytes / greatest(1, count(*)) AS bytes
        FROM waiting w WHERE w.first_added_at < w.cut_time
    ), heads AS MATERIALIZED (
        SELECT w.*, w.base_records + share.records AS records_limit, w.base_bytes + share.bytes AS bytes_limit,
               w.head_added_at < w.cut_time
               AND (share.records IS NULL OR w.head_records <= w.base_records + share.records)
               AND (share.bytes IS NULL OR w.head_bytes <= w.base_bytes + share.bytes) AS whole
        FROM waiting w CROSS JOIN share
    ), search (receiver_id, cursor_row, inside, outside, next_sequence, base_records, base_bytes, cut_time,
               records_limit, bytes_limit) AS (
        -- Everything up to `inside` is before the cut, everything above `outside` is not: halve what is between. Each
        -- step carries what the range needs: looking it up among the receivers would take a step per pair of them.
        SELECT h.receiver_id, h.cursor_row, h.next_sequence - 1, h.head - 1, h.next_sequence, h.base_records,
               h.base_bytes, h.cut_time, h.records_limit, h.bytes_limit
        FROM heads h WHERE NOT h.whole
        UNION ALL
        SELECT s.receiver_id, s.cursor_row, CASE WHEN probe.before_cut THEN middle.m ELSE s.inside END,
               CASE WHEN probe.before_cut THEN s.outside ELSE middle.m - 1 END, s.next_sequence, s.base_records,
               s.base_bytes, s.cut_time, s.records_limit, s.bytes_limit
        FROM search s
        CROSS JOIN LATERAL (SELECT s.inside + (s.outside - s.inside + 1) / 2) AS middle(m)
        CROSS JOIN LATERAL (
            SELECT b.added_at < s.cut_time AND (s.records_limit IS NULL OR b.total_records <= s.records_limit)
                   AND (s.bytes_limit IS NULL OR b.total_bytes <= s.bytes_limit) AS before_cut
            FROM blocks b
            WHERE b.receiver_id = s.receiver_id AND b.sequence = middle.m OFFSET 0) AS probe
        WHERE s.inside < s.outside
    ), cut AS MATERIALIZED (
        SELECT s.receiver_id, s.cursor_row, s.next_sequence, s.base_records, s.base_bytes, greatest(
                   s.inside,
                   -- At least one block with records, however small the limit (a marker is none).
                   CASE WHEN s.records_limit IS NOT NULL OR s.bytes_limit IS NOT NULL THEN (
                       SELECT b.sequence FROM (
                           SELECT f.sequence, f.added_at FROM blocks f
                           WHERE f.receiver_id = s.receiver_id AND f.sequence >= s.next_sequence AND f.records > 0
                           ORDER BY f.sequence LIMIT 1) AS b
                       WHERE b.added_at < s.cut_time) END) AS last_sequence
        FROM search s WHERE s.inside >= s.outside
    ), ranges AS MATERIALIZED (
        SELECT h.receiver_id, h.cursor_row, h.next_sequence, h.head AS last_sequence,
               h.head_records - h.base_records AS records, h.head_bytes - h.base_bytes AS bytes
        FROM heads h WHERE h.whole
        UNION ALL
        SELECT k.receiver_id, k.cursor_row, k.next_sequence, k.last_sequence,
               l.total_records - k.base_records, l.total_bytes - k.base_bytes
        FROM cut k
        CROSS JOIN LATERAL (
            SELECT b.total_records, b.total_bytes FROM blocks b
            WHERE b.receiver_id = k.receiver_id AND b.sequence = k.last_sequence OFFSET 0) AS l
        WHERE k.last_sequence >= k.next_sequence
    ), inserted AS (
        INSERT INTO batch_allocations (pipeline_id, batch_time, receiver_id, sequences, records, bytes)
        SELECT pipeline, at_time, g.receiver_id, int8range(g.next_sequence, g.last_sequence, '[]'), g.records, g.bytes
        FROM ranges g
    ), moved AS (
        -- By its row's place, as read above: no other session updates the cursors of a locked pipeline.
        UPDATE cursors c SET next_sequence = g.last_sequence + 1 FROM ranges g WHERE c.ctid = g.cursor_row
    ), begun AS (
        INSERT INTO cursors (consumer_id, receiver_id, next_sequence)
        SELECT pipeline, g.receiver_id, g.last_sequence + 1 FROM ranges g WHERE g.cursor_row IS NULL
        ON CONFLICT (consumer_id, receiver_id) DO UPDATE SET next_sequence = excluded.next_sequence
    )
    SELECT coalesce(sum(g.records), 0) AS records, coalesce(sum(g.bytes), 0) AS bytes,
           coalesce(sum(g.last_sequence - g.next_sequence + 1), 0) AS blocks
    INTO allocated FROM ranges g;

    runs := allocated.records > 0 OR run_empty;
    IF NOT runs AND windows IS NOT NULL THEN
        -- A window of this batch is (at_time - length, at_time]; the one before ends at `before.at`.
        SELECT EXISTS (
            SELECT
            FROM jsonb_to_recordset(windows) AS w (
                stream text, length interval, slide interval, due boolean, before timestamptz, start timestamptz,
                before_start timestamptz)
            JOIN streams s ON s.id = ANY (locked.stream_ids) AND s.name = w.stream
            CROSS JOIN LATERAL (SELECT coalesce(w.before, at_time - w.slide, locked.last_batch_time)) AS before (at)
            CROSS JOIN LATERAL (SELECT coalesce(w.start, at_time - w.length),
                                       coalesce(w.before_start, before.at - w.length)) AS began (now, before)
            WHERE coalesce(w.due, w.slide IS NULL OR date_bin(w.slide, at_time, timestamptz 'epoch') = at_time)
              AND (
                  -- Its output was due at a time that a merged batch skipped: what it has is not known.
                  (NOT EXISTS (SELECT FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = before.at)
                   AND (w.slide IS NOT NULL OR w.before IS NOT NULL)
                   AND (locked.history_from IS NOT NULL
                        OR EXISTS (SELECT FROM batches b
                                   WHERE b.pipeline_id = pipeline AND b.batch_time < before.at)))
                  -- It has no result, or not yet: it was quarantined or discarded, or is still running.
                  OR EXISTS (SELECT FROM batches b
                             WHERE b.pipeline_id = pipeline AND b.batch_time = before.at AND b.state <> 'COMPLETED')
                  OR EXISTS (
                      SELECT
                      FROM (VALUES
                          -- What left the window, and what came into it.
                          (began.before, least(before.at, began.now)),
                          (greatest(before.at, began.now), at_time - interval '1 us')) AS part (after, upto)
                      JOIN batches b ON b.pipeline_id = pipeline AND b.records > 0
                        AND b.batch_time > part.after AND b.batch_time <= part.upto
                      WHERE EXISTS (
                                SELECT FROM batch_allocations a JOIN receivers r ON r.id = a.receiver_id
                                WHERE a.pipeline_id = pipeline AND a.batch_time = b.batch_time AND a.records > 0
                                  AND r.stream_id = s.id OFFSET 0)
                         OR b.records > (
                                SELECT coalesce(sum(a.records), 0) FROM batch_allocations a
                                WHERE a.pipeline_id = pipeline AND a.batch_time = b.batch_time)))
        ) INTO runs;
    END IF;
    IF NOT runs AND locked.declaration #>> '{settings,run_empty_batches}' IS DISTINCT FROM 'false' THEN
        SELECT EXISTS (
            SELECT
            FROM state_heads h
            JOIN state_versions v ON v.pipeline_id = h.pipeline_id AND v.output = h.output
                 AND v.batch_time = h.batch_time AND v.attempt = h.attempt
            CROSS JOIN LATERAL (SELECT locked.declaration -> 'outputs' -> h.output) AS o (declared)
            WHERE h.pipeline_id = pipeline AND v.next_expiry <= at_time
              AND jsonb_typeof(o.declared -> 'state') = 'object'
              -- As in end_attempt.
              AND NOT EXISTS (
                  SELECT FROM jsonb_array_elements(o.declared -> 'inputs') AS i
                  WHERE jsonb_typeof(i.value) = 'object'
                  HAVING (extract(epoch FROM at_time) * 1000000)::bigint
                         % (max(nullif((i.value ->> 'slide_ms')::bigint, 0)) * 1000) <> 0
                      OR bool_and((decided -> 'slides' ->> (i.value ->> 'slide'))::boolean) IS FALSE)
        ) INTO runs;
    END IF;
    -- An interval without records has only markers, or nothing.
    INSERT INTO batches (pipeline_id, batch_time, oldest_time, state, records, bytes, blocks, completed_at, reason,
                         calendar)
    VALUES (pipeline, at_time, oldest,
            CASE WHEN runs THEN 'ALLOCATED' ELSE 'COMPLETED' END,
            allocated.records, allocated.bytes, allocated.blocks,
            CASE WHEN runs THEN NULL ELSE clock_timestamp() END,
            CASE WHEN runs THEN '' ELSE 'no records' END, decided);
    UPDATE pipelines SET last_batch_time = at_time,
                         next_batch_time = CASE WHEN next_boundary > at_time THEN next_boundary END
    WHERE id = pipeline;
    outcome := 'allocated';
    RETURN NEXT;
END
$$;
