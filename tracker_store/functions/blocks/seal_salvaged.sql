-- seal_salvaged: seal segments of earlier epochs of a receiver at the lengths that salvage found, all at once.
--
-- Authority: only the login that holds the receiver, under an epoch whose newest salvaged block, `through`, is in the
-- driver log; and only segments of that receiver from before the epoch. Those that their own process has sealed
-- meanwhile stay as they are. Repeating it changes nothing.
-- Outcomes: 'sealed'; 'fenced' (another epoch, or another login, has the receiver); 'lost' (the driver log lost the
-- salvage's blocks).
-- Locks: the segments' rows, by id.
CREATE FUNCTION forebay.seal_salvaged(
    receiver bigint, under_epoch bigint, through bigint, segments bigint[], lengths bigint[])
RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    newest blocks;
    epoch_there bigint;
BEGIN
    IF NOT holds_receiver(receiver) THEN
        RETURN 'fenced';
    END IF;
    SELECT * INTO newest FROM blocks b WHERE b.receiver_id = receiver ORDER BY b.sequence DESC LIMIT 1;
    -- Markers are never cleaned up, so the newest row up to there has the epoch even if the block itself is gone.
    SELECT b.epoch INTO epoch_there FROM blocks b
    WHERE b.receiver_id = receiver AND b.sequence <= through ORDER BY b.sequence DESC LIMIT 1;
    IF coalesce(newest.sequence, 0) < through OR epoch_there IS DISTINCT FROM under_epoch THEN
        RETURN CASE WHEN newest.epoch > under_epoch THEN 'fenced' ELSE 'lost' END;
    END IF;
    PERFORM 1 FROM log_segments g WHERE g.id = ANY (segments) ORDER BY g.id FOR UPDATE;
    UPDATE log_segments g SET state = 'SEALED', length = found.length, sealed_at = clock_timestamp()
    FROM unnest(segments, lengths) AS found(id, length)
    WHERE g.id = found.id AND g.state = 'OPEN' AND g.receiver_id = receiver AND g.epoch < under_epoch;
    RETURN 'sealed';
END
$$;
