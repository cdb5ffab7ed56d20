-- end_letter_replay: record that a receiver has parsed a row of dead letters again, and which of its records it left.
--
-- The records that fit are registered before, each with a key of its own, so it does not matter how often a receiver
-- begins again before this is called. With none left, the row counts as replayed. A row that is not wanted any more is
-- not changed: another process has ended the replay.
-- Authority: only the login that holds the receiver.
-- Locks: the row.
CREATE FUNCTION forebay.end_letter_replay(letter bigint, leaves bigint[], put_to text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    UPDATE dead_letters SET
        replay_wanted = false,
        left_records = leaves,
        replayed_at = CASE WHEN cardinality(leaves) = 0 THEN clock_timestamp() ELSE replayed_at END,
        replayed_to = CASE WHEN cardinality(leaves) = 0 THEN put_to ELSE replayed_to END
    WHERE id = letter AND replay_wanted AND holds_receiver(receiver_id);
    RETURN FOUND;
END
$$;
