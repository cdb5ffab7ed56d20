-- fail_attempt: end an attempt as failed or `blocked`, for processes of an older release, which do not know
-- end_attempt.
--
-- They don't know lost attempts, so theirs count in max_attempts.
-- Locks: those of end_attempt.
CREATE FUNCTION forebay.fail_attempt(
    pipeline bigint, at_time timestamptz, number integer, failed_run text, message text,
    max_attempts integer, retry_after interval, blocked boolean DEFAULT false)
RETURNS TABLE (outcome text)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
    SELECT e.outcome FROM forebay.end_attempt(
        pipeline, at_time, number, failed_run, message, CASE WHEN blocked THEN 'BLOCKED' ELSE 'FAILED' END,
        max_attempts, max_attempts, ARRAY[retry_after]) AS e;
$$;
