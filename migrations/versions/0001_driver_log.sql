-- The tables of the driver log, their indexes and their triggers. The trigger functions do nothing until those of their
-- names are installed, after the last migration.

CREATE TABLE forebay.batch_allocations (
    pipeline_id bigint NOT NULL,
    batch_time timestamptz NOT NULL,
    receiver_id bigint NOT NULL,
    sequences int8range NOT NULL,
    records bigint NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (pipeline_id, batch_time, receiver_id),
    CONSTRAINT batch_allocations_not_empty CHECK (NOT isempty(sequences))
);
CREATE INDEX batch_allocations_receiver ON forebay.batch_allocations (pipeline_id, receiver_id, batch_time);
COMMENT ON TABLE forebay.batch_allocations IS
    'Which blocks of which receiver belong to a batch? (A pipeline''s ranges of a receiver follow each other.)';
COMMENT ON COLUMN forebay.batch_allocations.pipeline_id IS 'The batch''s pipeline';
COMMENT ON COLUMN forebay.batch_allocations.batch_time IS 'The batch';
COMMENT ON COLUMN forebay.batch_allocations.receiver_id IS 'The receiver; one without blocks for the batch has no row';
COMMENT ON COLUMN forebay.batch_allocations.sequences IS 'The range of its sequences, epoch markers among them';
COMMENT ON COLUMN forebay.batch_allocations.records IS 'Records in the range: a difference of running totals';
COMMENT ON COLUMN forebay.batch_allocations.bytes IS 'The same in bytes as stored';

CREATE TABLE forebay.batch_attempts (
    pipeline_id bigint NOT NULL,
    batch_time timestamptz NOT NULL,
    attempt integer NOT NULL,
    state text DEFAULT 'RUNNING' NOT NULL,
    run_id text NOT NULL,
    process_id bigint,
    started_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    ended_at timestamptz,
    error text DEFAULT '' NOT NULL,
    kind text DEFAULT 'run' NOT NULL,
    reach interval DEFAULT interval '0' NOT NULL,
    PRIMARY KEY (pipeline_id, batch_time, attempt),
    CONSTRAINT batch_attempts_state CHECK (state IN ('RUNNING', 'SUCCEEDED', 'FAILED', 'BLOCKED', 'LOST')),
    CONSTRAINT batch_attempts_kind CHECK (kind IN ('run', 'replay')),
    CONSTRAINT batch_attempts_ended_at CHECK ((state = 'RUNNING') = (ended_at IS NULL))
);
CREATE UNIQUE INDEX batch_attempts_running ON forebay.batch_attempts (pipeline_id, batch_time) WHERE state = 'RUNNING';
COMMENT ON TABLE forebay.batch_attempts IS
    'Which attempts to run a batch were made, when, and how did each end? (At most one runs.)';
COMMENT ON COLUMN forebay.batch_attempts.pipeline_id IS 'The batch''s pipeline';
COMMENT ON COLUMN forebay.batch_attempts.batch_time IS 'The batch';
COMMENT ON COLUMN forebay.batch_attempts.attempt IS 'Its number, from 1';
COMMENT ON COLUMN forebay.batch_attempts.state IS
    'RUNNING, SUCCEEDED, FAILED, BLOCKED (no block store, target or key) or LOST (its process died)';
COMMENT ON COLUMN forebay.batch_attempts.run_id IS 'The Dagster run; empty when none is known';
COMMENT ON COLUMN forebay.batch_attempts.process_id IS
    'The process whose heartbeat is watched; null for a run that never claimed';
COMMENT ON COLUMN forebay.batch_attempts.started_at IS 'When it claimed the batch';
COMMENT ON COLUMN forebay.batch_attempts.ended_at IS 'When it ended; null while it runs';
COMMENT ON COLUMN forebay.batch_attempts.error IS 'Why this attempt failed; else empty';
COMMENT ON COLUMN forebay.batch_attempts.kind IS
    'run, or replay: of a batch that is COMPLETED or QUARANTINED, which it may complete and never fails';
COMMENT ON COLUMN forebay.batch_attempts.reach IS
    'How far before its batch time a replay reads (its longest window); clean-up keeps those blocks';

