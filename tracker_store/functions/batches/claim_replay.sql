-- claim_replay: a run takes the next attempt of a batch that is COMPLETED or QUARANTINED, to run it again.
--
-- The batch keeps its state, its attempt and its output until the replay has succeeded. A replay counts neither in
-- max_attempts nor in concurrent_batches. It is refused before anything is written if a block of the batch, or of the
-- window of length `reach` that ends with it, is gone, or if a batch of that window may be forgotten.
-- It is refused, too, if it would compute an output with a state (`stateful`) that has a result, or that a later batch's
-- version has gone past: the results after it depend on the state as it was. Then only a replay forward (`forward`) may
-- run it, which runs the later ones too. What is read here only spares work: commit_output decides under the head's lock.
-- It is refused, too, while another process runs the replay forward, or once this process was declared dead: one that
-- was paused, and whose replay another process has taken over (take_state_replay), runs no further batch.
-- A run that was launched again under its own id gets the attempt that it already has.
-- Locks: the pipeline's row FOR SHARE (so that it is not removed, and its history not forgotten, meanwhile); the
-- receivers' rows FOR SHARE, by id, which hold back clean-up of blocks until this attempt can be seen; the batch's row;
-- the replay forward's FOR SHARE, so that no other process takes it over meanwhile; what can still be read is checked in
-- a later statement.
CREATE FUNCTION forebay.claim_replay(
    pipeline bigint, at_time timestamptz, claiming_run text, claiming_process bigint, reach interval,
    stateful text[] DEFAULT NULL, forward bigint DEFAULT NULL)
