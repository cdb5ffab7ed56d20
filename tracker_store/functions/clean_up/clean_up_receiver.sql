-- clean_up_receiver: delete a receiver's oldest blocks that can no longer be asked for, at most max_rows of them.
--
-- A block goes when every live pipeline that reads its stream has it in a finished batch older than the threshold and
-- than the pipeline's retention (its longest window or replay time), which counts back from now and from the oldest
-- unfinished batch, or the first one of an unfinished replay forward; and when every named reader of the stream has read it. A stream that nothing reads keeps its blocks
-- for the stream's own retention. A live pipeline or reader without a cursor row counts as a cursor at 1. A quarantined
-- batch's blocks are in kept_ranges: the low mark passes them, their rows stay until the batch releases them, and
-- log_segments.kept_blocks counts them by segment. The first max_rows of what was released go in each call.
-- A pipeline's range goes with the last of its blocks, when its batch is an hour old: rates and pages read the ranges of
-- finished batches until then. `batches.blocks` still counts it, so a batch of which a range is gone is known by its sum.
-- The receiver's newest row stays, epoch markers stay (a few a day; they fence a backend that stalled for long), and
-- each partition's newest link stays.
-- Event first, then rows, in one transaction: a crash leaves both or neither. The files are deleted later, when no row
-- needs them.
-- Locks: the receiver's row FOR UPDATE in the first statement; what may go is computed in the next. A call that
-- attaches a cursor takes that row FOR SHARE, so it either sees the new low mark or is seen. Then the rows that go, and
-- the segments of what is kept or released, by id; a range that clean_up_history deletes at the same time is left to it.
CREATE FUNCTION forebay.clean_up_receiver(receiver bigint, threshold timestamptz, max_rows bigint)
RETURNS TABLE (blocks bigint, records bigint, bytes bigint, unread_records bigint, more boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
-- Made while a receiver had few rows, a plan with bitmaps would read all of its rows to find the first.
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    locked receivers;
    newest blocks;
    keep_from bigint;   -- the first sequence that must stay
    read_to bigint;     -- up to here a pipeline or reader, removed since, had read
    unread boolean;
    goes_to bigint;
    replayed_from bigint;   -- the first sequence that a running replay reads; null: none does
    released int8multirange;    -- what quarantined batches kept and need no more
    of_pipelines bigint[];  -- the batches of `released`
    of_times timestamptz[];
    kept int8multirange;    -- what quarantined batches keep
    part int8range;
    room bigint := max_rows;
    done_to bigint;     -- before it nothing that is released is left
    more_released boolean := false;
    span int8range;
    first_left blocks;
    last_gone blocks;
    hour_ago timestamptz := clock_timestamp() - interval '1 hour';
BEGIN
    SELECT * INTO locked FROM receivers r WHERE r.id = receiver FOR UPDATE;
    SELECT * INTO newest FROM blocks b WHERE b.receiver_id = receiver ORDER BY b.sequence DESC LIMIT 1;
    blocks := 0;
    records := 0;
    bytes := 0;
    unread_records := 0;
    more := false;
    IF NOT FOUND THEN
        RETURN NEXT;
        RETURN;
    END IF;

    -- What a running replay reads may lie below the low mark, if a quarantined batch keeps it too.
    SELECT min(first_read.sequence) INTO replayed_from
    FROM batch_attempts t
    CROSS JOIN LATERAL (
        SELECT lower(a.sequences) AS sequence FROM batch_allocations a
        WHERE a.pipeline_id = t.pipeline_id AND a.receiver_id = receiver
          AND a.batch_time > t.batch_time - greatest(t.reach, interval '1 us') AND a.batch_time <= t.batch_time
        ORDER BY a.batch_time LIMIT 1) AS first_read
    WHERE t.state = 'RUNNING' AND t.kind = 'replay';

    WITH live AS MATERIALIZED (
        -- Only pipelines that read the stream, or have read this receiver before they were applied without the stream.
        SELECT p.id, locked.stream_id = ANY (p.stream_ids) AS reads, c.next_sequence,
               -- A window reaches back from its batch's time, however late the batch runs: from the oldest
               -- unfinished batch, which needs its own blocks too, and from the next undecided one. (Times are whole
               -- microseconds.)
               least(threshold - interval '1 us', clock_timestamp() - p.retention - interval '1 us',
                     p.last_batch_time - p.retention,
                     (SELECT t.batch_time FROM batches t
                      WHERE t.pipeline_id = p.id AND t.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
                      ORDER BY t.batch_time LIMIT 1) - greatest(p.retention, interval '1 us'),
                     -- A replay forward reads its batches when it gets to them, and once more if it is undone.
                     (SELECT min(s.from_time) FROM state_replays s
                      WHERE s.pipeline_id = p.id AND s.state IN ('RUNNING', 'STOPPED', 'UNDOING'))
                     - greatest(p.retention, interval '1 us')) AS done_with
        FROM pipelines p
        LEFT JOIN (SELECT k.consumer_id, k.next_sequence FROM cursors k WHERE k.receiver_id = receiver) AS c
             ON c.consumer_id = p.id
        WHERE p.removed_at IS NULL AND (locked.stream_id = ANY (p.stream_ids) OR c.consumer_id IS NOT NULL)
    ), needs AS (
        -- What pipelines and readers have not taken yet …
        SELECT coalesce(p.next_sequence, 1) AS sequence FROM live p WHERE p.reads
        UNION ALL
        SELECT coalesce(c.next_sequence, 1)
        FROM readers d LEFT JOIN cursors c ON c.consumer_id = d.id AND c.receiver_id = receiver
        WHERE d.stream_id = locked.stream_id AND d.removed_at IS NULL
        UNION ALL
        SELECT replayed_from
        UNION ALL
        -- … what a pipeline may still ask for again, and what its unfinished batches have. Its ranges of the receiver
        -- follow each other, so the first after a time is the lowest.
        SELECT first_kept.sequence
        FROM live p
        CROSS JOIN LATERAL (
            SELECT lower(a.sequences) AS sequence FROM batch_allocations a
            WHERE a.pipeline_id = p.id AND a.receiver_id = receiver AND a.batch_time > p.done_with
            ORDER BY a.batch_time LIMIT 1) AS first_kept
        WHERE p.next_sequence IS NOT NULL
    )
    SELECT min(n.sequence),
           NOT EXISTS (SELECT 1 FROM live p WHERE p.reads)
           AND NOT EXISTS (SELECT 1 FROM readers d WHERE d.stream_id = locked.stream_id AND d.removed_at IS NULL)
    INTO keep_from, unread FROM needs n;

    -- Delete what quarantined batches have released, from the lowest on; what lies above the low mark is deleted below.
    -- Only the ranges that this statement sees are forgotten: one that is released meanwhile waits for the next call.
    SELECT range_agg(k.sequences), array_agg(k.pipeline_id), array_agg(k.batch_time)
    INTO released, of_pipelines, of_times
    FROM kept_ranges k WHERE k.receiver_id = receiver AND k.released_at IS NOT NULL;
    IF released IS NOT NULL THEN
        SELECT range_agg(k.sequences) INTO kept FROM kept_ranges k
        WHERE k.receiver_id = receiver AND k.released_at IS NULL;
        done_to := least(locked.low_mark + 1, replayed_from);
        released := released * int8multirange(int8range(1, greatest(done_to, 1))) - coalesce(kept, '{}');
        FOR part IN SELECT u FROM unnest(released) AS u ORDER BY u LOOP
            IF room <= 0 THEN
                done_to := lower(part);
                more_released := true;
                EXIT;
            END IF;
            part := int8range(lower(part), least(upper(part), lower(part) + room));
            room := room - (upper(part) - lower(part));
            WITH gone AS (
                DELETE FROM blocks b
                WHERE b.receiver_id = receiver AND b.sequence >= lower(part) AND b.sequence < upper(part)
                  AND b.segment_id IS NOT NULL
                RETURNING b.segment_id
            ), counted AS (
                SELECT g.segment_id, count(*) AS blocks FROM gone g GROUP BY g.segment_id
            ), locked AS (
                SELECT s.id, c.blocks FROM log_segments s JOIN counted c ON c.segment_id = s.id
                ORDER BY s.id FOR UPDATE OF s
            )
            UPDATE log_segments s SET kept_blocks = greatest(s.kept_blocks - l.blocks, 0)
            FROM locked l WHERE s.id = l.id;
            IF room <= 0 THEN
                -- Whether there is more is seen in the next call.
                done_to := upper(part);
                more_released := true;
                EXIT;
            END IF;
        END LOOP;
        -- What is kept below done_to belongs to another batch, which releases it.
        DELETE FROM kept_ranges k
        WHERE k.receiver_id = receiver
          AND (k.pipeline_id, k.batch_time) IN (
              SELECT u.pipeline, u.at FROM unnest(of_pipelines, of_times) AS u(pipeline, at))
          AND (upper(k.sequences) <= done_to OR lower(k.sequences) > locked.low_mark OR done_to > locked.low_mark);
        UPDATE kept_ranges k SET sequences = int8range(done_to, upper(k.sequences))
        WHERE k.receiver_id = receiver
          AND (k.pipeline_id, k.batch_time) IN (
              SELECT u.pipeline, u.at FROM unnest(of_pipelines, of_times) AS u(pipeline, at))
          AND lower(k.sequences) < done_to;
    END IF;

    IF unread THEN
        -- Nothing reads the stream: its own retention decides, by binary search on the primary key.
        WITH RECURSIVE kept AS (
            SELECT clock_timestamp() - s.retention AS before FROM streams s WHERE s.id = locked.stream_id
        ), search (inside, outside) AS (
            SELECT locked.low_mark, newest.sequence
            UNION ALL
            SELECT CASE WHEN probe.old THEN middle.m ELSE s.inside END,
                   CASE WHEN probe.old THEN s.outside ELSE middle.m - 1 END
            FROM search s
            CROSS JOIN LATERAL (SELECT s.inside + (s.outside - s.inside + 1) / 2) AS middle(m)
            CROSS JOIN LATERAL (
                SELECT b.added_at < least(threshold, k.before) AS old FROM blocks b, kept k
                WHERE b.receiver_id = receiver AND b.sequence = middle.m) AS probe
            WHERE s.inside < s.outside)
        SELECT least(keep_from, s.inside + 1) INTO keep_from FROM search s WHERE s.inside >= s.outside LIMIT 1;
    END IF;

    -- The newest row stays whatever its age: the next row continues its sequence, epoch and totals.
    goes_to := least(keep_from - 1, newest.sequence - 1, locked.low_mark + max_rows);
    more := more_released OR goes_to < least(keep_from - 1, newest.sequence - 1);
    IF goes_to <= locked.low_mark THEN
        RETURN NEXT;
        RETURN;
    END IF;

    SELECT * INTO first_left FROM blocks b
    WHERE b.receiver_id = receiver AND b.sequence > locked.low_mark ORDER BY b.sequence LIMIT 1;
    SELECT * INTO last_gone FROM blocks b WHERE b.receiver_id = receiver AND b.sequence = goes_to;
    blocks := goes_to - locked.low_mark;
    records := last_gone.total_records - first_left.total_records + first_left.records;
    bytes := last_gone.total_bytes - first_left.total_bytes + first_left.bytes;
    IF unread THEN
        -- Counted as loss, except what a pipeline or a reader had read before it was removed.
        SELECT max(c.next_sequence) - 1 INTO read_to FROM cursors c WHERE c.receiver_id = receiver;
        unread_records := records;
        IF read_to > locked.low_mark THEN
            SELECT last_gone.total_records - b.total_records INTO unread_records
            FROM blocks b WHERE b.receiver_id = receiver AND b.sequence = least(read_to, goes_to);
        END IF;
    END IF;

    span := int8range(locked.low_mark + 1, goes_to + 1);
    INSERT INTO cleanup_events (receiver_id, sequences, blocks, records, bytes, unread_records)
    VALUES (receiver, span, blocks, records, bytes, unread_records);
    -- Read after the unfinished batches: a batch that is quarantined meanwhile is seen as one or the other.
    SELECT range_agg(k.sequences * span) INTO kept FROM kept_ranges k
    WHERE k.receiver_id = receiver AND k.released_at IS NULL AND k.sequences && span;
    FOR part IN SELECT u FROM unnest(int8multirange(span) - coalesce(kept, '{}')) AS u LOOP
        DELETE FROM blocks b
        WHERE b.receiver_id = receiver AND b.sequence >= lower(part) AND b.sequence < upper(part)
          AND b.segment_id IS NOT NULL;
    END LOOP;
    WITH counted AS (
        SELECT b.segment_id, count(*) AS blocks
        FROM unnest(kept) AS u
        JOIN blocks b ON b.receiver_id = receiver AND b.sequence >= lower(u) AND b.sequence < upper(u)
        WHERE b.segment_id IS NOT NULL
        GROUP BY b.segment_id
    ), locked AS (
        SELECT s.id, c.blocks FROM log_segments s JOIN counted c ON c.segment_id = s.id
        ORDER BY s.id FOR UPDATE OF s
    )
    UPDATE log_segments s SET kept_blocks = s.kept_blocks + l.blocks FROM locked l WHERE s.id = l.id;
    UPDATE receivers SET low_mark = goes_to WHERE id = receiver;
    -- A pipeline's ranges of the receiver follow each other in time, too, so those that may go come before the first that
    -- ends above the low mark.
    DELETE FROM batch_allocations d WHERE d.ctid = ANY (ARRAY(
        SELECT gone.ctid
        FROM cursors c
        JOIN pipelines p ON p.id = c.consumer_id
        CROSS JOIN LATERAL (
            SELECT coalesce((SELECT a.batch_time FROM batch_allocations a
                             WHERE a.pipeline_id = c.consumer_id AND a.receiver_id = receiver
                               AND a.batch_time < hour_ago AND upper(a.sequences) > goes_to + 1
                             ORDER BY a.batch_time LIMIT 1), hour_ago) AS batch_time) AS first_left
        CROSS JOIN LATERAL (
            SELECT a.ctid FROM batch_allocations a
            WHERE a.pipeline_id = c.consumer_id AND a.receiver_id = receiver
              AND a.batch_time < first_left.batch_time
              AND NOT EXISTS (SELECT FROM kept_ranges k WHERE k.receiver_id = receiver
                              AND k.pipeline_id = c.consumer_id AND k.sequences && a.sequences)
            ORDER BY a.batch_time LIMIT max_rows FOR UPDATE SKIP LOCKED) AS gone
        -- Of a removed receiver they stay with their batches: they say when it can be forgotten.
        WHERE c.receiver_id = receiver AND locked.removed_at IS NULL));
    RETURN NEXT;
END
$$;
