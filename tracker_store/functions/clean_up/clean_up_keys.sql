-- clean_up_keys: delete a stream's expired idempotency keys, at most max_rows of them; returns how many.
--
-- A key expires when the stream's window (its setting key_window, else default_window) has passed. But a sender that was
-- not acknowledged sends its record again when it can, which may be after an outage that was longer than the window. So
-- these keys stay past it:
--
-- - Keys that were stored before a receiver left ACTIVE, until it has been ACTIVE again for the settling time. Keys that
--   other receivers store in the meantime expire as usual: a receiver that never returns makes nothing grow. A removed
--   receiver keeps nothing.
-- - All keys of a stream that stores none: its host, its broker or the network is down, whatever the rows say. It must
--   have stored one at least a settling time ago, and at most two.
--
-- The settling time is two hours. Brokers send again within minutes of a receiver's return, senders with backoff within
-- an hour; and a receiver that can't reach its source is ACTIVE for well over an hour (150 restarts) before it is FAILED
-- and started again. It is at most a quarter of the window: a stream's silence must show before its last keys expire.
-- Past its window no key stays for more than 7 windows or 7 days, whichever is less: a receiver that fails again and
-- again must not fill the disk. A removed stream keeps no key past its window.
-- Cost: what is deleted, and, if a key is older than the window, the stream's receivers. Keys that stay are not read.
-- Locks: the deleted keys.
CREATE FUNCTION forebay.clean_up_keys(stream bigint, default_window interval, max_rows bigint)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
-- By the index on age, in its order, up to the limit: sorting would read every key between two ages.
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    now_at timestamptz := clock_timestamp();
    declared boolean;
    key_window interval;
    oldest timestamptz;
    settle interval;
    drop_before timestamptz;    -- older keys go whatever happens
    keep_to timestamptz;        -- between drop_before and this no key goes; null: none is kept
    expired text[];
    gone bigint;
BEGIN
    SELECT s.removed_at IS NULL,
           coalesce(make_interval(secs => (s.declaration #>> '{settings,key_window}')::float8), default_window)
    INTO declared, key_window
    FROM streams s WHERE s.id = stream;
    SELECT k.added_at INTO oldest FROM record_keys k WHERE k.stream_id = stream ORDER BY k.added_at LIMIT 1;
    -- Most calls end here.
    IF NOT FOUND OR oldest >= now_at - key_window THEN
        RETURN 0;
    END IF;

    settle := least(key_window / 4, interval '2 hours');
    drop_before := now_at - greatest(key_window, least(7 * key_window, interval '7 days'));
    IF declared THEN
        -- A process that does not know yet that it has lost its receiver may store a block: the settling time is added.
        SELECT max(r.since) + settle INTO keep_to FROM receivers r
        WHERE r.stream_id = stream AND r.removed_at IS NULL AND (r.state <> 'ACTIVE' OR r.since > now_at - settle);
        PERFORM 1 FROM record_keys k
        WHERE k.stream_id = stream AND k.added_at >= now_at - 2 * settle AND k.added_at < now_at - settle
        ORDER BY k.added_at LIMIT 1;
        IF NOT FOUND THEN
            keep_to := now_at;
        END IF;
    END IF;

    SELECT array_agg(old.key) INTO expired FROM (
        (SELECT k.key FROM record_keys k
         WHERE k.stream_id = stream AND k.added_at < drop_before
         ORDER BY k.added_at LIMIT max_rows)
        UNION ALL
        (SELECT k.key FROM record_keys k
         WHERE k.stream_id = stream AND k.added_at >= greatest(drop_before, keep_to)
           AND k.added_at < now_at - key_window
         ORDER BY k.added_at LIMIT max_rows)
        LIMIT max_rows) AS old;
    -- The array makes it one probe of the primary key per key, never a scan of all keys.
    DELETE FROM record_keys k WHERE k.stream_id = stream AND k.key = ANY (expired);
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;
