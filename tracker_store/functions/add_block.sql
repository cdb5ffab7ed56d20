-- add_block: adds many blocks of many receivers; one named outcome per receiver (design §4).
--
-- Authority: block n goes in only where block n-1 is there and carries n's own epoch; the primary key
-- (receiver_id, sequence) decides every race. A receiver may trust "added" and "already added" for ever, and
-- nothing else: no answer at all is unknown, and is resolved only by sending the identical blocks again.
-- All or nothing per receiver needs no subtransaction: while the first block is uncommitted nobody else can see
-- the predecessor of the second, so once the first is in, the rest can't conflict.
-- The outcome is named by later statements, whose snapshots are fresh: the INSERT's own is from before any wait.
-- Locks: the inserted rows' keys alone, in the order of (receiver, sequence). No row of `receivers` is locked.
CREATE FUNCTION forebay.add_block(
    receiver_ids bigint[], epochs bigint[], sequences bigint[], record_counts bigint[], byte_counts bigint[],
    segment_ids bigint[], offsets bigint[], lengths bigint[], checksums bigint[])
RETURNS TABLE (
    receiver_id bigint, outcome text, detail text, rate_limit double precision, desired_state text,
    assignment bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off  -- a plan cached while the table was near empty would scan it for hours
AS $$
#variable_conflict use_column
DECLARE
    sent record;
    first_block blocks;
    newest blocks;
    present bigint;
    identical bigint;
BEGIN
    FOR sent IN
        SELECT u.receiver_id AS receiver, min(u.n)::int AS lo, max(u.n)::int AS hi, count(*) AS blocks,
               count(DISTINCT epochs[u.n]) AS epochs_sent
        FROM unnest(receiver_ids) WITH ORDINALITY AS u(receiver_id, n)
        GROUP BY u.receiver_id ORDER BY u.receiver_id
    LOOP
        IF sent.hi - sent.lo + 1 <> sent.blocks OR sent.epochs_sent <> 1
           OR sequences[sent.hi] - sequences[sent.lo] <> sent.hi - sent.lo THEN
            RAISE EXCEPTION 'blocks of receiver % are not one run of sequences of one epoch', sent.receiver
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        receiver_id := sent.receiver;
        detail := NULL;

        INSERT INTO blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes,
                            segment_id, "offset", length, crc32c)
        SELECT sent.receiver, sequences[sent.lo], epochs[sent.lo], greatest(p.added_at, clock_timestamp()),
               record_counts[sent.lo], byte_counts[sent.lo],
               p.total_records + record_counts[sent.lo], p.total_bytes + byte_counts[sent.lo],
               segment_ids[sent.lo], offsets[sent.lo], lengths[sent.lo], checksums[sent.lo]
        FROM blocks p
        WHERE p.receiver_id = sent.receiver AND p.sequence = sequences[sent.lo] - 1 AND p.epoch = epochs[sent.lo]
        ON CONFLICT (receiver_id, sequence) DO NOTHING
        RETURNING * INTO first_block;

        IF FOUND THEN
            outcome := 'added';
            IF sent.hi > sent.lo THEN
                INSERT INTO blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records,
                                    total_bytes, segment_id, "offset", length, crc32c)
                SELECT sent.receiver, sequences[n], first_block.epoch, first_block.added_at,
                       record_counts[n], byte_counts[n],
                       first_block.total_records + sum(record_counts[n]) OVER (ORDER BY n),
                       first_block.total_bytes + sum(byte_counts[n]) OVER (ORDER BY n),
                       segment_ids[n], offsets[n], lengths[n], checksums[n]
                FROM generate_series(sent.lo + 1, sent.hi) AS n;
            END IF;
        ELSE
            SELECT count(b.sequence), count(*) FILTER (
                       WHERE b.epoch = epochs[n] AND b.records = record_counts[n] AND b.bytes = byte_counts[n]
                         AND b.segment_id = segment_ids[n] AND b."offset" = offsets[n]
                         AND b.length = lengths[n] AND b.crc32c = checksums[n])
            INTO present, identical
            FROM generate_series(sent.lo, sent.hi) AS n
            LEFT JOIN blocks b ON b.receiver_id = sent.receiver AND b.sequence = sequences[n];

            SELECT * INTO newest FROM blocks b
            WHERE b.receiver_id = sent.receiver ORDER BY b.sequence DESC LIMIT 1;

            IF identical = sent.blocks THEN
                -- First of all: a block whose answer was lost before a take-over is in, and must be acknowledged.
                outcome := 'already added';
            ELSIF newest.epoch > epochs[sent.lo] THEN
                outcome := 'fenced';
                detail := format('epoch %s holds receiver %s since sequence %s, this process has %s',
                                 newest.epoch, sent.receiver, newest.sequence, epochs[sent.lo]);
            ELSIF present > 0 THEN
                outcome := 'conflict';
                detail := format('%s of the %s sequences %s..%s of receiver %s are taken, %s of them by these blocks',
                                 present, sent.blocks, sequences[sent.lo], sequences[sent.hi], sent.receiver,
                                 identical);
            ELSIF newest.sequence IS NULL OR newest.sequence < sequences[sent.lo] - 1
                  OR newest.epoch < epochs[sent.lo] THEN
                outcome := 'gap';
                detail := format('the newest of receiver %s is sequence %s of epoch %s, sent was %s of epoch %s',
                                 sent.receiver, coalesce(newest.sequence, 0), coalesce(newest.epoch, 0),
                                 sequences[sent.lo], epochs[sent.lo]);
            ELSE
                -- Predecessor there, number free, epoch ours: the INSERT's snapshot was older than the predecessor.
                outcome := 'again';
            END IF;
        END IF;

        SELECT r.rate_limit, r.desired_state, r.assignment INTO rate_limit, desired_state, assignment
        FROM receivers r WHERE r.id = sent.receiver;
        RETURN NEXT;
    END LOOP;
END
$$;