CREATE TABLE forebay.batch_drivers (
    process_id bigint NOT NULL,
    location text NOT NULL,
    state text DEFAULT 'STARTING' NOT NULL,
    since timestamptz DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (process_id),
    CONSTRAINT batch_drivers_state CHECK (state IN ('STARTING', 'READY', 'DRAINING'))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
COMMENT ON TABLE forebay.batch_drivers IS 'Which batch drivers take runs? (Those whose process has not ended.)';
COMMENT ON COLUMN forebay.batch_drivers.process_id IS 'The driver''s process';
COMMENT ON COLUMN forebay.batch_drivers.location IS 'The Dagster code location whose batch runs it takes';
COMMENT ON COLUMN forebay.batch_drivers.state IS 'STARTING, READY or DRAINING';
COMMENT ON COLUMN forebay.batch_drivers.since IS 'When it entered that state';

CREATE TABLE forebay.batch_inputs (
    pipeline_id bigint NOT NULL,
    batch_time timestamptz NOT NULL,
    stream_id bigint NOT NULL,
    source text NOT NULL,
    partition text NOT NULL,
    generation integer NOT NULL,
    from_offset bigint NOT NULL,
    to_offset bigint NOT NULL,
    lost bigint NOT NULL,
    PRIMARY KEY (pipeline_id, batch_time, stream_id, source, partition, generation, from_offset),
    CONSTRAINT batch_inputs_forward CHECK (from_offset >= 0 AND to_offset > from_offset),
    CONSTRAINT batch_inputs_lost CHECK (lost >= 0 AND lost <= to_offset - from_offset)
);
COMMENT ON TABLE forebay.batch_inputs IS
    'Which positions of its sources did a batch read? (One row per range without a gap.)';
COMMENT ON COLUMN forebay.batch_inputs.pipeline_id IS 'The batch''s pipeline';
COMMENT ON COLUMN forebay.batch_inputs.batch_time IS 'The batch';
COMMENT ON COLUMN forebay.batch_inputs.stream_id IS 'The stream that read the source';
COMMENT ON COLUMN forebay.batch_inputs.source IS 'The source as the receiver names it, such as a topic';
COMMENT ON COLUMN forebay.batch_inputs.partition IS 'The partition''s name, such as a number or a file';
COMMENT ON COLUMN forebay.batch_inputs.generation IS 'The partition''s generation, as in block_offsets';
COMMENT ON COLUMN forebay.batch_inputs.from_offset IS 'The first position that the batch has';
COMMENT ON COLUMN forebay.batch_inputs.to_offset IS 'The position after the last one';
COMMENT ON COLUMN forebay.batch_inputs.lost IS 'Positions in between that the source no longer had';

CREATE TABLE forebay.batches (
    pipeline_id bigint NOT NULL,
    batch_time timestamptz NOT NULL,
    oldest_time timestamptz NOT NULL,
    state text DEFAULT 'ALLOCATED' NOT NULL,
    attempt integer DEFAULT '0' NOT NULL,
    records bigint NOT NULL,
    bytes bigint NOT NULL,
    blocks bigint NOT NULL,
    allocated_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    retry_at timestamptz,
    completed_at timestamptz,
    reason text DEFAULT '' NOT NULL,
    launch_attempt integer,
    launched_at timestamptz,
    launched_by text,
    inputs integer,
    PRIMARY KEY (pipeline_id, batch_time),
    CONSTRAINT batches_launch_whole CHECK (num_nulls(launch_attempt, launched_at, launched_by) IN (0, 3)),
    CONSTRAINT batches_state
        CHECK (state IN ('ALLOCATED', 'RUNNING', 'COMPLETED', 'FAILED', 'BLOCKED', 'QUARANTINED', 'DISCARDED')),
    CONSTRAINT batches_attempt CHECK (attempt >= 0),
    CONSTRAINT batches_oldest_time CHECK (oldest_time <= batch_time),
    CONSTRAINT batches_completed_at CHECK ((state = 'COMPLETED') = (completed_at IS NOT NULL))
);
CREATE INDEX batches_allocated ON forebay.batches (allocated_at);
CREATE INDEX batches_completed ON forebay.batches (pipeline_id, completed_at) WHERE completed_at IS NOT NULL;
CREATE INDEX batches_newest ON forebay.batches (batch_time);
CREATE INDEX batches_quarantined ON forebay.batches (pipeline_id, batch_time) WHERE state = 'QUARANTINED';
CREATE INDEX batches_unfinished ON forebay.batches (pipeline_id, batch_time)
    WHERE state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED');
COMMENT ON TABLE forebay.batches IS 'Which batches were made, how large are they, and in which state are they?';
COMMENT ON COLUMN forebay.batches.pipeline_id IS 'The pipeline';
COMMENT ON COLUMN forebay.batches.batch_time IS 'The boundary at which its blocks were cut: they were added before it';
COMMENT ON COLUMN forebay.batches.oldest_time IS
    'The oldest boundary that it covers: its own, unless missed ones were merged into it';
COMMENT ON COLUMN forebay.batches.state IS
    'ALLOCATED, RUNNING, FAILED, BLOCKED, COMPLETED, QUARANTINED or DISCARDED (transitions: states.py)';
COMMENT ON COLUMN forebay.batches.attempt IS 'The number of its newest attempt; 0: none was made';
COMMENT ON COLUMN forebay.batches.records IS 'Records in its ranges: a difference of running totals';
COMMENT ON COLUMN forebay.batches.bytes IS 'The same in bytes as stored';
COMMENT ON COLUMN forebay.batches.blocks IS 'Sequences in its ranges, epoch markers among them';
COMMENT ON COLUMN forebay.batches.allocated_at IS 'When it was decided, by the database''s clock';
COMMENT ON COLUMN forebay.batches.retry_at IS
    'The next attempt starts no earlier than this (backoff after a failure); null: at once';
COMMENT ON COLUMN forebay.batches.completed_at IS 'When the last of its outputs was committed; null unless COMPLETED';
COMMENT ON COLUMN forebay.batches.reason IS
    'Its most telling failure, which may be of an earlier attempt, or why nothing ran; else empty';
COMMENT ON COLUMN forebay.batches.launch_attempt IS
    'The newest attempt whose run Dagster was asked to launch; null: none';
COMMENT ON COLUMN forebay.batches.launched_at IS 'When Dagster was asked, by the database''s clock; null: it was not';
COMMENT ON COLUMN forebay.batches.launched_by IS
    'What asked: the batch sensor, or the leading tracker; null: nothing has';
COMMENT ON COLUMN forebay.batches.inputs IS
    'How many rows of batch_inputs it has; null: its first attempt records them';

CREATE TABLE forebay.block_offsets (
    stream_id bigint NOT NULL,
    source text NOT NULL,
    partition text NOT NULL,
    generation integer NOT NULL,
    from_offset bigint NOT NULL,
    to_offset bigint NOT NULL,
    kind text NOT NULL,
    receiver_id bigint NOT NULL,
    sequence bigint NOT NULL,
    PRIMARY KEY (stream_id, source, partition, generation, from_offset),
    CONSTRAINT block_offsets_kind CHECK (kind IN ('origin', 'block', 'lost')),
    CONSTRAINT block_offsets_generation CHECK (generation >= 0),
    CONSTRAINT block_offsets_origin CHECK ((kind = 'origin') = (from_offset = -1)),
    CONSTRAINT block_offsets_forward CHECK (to_offset >= 0 AND to_offset > from_offset)
) WITH (autovacuum_analyze_scale_factor = 1, autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX block_offsets_lost ON forebay.block_offsets (stream_id, source, partition) WHERE kind = 'lost';
CREATE INDEX block_offsets_origin ON forebay.block_offsets (receiver_id) WHERE kind = 'origin';
CREATE INDEX block_offsets_read ON forebay.block_offsets (receiver_id, sequence) WHERE kind <> 'origin';
COMMENT ON TABLE forebay.block_offsets IS
    'Up to which position of each source partition is everything in a block? (A chain of links.)';
COMMENT ON COLUMN forebay.block_offsets.stream_id IS 'The stream that reads the source';
COMMENT ON COLUMN forebay.block_offsets.source IS 'The source as the receiver names it, such as a topic';
COMMENT ON COLUMN forebay.block_offsets.partition IS 'The partition''s name; text, because each source names its own';
COMMENT ON COLUMN forebay.block_offsets.generation IS
    'Raised by one when a position goes backwards: a topic created again, a replaced file, a reset';
COMMENT ON COLUMN forebay.block_offsets.from_offset IS
    'Exactly the to_offset of the link before; -1 in an origin link: nothing comes before it';
COMMENT ON COLUMN forebay.block_offsets.to_offset IS
    'The next offset to be read: everything before it is in a block, or lost';
COMMENT ON COLUMN forebay.block_offsets.kind IS
    'origin (where reading begins), block (the records are in one) or lost (the source no longer had them)';
COMMENT ON COLUMN forebay.block_offsets.receiver_id IS 'The receiver that wrote the link';
COMMENT ON COLUMN forebay.block_offsets.sequence IS
    'The block that it was registered with; 0 for an origin that was recorded before the first read';

CREATE TABLE forebay.block_stores (
    host text NOT NULL,
    roots text[] NOT NULL,
    names text[] NOT NULL,
    attached_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (host),
    CONSTRAINT block_stores_roots CHECK (cardinality(roots) > 0 AND cardinality(roots) = cardinality(names))
);
COMMENT ON TABLE forebay.block_stores IS 'Which block store does each host with receivers see? (They must share one.)';
COMMENT ON COLUMN forebay.block_stores.host IS 'The host, by its agent''s name';
COMMENT ON COLUMN forebay.block_stores.roots IS
    'The roots it writes blocks to, by identity: the id in a directory''s file _store, or a URL';
COMMENT ON COLUMN forebay.block_stores.names IS 'The paths or URLs of the same roots on that host';
COMMENT ON COLUMN forebay.block_stores.attached_at IS 'When its agent first reported them';

CREATE TABLE forebay.blocks (
    receiver_id bigint NOT NULL,
    sequence bigint NOT NULL,
    epoch bigint NOT NULL,
    added_at timestamptz NOT NULL,
    records bigint NOT NULL,
    bytes bigint NOT NULL,
    total_records bigint NOT NULL,
    total_bytes bigint NOT NULL,
    segment_id bigint,
    "offset" bigint,
    length bigint,
    crc32c bigint,
    PRIMARY KEY (receiver_id, sequence),
    CONSTRAINT blocks_positive CHECK (sequence > 0 AND epoch > 0),
    CONSTRAINT blocks_counts CHECK (records >= 0 AND bytes >= 0),
    CONSTRAINT blocks_handle_whole CHECK (num_nulls(segment_id, "offset", length, crc32c) IN (0, 4)),
    CONSTRAINT blocks_marker_empty CHECK (segment_id IS NOT NULL OR (records = 0 AND bytes = 0))
) WITH (autovacuum_analyze_scale_factor = 1, autovacuum_vacuum_insert_scale_factor = 0.05);
COMMENT ON TABLE forebay.blocks IS 'Which blocks does each receiver have, in which order, and where are their bytes?';
COMMENT ON COLUMN forebay.blocks.receiver_id IS 'The receiver that stored it';
COMMENT ON COLUMN forebay.blocks.sequence IS
    'Its place in the receiver''s gapless sequence, from 1; blocks and markers share it';
COMMENT ON COLUMN forebay.blocks.epoch IS 'The claim that added it; a block follows only a row of its own epoch';
COMMENT ON COLUMN forebay.blocks.added_at IS
    'By the database''s clock, but never before the predecessor''s; batches are cut by this time';
COMMENT ON COLUMN forebay.blocks.records IS 'How many records it has; 0 in a marker';
COMMENT ON COLUMN forebay.blocks.bytes IS 'Its size as stored; 0 in a marker';
COMMENT ON COLUMN forebay.blocks.total_records IS 'Running total: the predecessor''s plus records';
COMMENT ON COLUMN forebay.blocks.total_bytes IS 'Running total: the predecessor''s plus bytes';
COMMENT ON COLUMN forebay.blocks.segment_id IS
    'The segment that holds its frame; null in a marker, with which an epoch begins';
COMMENT ON COLUMN forebay.blocks."offset" IS
    'Where its frame begins in the segment''s file, in bytes; null in a marker';
COMMENT ON COLUMN forebay.blocks.length IS 'How long its frame is, in bytes; null in a marker';
COMMENT ON COLUMN forebay.blocks.crc32c IS 'The checksum of its frame, header and payload; null in a marker';

CREATE TABLE forebay.cleanup_events (
    id bigserial NOT NULL,
    receiver_id bigint NOT NULL,
    sequences int8range NOT NULL,
    blocks bigint NOT NULL,
    records bigint NOT NULL,
    bytes bigint NOT NULL,
    unread_records bigint DEFAULT '0' NOT NULL,
    at timestamptz DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX cleanup_events_age ON forebay.cleanup_events (at) WHERE unread_records = 0;
CREATE INDEX cleanup_events_at ON forebay.cleanup_events (at);
CREATE INDEX cleanup_events_receiver ON forebay.cleanup_events (receiver_id, id);
COMMENT ON TABLE forebay.cleanup_events IS 'Which blocks did clean-up delete, when, and had they been read?';
COMMENT ON COLUMN forebay.cleanup_events.id IS 'The event';
COMMENT ON COLUMN forebay.cleanup_events.receiver_id IS 'The receiver';
COMMENT ON COLUMN forebay.cleanup_events.sequences IS 'The range that was deleted; epoch markers in it stay';
COMMENT ON COLUMN forebay.cleanup_events.blocks IS 'How many sequences the range has';
COMMENT ON COLUMN forebay.cleanup_events.records IS 'Records that were deleted';
COMMENT ON COLUMN forebay.cleanup_events.bytes IS 'The same in bytes as stored';
COMMENT ON COLUMN forebay.cleanup_events.unread_records IS
    'Deleted records that no pipeline had read: their stream''s retention was over';
COMMENT ON COLUMN forebay.cleanup_events.at IS 'When, by the database''s clock';

CREATE TABLE forebay.cursors (
    consumer_id bigint NOT NULL,
    receiver_id bigint NOT NULL,
    next_sequence bigint NOT NULL,
    PRIMARY KEY (consumer_id, receiver_id),
    CONSTRAINT cursors_positive CHECK (next_sequence > 0)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, fillfactor = 50);
CREATE INDEX cursors_receiver ON forebay.cursors (receiver_id);
COMMENT ON TABLE forebay.cursors IS 'Which block of each receiver does a pipeline, or a named reader, take next?';
COMMENT ON COLUMN forebay.cursors.consumer_id IS
    'The pipeline or the reader; their ids come from one sequence, so that one id names either';
COMMENT ON COLUMN forebay.cursors.receiver_id IS 'The receiver that is read';
COMMENT ON COLUMN forebay.cursors.next_sequence IS
    'The first sequence that it has not taken; only allocation, or a query''s commit, moves it, and only forward';

CREATE TABLE forebay.dead_letters (
    id bigserial NOT NULL,
    receiver_id bigint NOT NULL,
    epoch bigint NOT NULL,
    reason text NOT NULL,
    part integer NOT NULL,
    bytes bigint NOT NULL,
    segment_id bigint NOT NULL,
    "offset" bigint NOT NULL,
    length bigint NOT NULL,
    crc32c bigint NOT NULL,
    added_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    letters bigint DEFAULT 1 NOT NULL,
    dropped bigint DEFAULT 0 NOT NULL,
    dropped_bytes bigint DEFAULT 0 NOT NULL,
    replayed_at timestamptz,
    replayed_to text DEFAULT '' NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT dead_letters_handle UNIQUE (segment_id, "offset"),
    CONSTRAINT dead_letters_counts CHECK (part >= 0 AND bytes >= 0),
    CONSTRAINT dead_letters_group CHECK (letters >= 0 AND dropped >= 0 AND dropped_bytes >= 0)
);
CREATE INDEX dead_letters_age ON forebay.dead_letters (added_at);
CREATE INDEX dead_letters_receiver ON forebay.dead_letters (receiver_id, id);
COMMENT ON TABLE forebay.dead_letters IS
    'Which records could not be processed, why, and where are they kept? A row per group';
COMMENT ON COLUMN forebay.dead_letters.id IS 'The dead letter';
COMMENT ON COLUMN forebay.dead_letters.receiver_id IS 'The receiver that received it';
COMMENT ON COLUMN forebay.dead_letters.epoch IS 'The claim under which it was stored';
COMMENT ON COLUMN forebay.dead_letters.reason IS 'Why it could not be processed';
COMMENT ON COLUMN forebay.dead_letters.part IS
    'A record too large to hold is kept in parts, from 0; together they are the record. A group has 0';
COMMENT ON COLUMN forebay.dead_letters.bytes IS 'The size of this part, or of the group, as received';
COMMENT ON COLUMN forebay.dead_letters.segment_id IS 'The segment that holds it';
COMMENT ON COLUMN forebay.dead_letters."offset" IS 'Where its frame begins in the segment''s file, in bytes';
COMMENT ON COLUMN forebay.dead_letters.length IS 'How long its frame is, in bytes';
COMMENT ON COLUMN forebay.dead_letters.crc32c IS 'The checksum of its frame, header and payload';
COMMENT ON COLUMN forebay.dead_letters.added_at IS 'When it was recorded';
COMMENT ON COLUMN forebay.dead_letters.letters IS
    'How many records the frame holds; a part of a large record counts as one, in each row';
COMMENT ON COLUMN forebay.dead_letters.dropped IS
    'Records of this reason that were counted and not kept, since the row before: over their budget';
COMMENT ON COLUMN forebay.dead_letters.dropped_bytes IS 'The same in bytes';
COMMENT ON COLUMN forebay.dead_letters.replayed_at IS
    'When `forebay dead-letters replay` sent or wrote it last; null: never';
COMMENT ON COLUMN forebay.dead_letters.replayed_to IS 'Where to, for people';

CREATE TABLE forebay.events (
    transaction_id bigint DEFAULT CAST(CAST(pg_current_xact_id() AS text) AS bigint) NOT NULL,
    id bigserial NOT NULL,
    at timestamptz DEFAULT clock_timestamp() NOT NULL,
    kind text NOT NULL,
    receiver_id bigint,
    pipeline_id bigint,
    batch_time timestamptz,
    attempt integer,
    output text,
    term bigint,
    records bigint,
    message text NOT NULL,
    epoch bigint,
    detail text DEFAULT '' NOT NULL,
    PRIMARY KEY (transaction_id, id),
    CONSTRAINT events_report
        CHECK (epoch IS NULL OR receiver_id IS NOT NULL
               AND kind IN ('SCHEDULED', 'STARTED', 'CONNECTED', 'RESTARTED', 'PAUSED', 'RESUMED', 'STOPPED', 'ERROR',
                            'EXITED', 'FENCED', 'FAILED', 'LEASE_EXPIRED', 'BAD_RECORD', 'SALVAGED'))
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX events_report_age ON forebay.events (at) WHERE epoch IS NOT NULL;
CREATE INDEX events_report_id ON forebay.events (id) WHERE epoch IS NOT NULL;
CREATE INDEX events_report_newest ON forebay.events (receiver_id, kind, id) WHERE epoch IS NOT NULL;
COMMENT ON TABLE forebay.events IS
    'What happened to batches, receivers, pipelines and the lead? (Views: listener_events, receiver_events.)';
COMMENT ON COLUMN forebay.events.transaction_id IS
    'The transaction that made the change; readers wait until all up to it have ended. 0: too old for listeners';
COMMENT ON COLUMN forebay.events.id IS 'The event; rises within a transaction';
COMMENT ON COLUMN forebay.events.at IS 'When, by the database''s clock';
COMMENT ON COLUMN forebay.events.kind IS
    'What happened, as listed in docs/how-to/listeners.md; a report has the kind of receiver_events';
COMMENT ON COLUMN forebay.events.receiver_id IS 'The receiver; null if the event is about none';
COMMENT ON COLUMN forebay.events.pipeline_id IS 'The pipeline; null if the event is about none';
COMMENT ON COLUMN forebay.events.batch_time IS 'The batch; null if the event is about none';
COMMENT ON COLUMN forebay.events.attempt IS 'The attempt or replay; null if the event is about no batch';
COMMENT ON COLUMN forebay.events.output IS 'The output that was committed; else null';
COMMENT ON COLUMN forebay.events.term IS 'The term of a new leader; else null';
COMMENT ON COLUMN forebay.events.records IS 'Records of the batch, the output or the clean-up; else null';
COMMENT ON COLUMN forebay.events.message IS 'The reason or the place, for people; may be empty';
COMMENT ON COLUMN forebay.events.epoch IS
    'Of a report on a receiver: the reporting process''s epoch, 0 for the tracker or an agent; else null';
COMMENT ON COLUMN forebay.events.detail IS 'The rest of a report, such as a stack; may be empty';

CREATE TABLE forebay.hand_overs (
    id bigserial NOT NULL,
    receiver_id bigint,
    from_assignment bigint,
    agent_id bigint,
    assignment bigint,
    why text,
    since timestamptz DEFAULT clock_timestamp() NOT NULL,
    listeners boolean,
    PRIMARY KEY (id),
    CONSTRAINT hand_overs_receiver UNIQUE (receiver_id),
    CONSTRAINT hand_overs_assignment CHECK (assignment > from_assignment),
    CONSTRAINT hand_overs_whole
        CHECK (num_nulls(receiver_id, from_assignment, agent_id, assignment, why)
               = CASE WHEN listeners IS NULL THEN 0 ELSE 5 END)
);
COMMENT ON TABLE forebay.hand_overs IS
    'Which receiver is to move to which agent, as soon as a process there is ready, and who asked for moves?';
COMMENT ON COLUMN forebay.hand_overs.id IS 'The hand-over, or the request to rebalance';
COMMENT ON COLUMN forebay.hand_overs.receiver_id IS 'The receiver that is to move; null, as the next four, in a request';
COMMENT ON COLUMN forebay.hand_overs.from_assignment IS
    'Its assignment until it moves; when the receiver has another one, the hand-over is void';
COMMENT ON COLUMN forebay.hand_overs.agent_id IS 'The agent that starts its next process';
COMMENT ON COLUMN forebay.hand_overs.assignment IS 'The assignment under which that process takes it over';
COMMENT ON COLUMN forebay.hand_overs.why IS 'Why it is to move; becomes the reason for its placement';
COMMENT ON COLUMN forebay.hand_overs.since IS 'When the leader decided it, or a person requested it';
COMMENT ON COLUMN forebay.hand_overs.listeners IS
    'Of a request: whether receivers that listen at an address of their host may move too; else null';

CREATE TABLE forebay.kept_ranges (
    pipeline_id bigint NOT NULL,
    batch_time timestamptz NOT NULL,
    receiver_id bigint NOT NULL,
    sequences int8range NOT NULL,
    records bigint NOT NULL,
    bytes bigint NOT NULL,
    released_at timestamptz,
    PRIMARY KEY (pipeline_id, batch_time, receiver_id),
    CONSTRAINT kept_ranges_not_empty CHECK (NOT isempty(sequences))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX kept_ranges_receiver ON forebay.kept_ranges (receiver_id);
COMMENT ON TABLE forebay.kept_ranges IS
    'Which blocks does a quarantined batch, or a window that ends with it, still need? (Clean-up leaves them.)';
COMMENT ON COLUMN forebay.kept_ranges.pipeline_id IS 'The quarantined batch''s pipeline';
COMMENT ON COLUMN forebay.kept_ranges.batch_time IS 'The quarantined batch';
COMMENT ON COLUMN forebay.kept_ranges.receiver_id IS 'The receiver that stored the blocks';
COMMENT ON COLUMN forebay.kept_ranges.sequences IS
    'What the batch and its longest window read, epoch markers among them; shrinks once it is released';
COMMENT ON COLUMN forebay.kept_ranges.records IS 'Records in the range: a difference of running totals';
COMMENT ON COLUMN forebay.kept_ranges.bytes IS 'The same in bytes as stored';
COMMENT ON COLUMN forebay.kept_ranges.released_at IS
    'When the batch stopped needing it: clean-up then deletes its rows; null while it is kept';

CREATE TABLE forebay.leadership (
    only_row boolean DEFAULT 'true' NOT NULL,
    term bigint DEFAULT '0' NOT NULL,
    counter bigint DEFAULT '0' NOT NULL,
    holder text,
    since timestamptz DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (only_row),
    CONSTRAINT leadership_one_row CHECK (only_row)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
COMMENT ON TABLE forebay.leadership IS 'Which tracker leads, in which term? (One row; a guard locks it FOR SHARE.)';
COMMENT ON COLUMN forebay.leadership.only_row IS 'True: there is one row';
COMMENT ON COLUMN forebay.leadership.term IS
    'Raised by one by each tracker that takes over; a statement of an older term changes nothing';
COMMENT ON COLUMN forebay.leadership.counter IS
    'Raised every second by the leader; a candidate that sees no change takes the next term';
COMMENT ON COLUMN forebay.leadership.holder IS 'The leading tracker''s name; null after the last leader has resigned';
COMMENT ON COLUMN forebay.leadership.since IS 'When this term began';

CREATE TABLE forebay.log_segments (
    id bigserial NOT NULL,
    receiver_id bigint NOT NULL,
    epoch bigint NOT NULL,
    path text NOT NULL,
    source_rule text NOT NULL,
    state text DEFAULT 'OPEN' NOT NULL,
    length bigint,
    opened_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    sealed_at timestamptz,
    store text,
    durability text DEFAULT 'durable' NOT NULL,
    salvaged_to bigint,
    salvaged_sequence bigint,
    uncompressed_bytes bigint,
    kept_blocks bigint DEFAULT '0' NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT log_segments_path UNIQUE (path),
    CONSTRAINT log_segments_state CHECK (state IN ('OPEN', 'SEALED', 'DELETING')),
    CONSTRAINT log_segments_length CHECK ((state = 'OPEN') = (length IS NULL)),
    CONSTRAINT log_segments_salvage_whole CHECK (num_nulls(salvaged_to, salvaged_sequence) IN (0, 2)),
    CONSTRAINT log_segments_durability CHECK (durability IN ('durable', 'ephemeral')),
    CONSTRAINT log_segments_kept_blocks CHECK (kept_blocks >= 0)
);
CREATE INDEX log_segments_deleting ON forebay.log_segments (receiver_id, id) WHERE state = 'DELETING';
CREATE INDEX log_segments_kept ON forebay.log_segments (receiver_id, id) WHERE kept_blocks > 0;
CREATE INDEX log_segments_open ON forebay.log_segments (receiver_id, id) WHERE state = 'OPEN';
CREATE INDEX log_segments_receiver ON forebay.log_segments (receiver_id, id);
COMMENT ON TABLE forebay.log_segments IS
    'Which files of the block store belong to this driver log? (A row is inserted before its file is made.)';
COMMENT ON COLUMN forebay.log_segments.id IS
    'The segment in every other table; ids of a receiver''s segments rise with its sequence';
COMMENT ON COLUMN forebay.log_segments.receiver_id IS 'The receiver that wrote it';
COMMENT ON COLUMN forebay.log_segments.epoch IS 'The claim under which it was made; part of its name';
COMMENT ON COLUMN forebay.log_segments.path IS 'Its file, relative to the block store''s root';
COMMENT ON COLUMN forebay.log_segments.source_rule IS
    'Whether the source sends unregistered records again; decides which stored blocks salvage registers';
COMMENT ON COLUMN forebay.log_segments.state IS 'OPEN, SEALED, DELETING';
COMMENT ON COLUMN forebay.log_segments.length IS 'Its length in bytes once sealed; null while open';
COMMENT ON COLUMN forebay.log_segments.opened_at IS 'When the row was made, just before the file';
COMMENT ON COLUMN forebay.log_segments.sealed_at IS 'When its length became final; null while open';
COMMENT ON COLUMN forebay.log_segments.store IS
    'The store that holds it, roots as in block_stores; missing in another proves nothing; null: unknown';
COMMENT ON COLUMN forebay.log_segments.durability IS
    'durable, or ephemeral: not synced, so a block that a crash lost is counted and not waited for';
COMMENT ON COLUMN forebay.log_segments.salvaged_to IS
    'Frames before this offset are salvaged, as blocks of later epochs; null: none are';
COMMENT ON COLUMN forebay.log_segments.salvaged_sequence IS
    'The newest block salvaged from it; the file stays until that block is deleted; null: none';
COMMENT ON COLUMN forebay.log_segments.uncompressed_bytes IS
    'Bytes of its blocks that are not compressed; null: open, or salvaged';
COMMENT ON COLUMN forebay.log_segments.kept_blocks IS
    'How many of its blocks kept ranges need below the low mark; the file stays for them';

CREATE TABLE forebay.output_commits (
    pipeline_id bigint NOT NULL,
    output text NOT NULL,
    batch_time timestamptz NOT NULL,
    attempt integer NOT NULL,
    location text NOT NULL,
    rows bigint,
    committed_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    to_publish boolean DEFAULT false NOT NULL,
    code_version text,
    PRIMARY KEY (pipeline_id, output, batch_time)
);
CREATE INDEX output_commits_of_batch ON forebay.output_commits (pipeline_id, batch_time);
CREATE INDEX output_commits_to_publish ON forebay.output_commits (pipeline_id, batch_time) WHERE to_publish;
COMMENT ON TABLE forebay.output_commits IS
    'Which attempt''s result counts for an output and batch time? (This row is the commit.)';
COMMENT ON COLUMN forebay.output_commits.pipeline_id IS 'The batch''s pipeline';
COMMENT ON COLUMN forebay.output_commits.output IS 'The output, by name';
COMMENT ON COLUMN forebay.output_commits.batch_time IS 'The batch';
COMMENT ON COLUMN forebay.output_commits.attempt IS 'The attempt whose result counts';
COMMENT ON COLUMN forebay.output_commits.location IS
    'Where that result is: the attempt''s own path, which is never written again';
COMMENT ON COLUMN forebay.output_commits.rows IS 'How many rows it has; null if the sink can''t tell';
COMMENT ON COLUMN forebay.output_commits.committed_at IS 'When it was committed';
COMMENT ON COLUMN forebay.output_commits.to_publish IS
    'Whether its files are not yet published to readers; false if the sink publishes nothing';
COMMENT ON COLUMN forebay.output_commits.code_version IS
    'Which code made it: a hash of the project''s modules, as `forebay up` says it; null: it is not known';

CREATE TABLE forebay.output_failures (
    pipeline_id bigint NOT NULL,
    batch_time timestamptz NOT NULL,
    attempt integer NOT NULL,
    output text NOT NULL,
    failure text NOT NULL,
    error text NOT NULL,
    failed_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (pipeline_id, batch_time, attempt, output),
    CONSTRAINT output_failures_failure CHECK (failure IN ('FAILED', 'BLOCKED', 'LOST'))
);
COMMENT ON TABLE forebay.output_failures IS
    'Which outputs failed in an attempt, and why? (The other outputs of the attempt ran all the same.)';
COMMENT ON COLUMN forebay.output_failures.pipeline_id IS 'The batch''s pipeline';
COMMENT ON COLUMN forebay.output_failures.batch_time IS 'The batch';
COMMENT ON COLUMN forebay.output_failures.attempt IS 'The attempt in which the output failed';
COMMENT ON COLUMN forebay.output_failures.output IS 'The output, by name';
COMMENT ON COLUMN forebay.output_failures.failure IS
    'FAILED (its data or code), BLOCKED (no block store, target or key) or LOST (what it ran on ended)';
COMMENT ON COLUMN forebay.output_failures.error IS 'Why it failed';
COMMENT ON COLUMN forebay.output_failures.failed_at IS 'When it failed';

CREATE TABLE forebay.pipelines (
    id bigserial NOT NULL,
    name text NOT NULL,
    version integer DEFAULT '1' NOT NULL,
    declaration jsonb NOT NULL,
    stream_ids bigint[] NOT NULL,
    batch_interval interval NOT NULL,
    retention interval DEFAULT interval '0' NOT NULL,
    last_batch_time timestamptz NOT NULL,
    applied_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    removed_at timestamptz,
    state text DEFAULT 'RUNNING' NOT NULL,
    state_since timestamptz DEFAULT clock_timestamp() NOT NULL,
    ends_system boolean DEFAULT 'false' NOT NULL,
    removed_why text,
    halted_by timestamptz,
    history_from timestamptz,
    PRIMARY KEY (id),
    CONSTRAINT pipelines_version_positive CHECK (version > 0),
    CONSTRAINT pipelines_state CHECK (state IN ('RUNNING', 'STOPPING', 'STOPPED')),
    CONSTRAINT pipelines_interval_positive CHECK (batch_interval > interval '0')
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, fillfactor = 50);
CREATE UNIQUE INDEX pipelines_live_name ON forebay.pipelines (name) WHERE removed_at IS NULL;
COMMENT ON TABLE forebay.pipelines IS
    'Which pipelines are declared, and up to which batch time are their blocks decided?';
COMMENT ON COLUMN forebay.pipelines.id IS
    'The pipeline in every other table; one that is removed and applied again gets a new one';
COMMENT ON COLUMN forebay.pipelines.name IS 'As declared; unique among the pipelines that are not removed';
COMMENT ON COLUMN forebay.pipelines.version IS 'Raised by one each time the declaration changes';
COMMENT ON COLUMN forebay.pipelines.declaration IS
    'Interval, outputs with inputs and sinks, retry and catch-up, as applied';
COMMENT ON COLUMN forebay.pipelines.stream_ids IS
    'The streams it reads: a receiver of these without a row in cursors counts as a cursor at 1';
COMMENT ON COLUMN forebay.pipelines.batch_interval IS
    'Batch times are the multiples of this since 1970-01-01 00:00 UTC';
COMMENT ON COLUMN forebay.pipelines.retention IS
    'How long after its batch time a batch''s blocks are kept, for windows and replay';
COMMENT ON COLUMN forebay.pipelines.last_batch_time IS
    'Every batch time up to here is decided; allocation locks this row and moves it forward';
COMMENT ON COLUMN forebay.pipelines.applied_at IS 'When this version was applied';
COMMENT ON COLUMN forebay.pipelines.removed_at IS 'When it was removed; null while it is declared';
COMMENT ON COLUMN forebay.pipelines.state IS
    'Whether it makes batches: RUNNING, STOPPING or STOPPED (transitions: states.py)';
COMMENT ON COLUMN forebay.pipelines.state_since IS 'When it entered that state';
COMMENT ON COLUMN forebay.pipelines.ends_system IS
    'Whether all were stopped together; `forebay up` ends when every pipeline is STOPPED in this way';
COMMENT ON COLUMN forebay.pipelines.removed_why IS
    'Who removed it, and what it had not done by then; null while it is declared';
COMMENT ON COLUMN forebay.pipelines.halted_by IS
    'The quarantined batch that halted it (on_failure = "halt"); null while it is not halted';
COMMENT ON COLUMN forebay.pipelines.history_from IS
    'Batches before this time are deleted, except quarantined ones; null: none are deleted';

CREATE TABLE forebay.processes (
    id bigserial NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    slots integer DEFAULT '0' NOT NULL,
    heartbeat bigint DEFAULT '0' NOT NULL,
    started_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    ended_at timestamptz,
    end_reason text,
    draining boolean DEFAULT 'false' NOT NULL,
    queued jsonb,
    login text DEFAULT SESSION_USER NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT processes_kind CHECK (kind IN ('agent', 'receiver', 'batch run', 'batch driver')),
    CONSTRAINT processes_slots CHECK (slots >= 0)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, fillfactor = 50);
CREATE INDEX processes_agents ON forebay.processes (name, id) WHERE kind = 'agent';
CREATE INDEX processes_ended ON forebay.processes (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX processes_live ON forebay.processes (kind) WHERE ended_at IS NULL;
COMMENT ON TABLE forebay.processes IS
    'Which processes are alive (their heartbeat counter changes), where, with how many slots?';
COMMENT ON COLUMN forebay.processes.id IS 'The process in every other table';
COMMENT ON COLUMN forebay.processes.kind IS 'agent, receiver, batch run or batch driver';
COMMENT ON COLUMN forebay.processes.name IS 'Shown to people: a host, a receiver, a pipeline and batch time';
COMMENT ON COLUMN forebay.processes.host IS 'Where it runs';
COMMENT ON COLUMN forebay.processes.pid IS 'Its process id on that host';
COMMENT ON COLUMN forebay.processes.slots IS 'How many receivers may be placed on it; 0 unless it is an agent';
COMMENT ON COLUMN forebay.processes.heartbeat IS
    'Raised every second; dead if it does not change within the limit, on the leader''s monotonic clock';
COMMENT ON COLUMN forebay.processes.started_at IS 'When it registered';
COMMENT ON COLUMN forebay.processes.ended_at IS 'When it ended itself or was declared dead; null while it is alive';
COMMENT ON COLUMN forebay.processes.end_reason IS 'Why it ended, as the process or the tracker says';
COMMENT ON COLUMN forebay.processes.draining IS
    'A draining agent gets no receivers and hands its own over; the next agent of its name inherits this';
COMMENT ON COLUMN forebay.processes.queued IS
    'Its receivers'' queues by id, in blocks, and `fetched` records, at its newest heartbeat; null: none';
COMMENT ON COLUMN forebay.processes.login IS 'The login that registered it, and may end it';

CREATE TABLE forebay.readers (
    id bigint DEFAULT nextval('forebay.pipelines_id_seq') NOT NULL,
    name text NOT NULL,
    stream_id bigint NOT NULL,
    attached_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    moved_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    removed_at timestamptz,
    PRIMARY KEY (id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, fillfactor = 50);
CREATE UNIQUE INDEX readers_live_name ON forebay.readers (name) WHERE removed_at IS NULL;
CREATE INDEX readers_live_stream ON forebay.readers (stream_id) WHERE removed_at IS NULL;
COMMENT ON TABLE forebay.readers IS
    'Which streaming queries read a stream with cursors of their own, which clean-up respects?';
COMMENT ON COLUMN forebay.readers.id IS
    'The reader in every other table; one that is removed and attached again gets a new one';
COMMENT ON COLUMN forebay.readers.name IS 'Its name in the query; unique among readers that are not removed';
COMMENT ON COLUMN forebay.readers.stream_id IS 'The stream that it reads';
COMMENT ON COLUMN forebay.readers.attached_at IS 'When a query first used it';
COMMENT ON COLUMN forebay.readers.moved_at IS 'When its query last committed, or was attached';
COMMENT ON COLUMN forebay.readers.removed_at IS 'When it was removed; null while it holds blocks back';

CREATE TABLE forebay.receivers (
    id bigserial NOT NULL,
    stream_id bigint NOT NULL,
    ordinal integer NOT NULL,
    state text DEFAULT 'INACTIVE' NOT NULL,
    desired_state text DEFAULT 'running' NOT NULL,
    reason text DEFAULT '' NOT NULL,
    since timestamptz DEFAULT clock_timestamp() NOT NULL,
    assignment bigint DEFAULT '0' NOT NULL,
    agent_id bigint,
    process_id bigint,
    rate_limit double precision,
    low_mark bigint DEFAULT '0' NOT NULL,
    removed_at timestamptz,
    host text,
    preferred_location text,
    bound_to_host boolean DEFAULT 'true' NOT NULL,
    desired_before_stop text,
    closed_epoch bigint,
    PRIMARY KEY (id),
    CONSTRAINT receivers_stream_ordinal UNIQUE (stream_id, ordinal),
    CONSTRAINT receivers_state CHECK (state IN ('INACTIVE', 'SCHEDULED', 'ACTIVE', 'PAUSED', 'FAILED')),
    CONSTRAINT receivers_desired_state CHECK (desired_state IN ('running', 'paused', 'stopped')),
    CONSTRAINT receivers_desired_before_stop
        CHECK (desired_before_stop IS NULL OR desired_before_stop IN ('running', 'paused', 'stopped')),
    CONSTRAINT receivers_low_mark CHECK (low_mark >= 0),
    CONSTRAINT receivers_rate_limit CHECK (rate_limit IS NULL OR rate_limit > 0)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, fillfactor = 50);
CREATE INDEX receivers_of_agent ON forebay.receivers (agent_id) WHERE agent_id IS NOT NULL;
CREATE INDEX receivers_of_process ON forebay.receivers (process_id) WHERE process_id IS NOT NULL;
CREATE INDEX receivers_removed ON forebay.receivers (id) WHERE removed_at IS NOT NULL;
COMMENT ON TABLE forebay.receivers IS 'Where is each receiver placed, what should it be, and what is it?';
COMMENT ON COLUMN forebay.receivers.id IS 'The receiver in every other table';
COMMENT ON COLUMN forebay.receivers.stream_id IS 'The stream that it receives for';
COMMENT ON COLUMN forebay.receivers.ordinal IS 'Its number within the stream, from 1';
COMMENT ON COLUMN forebay.receivers.state IS 'INACTIVE, SCHEDULED, ACTIVE, PAUSED or FAILED (transitions: states.py)';
COMMENT ON COLUMN forebay.receivers.desired_state IS
    'What an operator wants it to be: running, paused or stopped; kept over restarts';
COMMENT ON COLUMN forebay.receivers.reason IS 'Why it is in its state; empty if there is no reason to give';
COMMENT ON COLUMN forebay.receivers.since IS 'When it entered its state';
COMMENT ON COLUMN forebay.receivers.assignment IS
    'Raised by every placement decision; a process may claim only under the one it was started for';
COMMENT ON COLUMN forebay.receivers.agent_id IS 'The agent that it is placed on; null: none';
COMMENT ON COLUMN forebay.receivers.process_id IS 'The process that claimed it under this assignment; null: none yet';
COMMENT ON COLUMN forebay.receivers.rate_limit IS 'Records per second that it may take in; null: no limit';
COMMENT ON COLUMN forebay.receivers.low_mark IS
    'Blocks up to here are deleted, markers stay; from low_mark + 1 to the newest there are no gaps';
COMMENT ON COLUMN forebay.receivers.removed_at IS
    'When a declaration with fewer receivers removed it; null while it is declared';
COMMENT ON COLUMN forebay.receivers.host IS
    'The only host where it may run (a listener''s address, or one receiver per host); null: any host';
COMMENT ON COLUMN forebay.receivers.preferred_location IS
    'The host that the receiver preferred at its newest start; not binding; null: none';
COMMENT ON COLUMN forebay.receivers.bound_to_host IS
    'Whether it may read what only its host has, by its newest start; if so, nothing moves it unasked';
COMMENT ON COLUMN forebay.receivers.desired_before_stop IS
    'The desired state for when a pipeline that reads it runs again; null unless all are stopped';
COMMENT ON COLUMN forebay.receivers.closed_epoch IS
    'The epoch of the marker that closed its sequence after it was removed; null: it was never closed';

CREATE TABLE forebay.record_keys (
    stream_id bigint NOT NULL,
    key text NOT NULL,
    receiver_id bigint NOT NULL,
    sequence bigint NOT NULL,
    added_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (stream_id, key)
) WITH (autovacuum_analyze_scale_factor = 1);
CREATE INDEX record_keys_age ON forebay.record_keys (stream_id, added_at);
COMMENT ON TABLE forebay.record_keys IS 'Which idempotency keys of a stream have been received, within its window?';
COMMENT ON COLUMN forebay.record_keys.stream_id IS 'The stream within which the key is unique';
COMMENT ON COLUMN forebay.record_keys.key IS 'The sender''s idempotency key of one record';
COMMENT ON COLUMN forebay.record_keys.receiver_id IS 'The receiver that stored the record';
COMMENT ON COLUMN forebay.record_keys.sequence IS 'The block that holds it';
COMMENT ON COLUMN forebay.record_keys.added_at IS 'When it was received; deleted after the stream''s key window';

CREATE TABLE forebay.run_queue (
    run_id text NOT NULL,
    location text NOT NULL,
    process_id bigint,
    cancel_requested boolean DEFAULT 'false' NOT NULL,
    enqueued_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    claimed_at timestamptz,
    PRIMARY KEY (run_id),
    CONSTRAINT run_queue_claimed CHECK ((process_id IS NULL) = (claimed_at IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX run_queue_waiting ON forebay.run_queue (location, enqueued_at) WHERE process_id IS NULL;
COMMENT ON TABLE forebay.run_queue IS
    'Which Dagster runs wait for a batch driver, or are in one? (A run that has ended has no row.)';
COMMENT ON COLUMN forebay.run_queue.run_id IS 'The Dagster run';
COMMENT ON COLUMN forebay.run_queue.location IS 'The Dagster code location of the run';
COMMENT ON COLUMN forebay.run_queue.process_id IS 'The batch driver that has claimed it; null while it waits';
COMMENT ON COLUMN forebay.run_queue.cancel_requested IS 'Whether its driver must cancel it';
COMMENT ON COLUMN forebay.run_queue.enqueued_at IS 'When the run launcher handed it over';
COMMENT ON COLUMN forebay.run_queue.claimed_at IS 'When a driver took it; null while it waits';

CREATE TABLE forebay.scaling_decisions (
    pipeline_id bigint NOT NULL,
    ratio double precision NOT NULL,
    batches integer NOT NULL,
    executors integer NOT NULL,
    batch_drivers integer NOT NULL,
    applied boolean NOT NULL,
    reason text NOT NULL,
    since timestamptz DEFAULT clock_timestamp() NOT NULL,
    decided_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (pipeline_id),
    CONSTRAINT scaling_decisions_seen CHECK (ratio >= 0 AND batches > 0),
    CONSTRAINT scaling_decisions_positive CHECK (executors > 0 AND batch_drivers > 0)
);
COMMENT ON TABLE forebay.scaling_decisions IS
    'How many executors, or batch drivers, should a pipeline''s batches have to fit their interval (O04)?';
COMMENT ON COLUMN forebay.scaling_decisions.pipeline_id IS 'The pipeline whose batches it is about';
COMMENT ON COLUMN forebay.scaling_decisions.ratio IS
    'Mean processing time of its newest batches, divided by its interval';
COMMENT ON COLUMN forebay.scaling_decisions.batches IS 'How many batches the mean is of';
COMMENT ON COLUMN forebay.scaling_decisions.executors IS 'Executors that Spark should have for its batches';
COMMENT ON COLUMN forebay.scaling_decisions.batch_drivers IS
    'Batch drivers that it wants: 1 is the one that pipelines share; further ones are added to it';
COMMENT ON COLUMN forebay.scaling_decisions.applied IS 'Whether it takes effect; otherwise it is advice';
COMMENT ON COLUMN forebay.scaling_decisions.reason IS 'Why, and how it takes effect';
COMMENT ON COLUMN forebay.scaling_decisions.since IS 'Since when these numbers are the decision';
COMMENT ON COLUMN forebay.scaling_decisions.decided_at IS 'When the decision was last checked';

CREATE TABLE forebay.source_lag (
    stream_id bigint NOT NULL,
    source text NOT NULL,
    partition text NOT NULL,
    receiver_id bigint NOT NULL,
    unread bigint NOT NULL,
    unit text NOT NULL,
    source_position bigint,
    oldest_at timestamptz,
    redelivered bigint,
    reported_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (stream_id, source, partition),
    CONSTRAINT source_lag_unread CHECK (unread >= 0)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, fillfactor = 50);
CREATE INDEX source_lag_receiver ON forebay.source_lag (receiver_id);
COMMENT ON TABLE forebay.source_lag IS
    'What does each source have that is not read yet? (As receivers last said.)';
COMMENT ON COLUMN forebay.source_lag.stream_id IS 'The stream that reads the source';
COMMENT ON COLUMN forebay.source_lag.source IS 'The source as the receiver names it, such as a topic';
COMMENT ON COLUMN forebay.source_lag.partition IS 'The partition, file, queue or consumer';
COMMENT ON COLUMN forebay.source_lag.receiver_id IS 'The receiver that read it last, and said so';
COMMENT ON COLUMN forebay.source_lag.unread IS
    'How much the source has there that the receiver has not read';
COMMENT ON COLUMN forebay.source_lag.unit IS 'What unread counts: records, bytes, files or messages';
COMMENT ON COLUMN forebay.source_lag.source_position IS
    'The position behind the newest record that the source has; null: all is read, or it has no positions';
COMMENT ON COLUMN forebay.source_lag.oldest_at IS
    'The oldest unread record came then or earlier, by the receiver''s clock; null: none, or unknown';
COMMENT ON COLUMN forebay.source_lag.redelivered IS
    'Messages that the source has sent again and waits for; null where it does not count them';
COMMENT ON COLUMN forebay.source_lag.reported_at IS 'When the receiver last said something new';

CREATE TABLE forebay.storage_totals (
    receiver_id bigint NOT NULL,
    sealed_segments bigint DEFAULT 0 NOT NULL,
    deleting_segments bigint DEFAULT 0 NOT NULL,
    segment_bytes bigint DEFAULT 0 NOT NULL,
    dead_letters bigint DEFAULT 0 NOT NULL,
    dead_letter_bytes bigint DEFAULT 0 NOT NULL,
    dropped_dead_letters bigint DEFAULT 0 NOT NULL,
    uncompressed_bytes bigint DEFAULT 0 NOT NULL,
    lz4_blocks bigint DEFAULT 0 NOT NULL,
    lz4_bytes bigint DEFAULT 0 NOT NULL,
    zstd_blocks bigint DEFAULT 0 NOT NULL,
    zstd_bytes bigint DEFAULT 0 NOT NULL,
    none_blocks bigint DEFAULT 0 NOT NULL,
    none_bytes bigint DEFAULT 0 NOT NULL,
    PRIMARY KEY (receiver_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, fillfactor = 50);
COMMENT ON TABLE forebay.storage_totals IS
    'How many segments and dead letters does each receiver have, and which codecs did its blocks take? (Sums.)';
COMMENT ON COLUMN forebay.storage_totals.receiver_id IS 'The receiver';
COMMENT ON COLUMN forebay.storage_totals.sealed_segments IS 'Its segments that are complete';
COMMENT ON COLUMN forebay.storage_totals.deleting_segments IS
    'Its segments that clean-up has marked and is about to delete';
COMMENT ON COLUMN forebay.storage_totals.segment_bytes IS 'Length of all its segments except the open ones, in bytes';
COMMENT ON COLUMN forebay.storage_totals.dead_letters IS 'Its records that could not be processed and are kept aside';
COMMENT ON COLUMN forebay.storage_totals.dead_letter_bytes IS 'The same in bytes';
COMMENT ON COLUMN forebay.storage_totals.dropped_dead_letters IS
    'Its records that could not be processed and were counted only, by the rows that are kept';
COMMENT ON COLUMN forebay.storage_totals.uncompressed_bytes IS
    'The part of segment_bytes in blocks that are not compressed';
COMMENT ON COLUMN forebay.storage_totals.lz4_blocks IS
    'Blocks stored with lz4, in segments that its processes sealed, since it was created';
COMMENT ON COLUMN forebay.storage_totals.lz4_bytes IS 'Their bytes as stored';
COMMENT ON COLUMN forebay.storage_totals.zstd_blocks IS
    'Blocks stored with zstd, in segments that its processes sealed, since it was created';
COMMENT ON COLUMN forebay.storage_totals.zstd_bytes IS 'Their bytes as stored';
COMMENT ON COLUMN forebay.storage_totals.none_blocks IS
    'Blocks stored uncompressed, in segments that its processes sealed, since it was created';
COMMENT ON COLUMN forebay.storage_totals.none_bytes IS 'Their bytes as stored';

CREATE TABLE forebay.stream_rates (
    pipeline_id bigint NOT NULL,
    stream_id bigint NOT NULL,
    batch_time timestamptz NOT NULL,
    latest_at timestamptz,
    latest_rate double precision,
    latest_error double precision,
    rate_limit double precision,
    expired_at timestamptz,
    decided_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (pipeline_id, stream_id),
    CONSTRAINT stream_rates_state_whole CHECK (num_nulls(latest_at, latest_rate, latest_error) IN (0, 3)),
    CONSTRAINT stream_rates_rate_limit CHECK (rate_limit IS NULL OR rate_limit > 0)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, fillfactor = 50);
COMMENT ON TABLE forebay.stream_rates IS
    'How fast may a stream come in so that a pipeline''s batches keep up, and from which figures follows that?';
COMMENT ON COLUMN forebay.stream_rates.pipeline_id IS 'The pipeline, which has back pressure on';
COMMENT ON COLUMN forebay.stream_rates.stream_id IS 'The stream that it reads';
COMMENT ON COLUMN forebay.stream_rates.batch_time IS
    'The newest batch that the estimator has used; older batches and replays change nothing';
COMMENT ON COLUMN forebay.stream_rates.latest_at IS
    'The estimator''s latest time: the end of the newest batch that it used; null before the first';
COMMENT ON COLUMN forebay.stream_rates.latest_rate IS
    'The estimator''s latest rate, in records per second; null before the first';
COMMENT ON COLUMN forebay.stream_rates.latest_error IS
    'The estimator''s latest error, in records per second; null before the first';
COMMENT ON COLUMN forebay.stream_rates.rate_limit IS
    'Records per second that the stream may take in, for this pipeline; null before the second batch';
COMMENT ON COLUMN forebay.stream_rates.expired_at IS
    'Since when the pipeline makes no progress, so that its rate limits no receiver; else null';
COMMENT ON COLUMN forebay.stream_rates.decided_at IS 'When this row was last changed';

CREATE TABLE forebay.stream_schemas (
    stream_id bigint NOT NULL,
    version integer NOT NULL,
    fingerprint text NOT NULL,
    columns jsonb NOT NULL,
    receiver_id bigint NOT NULL,
    registered_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (stream_id, version),
    CONSTRAINT stream_schemas_fingerprint UNIQUE (stream_id, fingerprint),
    CONSTRAINT stream_schemas_version_positive CHECK (version > 0),
    CONSTRAINT stream_schemas_columns_array CHECK (jsonb_typeof(columns) = 'array')
);
COMMENT ON TABLE forebay.stream_schemas IS
    'Which columns do a stream''s blocks have, in each version of its receivers'' schemas?';
COMMENT ON COLUMN forebay.stream_schemas.stream_id IS 'The stream';
COMMENT ON COLUMN forebay.stream_schemas.version IS 'From 1, in the order in which they were registered';
COMMENT ON COLUMN forebay.stream_schemas.fingerprint IS
    'A hash of names and types in order; each block carries its schema''s';
COMMENT ON COLUMN forebay.stream_schemas.columns IS
    'An array of [name, Arrow type]; a name has one type in all of a stream''s versions';
COMMENT ON COLUMN forebay.stream_schemas.receiver_id IS 'The receiver that registered it first';
COMMENT ON COLUMN forebay.stream_schemas.registered_at IS 'When it was registered';

CREATE TABLE forebay.streams (
    id bigserial NOT NULL,
    name text NOT NULL,
    version integer DEFAULT '1' NOT NULL,
    declaration jsonb NOT NULL,
    retention interval DEFAULT interval '7 days' NOT NULL,
    applied_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    removed_at timestamptz,
    PRIMARY KEY (id),
    CONSTRAINT streams_version_positive CHECK (version > 0)
);
CREATE UNIQUE INDEX streams_live_name ON forebay.streams (name) WHERE removed_at IS NULL;
COMMENT ON TABLE forebay.streams IS 'Which streams are declared, and how (the newest applied version)?';
COMMENT ON COLUMN forebay.streams.id IS 'The stream in every other table; a removed stream''s is never used again';
COMMENT ON COLUMN forebay.streams.name IS 'As declared; unique among the streams that are not removed';
COMMENT ON COLUMN forebay.streams.version IS 'Raised by one each time the declaration changes';
COMMENT ON COLUMN forebay.streams.declaration IS
    'Source, settings and number of receivers, as applied; secrets are references';
COMMENT ON COLUMN forebay.streams.retention IS 'How long blocks are kept that no pipeline reads';
COMMENT ON COLUMN forebay.streams.applied_at IS 'When this version was applied';
COMMENT ON COLUMN forebay.streams.removed_at IS 'When it was removed; null while it is declared';

INSERT INTO forebay.leadership DEFAULT VALUES;

CREATE FUNCTION forebay.record_event() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
CREATE FUNCTION forebay.note_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE FUNCTION forebay.keep_storage_totals() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE FUNCTION forebay.check_ranges() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;

-- Every change of a state is an event for listeners.
CREATE TRIGGER batch_begins AFTER INSERT ON forebay.batches FOR EACH ROW EXECUTE FUNCTION forebay.record_event();
CREATE TRIGGER batch_changes AFTER UPDATE OF state ON forebay.batches
    FOR EACH ROW WHEN (OLD.state <> NEW.state OR OLD.attempt <> NEW.attempt)
    EXECUTE FUNCTION forebay.record_event();
CREATE TRIGGER replay_begins AFTER INSERT ON forebay.batch_attempts
    FOR EACH ROW WHEN (NEW.kind = 'replay')
    EXECUTE FUNCTION forebay.record_event();
CREATE TRIGGER replay_changes AFTER UPDATE OF state ON forebay.batch_attempts
    FOR EACH ROW WHEN (NEW.kind = 'replay' AND OLD.state <> NEW.state)
    EXECUTE FUNCTION forebay.record_event();
CREATE TRIGGER output_begins AFTER INSERT ON forebay.output_commits
    FOR EACH ROW EXECUTE FUNCTION forebay.record_event();
CREATE TRIGGER output_changes AFTER UPDATE OF attempt ON forebay.output_commits
    FOR EACH ROW WHEN (OLD.attempt <> NEW.attempt)
    EXECUTE FUNCTION forebay.record_event();
CREATE TRIGGER cleanup_happens AFTER INSERT ON forebay.cleanup_events
    FOR EACH ROW EXECUTE FUNCTION forebay.record_event();
-- BEFORE: a statement may also report why it changes the state, and that event comes after this one.
CREATE TRIGGER receiver_changes BEFORE UPDATE OF state, process_id ON forebay.receivers
    FOR EACH ROW WHEN (
        OLD.state <> NEW.state OR NEW.state = 'ACTIVE' AND NEW.process_id IS DISTINCT FROM OLD.process_id)
    EXECUTE FUNCTION forebay.record_event();
CREATE TRIGGER pipeline_begins AFTER INSERT ON forebay.pipelines FOR EACH ROW EXECUTE FUNCTION forebay.record_event();
CREATE TRIGGER pipeline_changes AFTER UPDATE OF state, removed_at, halted_by ON forebay.pipelines
    FOR EACH ROW WHEN (
        (OLD.state, OLD.removed_at, OLD.halted_by) IS DISTINCT FROM (NEW.state, NEW.removed_at, NEW.halted_by))
    EXECUTE FUNCTION forebay.record_event();
CREATE TRIGGER leader_changes AFTER UPDATE OF term ON forebay.leadership
    FOR EACH ROW WHEN (OLD.term <> NEW.term)
    EXECUTE FUNCTION forebay.record_event();

-- What the tracker looks at when it changes. Heartbeats, rates, cursors, low marks and batch times that are decided are
-- no changes: they come each second. A new sequence shows its first value before and after it is first used, so that
-- the first change would go unnoticed.
CREATE SEQUENCE forebay.placement_changes;
CREATE SEQUENCE forebay.batch_changes;
SELECT setval('forebay.placement_changes', 1), setval('forebay.batch_changes', 1);
CREATE TRIGGER pipeline_comes_or_goes AFTER INSERT OR DELETE ON forebay.pipelines
    FOR EACH ROW EXECUTE FUNCTION forebay.note_change('forebay.placement_changes');
CREATE TRIGGER pipeline_is_changed
    AFTER UPDATE OF state, version, stream_ids, batch_interval, removed_at, halted_by
    ON forebay.pipelines FOR EACH ROW WHEN (
          (OLD.state, OLD.version, OLD.stream_ids, OLD.batch_interval, OLD.removed_at, OLD.halted_by)
          IS DISTINCT FROM
          (NEW.state, NEW.version, NEW.stream_ids, NEW.batch_interval, NEW.removed_at, NEW.halted_by))
    EXECUTE FUNCTION forebay.note_change('forebay.placement_changes');
CREATE TRIGGER stream_is_changed AFTER INSERT OR UPDATE OR DELETE ON forebay.streams
    FOR EACH ROW EXECUTE FUNCTION forebay.note_change('forebay.placement_changes');
CREATE TRIGGER reader_comes_or_goes AFTER INSERT OR UPDATE OF removed_at OR DELETE ON forebay.readers
    FOR EACH ROW EXECUTE FUNCTION forebay.note_change('forebay.placement_changes');
CREATE TRIGGER receiver_comes_or_goes AFTER INSERT OR DELETE ON forebay.receivers
    FOR EACH ROW EXECUTE FUNCTION forebay.note_change('forebay.placement_changes');
CREATE TRIGGER receiver_is_changed
    AFTER UPDATE OF state, desired_state, desired_before_stop, assignment, agent_id, process_id, removed_at, host,
        preferred_location, bound_to_host, reason
    ON forebay.receivers FOR EACH ROW WHEN (
          (OLD.state, OLD.desired_state, OLD.desired_before_stop, OLD.assignment, OLD.agent_id, OLD.process_id,
           OLD.removed_at, OLD.host, OLD.preferred_location, OLD.bound_to_host, OLD.reason)
          IS DISTINCT FROM
          (NEW.state, NEW.desired_state, NEW.desired_before_stop, NEW.assignment, NEW.agent_id, NEW.process_id,
           NEW.removed_at, NEW.host, NEW.preferred_location, NEW.bound_to_host, NEW.reason))
    EXECUTE FUNCTION forebay.note_change('forebay.placement_changes');
CREATE TRIGGER hand_over_is_changed AFTER INSERT OR UPDATE OR DELETE ON forebay.hand_overs
    FOR EACH ROW EXECUTE FUNCTION forebay.note_change('forebay.placement_changes');
CREATE TRIGGER agent_comes AFTER INSERT ON forebay.processes
    FOR EACH ROW WHEN (NEW.kind = 'agent')
    EXECUTE FUNCTION forebay.note_change('forebay.placement_changes');
CREATE TRIGGER process_is_changed AFTER UPDATE OF ended_at, draining, slots ON forebay.processes
    FOR EACH ROW WHEN (
        NEW.kind IN ('agent', 'receiver')
        AND (OLD.ended_at, OLD.draining, OLD.slots) IS DISTINCT FROM (NEW.ended_at, NEW.draining, NEW.slots))
    EXECUTE FUNCTION forebay.note_change('forebay.placement_changes');
CREATE TRIGGER batch_completes AFTER UPDATE OF state ON forebay.batches
    FOR EACH ROW WHEN (NEW.state = 'COMPLETED')
    EXECUTE FUNCTION forebay.note_change('forebay.batch_changes');

-- Sums of what each receiver stores.
CREATE TRIGGER segments_come AFTER INSERT ON forebay.log_segments
    REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION forebay.keep_storage_totals();
CREATE TRIGGER segments_change AFTER UPDATE ON forebay.log_segments
    REFERENCING OLD TABLE AS gone NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION forebay.keep_storage_totals();
CREATE TRIGGER segments_go AFTER DELETE ON forebay.log_segments
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION forebay.keep_storage_totals();
CREATE TRIGGER dead_letters_come AFTER INSERT ON forebay.dead_letters
    REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION forebay.keep_storage_totals();
CREATE TRIGGER dead_letters_go AFTER DELETE ON forebay.dead_letters
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION forebay.keep_storage_totals();

-- No block in two batches of a pipeline. Of a statement with two events there are no transition tables.
CREATE TRIGGER ranges_come AFTER INSERT ON forebay.batch_allocations
    REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION forebay.check_ranges();
CREATE TRIGGER ranges_change AFTER UPDATE ON forebay.batch_allocations
    REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION forebay.check_ranges();
