-- add_block: add many blocks of many receivers, with one named outcome per receiver (docs/explanation/driver-log.md).
--
-- Authority: block n goes in only if block n-1 is the newest and carries n's own epoch (`predecessor`); the primary key
-- (receiver_id, sequence) decides every race. A receiver may trust "added" and "already added" for ever, and nothing
-- else: a missing answer is unknown, and is resolved only by sending the identical blocks again.
-- A block goes in only if its segment has a row, of the same receiver and of no later epoch (salvage adds blocks from
-- segments of earlier ones): a server that was promoted without the row can give its id away again, and no batch could
-- read the block. Its outcome is "gap", because the driver log lost commits that come before the block.
-- All or nothing per receiver needs no subtransaction: while the first block is uncommitted no other session can see
-- the predecessor of the second, so once the first is in, the rest can't conflict.
-- Links of source positions and idempotency keys go in with their block. They are compared before it is inserted, so a
-- mismatch inserts nothing. If another receiver was first between the two, the primary key of block_offsets or
-- record_keys raises, the whole call is undone, and the caller sends each receiver's blocks alone: then the comparison
-- names the outcome.
-- Moves of channels go in with their block in the same way: if another receiver moved one between the comparison and the
-- move, the whole call is undone as a serialization failure, and is sent again.
-- A block without records is an error of the whole call (H05): only a marker has none, and `claim` inserts those.
-- Blocks of a group without links and keys are first tried by two set-based statements, for speed (the loop over
-- receivers costs three times as much). They add under the same conditions, but name no refusal. For the receivers they
-- tried, the loop adds nothing, and only names the outcome. A single block has add_one_block, which calls this for what
-- it can't add.
-- The outcome is named by later statements, whose snapshots are fresh: the INSERT's own is from before any wait.
-- Locks: only the inserted rows' keys, in the order of (receiver, sequence), then block_offsets, then record_keys, then
-- the rows of moved channels, by sender and name. If several receivers of a call move channels, these rows are locked
-- first, for all of them. No row of `receivers` is locked.
CREATE FUNCTION forebay.add_block(
    receiver_ids bigint[], epochs bigint[], sequences bigint[], record_counts bigint[], byte_counts bigint[],
    segment_ids bigint[], offsets bigint[], lengths bigint[], checksums bigint[],
    -- One element per link; link_blocks has the position of its block in the arrays above (from 1).
    link_blocks integer[] DEFAULT '{}', link_sources text[] DEFAULT '{}', link_partitions text[] DEFAULT '{}',
    link_generations integer[] DEFAULT '{}', link_froms bigint[] DEFAULT '{}', link_tos bigint[] DEFAULT '{}',
    link_kinds text[] DEFAULT '{}',
    -- One element per idempotency key, in the same way.
    key_blocks integer[] DEFAULT '{}', keys text[] DEFAULT '{}',
    -- One element per move of a channel, in the same way; several moves of one channel are in order.
    move_blocks integer[] DEFAULT '{}', move_senders text[] DEFAULT '{}', move_channels text[] DEFAULT '{}',
    move_froms bigint[] DEFAULT '{}', move_tos bigint[] DEFAULT '{}')
