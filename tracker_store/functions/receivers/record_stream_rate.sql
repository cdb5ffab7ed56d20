-- record_stream_rate: the leader records what a completed batch says about a stream's rate, and whether the pipeline has
-- stood still since.
--
-- One row per (pipeline, stream) is all that a new leader needs to continue: the estimator's state and the decided
-- rate. A batch that is not newer than the last one that was used (a replay, or a leader that asks twice) changes
-- nothing, except that with the same one the rate expires, or applies again: while a pipeline stands still its rates
-- limit no receiver, and stay in their rows for when it goes on.
-- Locks: the leader's row FOR SHARE first, then the row of (pipeline, stream).
CREATE FUNCTION forebay.record_stream_rate(
    of_term bigint, pipeline bigint, stream bigint, at_time timestamptz,
    -- The estimator's state, all set or all null; the stream's rate, null if nothing is decided yet.
    estimated_at timestamptz, rate double precision, error double precision, decided double precision,
    is_expired boolean DEFAULT false)
RETURNS TABLE (outcome text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NOT leads(of_term) THEN
        outcome := 'deposed';
        RETURN NEXT;
        RETURN;
    END IF;
    INSERT INTO stream_rates AS s (pipeline_id, stream_id, batch_time, latest_at, latest_rate, latest_error, rate_limit,
                                   expired_at)
    VALUES (pipeline, stream, at_time, estimated_at, rate, error, decided,
            CASE WHEN is_expired THEN clock_timestamp() END)
    ON CONFLICT (pipeline_id, stream_id) DO UPDATE
    SET batch_time = excluded.batch_time, latest_at = excluded.latest_at, latest_rate = excluded.latest_rate,
        latest_error = excluded.latest_error, rate_limit = excluded.rate_limit, expired_at = excluded.expired_at,
        decided_at = clock_timestamp()
    WHERE s.batch_time < excluded.batch_time
       OR s.batch_time = excluded.batch_time AND (s.expired_at IS NOT NULL) <> is_expired;
    outcome := CASE WHEN FOUND THEN 'recorded' ELSE 'reckoned before' END;
    RETURN NEXT;
END
$$;
