-- claim: a process takes over a receiver by the marker row of a new epoch, the next of the receiver's sequence.
--
-- Authority: an epoch belongs to one process and one *answered* claim; a claim whose answer was lost is not owned (the
-- process claims again). A claim is refused unless it names the receiver's present assignment and the epoch that its
-- process saw as newest, and unless the receiver is placed on an agent that the same login registered.
-- Locks: the receiver's row FOR SHARE in one statement, so that no placement changes during the claim; the newest row
-- is read in the next, whose snapshot is from after the wait. `receivers` is not written here: two claims that both
-- hold the shared lock would deadlock on the upgrade.
CREATE FUNCTION forebay.claim(receiver bigint, seen_epoch bigint, under_assignment bigint)
RETURNS TABLE (outcome text, detail text, epoch bigint, sequence bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    present_assignment bigint;
    newest blocks;
BEGIN
    SELECT r.assignment INTO present_assignment FROM receivers r WHERE r.id = receiver FOR SHARE;
    IF present_assignment IS DISTINCT FROM under_assignment THEN
        outcome := 'not assigned';
        detail := format('receiver %s is under assignment %s, this process was started for %s',
                         receiver, coalesce(present_assignment::text, 'none'), under_assignment);
        RETURN NEXT;
        RETURN;
    END IF;
    IF NOT holds_receiver(receiver) THEN
        outcome := 'not assigned';
        detail := format('receiver %s is not placed on an agent that the login %s registered', receiver, session_user);
        RETURN NEXT;
        RETURN;
    END IF;
    FOR attempt IN 1..1000 LOOP
        SELECT * INTO newest FROM blocks b WHERE b.receiver_id = receiver ORDER BY b.sequence DESC LIMIT 1;
        IF coalesce(newest.epoch, 0) <> seen_epoch THEN
            outcome := 'lost';
            detail := format('epoch %s was claimed meanwhile, this process had seen %s', newest.epoch, seen_epoch);
            RETURN NEXT;
            RETURN;
        END IF;
        -- The clock keeps epochs (and file names) distinct after a restore from a backup; it may be set back.
        epoch := greatest(seen_epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint);
        sequence := coalesce(newest.sequence, 0) + 1;
        INSERT INTO blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes)
        VALUES (receiver, sequence, epoch, greatest(newest.added_at, clock_timestamp()), 0, 0,
                coalesce(newest.total_records, 0), coalesce(newest.total_bytes, 0))
        ON CONFLICT (receiver_id, sequence) DO NOTHING;
        IF FOUND THEN
            outcome := 'claimed';
            RETURN NEXT;
            RETURN;
        END IF;
    END LOOP;
    outcome := 'busy';
    detail := format('blocks of receiver %s were added faster than the claim, 1000 times', receiver);
    epoch := NULL;
    sequence := NULL;
    RETURN NEXT;
END
$$;