RETURNS TABLE (outcome text, detail text, number integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    -- A window is (at_time - reach, at_time]; times are whole microseconds.
    after timestamptz := at_time - greatest(reach, interval '1 us');
    locked pipelines;
    batch batches;
    held batch_attempts;
    missing record;
    forgotten record;
    refused record;
    replay state_replays;
BEGIN
    SELECT * INTO locked FROM pipelines p WHERE p.id = pipeline AND p.removed_at IS NULL FOR SHARE;
    IF NOT FOUND THEN
        outcome := 'no pipeline';
        detail := format('pipeline %s is not there or was removed', pipeline);
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM 1 FROM receivers r
    WHERE r.id IN (SELECT a.receiver_id FROM batch_allocations a
                   WHERE a.pipeline_id = pipeline AND a.batch_time > after AND a.batch_time <= at_time)
    ORDER BY r.id FOR SHARE;
    SELECT * INTO batch FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time FOR UPDATE;
    IF NOT FOUND THEN
        outcome := 'no batch';
        detail := format('pipeline %s has no batch at %s', pipeline, at_time);
        RETURN NEXT;
        RETURN;
    END IF;
    IF forward IS NOT NULL THEN
        SELECT * INTO replay FROM state_replays r WHERE r.id = forward AND r.pipeline_id = pipeline FOR SHARE;
        IF EXISTS (SELECT FROM processes p
                   WHERE p.id = replay.process_id AND p.id <> claiming_process AND p.ended_at IS NULL
                      OR p.id = claiming_process AND p.ended_at IS NOT NULL) THEN
            outcome := 'held';
            detail := format('replay %s is run by process %s, and not by process %s', forward, replay.process_id,
                             claiming_process);
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    SELECT * INTO held FROM batch_attempts a
    WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND a.state = 'RUNNING';
    IF held.kind = 'replay' AND held.run_id = claiming_run THEN
        UPDATE batch_attempts SET process_id = claiming_process
        WHERE pipeline_id = pipeline AND batch_time = at_time AND attempt = held.attempt;
        outcome := 'claimed';
        number := held.attempt;
        RETURN NEXT;
        RETURN;
    END IF;
    IF held.attempt IS NOT NULL THEN
        outcome := 'held';
        detail := format('a replay of batch %s was asked for; its attempt %s (%s) is running in run %s',
                         at_time, held.attempt, held.kind, held.run_id);
        RETURN NEXT;
        RETURN;
    END IF;
    IF batch.state NOT IN ('COMPLETED', 'QUARANTINED') THEN
        outcome := 'held';
        detail := format('batch %s is %s, and only one that is COMPLETED or QUARANTINED can be replayed',
                         at_time, batch.state);
        RETURN NEXT;
        RETURN;
    END IF;

    IF forward IS NOT NULL THEN
        IF (replay.state IN ('RUNNING', 'UNDOING') AND at_time BETWEEN replay.from_time AND replay.to_time) IS NOT TRUE
        THEN
            outcome := 'held';
            detail := format('replay %s is %s, and has the batches from %s to %s', forward,
                             coalesce(replay.state, 'not there'), replay.from_time, replay.to_time);
            RETURN NEXT;
            RETURN;
        END IF;
    ELSE
        SELECT o.name, c.attempt, h.batch_time, r.id AS replay INTO refused
        FROM unnest(stateful) AS o(name)
        LEFT JOIN output_commits c ON c.pipeline_id = pipeline AND c.output = o.name AND c.batch_time = at_time
        LEFT JOIN state_heads h ON h.pipeline_id = pipeline AND h.output = o.name
        LEFT JOIN state_replays r ON r.pipeline_id = pipeline AND r.output = o.name
             AND r.state IN ('RUNNING', 'STOPPED', 'UNDOING')
        WHERE r.id IS NOT NULL OR c.attempt IS NOT NULL OR at_time <= h.batch_time
        ORDER BY r.id, o.name LIMIT 1;
        IF FOUND THEN
            outcome := CASE WHEN refused.replay IS NULL THEN 'has state' ELSE 'held' END;
            detail := CASE
                WHEN refused.replay IS NOT NULL
                    THEN format('replay %s of output %s is not finished', refused.replay, refused.name)
                WHEN refused.attempt IS NOT NULL
                    THEN format('batch %s has a result of output %s, which has a state: the batches after it have read '
                                'what it made of that', at_time, refused.name)
                ELSE format('batch %s was left out of the state of output %s, and later batches, up to %s, are in it',
                            at_time, refused.name, refused.batch_time) END;
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;

    -- All forgotten batches are older than history_from; those of a quarantined batch's window are kept even so
    -- (clean_up_history).
    IF reach > interval '1 us' AND locked.history_from > after + interval '1 us'
       AND NOT (batch.state = 'QUARANTINED' AND reach <= locked.retention) THEN
        outcome := 'not retained';
        detail := format('batch %s can''t be replayed: its window begins after %s, and which blocks the batches before '
                         '%s had is forgotten', at_time, after, locked.history_from);
        RETURN NEXT;
        RETURN;
    END IF;

    SELECT s.name AS stream, r.ordinal, r.id AS receiver_id, r.low_mark, a.sequences, a.batch_time,
           a.records - coalesce(there.records, 0) AS records
    INTO missing
    FROM batch_allocations a
    JOIN receivers r ON r.id = a.receiver_id
    JOIN streams s ON s.id = r.stream_id
    CROSS JOIN LATERAL (
        SELECT sum(b.records) AS records FROM blocks b
        WHERE b.receiver_id = a.receiver_id AND b.sequence >= lower(a.sequences) AND b.sequence < upper(a.sequences)
        ) AS there
    WHERE a.pipeline_id = pipeline AND a.batch_time > after AND a.batch_time <= at_time
      AND lower(a.sequences) <= r.low_mark AND a.records > coalesce(there.records, 0)
    ORDER BY a.batch_time DESC, a.receiver_id LIMIT 1;
    IF missing.receiver_id IS NOT NULL THEN
        outcome := 'not retained';
        SELECT format(
            'batch %s%s can''t be replayed: of the blocks %s to %s of receiver %s/%s, %s records were cleaned up at %s',
            at_time, CASE WHEN missing.batch_time = at_time THEN ''
                          ELSE format(' (with the batch of %s in its window)', missing.batch_time) END,
            lower(missing.sequences), least(upper(missing.sequences) - 1, missing.low_mark), missing.stream,
            missing.ordinal, missing.records, coalesce(to_char(max(c.at), 'YYYY-MM-DD HH24:MI:SSOF'), 'a time unknown'))
        INTO detail
        FROM cleanup_events c WHERE c.receiver_id = missing.receiver_id AND c.sequences && missing.sequences;
        RETURN NEXT;
        RETURN;
    END IF;

    -- A range goes after its blocks (clean_up_receiver), so what the ranges don't count is gone.
    SELECT t.batch_time, t.records, t.records - coalesce(ranges.records, 0) AS gone INTO forgotten
    FROM batches t
    CROSS JOIN LATERAL (
        SELECT sum(a.records) AS records FROM batch_allocations a
        WHERE a.pipeline_id = pipeline AND a.batch_time = t.batch_time) AS ranges
    WHERE t.pipeline_id = pipeline AND t.batch_time > after AND t.batch_time <= at_time
      AND t.records > coalesce(ranges.records, 0)
    ORDER BY t.batch_time DESC LIMIT 1;
    IF FOUND THEN
        outcome := 'not retained';
        detail := format('batch %s%s can''t be replayed: of its %s records, %s were cleaned up', at_time,
                         CASE WHEN forgotten.batch_time = at_time THEN ''
                              ELSE format(' (with the batch of %s in its window)', forgotten.batch_time) END,
                         forgotten.records, forgotten.gone);
        RETURN NEXT;
        RETURN;
    END IF;

    SELECT greatest(batch.attempt, coalesce(max(a.attempt), 0)) + 1 INTO number FROM batch_attempts a
    WHERE a.pipeline_id = pipeline AND a.batch_time = at_time;
    INSERT INTO batch_attempts (pipeline_id, batch_time, attempt, run_id, process_id, kind, reach)
    VALUES (pipeline, at_time, number, claiming_run, claiming_process, 'replay', claim_replay.reach);
    outcome := 'claimed';
    RETURN NEXT;
END
$$;
