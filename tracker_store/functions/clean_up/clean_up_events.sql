-- clean_up_events: delete what happened longer than `keep` ago, at most max_rows of each table's oldest rows.
--
-- Each table is read by age from its oldest row on: the cost is what is deleted, what stays for ever (see below), and
-- at most max_rows of events, whatever the history.
-- A receiver's newest report of each kind stays (its last error, its last start), with 0 for its transaction: listeners
-- do not see it, and the next call does not read it again. So does each clean-up that deleted unread records, because
-- it explains a gap. An ended process stays while a receiver, or a run that Dagster may still
-- ask about, names it. The newest agent of a name stays while it is draining, because the next agent of that name
-- inherits this.
-- Events whose transaction has an id that this server has not given out yet come from another server (the driver log
-- was restored from a dump): they get the id of this call's, or listeners would wait for them, and miss newer ones.
-- Locks: the leader's row FOR SHARE first; then only rows that nothing else changes.
CREATE FUNCTION forebay.clean_up_events(of_term bigint, keep interval, max_rows bigint)
RETURNS TABLE (outcome text, events bigint, more boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    before timestamptz := clock_timestamp() - keep;
    gone bigint;
    old bigint;
BEGIN
    events := 0;
    more := false;
    IF of_term IS NOT NULL AND NOT leads(of_term) THEN
        outcome := 'deposed';
        RETURN NEXT;
        RETURN;
    END IF;
    outcome := 'cleaned';

    DELETE FROM events v WHERE (v.transaction_id, v.id) IN (
        SELECT o.transaction_id, o.id FROM events o
        WHERE o.epoch IS NOT NULL AND o.at < before
              -- One probe per old report: OFFSET 0 keeps it from becoming a join with all events.
              AND EXISTS (SELECT FROM events n
                          WHERE n.epoch IS NOT NULL AND n.receiver_id = o.receiver_id AND n.kind = o.kind
                                AND n.id > o.id OFFSET 0)
        ORDER BY o.at LIMIT max_rows);
    GET DIAGNOSTICS gone = ROW_COUNT;
    events := events + gone;
    more := more OR gone = max_rows;

    DELETE FROM cleanup_events e WHERE e.id IN (
        SELECT o.id FROM cleanup_events o WHERE o.at < before AND o.unread_records = 0 ORDER BY o.at LIMIT max_rows);
    GET DIAGNOSTICS gone = ROW_COUNT;
    events := events + gone;
    more := more OR gone = max_rows;

    UPDATE events e SET transaction_id = CAST(CAST(pg_current_xact_id() AS text) AS bigint)
    WHERE (e.transaction_id, e.id) IN (
        SELECT o.transaction_id, o.id FROM events o
        WHERE o.transaction_id >= CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint)
        ORDER BY o.transaction_id, o.id LIMIT max_rows);
    GET DIAGNOSTICS gone = ROW_COUNT;
    more := more OR gone = max_rows;

    -- The oldest by the primary key, and of those the old ones: nothing else is read. Reports that are left stay.
    WITH oldest AS MATERIALIZED (
        SELECT o.transaction_id, o.id, o.epoch IS NOT NULL AS stays FROM (
            SELECT v.transaction_id, v.id, v.at, v.epoch FROM events v
            WHERE v.transaction_id > 0 ORDER BY v.transaction_id, v.id LIMIT max_rows) AS o
        WHERE o.at < before
    ), kept AS (
        UPDATE events e SET transaction_id = 0 FROM oldest o
        WHERE e.transaction_id = o.transaction_id AND e.id = o.id AND o.stays
    ), deleted AS (
        DELETE FROM events e USING oldest o
        WHERE e.transaction_id = o.transaction_id AND e.id = o.id AND NOT o.stays
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM deleted), (SELECT count(*) FROM oldest) INTO gone, old;
    events := events + gone;
    more := more OR old = max_rows;

    DELETE FROM dead_letters d WHERE d.id IN (
        SELECT o.id FROM dead_letters o WHERE o.added_at < before ORDER BY o.added_at LIMIT max_rows);
    GET DIAGNOSTICS gone = ROW_COUNT;
    events := events + gone;
    more := more OR gone = max_rows;

    DELETE FROM processes p WHERE p.id IN (
        SELECT o.id FROM processes o
        WHERE o.ended_at < before
              AND (o.kind <> 'agent' OR NOT o.draining
                   OR EXISTS (SELECT FROM processes n WHERE n.kind = 'agent' AND n.name = o.name AND n.id > o.id))
              AND NOT EXISTS (SELECT FROM receivers r WHERE r.process_id = o.id)
              AND NOT EXISTS (SELECT FROM receivers r WHERE r.agent_id = o.id)
              AND NOT EXISTS (SELECT FROM batch_drivers d WHERE d.process_id = o.id)
              AND NOT EXISTS (SELECT FROM run_queue q WHERE q.process_id = o.id)
              AND NOT EXISTS (SELECT FROM batch_attempts a WHERE a.process_id = o.id AND a.state = 'RUNNING')
        ORDER BY o.ended_at LIMIT max_rows);
    GET DIAGNOSTICS gone = ROW_COUNT;
    events := events + gone;
    more := more OR gone = max_rows;
    RETURN NEXT;
END
$$;
