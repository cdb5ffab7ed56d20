-- clean_up_receiver: delete a receiver's oldest blocks that can no longer be asked for, at most max_rows of them.
--
-- A block goes when every live pipeline that reads its stream has it in a finished batch older than the threshold and
-- than the pipeline's retention (its longest window or replay time), which counts back from now and from the oldest
-- unfinished batch; and when every named reader of the stream has read it. A stream that nothing reads keeps its blocks
-- for the stream's own retention. A live pipeline or reader without a cursor row counts as a cursor at 1. A quarantined
-- batch's blocks are in kept_blocks and hold nothing back.
-- The receiver's newest row stays, epoch markers stay (a few a day; they fence a backend that stalled for long), and
-- each partition's newest link stays.
-- Event first, then rows, in one transaction: a crash leaves both or neither. The files are deleted later, when no row
-- needs them.
-- Locks: the receiver's row FOR UPDATE in the first statement; what may go is computed in the next. A call that
-- attaches a cursor takes that row FOR SHARE, so it either sees the new low mark or is seen.
CREATE FUNCTION forebay.clean_up_receiver(receiver bigint, threshold timestamptz, max_rows bigint)
RETURNS TABLE (blocks bigint, records bigint, bytes bigint, unread_records bigint, more boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    locked receivers;
    newest blocks;
    keep_from bigint;   -- the first sequence that must stay
    read_to bigint;     -- up to here a pipeline or reader, removed since, had read
    unread boolean;
    goes_to bigint;
    first_left blocks;
    last_gone blocks;
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

    WITH live AS (
        SELECT p.id, locked.stream_id = ANY (p.stream_ids) AS reads,
               -- A window reaches back from its batch's time, however late the batch runs: from the oldest
               -- unfinished batch, and from the next undecided one. (Times are whole microseconds.)
               least(threshold - interval '1 us', clock_timestamp() - p.retention - interval '1 us',
                     p.last_batch_time - p.retention,
                     (SELECT min(t.batch_time) FROM batches t
                      WHERE t.pipeline_id = p.id
                        AND t.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')) - p.retention) AS done_with
        FROM pipelines p WHERE p.removed_at IS NULL
    ), needs AS (
        -- What pipelines and readers have not taken yet …
        SELECT coalesce(c.next_sequence, 1) AS sequence
        FROM live p LEFT JOIN cursors c ON c.pipeline_id = p.id AND c.receiver_id = receiver
        WHERE p.reads
        UNION ALL
        SELECT coalesce(c.next_sequence, 1)
        FROM readers d LEFT JOIN reader_cursors c ON c.reader_id = d.id AND c.receiver_id = receiver
        WHERE d.stream_id = locked.stream_id AND d.removed_at IS NULL
        UNION ALL
        -- … what unfinished batches have (also of a stream that the pipeline no longer reads) …
        SELECT lower(a.sequences)
        FROM live p
        JOIN batches t ON t.pipeline_id = p.id AND t.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
        JOIN batch_allocations a ON a.pipeline_id = t.pipeline_id AND a.batch_time = t.batch_time
             AND a.receiver_id = receiver
        UNION ALL
        -- … what a running replay reads …
        SELECT lower(a.sequences)
        FROM batch_attempts t
        JOIN batch_allocations a ON a.pipeline_id = t.pipeline_id AND a.receiver_id = receiver
             AND a.batch_time > t.batch_time - greatest(t.reach, interval '1 us') AND a.batch_time <= t.batch_time
        WHERE t.state = 'RUNNING' AND t.kind = 'replay'
        UNION ALL
        -- … and what a pipeline may still ask for again.
        SELECT first_kept.sequence
        FROM live p
        CROSS JOIN LATERAL (
            SELECT lower(a.sequences) AS sequence FROM batch_allocations a
            WHERE a.pipeline_id = p.id AND a.receiver_id = receiver AND a.batch_time > p.done_with
            ORDER BY a.batch_time LIMIT 1) AS first_kept
    )
    SELECT min(n.sequence),
           NOT EXISTS (SELECT 1 FROM live p WHERE p.reads)
           AND NOT EXISTS (SELECT 1 FROM readers d WHERE d.stream_id = locked.stream_id AND d.removed_at IS NULL)
    INTO keep_from, unread FROM needs n;

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
    more := goes_to < least(keep_from - 1, newest.sequence - 1);
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
        SELECT max(c.next_sequence) - 1 INTO read_to FROM (
            SELECT p.next_sequence FROM cursors p WHERE p.receiver_id = receiver
            UNION ALL SELECT d.next_sequence FROM reader_cursors d WHERE d.receiver_id = receiver) AS c;
        unread_records := records;
        IF read_to > locked.low_mark THEN
            SELECT last_gone.total_records - b.total_records INTO unread_records
            FROM blocks b WHERE b.receiver_id = receiver AND b.sequence = least(read_to, goes_to);
        END IF;
    END IF;

    INSERT INTO cleanup_events (receiver_id, sequences, blocks, records, bytes, unread_records)
    VALUES (receiver, int8range(locked.low_mark + 1, goes_to, '[]'), blocks, records, bytes, unread_records);
    DELETE FROM blocks b
    WHERE b.receiver_id = receiver AND b.sequence > locked.low_mark AND b.sequence <= goes_to
      AND b.segment_id IS NOT NULL;
    UPDATE receivers SET low_mark = goes_to WHERE id = receiver;
    RETURN NEXT;
END
$$;
