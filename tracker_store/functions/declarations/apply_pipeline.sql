-- apply_pipeline: write a pipeline as declared, and where a new one begins; returns its id.
--
-- A new pipeline's first batch time is the first multiple of its interval after now, by the database's clock; with a
-- calendar it is next_boundary, the one after `newest_boundary`. An existing pipeline goes on at the first boundary
-- after its last batch time, by whatever interval and calendar it has now: nothing that is decided moves. With
-- at_latest a new pipeline begins after the existing blocks: its cursors are placed in this transaction, so that no
-- other session ever sees it without them. An existing pipeline keeps its place. The receivers of a stream that it read
-- until now, and that nothing reads any more, are desired stopped: advance_stops lets them go on when something does.
-- An output that is declared with a state, and was not until now, begins after the last batch time: its state does not
-- wait for a batch before that, in which it was not computed.
-- Locks: the pipeline's row, then the rows of its streams' receivers FOR SHARE, in the order of their ids: a clean-up
-- that did not see the pipeline has ended before a batch of it gets any block. The newest rows are read after that. If
-- it loses a stream, these rows and those of that stream's receivers FOR UPDATE, in the same order.
CREATE FUNCTION forebay.apply_pipeline(
    pipeline_name text, declared jsonb, streams bigint[], pace interval, kept interval, at_latest boolean,
    -- By the pipeline's calendar: the newest boundary that has come, and the one after its last batch time, or, of a new
    -- pipeline, after that one. Null: it has no calendar.
    newest_boundary timestamptz DEFAULT NULL, next_boundary timestamptz DEFAULT NULL
)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    pipeline bigint;
    is_new boolean;
    lost bigint[];
BEGIN
    SELECT p.stream_ids INTO lost FROM pipelines p WHERE p.name = pipeline_name AND p.removed_at IS NULL FOR UPDATE;
    lost := ARRAY(SELECT unnest(lost) EXCEPT SELECT unnest(streams));
    INSERT INTO pipelines AS p (name, declaration, stream_ids, batch_interval, retention, last_batch_time,
                                next_batch_time)
    VALUES (pipeline_name, declared, streams, pace, kept,
            -- It has passed by the clock that the caller looked at, which may have been set back since.
            CASE WHEN newest_boundary <= clock_timestamp() THEN newest_boundary
                 ELSE date_bin(pace, clock_timestamp(), timestamptz 'epoch') END,
            next_boundary)
    ON CONFLICT (name) WHERE removed_at IS NULL DO UPDATE SET
        version = p.version + CASE WHEN p.declaration IS DISTINCT FROM excluded.declaration THEN 1 ELSE 0 END,
        declaration = excluded.declaration, stream_ids = excluded.stream_ids,
        batch_interval = excluded.batch_interval, retention = excluded.retention, applied_at = clock_timestamp(),
        -- A batch may have been decided since the caller looked: the next one's look finds the boundary then.
        next_batch_time = CASE WHEN excluded.next_batch_time > p.last_batch_time THEN excluded.next_batch_time END,
        states_after = coalesce((
            SELECT jsonb_object_agg(o.key, CASE
                WHEN jsonb_typeof(p.declaration #> ARRAY['outputs', o.key, 'state']) = 'object'
                    THEN p.states_after -> o.key
                ELSE to_jsonb(p.last_batch_time) END)
            FROM jsonb_each(CASE jsonb_typeof(excluded.declaration -> 'outputs') WHEN 'object'
                            THEN excluded.declaration -> 'outputs' ELSE '{}' END) AS o
            WHERE jsonb_typeof(o.value -> 'state') = 'object'), '{}')
    -- xmax is 0 only if this statement inserted the row: no transaction has locked or updated it.
    RETURNING p.id, p.xmax = 0 INTO pipeline, is_new;
    IF lost = '{}' THEN
        PERFORM 1 FROM receivers r WHERE r.stream_id = ANY (streams) ORDER BY r.id FOR SHARE OF r;
    ELSE
        PERFORM 1 FROM receivers r WHERE r.stream_id = ANY (streams || lost) ORDER BY r.id FOR UPDATE OF r;
        UPDATE receivers r SET desired_before_stop = r.desired_state, desired_state = 'stopped'
        WHERE r.stream_id = ANY (lost) AND r.removed_at IS NULL AND r.desired_before_stop IS NULL
          AND NOT EXISTS (SELECT FROM pipelines p WHERE p.removed_at IS NULL AND r.stream_id = ANY (p.stream_ids))
          AND NOT EXISTS (SELECT FROM readers d WHERE d.removed_at IS NULL AND d.stream_id = r.stream_id);
    END IF;
    IF is_new AND at_latest THEN
        INSERT INTO cursors (consumer_id, receiver_id, next_sequence)
        SELECT pipeline, r.id, coalesce(newest.sequence, 0) + 1
        FROM receivers r
        LEFT JOIN LATERAL (SELECT b.sequence FROM blocks b WHERE b.receiver_id = r.id
                           ORDER BY b.sequence DESC LIMIT 1) AS newest ON true
        WHERE r.stream_id = ANY (streams);
    END IF;
    RETURN pipeline;
END
$$;
