CREATE VIEW forebay.batch_stats AS
SELECT p.name AS pipeline, p.id AS pipeline_id, b.batch_time, b.oldest_time, b.state, b.attempt, b.records, b.bytes,
       b.blocks, b.reason, attempt.run_id, attempt.started_at AS processing_started_at, b.completed_at,
       run.started_at - b.oldest_time AS scheduling_delay,
       b.completed_at - attempt.started_at AS processing_time,
       run.started_at - b.oldest_time + (b.completed_at - attempt.started_at) AS total_delay,
       attempt.kind,
       (SELECT count(*) FROM forebay.batch_attempts n WHERE n.pipeline_id = b.pipeline_id
        AND n.batch_time = b.batch_time AND n.kind = 'replay') AS replays
FROM forebay.batches b
JOIN forebay.pipelines p ON p.id = b.pipeline_id
LEFT JOIN forebay.batch_attempts attempt ON attempt.pipeline_id = b.pipeline_id
     AND attempt.batch_time = b.batch_time AND attempt.attempt = b.attempt
-- A person's replay came when the person did: what waited for a run is told by the newest run before it.
CROSS JOIN LATERAL (
    SELECT CASE WHEN attempt.kind = 'replay' THEN (
        SELECT max(r.started_at) FROM forebay.batch_attempts r
        WHERE r.pipeline_id = b.pipeline_id AND r.batch_time = b.batch_time AND r.kind = 'run')
           ELSE attempt.started_at END AS started_at OFFSET 0) AS run;

COMMENT ON VIEW forebay.batch_stats IS
    'Each batch: its size, state and delays; one without records ran nowhere and has no delays. Costs the batches '
    'that are asked for.';
COMMENT ON COLUMN forebay.batch_stats.pipeline IS 'The pipeline';
COMMENT ON COLUMN forebay.batch_stats.pipeline_id IS 'The pipeline''s id';
COMMENT ON COLUMN forebay.batch_stats.batch_time IS
    'The boundary at which its blocks were cut: they were added before it';
COMMENT ON COLUMN forebay.batch_stats.oldest_time IS
    'The oldest boundary that it stands for; before batch_time when missed ones were merged';
COMMENT ON COLUMN forebay.batch_stats.state IS
    'ALLOCATED, RUNNING, COMPLETED, FAILED (between two attempts), BLOCKED (its block store, a target or a block''s key, is '
    'unavailable), QUARANTINED or DISCARDED';
COMMENT ON COLUMN forebay.batch_stats.attempt IS
    'The number of the attempt that brought it out, or else of its newest one; 0: none was made';
COMMENT ON COLUMN forebay.batch_stats.records IS 'Records allocated to it';
COMMENT ON COLUMN forebay.batch_stats.bytes IS 'The same in bytes as stored';
COMMENT ON COLUMN forebay.batch_stats.blocks IS 'Sequences allocated to it, epoch markers among them';
COMMENT ON COLUMN forebay.batch_stats.reason IS
    'Its most telling failure, which may be an earlier attempt''s, or why nothing ran';
COMMENT ON COLUMN forebay.batch_stats.run_id IS 'The Dagster run of that attempt; null before the first';
COMMENT ON COLUMN forebay.batch_stats.processing_started_at IS 'When that attempt started';
COMMENT ON COLUMN forebay.batch_stats.completed_at IS 'When the last of its outputs was committed; null until then';
COMMENT ON COLUMN forebay.batch_stats.scheduling_delay IS
    'Start of that attempt - oldest_time: how long its records waited for a run; of a replay, of the newest run before '
    'it';
COMMENT ON COLUMN forebay.batch_stats.processing_time IS 'completed_at - processing_started_at';
COMMENT ON COLUMN forebay.batch_stats.total_delay IS 'scheduling_delay + processing_time';
COMMENT ON COLUMN forebay.batch_stats.kind IS
    'run, or replay where one brought it out after it was quarantined; null before the first attempt';
COMMENT ON COLUMN forebay.batch_stats.replays IS
    'How many replays of it were made; those of a COMPLETED batch change nothing else here';
