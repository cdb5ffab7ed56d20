CREATE VIEW forebay.state_status AS
SELECT p.name AS pipeline, h.pipeline_id, h.output, h.batch_time, h.attempt, v.ordinal, v.keys, v.bytes,
       v.changed, v.deleted, v.next_expiry, h.schema_version, h.buckets, h.generation, h.moved_at,
       kept.versions, kept.bytes AS stored_bytes,
       replay.id AS replay, replay.state AS replay_state, replay.from_time AS replay_from,
       replay.head_batch_time AS replayed_to, replay.to_time AS replay_to,
       CASE WHEN replay.id IS NOT NULL THEN runner.id IS NOT NULL END AS replay_runs,
       v.watermark, v.late, v.late_total, v.event_times,
       slowest.stream AS slowest_stream, slowest.source AS slowest_source, slowest.latest AS slowest_event_time,
       slowest.seen AS slowest_seen, newest.latest AS newest_event_time
FROM forebay.state_heads h
JOIN forebay.pipelines p ON p.id = h.pipeline_id
LEFT JOIN forebay.state_versions v ON v.pipeline_id = h.pipeline_id AND v.output = h.output
     AND v.batch_time = h.batch_time AND v.attempt = h.attempt
LEFT JOIN LATERAL (
    SELECT count(*) AS versions, coalesce(sum(k.bytes), 0)::bigint AS bytes FROM forebay.state_versions k
    WHERE k.pipeline_id = h.pipeline_id AND k.output = h.output) AS kept ON true
LEFT JOIN forebay.state_replays replay ON replay.pipeline_id = h.pipeline_id AND replay.output = h.output
     AND replay.state IN ('RUNNING', 'STOPPED', 'UNDOING')
LEFT JOIN forebay.processes runner ON runner.id = replay.process_id AND runner.ended_at IS NULL
LEFT JOIN LATERAL (
    SELECT s.stream, s.source, s.latest, s.seen
    FROM jsonb_to_recordset(v.event_times)
        AS s (stream text, source text, latest timestamptz, seen timestamptz, idle boolean)
    WHERE NOT s.idle
    ORDER BY s.latest NULLS FIRST, s.stream, s.source
    LIMIT 1) AS slowest ON true
LEFT JOIN LATERAL (
    SELECT s.latest
    FROM jsonb_to_recordset(v.event_times) AS s (latest timestamptz, idle boolean)
    WHERE NOT s.idle
    ORDER BY s.latest DESC NULLS LAST
    LIMIT 1) AS newest ON true
WHERE p.removed_at IS NULL;

COMMENT ON VIEW forebay.state_status IS
    'The state of each output that has one: the version in force, what is stored of it, and a replay forward that is not '
    'finished. Costs the stored versions of each output, unless neither versions nor stored_bytes is asked for.';
COMMENT ON COLUMN forebay.state_status.pipeline IS 'The pipeline';
COMMENT ON COLUMN forebay.state_status.pipeline_id IS 'The pipeline''s id';
COMMENT ON COLUMN forebay.state_status.output IS 'The output whose state it is, by name';
COMMENT ON COLUMN forebay.state_status.batch_time IS 'The newest batch that is in the state';
COMMENT ON COLUMN forebay.state_status.attempt IS 'The attempt that wrote that version';
COMMENT ON COLUMN forebay.state_status.ordinal IS 'How many versions its chain has had, with this one';
COMMENT ON COLUMN forebay.state_status.keys IS 'How many keys the state has; null: not known';
COMMENT ON COLUMN forebay.state_status.bytes IS 'The length of what that version wrote, in bytes';
COMMENT ON COLUMN forebay.state_status.changed IS 'How many keys it added or changed';
COMMENT ON COLUMN forebay.state_status.deleted IS 'How many keys it deleted, expired ones too';
COMMENT ON COLUMN forebay.state_status.next_expiry IS
    'When the next key expires: an interval without records runs then; null: none does';
COMMENT ON COLUMN forebay.state_status.schema_version IS 'The state''s `version`, as it was declared for that batch';
COMMENT ON COLUMN forebay.state_status.buckets IS 'Over how many buckets its keys are spread';
COMMENT ON COLUMN forebay.state_status.generation IS
    'Raised by one each time that a replay forward, or its undoing, put another chain in force';
COMMENT ON COLUMN forebay.state_status.moved_at IS 'When that version was committed, or put in force again';
COMMENT ON COLUMN forebay.state_status.versions IS
    'How many versions are stored: those that are read, or were until an hour ago, and those of attempts';
COMMENT ON COLUMN forebay.state_status.stored_bytes IS 'The length of all of them, in bytes; of each replica alike';
COMMENT ON COLUMN forebay.state_status.replay IS
    'The replay forward that is not finished, for which new batches of the output wait; null: there is none';
COMMENT ON COLUMN forebay.state_status.replay_state IS
    'RUNNING, STOPPED (by a person, or a failure) or UNDOING; null with it';
COMMENT ON COLUMN forebay.state_status.replay_from IS 'The first batch that it runs again; null with it';
COMMENT ON COLUMN forebay.state_status.replayed_to IS
    'Results of batches from replay_from up to here are the replay''s; null: none yet';
COMMENT ON COLUMN forebay.state_status.replay_to IS 'The last batch that it runs again; null with it';
COMMENT ON COLUMN forebay.state_status.replay_runs IS
    'Whether a process runs it: one that is RUNNING or UNDOING without one was killed, and is to be resumed; null with it';
COMMENT ON COLUMN forebay.state_status.watermark IS
    'The watermark after that batch; null: none yet, or it is not an output by event time';
COMMENT ON COLUMN forebay.state_status.late IS
    'How many records of that batch were too late; null: it is not an output by event time';
COMMENT ON COLUMN forebay.state_status.late_total IS
    'How many records of all batches in the state were too late; null with it';
COMMENT ON COLUMN forebay.state_status.event_times IS
    'How far each source of its streams is: stream, source, latest (event time), seen (batch), idle; null with late';
COMMENT ON COLUMN forebay.state_status.slowest_stream IS
    'The stream of the source whose greatest event time is the smallest: the watermark waits for it. Idle sources are '
    'left out; null: there is no other';
COMMENT ON COLUMN forebay.state_status.slowest_source IS
    'That source: a receiver, or a partition of one; null: the stream as a whole';
COMMENT ON COLUMN forebay.state_status.slowest_event_time IS 'Its greatest event time; null: it has had none';
COMMENT ON COLUMN forebay.state_status.slowest_seen IS
    'The batch that last had a record of it, or in which it was new';
COMMENT ON COLUMN forebay.state_status.newest_event_time IS
    'The greatest event time of all sources that are not idle; null: none has had one';
