-- The condition is what makes the order a cursor: ids and transactions are given out before they commit, so an event is
-- shown only when no transaction of a lower id can still commit. A reader that continues after the last row it has seen
-- misses none. A receiver's change of state is the event of its row; the report on the change is none.
CREATE VIEW forebay.listener_events AS
SELECT e.transaction_id || '-' || e.id AS event_id, e.transaction_id, e.id, e.at,
       CASE WHEN e.epoch IS NULL THEN e.kind ELSE 'receiver_' || lower(e.kind) END AS kind, s.name AS stream,
       r.ordinal, e.receiver_id, p.name AS pipeline, e.pipeline_id, e.batch_time, e.attempt, e.output, e.term,
       e.records, CASE WHEN e.epoch IS NULL THEN e.message ELSE left(e.message, 2000) END AS message
FROM forebay.events e
LEFT JOIN forebay.receivers r ON r.id = e.receiver_id
LEFT JOIN forebay.streams s ON s.id = r.stream_id
LEFT JOIN forebay.pipelines p ON p.id = e.pipeline_id
WHERE e.transaction_id > 0
  AND e.transaction_id < CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)
  AND (e.epoch IS NULL OR e.kind NOT IN ('SCHEDULED', 'STARTED', 'PAUSED', 'RESUMED', 'STOPPED', 'FAILED'));

COMMENT ON VIEW forebay.listener_events IS
    'What happened to batches, receivers, pipelines and the lead, as a log with one cursor: order it by '
    '(transaction_id, id), and continue after the last row that you have seen. An event is shown when every transaction '
    'of the server that began to write before it has ended. Events are kept as long as other history. Costs what it '
    'returns, with a condition on (transaction_id, id).';
COMMENT ON COLUMN forebay.listener_events.event_id IS 'transaction_id and id as one text, for `forebay events --after`';
COMMENT ON COLUMN forebay.listener_events.transaction_id IS 'The transaction that made the change';
COMMENT ON COLUMN forebay.listener_events.id IS 'Its place among the events of that transaction';
COMMENT ON COLUMN forebay.listener_events.at IS 'When, by the database''s clock';
COMMENT ON COLUMN forebay.listener_events.kind IS 'What happened, as listed in docs/how-to/listeners.md';
COMMENT ON COLUMN forebay.listener_events.stream IS 'The receiver''s stream; null if the event is about no receiver';
COMMENT ON COLUMN forebay.listener_events.ordinal IS
    'The receiver''s number within its stream; null if the event is about no receiver';
COMMENT ON COLUMN forebay.listener_events.receiver_id IS 'The receiver; null if the event is about none';
COMMENT ON COLUMN forebay.listener_events.pipeline IS 'The pipeline; null if the event is about none';
COMMENT ON COLUMN forebay.listener_events.pipeline_id IS 'The pipeline''s id';
COMMENT ON COLUMN forebay.listener_events.batch_time IS
    'The batch; of a halted pipeline, the one that halted it; else null';
COMMENT ON COLUMN forebay.listener_events.attempt IS
    'The attempt or replay; 0: no attempt was made; null if the event is about no batch';
COMMENT ON COLUMN forebay.listener_events.output IS 'The output that was committed; else null';
COMMENT ON COLUMN forebay.listener_events.term IS 'The term of a new leader; else null';
COMMENT ON COLUMN forebay.listener_events.records IS
    'Records of the batch, rows of the output, or records that were cleaned up; else null';
COMMENT ON COLUMN forebay.listener_events.message IS 'The reason, the leader or the output''s place; may be empty';