RETURNS TABLE (
    receiver_id bigint, outcome text, detail text, rate_limit double precision, desired_state text,
    assignment bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
-- A plan cached while the table was almost empty would scan it for hours, and any join but a nested loop its index.
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    sent record;
    first_block blocks;
    newest blocks;
    present bigint;
    identical bigint;
    stream bigint;
    broken_link text;
    known_keys text;
    broken_move text;
    channel_rows tid[];
    channel_senders text[];
    channel_names text[];
    channel_froms bigint[];
    channel_ends bigint[];
    moved bigint;
    made bigint;
    grouped bigint[] := '{}';
    tried boolean := false;
    empty_block integer;
    rowless bigint[] := '{}';
    without_row text;
BEGIN
    IF 1 > ANY (record_counts) THEN
        SELECT n INTO empty_block FROM generate_subscripts(record_counts, 1) AS n WHERE record_counts[n] < 1 LIMIT 1;
        RAISE EXCEPTION 'block % of receiver %, in segment %, has % records', sequences[empty_block],
                        receiver_ids[empty_block], segment_ids[empty_block], record_counts[empty_block]
            USING ERRCODE = 'invalid_parameter_value', HINT = 'A block holds at least one record: send none without.';
    END IF;
    -- One probe of the primary key per segment; a row is deleted only when no block of it can come any more.
    SELECT coalesce(array_agg(u.receiver_id), '{}') INTO rowless
    FROM (SELECT DISTINCT a.receiver_id, a.segment_id, a.epoch
          FROM unnest(receiver_ids, segment_ids, epochs) AS a(receiver_id, segment_id, epoch)) AS u
    WHERE (SELECT true FROM log_segments g
           WHERE g.id = u.segment_id AND g.receiver_id = u.receiver_id AND g.epoch <= u.epoch) IS NOT TRUE;
    IF cardinality(receiver_ids) > 1 AND cardinality(link_blocks) = 0 AND cardinality(key_blocks) = 0
       AND cardinality(move_blocks) = 0 THEN
        -- A group: one statement tries each receiver's first block, the next adds the rest of those that went in.
        tried := true;
        WITH runs AS (
            SELECT u.receiver_id AS receiver, min(u.n)::int AS lo
            FROM unnest(receiver_ids) WITH ORDINALITY AS u(receiver_id, n)
            GROUP BY u.receiver_id
        ), inserted AS (
            INSERT INTO blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes,
                                segment_id, "offset", length, crc32c)
            SELECT r.receiver, sequences[r.lo], epochs[r.lo], greatest(p.added_at, clock_timestamp()),
                   record_counts[r.lo], byte_counts[r.lo],
                   p.total_records + record_counts[r.lo], p.total_bytes + byte_counts[r.lo],
                   segment_ids[r.lo], offsets[r.lo], lengths[r.lo], checksums[r.lo]
            FROM runs r
            CROSS JOIN LATERAL predecessor(r.receiver, sequences[r.lo], epochs[r.lo]) AS p
            WHERE r.receiver <> ALL (rowless)
            ORDER BY r.receiver
            ON CONFLICT (receiver_id, sequence) DO NOTHING
            RETURNING receiver_id)
        SELECT coalesce(array_agg(i.receiver_id), '{}') INTO grouped FROM inserted i;

        IF cardinality(receiver_ids) > cardinality(grouped) THEN
            INSERT INTO blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes,
                                segment_id, "offset", length, crc32c)
            SELECT f.receiver_id, sequences[u.n], f.epoch, f.added_at, record_counts[u.n], byte_counts[u.n],
                   f.total_records + sum(record_counts[u.n]) OVER run, f.total_bytes + sum(byte_counts[u.n]) OVER run,
                   segment_ids[u.n], offsets[u.n], lengths[u.n], checksums[u.n]
            FROM (SELECT a.receiver_id, a.n, min(a.n) OVER (PARTITION BY a.receiver_id) AS lo
                  FROM unnest(receiver_ids) WITH ORDINALITY AS a(receiver_id, n)
                  WHERE a.receiver_id = ANY (grouped)) AS u
            JOIN blocks f ON f.receiver_id = u.receiver_id AND f.sequence = sequences[u.lo]
            WHERE u.n > u.lo
            WINDOW run AS (PARTITION BY u.receiver_id ORDER BY u.n)
            ORDER BY u.receiver_id, u.n;
        END IF;
    END IF;

    IF cardinality(move_blocks) > 1 AND receiver_ids[move_blocks[1]] <> ANY (
           ARRAY(SELECT receiver_ids[n] FROM unnest(move_blocks) AS n)) THEN
        -- Receivers are added one after the other, and two calls may move the same channels in different orders. So first
        -- lock the rows of all, in one order: by the key. Those that don't exist yet may still deadlock, and are repeated.
        PERFORM (SELECT true FROM channels c
                 WHERE c.stream_id = l.stream AND c.sender = l.sender AND c.channel = l.channel FOR UPDATE)
        FROM (SELECT DISTINCT (SELECT r.stream_id FROM receivers r WHERE r.id = receiver_ids[move_blocks[n]]) AS stream,
                              move_senders[n] AS sender, move_channels[n] AS channel
              FROM generate_subscripts(move_blocks, 1) AS n
              ORDER BY 1, 2, 3) AS l;
    END IF;

    FOR sent IN
        -- `links`, `keys` and `moves` are positions in the arrays of the arguments. All are grouped here, in one pass: for each
        -- receiver a look through all of them would cost O(receivers · keys).
        SELECT u.receiver_id AS receiver, min(u.n) FILTER (WHERE u.what = 'block') AS lo,
               max(u.n) FILTER (WHERE u.what = 'block') AS hi, count(*) FILTER (WHERE u.what = 'block') AS blocks,
               count(DISTINCT epochs[u.n]) FILTER (WHERE u.what = 'block') AS epochs_sent,
               array_agg(u.n ORDER BY u.n) FILTER (WHERE u.what = 'link') AS links,
               array_agg(u.n ORDER BY u.n) FILTER (WHERE u.what = 'key') AS keys,
               array_agg(u.n ORDER BY u.n) FILTER (WHERE u.what = 'move') AS moves
        FROM (
            SELECT receiver_ids[n] AS receiver_id, 'block' AS what, n FROM generate_subscripts(receiver_ids, 1) AS n
            UNION ALL
            SELECT receiver_ids[link_blocks[n]], 'link', n FROM generate_subscripts(link_blocks, 1) AS n
            UNION ALL
            SELECT receiver_ids[key_blocks[n]], 'key', n FROM generate_subscripts(key_blocks, 1) AS n
            UNION ALL
            SELECT receiver_ids[move_blocks[n]], 'move', n FROM generate_subscripts(move_blocks, 1) AS n) AS u
        WHERE u.receiver_id IS NOT NULL
        GROUP BY u.receiver_id ORDER BY u.receiver_id
    LOOP
        IF sent.hi - sent.lo + 1 <> sent.blocks OR sent.epochs_sent <> 1
           OR sequences[sent.hi] - sequences[sent.lo] <> sent.hi - sent.lo THEN
            RAISE EXCEPTION 'blocks of receiver % are not one run of sequences of one epoch', sent.receiver
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        CONTINUE WHEN sent.receiver = ANY (grouped);
        receiver_id := sent.receiver;
        detail := NULL;
        broken_link := NULL;
        known_keys := NULL;
        broken_move := NULL;
        without_row := NULL;
        IF sent.receiver = ANY (rowless) THEN
            SELECT string_agg(DISTINCT segment_ids[n]::text, ', ') INTO without_row
            FROM generate_series(sent.lo, sent.hi) AS n
            WHERE (SELECT true FROM log_segments g
                   WHERE g.id = segment_ids[n] AND g.receiver_id = sent.receiver AND g.epoch <= epochs[n]) IS NOT TRUE;
        END IF;
        SELECT r.rate_limit, r.desired_state, r.assignment, r.stream_id
        INTO rate_limit, desired_state, assignment, stream
        FROM receivers r WHERE r.id = sent.receiver;

        IF sent.links IS NOT NULL THEN
            -- Each link must begin exactly where the partition's newest one ended, or its predecessor in this call.
            SELECT string_agg(format('%s/%s: %s link %s..%s in generation %s, the log is at %s in generation %s',
                                     l.source, l.partition, l.kind, l.from_offset, l.to_offset, l.generation,
                                     coalesce(l.before_to::text, 'no position'), coalesce(l.before_generation, 0)),
                              '; ')
            INTO broken_link
            FROM (
                SELECT i.*, coalesce(lag(i.to_offset) OVER chain, newest_link.to_offset) AS before_to,
                       coalesce(lag(i.generation) OVER chain, newest_link.generation) AS before_generation
                FROM (
                    SELECT link_sources[n] AS source, link_partitions[n] AS partition, link_generations[n] AS generation,
                           link_froms[n] AS from_offset, link_tos[n] AS to_offset, link_kinds[n] AS kind, n
                    FROM unnest(sent.links) AS n) AS i
                LEFT JOIN LATERAL (
                    SELECT o.to_offset, o.generation FROM block_offsets o
                    WHERE o.stream_id = stream AND o.source = i.source AND o.partition = i.partition
                    ORDER BY o.generation DESC, o.from_offset DESC LIMIT 1) AS newest_link ON true
                WINDOW chain AS (PARTITION BY i.source, i.partition ORDER BY i.n)) AS l
            WHERE NOT CASE WHEN l.kind = 'origin' THEN l.generation = coalesce(l.before_generation + 1, 0)
                           ELSE l.generation = l.before_generation AND l.from_offset = l.before_to END IS TRUE;
        END IF;
        IF sent.keys IS NOT NULL THEN
            -- A few, for the message; the function `known_keys` returns all that are there.
            -- Not by EXISTS: a join planned while the table is almost empty would compare each with all, for hours.
            SELECT string_agg(k.key, ', ') INTO known_keys
            FROM (SELECT keys[n] AS key FROM unnest(sent.keys) AS n
                  WHERE (SELECT true FROM record_keys r WHERE r.stream_id = stream AND r.key = keys[n])
                  LIMIT 5) AS k;
        END IF;

        IF sent.moves IS NOT NULL THEN
            -- Each move must begin exactly where its channel is, or where its predecessor in this call ends. A channel
            -- without a row is where it is without its sender, from a time when the source had no tokens, or at 0.
            -- Not by a plain join: one planned while the table is almost empty would compare each with all, for hours.
            SELECT string_agg(format('%s %s..%s, the log is at %s', m.channel, m.from_offset, m.to_offset,
                                     coalesce(c.position, u.position, 0)), '; ')
                       FILTER (WHERE NOT m.chained OR m.from_offset <> coalesce(c.position, u.position, 0)),
                   array_agg(c.ctid ORDER BY m.sender, m.channel), array_agg(m.sender ORDER BY m.sender, m.channel),
                   array_agg(m.channel ORDER BY m.sender, m.channel), array_agg(m.from_offset ORDER BY m.sender, m.channel),
                   array_agg(m.to_offset ORDER BY m.sender, m.channel)
            INTO broken_move, channel_rows, channel_senders, channel_names, channel_froms, channel_ends
            FROM (
                SELECT i.sender, i.channel, min(i.from_offset) AS from_offset, max(i.to_offset) AS to_offset,
                       bool_and(coalesce(i.before_to, i.from_offset) = i.from_offset) AS chained
                FROM (
                    SELECT move_senders[n] AS sender, move_channels[n] AS channel, move_froms[n] AS from_offset,
                           move_tos[n] AS to_offset,
                           lag(move_tos[n]) OVER (PARTITION BY move_senders[n], move_channels[n] ORDER BY n) AS before_to
                    FROM unnest(sent.moves) AS n) AS i
                GROUP BY i.sender, i.channel) AS m
            LEFT JOIN LATERAL (
                SELECT o.ctid, o.position FROM channels o
                WHERE o.stream_id = stream AND o.sender = m.sender AND o.channel = m.channel OFFSET 0) AS c ON true
            LEFT JOIN LATERAL (
                SELECT o.position FROM channels o
                WHERE m.sender <> '' AND c.position IS NULL
                  AND o.stream_id = stream AND o.sender = '' AND o.channel = m.channel OFFSET 0) AS u ON true;
        END IF;

        IF NOT tried AND without_row IS NULL AND broken_link IS NULL AND known_keys IS NULL
           AND broken_move IS NULL THEN
            INSERT INTO blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes,
                                segment_id, "offset", length, crc32c)
            SELECT sent.receiver, sequences[sent.lo], epochs[sent.lo], greatest(p.added_at, clock_timestamp()),
                   record_counts[sent.lo], byte_counts[sent.lo],
                   p.total_records + record_counts[sent.lo], p.total_bytes + byte_counts[sent.lo],
                   segment_ids[sent.lo], offsets[sent.lo], lengths[sent.lo], checksums[sent.lo]
            FROM predecessor(sent.receiver, sequences[sent.lo], epochs[sent.lo]) AS p
            ON CONFLICT (receiver_id, sequence) DO NOTHING
            RETURNING * INTO first_block;
        END IF;

        IF NOT tried AND without_row IS NULL AND broken_link IS NULL AND known_keys IS NULL
           AND broken_move IS NULL AND FOUND THEN
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
            IF sent.links IS NOT NULL THEN
                INSERT INTO block_offsets (stream_id, source, partition, generation, from_offset, to_offset, kind,
                                           receiver_id, sequence)
                SELECT stream, link_sources[n], link_partitions[n], link_generations[n], link_froms[n], link_tos[n],
                       link_kinds[n], sent.receiver, sequences[link_blocks[n]]
                FROM unnest(sent.links) AS n;
            END IF;
            IF sent.keys IS NOT NULL THEN
                INSERT INTO record_keys (stream_id, key, receiver_id, sequence)
                SELECT stream, keys[n], sent.receiver, sequences[key_blocks[n]]
                FROM unnest(sent.keys) AS n
                -- All insert in one order, so that two receivers with the same keys wait and don't deadlock.
                ORDER BY keys[n];
            END IF;
            IF sent.moves IS NOT NULL THEN
                -- The place of a row is that of its version. Where another session moves the row meanwhile, only newer
                -- Postgres versions compare the place again after waiting, so the position is compared too.
                UPDATE channels c
                SET position = m.to_offset, receiver_id = sent.receiver, moved_at = clock_timestamp()
                FROM unnest(channel_rows, channel_froms, channel_ends) AS m(place, from_offset, to_offset)
                WHERE c.ctid = m.place AND c.position = m.from_offset;
                GET DIAGNOSTICS moved = ROW_COUNT;
                IF moved < cardinality(channel_rows) THEN
                    INSERT INTO channels (stream_id, sender, channel, position, receiver_id)
                    SELECT stream, m.sender, m.channel, m.to_offset, sent.receiver
                    FROM unnest(channel_rows, channel_senders, channel_names, channel_ends)
                        AS m(place, sender, channel, to_offset)
                    WHERE m.place IS NULL
                    ORDER BY m.sender, m.channel
                    ON CONFLICT (stream_id, sender, channel) DO NOTHING;
                    GET DIAGNOSTICS made = ROW_COUNT;
                    IF moved + made < cardinality(channel_rows) THEN
                        RAISE EXCEPTION 'another receiver has moved a channel of receiver % meanwhile', sent.receiver
                            USING ERRCODE = 'serialization_failure';
                    END IF;
                END IF;
            END IF;
        ELSE
            -- Clean-up may have deleted the block already: then the same epoch at that sequence identifies it.
            SELECT count(b.sequence), count(*) FILTER (
                       WHERE b.epoch = epochs[n] AND b.records = record_counts[n] AND b.bytes = byte_counts[n]
                         AND b.segment_id = segment_ids[n] AND b."offset" = offsets[n]
                         AND b.length = lengths[n] AND b.crc32c = checksums[n]
                         OR b.sequence IS NULL AND cleaned.epoch = epochs[n])
            INTO present, identical
            FROM generate_series(sent.lo, sent.hi) AS n
            LEFT JOIN blocks b ON b.receiver_id = sent.receiver AND b.sequence = sequences[n]
            LEFT JOIN LATERAL (
                -- Markers stay, so below the low mark each sequence has the epoch of the marker before it.
                SELECT m.epoch FROM receivers r JOIN blocks m ON m.receiver_id = r.id
                WHERE b.sequence IS NULL AND r.id = sent.receiver AND sequences[n] <= r.low_mark
                  AND m.sequence < sequences[n]
                ORDER BY m.sequence DESC LIMIT 1) AS cleaned ON true;

            SELECT * INTO newest FROM blocks b
            WHERE b.receiver_id = sent.receiver ORDER BY b.sequence DESC LIMIT 1;

            IF identical = sent.blocks THEN
                -- This case is first: a block whose answer was lost before a take-over is in, and must be acknowledged.
                outcome := 'already added';
                -- A read-only transaction does not wait for a synchronous standby, but this answer acknowledges data:
                -- so write something.
                PERFORM pg_logical_emit_message(true, 'forebay', outcome);
            ELSIF newest.epoch > epochs[sent.lo] THEN
                outcome := 'fenced';
                detail := format('epoch %s holds receiver %s since sequence %s, this process has %s',
                                 newest.epoch, sent.receiver, newest.sequence, epochs[sent.lo]);
            ELSIF present > 0 THEN
                outcome := 'conflict';
                detail := format('%s of the %s sequences %s..%s of receiver %s are taken, %s of them by these blocks',
                                 present, sent.blocks, sequences[sent.lo], sequences[sent.hi], sent.receiver,
                                 identical);
            ELSIF without_row IS NOT NULL THEN
                outcome := 'gap';
                detail := format('the driver log has no row of segment %s of receiver %s', without_row, sent.receiver);
            ELSIF broken_link IS NOT NULL THEN
                outcome := 'offset conflict';
                detail := broken_link;
            ELSIF known_keys IS NOT NULL THEN
                outcome := 'duplicate keys';
                detail := known_keys;
            ELSIF broken_move IS NOT NULL THEN
                outcome := 'channel conflict';
                detail := broken_move;
            ELSIF newest.sequence IS NULL OR newest.sequence < sequences[sent.lo] - 1
                  OR newest.epoch < epochs[sent.lo] THEN
                outcome := 'gap';
                detail := format('the newest of receiver %s is sequence %s of epoch %s, sent was %s of epoch %s',
                                 sent.receiver, coalesce(newest.sequence, 0), coalesce(newest.epoch, 0),
                                 sequences[sent.lo], epochs[sent.lo]);
            ELSE
                -- Predecessor there, number free, own epoch: the INSERT's snapshot was older than the predecessor.
                outcome := 'again';
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;

    IF cardinality(grouped) > 0 THEN
        RETURN QUERY
        SELECT g.receiver_id, 'added', NULL::text, r.rate_limit, r.desired_state, r.assignment
        FROM unnest(grouped) AS g(receiver_id) LEFT JOIN receivers r ON r.id = g.receiver_id;
    END IF;
END
$$;
