-- heartbeat: raise a process's counter by one and return what its receivers must do, in one row of arrays.
--
-- A counter, not a time: a process is dead when its counter has not changed for the limit on the leader's monotonic
-- clock, so a stepped clock expires nothing. A process that was declared dead learns it from this: `alive` is false.
-- With `whole`, the answer also has each receiver's newest sequence, and which server and timeline answered. A process
-- that knows that a newer sequence was registered learns by it that the driver log lost its last commits, even if it
-- has nothing to register. A server loses commits only when it stops or is replaced, which ends its sessions: so a
-- process asks in the first call of each session, and now and then.
-- `in_queue` are the lengths of the receivers' queues, {"receiver": blocks, "fetched": {"receiver": records}}, for
-- display only; null: as they were.
-- The commit does not wait for the disk. A server that crashes may forget the last counters, and never one of them
-- without those that came after it. A process's next call raises its counter again.
-- One plan for any number of receivers: a plan for each call would cost as much as the call.
-- Authority: only the login that registered the process raises its counter; for another one it counts as dead.
-- Locks: the process's own row.
CREATE FUNCTION forebay.heartbeat(process bigint, receiver_ids bigint[], in_queue jsonb, whole boolean)
RETURNS TABLE (
    alive boolean, ids bigint[], rate_limits double precision[], desired_states text[], assignments bigint[],
    newest_sequences bigint[], server text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    -- Until the end of this transaction.
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE processes SET heartbeat = heartbeat + 1, queued = coalesce(in_queue, queued)
    WHERE id = process AND ended_at IS NULL
      AND (login = session_user OR pg_has_role(session_user, current_user, 'USAGE'));
    alive := FOUND;
    -- The probe of the newest block, in the primary key, is made only if it is asked for.
    SELECT array_agg(r.id), array_agg(r.rate_limit), array_agg(r.desired_state), array_agg(r.assignment),
           array_agg(CASE WHEN whole THEN coalesce((
               SELECT b.sequence FROM blocks b WHERE b.receiver_id = r.id ORDER BY b.sequence DESC LIMIT 1), 0) END)
    INTO ids, rate_limits, desired_states, assignments, newest_sequences
    FROM receivers r
    WHERE r.id = ANY (receiver_ids);
    IF whole THEN
        server := server_timeline();
    END IF;
    RETURN NEXT;
END
$$;
