-- Each arm reads one table, without a condition, so that the planner pushes (receiver_id, first_sequence) and `source`
-- into the arms, and does not read the arms of other sources at all.
CREATE VIEW forebay.driver_log AS
SELECT e.at, e.source, CASE WHEN e.marker THEN 'epoch claimed' ELSE e.event END AS event,
       s.name AS stream, r.ordinal, e.receiver_id, p.name AS pipeline, e.pipeline_id, e.batch_time, e.epoch,
       e.first_sequence, e.last_sequence, e.records, e.bytes, e.detail
FROM (
    SELECT b.added_at AS at, 'blocks'::text AS source, 'block added'::text AS event, b.segment_id IS NULL AS marker,
           b.receiver_id, NULL::bigint AS pipeline_id, NULL::timestamptz AS batch_time, b.epoch,
           b.sequence AS first_sequence, b.sequence AS last_sequence, b.records, b.bytes, ''::text AS detail
    FROM forebay.blocks b
    UNION ALL
    SELECT t.allocated_at, 'batches'::text, 'batch allocated'::text, false, NULL::bigint, t.pipeline_id, t.batch_time,
           NULL::bigint, NULL::bigint, NULL::bigint, t.records, t.bytes, format('%s sequences', t.blocks)
    FROM forebay.batches t
    UNION ALL
    SELECT c.at, 'cleanup_events'::text, 'cleaned up'::text, false, c.receiver_id, NULL::bigint, NULL::timestamptz,
           NULL::bigint, lower(c.sequences), upper(c.sequences) - 1, c.records, c.bytes,
           format('%s records had been read by no pipeline', c.unread_records)
    FROM forebay.cleanup_events c
    UNION ALL
    SELECT v.at, 'receiver_events'::text, 'receiver ' || v.kind, false, v.receiver_id, NULL::bigint,
           NULL::timestamptz, v.epoch, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, v.message
    FROM forebay.receiver_events v
    UNION ALL
    SELECT p.removed_at, 'pipelines'::text, 'pipeline removed'::text, false, NULL::bigint, p.id, NULL::timestamptz,
           NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, coalesce(p.removed_why, '')
    FROM forebay.pipelines p WHERE p.removed_at IS NOT NULL) AS e
LEFT JOIN forebay.receivers r ON r.id = e.receiver_id
LEFT JOIN forebay.streams s ON s.id = r.stream_id
LEFT JOIN forebay.pipelines p ON p.id = e.pipeline_id;

COMMENT ON VIEW forebay.driver_log IS
    'Block additions, take-overs, allocations, clean-ups and receiver events as one log; order it by at. A filter on '
    'receiver_id and first_sequence, or on source, costs what it returns; one on at alone reads every block that is '
    'kept (blocks has no index on time: it would cost each block 90 bytes of WAL). For a span of time ask '
    'driver_log_between(from_time, to_time), which finds its ends by halving.';
COMMENT ON COLUMN forebay.driver_log.at IS 'When, by the database''s clock';
COMMENT ON COLUMN forebay.driver_log.source IS
    'The table or view that holds the event: blocks, batches, cleanup_events, receiver_events or pipelines';
COMMENT ON COLUMN forebay.driver_log.event IS
    'block added, epoch claimed, batch allocated, cleaned up, pipeline removed, or receiver and the kind of its event';
COMMENT ON COLUMN forebay.driver_log.stream IS 'The receiver''s stream; null for an allocation';
COMMENT ON COLUMN forebay.driver_log.ordinal IS
    'The receiver''s number within its stream, from 1; null for an allocation';
COMMENT ON COLUMN forebay.driver_log.receiver_id IS
    'The receiver; null for an allocation, whose ranges are in batch_allocations';
COMMENT ON COLUMN forebay.driver_log.pipeline IS 'The pipeline of an allocation; else null';
COMMENT ON COLUMN forebay.driver_log.pipeline_id IS
    'The same as an id: a pipeline that was removed and applied again is another';
COMMENT ON COLUMN forebay.driver_log.batch_time IS 'The batch that was allocated; else null';
COMMENT ON COLUMN forebay.driver_log.epoch IS
    'The epoch that added or claimed, 0 where the tracker reports; null for allocation and clean-up';
COMMENT ON COLUMN forebay.driver_log.first_sequence IS
    'First of the sequences that it is about; null where it is about none';
COMMENT ON COLUMN forebay.driver_log.last_sequence IS 'Last of them; the same as first_sequence for a block';
COMMENT ON COLUMN forebay.driver_log.records IS 'Records added, allocated or cleaned up; null for a receiver event';
COMMENT ON COLUMN forebay.driver_log.bytes IS 'The same in bytes as stored';
COMMENT ON COLUMN forebay.driver_log.detail IS
    'A receiver event''s message, an allocation''s size, a clean-up''s loss, what a removed pipeline left';
