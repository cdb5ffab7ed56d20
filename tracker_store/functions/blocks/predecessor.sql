-- predecessor: return the receiver's newest row if a block of this sequence and epoch may follow it; else no row.
--
-- Authority: this is the fence. Block n goes in only after row n-1, if that is the receiver's newest row and has n's own
-- epoch. The newest, not any row with that number: the number of a cleaned-up block is free again, and its marker stays.
-- A guard only together with the primary key of `blocks`, which decides between two that see the same predecessor.
-- It has no rights and settings of its own, and its one statement names its schema: so Postgres puts the statement in
-- place of the call, and a plan is the same as if it stood there. No role may call it.
-- Locks: none.
CREATE FUNCTION forebay.predecessor(of_receiver bigint, of_sequence bigint, of_epoch bigint)
RETURNS SETOF forebay.blocks
LANGUAGE sql STABLE
AS $$
    SELECT p.* FROM (
        SELECT b.* FROM forebay.blocks b WHERE b.receiver_id = of_receiver ORDER BY b.sequence DESC LIMIT 1) AS p
    WHERE p.sequence = of_sequence - 1 AND p.epoch = of_epoch
$$;
