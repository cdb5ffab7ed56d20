-- expire_stream_rates: the leader records that a pipeline stands still, or that it goes on.
--
-- While a pipeline stands still its rates limit no receiver. They stay in their rows, for when it goes on.
-- Locks: the leader's row FOR SHARE first, then the pipeline's rows.
CREATE FUNCTION forebay.expire_stream_rates(of_term bigint, pipeline bigint, still boolean)
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
    UPDATE stream_rates SET expired_at = CASE WHEN still THEN clock_timestamp() END, decided_at = clock_timestamp()
    WHERE pipeline_id = pipeline AND (expired_at IS NULL) = still;
    outcome := CASE WHEN still THEN 'expired' ELSE 'revived' END;
    RETURN NEXT;
END
$$;
