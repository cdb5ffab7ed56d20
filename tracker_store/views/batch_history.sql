CREATE VIEW forebay.batch_history AS
SELECT p.name AS pipeline, b.pipeline_id, b.batch_time, b.state, b.records, a.attempt, a.kind, a.state AS attempt_state,
       a.run_id, a.started_at, a.ended_at, a.ended_at - a.started_at AS duration, a.error,
       (SELECT array_agg(c.output ORDER BY c.output) FROM forebay.output_commits c
        WHERE c.pipeline_id = a.pipeline_id AND c.batch_time = a.batch_time AND c.attempt = a.attempt) AS outputs,
       r.name AS process, r.host
FROM forebay.batches b
JOIN forebay.pipelines p ON p.id = b.pipeline_id
LEFT JOIN forebay.batch_attempts a ON a.pipeline_id = b.pipeline_id AND a.batch_time = b.batch_time
LEFT JOIN forebay.processes r ON r.id = a.process_id;

COMMENT ON VIEW forebay.batch_history IS
    'Each batch with every attempt and replay of it: the run, when, how it ended, and which outputs it brought out. '
    'Order it by batch_time and attempt. Costs the batches that are asked for: name pipeline_id and a span of '
    'batch_time.';
COMMENT ON COLUMN forebay.batch_history.pipeline IS 'The pipeline';
COMMENT ON COLUMN forebay.batch_history.pipeline_id IS 'The pipeline''s id';
COMMENT ON COLUMN forebay.batch_history.batch_time IS 'The batch';
COMMENT ON COLUMN forebay.batch_history.state IS 'The batch''s state now, as in batch_stats';
COMMENT ON COLUMN forebay.batch_history.records IS 'Records allocated to it';
COMMENT ON COLUMN forebay.batch_history.attempt IS
    'The attempt''s number, replays counted too; null for a batch that nothing has run';
COMMENT ON COLUMN forebay.batch_history.kind IS 'run, or replay: of a batch that was COMPLETED or QUARANTINED';
COMMENT ON COLUMN forebay.batch_history.attempt_state IS
    'RUNNING, SUCCEEDED, FAILED (counted in max_attempts), BLOCKED (its block store, a target or a block''s key, was unavailable: '
    'not counted) or LOST (its process or Spark died: counted in max_lost_attempts)';
COMMENT ON COLUMN forebay.batch_history.run_id IS
    'The Dagster run, or what else ran it (`forebay batches replay …`); empty where none is known';
COMMENT ON COLUMN forebay.batch_history.started_at IS 'When it claimed the batch';
COMMENT ON COLUMN forebay.batch_history.ended_at IS 'When it ended; null while it runs';
COMMENT ON COLUMN forebay.batch_history.duration IS 'ended_at - started_at';
COMMENT ON COLUMN forebay.batch_history.error IS 'Why it failed; else empty';
COMMENT ON COLUMN forebay.batch_history.outputs IS
    'The outputs whose result is this attempt''s; null where later ones replaced all, or it had none';
COMMENT ON COLUMN forebay.batch_history.process IS
    'The process that ran it; null once that is forgotten, and where it never claimed';
COMMENT ON COLUMN forebay.batch_history.host IS 'That process''s host';
