CREATE VIEW forebay.batch_outputs AS
SELECT p.name AS pipeline, b.pipeline_id, b.batch_time, b.state AS batch_state, o.output,
       CASE WHEN c.output IS NULL THEN 'FAILED' ELSE 'COMMITTED' END AS state,
       c.attempt, c.rows, c.location, c.committed_at,
       f.attempt AS failed_attempt, f.failure, coalesce(f.error, '') AS error, f.failed_at, c.code_version,
       c.state_attempt, v.ordinal AS state_ordinal, v.changed AS state_changed, v.deleted AS state_deleted,
       v.bytes AS state_bytes, v.replay_id AS state_replay
FROM forebay.batches b
JOIN forebay.pipelines p ON p.id = b.pipeline_id
CROSS JOIN LATERAL (
    SELECT x.output FROM forebay.output_commits x
    WHERE x.pipeline_id = b.pipeline_id AND x.batch_time = b.batch_time
    UNION
    SELECT y.output FROM forebay.output_failures y
    WHERE y.pipeline_id = b.pipeline_id AND y.batch_time = b.batch_time) AS o
LEFT JOIN forebay.output_commits c ON c.pipeline_id = b.pipeline_id AND c.output = o.output
     AND c.batch_time = b.batch_time
LEFT JOIN forebay.state_versions v ON v.pipeline_id = c.pipeline_id AND v.output = c.output
     AND v.batch_time = c.batch_time AND v.attempt = c.state_attempt
LEFT JOIN LATERAL (
    SELECT z.attempt, z.failure, z.error, z.failed_at FROM forebay.output_failures z
    WHERE z.pipeline_id = b.pipeline_id AND z.batch_time = b.batch_time AND z.output = o.output
    ORDER BY z.attempt DESC LIMIT 1) AS f ON true;

COMMENT ON VIEW forebay.batch_outputs IS
    'Each output of a batch that was committed or has failed: the result that counts, and its newest failure. An output '
    'that was not tried yet has no row. Costs the batches that are asked for: name pipeline_id and batch_time.';
COMMENT ON COLUMN forebay.batch_outputs.pipeline IS 'The pipeline';
COMMENT ON COLUMN forebay.batch_outputs.pipeline_id IS 'The pipeline''s id';
COMMENT ON COLUMN forebay.batch_outputs.batch_time IS 'The batch';
COMMENT ON COLUMN forebay.batch_outputs.batch_state IS 'The batch''s state now, as in batch_stats';
COMMENT ON COLUMN forebay.batch_outputs.output IS 'The output, by name';
COMMENT ON COLUMN forebay.batch_outputs.state IS
    'COMMITTED once it has a result, whatever failed before or after; else FAILED';
COMMENT ON COLUMN forebay.batch_outputs.attempt IS 'The attempt whose result counts; null where it has none';
COMMENT ON COLUMN forebay.batch_outputs.rows IS 'How many rows that result has; null if the sink can''t tell';
COMMENT ON COLUMN forebay.batch_outputs.location IS 'Where that result is; null where it has none';
COMMENT ON COLUMN forebay.batch_outputs.committed_at IS 'When it was committed; null where it has none';
COMMENT ON COLUMN forebay.batch_outputs.failed_attempt IS
    'The newest attempt in which the output failed, replays counted too; null where it never failed';
COMMENT ON COLUMN forebay.batch_outputs.failure IS
    'How it failed then: FAILED (its data or code), BLOCKED (no block store, target or key) or LOST (what it ran on ended)';
COMMENT ON COLUMN forebay.batch_outputs.error IS 'Why it failed then; else empty';
COMMENT ON COLUMN forebay.batch_outputs.failed_at IS 'When it failed then; null where it never failed';
COMMENT ON COLUMN forebay.batch_outputs.code_version IS
    'Which code made the result: a hash of the project''s modules; null where it is not known, or has none';
COMMENT ON COLUMN forebay.batch_outputs.state_attempt IS
    'The attempt whose version of the output''s state the result made; null where it made none';
COMMENT ON COLUMN forebay.batch_outputs.state_ordinal IS
    'That version''s number in its chain; null, as the next four, where it made none, or the version was cleaned up';
COMMENT ON COLUMN forebay.batch_outputs.state_changed IS 'How many keys it added or changed';
COMMENT ON COLUMN forebay.batch_outputs.state_deleted IS 'How many keys it deleted, expired ones too';
COMMENT ON COLUMN forebay.batch_outputs.state_bytes IS 'The length of what it wrote, in bytes';
COMMENT ON COLUMN forebay.batch_outputs.state_replay IS
    'The replay forward that made it; null, too, where a batch, or a replay of one, did';
