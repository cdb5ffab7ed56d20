-- record_event: write the event of a change of a row, in the transaction that makes the change (docs/how-to/listeners.md).
--
-- Triggers call it, so no statement of any version changes a state without its event, and a change that is undone has
-- none. It decides nothing, and there is nothing that it refuses: an event must never stop a change. A trigger's
-- condition says which rows are changes.
-- The event is about its row alone. What processes report on a receiver is inserted through the view receiver_events.
-- Locks: the new row.
CREATE FUNCTION forebay.record_event()
RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
AS $$
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'batches' THEN
        INSERT INTO events (kind, pipeline_id, batch_time, attempt, records, message)
        VALUES ('batch_' || CASE NEW.state WHEN 'RUNNING' THEN 'started' ELSE lower(NEW.state) END,
                NEW.pipeline_id, NEW.batch_time, NEW.attempt, NEW.records, left(NEW.reason, 2000));
    WHEN 'batch_attempts' THEN
        INSERT INTO events (kind, pipeline_id, batch_time, attempt, message)
        VALUES ('replay_' || CASE NEW.state WHEN 'RUNNING' THEN 'started' WHEN 'SUCCEEDED' THEN 'completed'
                             ELSE 'failed' END,
                NEW.pipeline_id, NEW.batch_time, NEW.attempt, left(NEW.error, 2000));
    WHEN 'output_commits' THEN
        INSERT INTO events (kind, pipeline_id, batch_time, attempt, output, records, message)
        VALUES ('output_committed', NEW.pipeline_id, NEW.batch_time, NEW.attempt, NEW.output, NEW.rows, NEW.location);
    WHEN 'receivers' THEN
        INSERT INTO events (kind, receiver_id, message)
        VALUES ('receiver_' || CASE
                    WHEN NEW.state = 'ACTIVE' AND OLD.state = 'PAUSED' AND NEW.process_id = OLD.process_id THEN 'resumed'
                    WHEN NEW.state = 'ACTIVE' THEN 'started'
                    WHEN NEW.state = 'INACTIVE' THEN 'stopped'
                    ELSE lower(NEW.state) END,
                NEW.id, left(NEW.reason, 2000));
    WHEN 'cleanup_events' THEN
        INSERT INTO events (kind, receiver_id, records, message)
        VALUES ('blocks_cleaned_up', NEW.receiver_id, NEW.records,
                format('sequences %s to %s; %s records had been read by no pipeline', lower(NEW.sequences),
                       upper(NEW.sequences) - 1, NEW.unread_records));
    WHEN 'leadership' THEN
        INSERT INTO events (kind, term, message) VALUES ('leader_changed', NEW.term, coalesce(NEW.holder, ''));
    WHEN 'pipelines' THEN
        INSERT INTO events (kind, pipeline_id, batch_time, message)
        VALUES ('pipeline_' || CASE
                    WHEN TG_OP = 'INSERT' THEN 'started'
                    WHEN NEW.removed_at IS DISTINCT FROM OLD.removed_at THEN 'removed'
                    WHEN NEW.state <> OLD.state THEN CASE NEW.state WHEN 'RUNNING' THEN 'started'
                                                                    ELSE lower(NEW.state) END
                    WHEN NEW.halted_by IS NULL THEN 'continued'
                    ELSE 'halted' END,
                NEW.id, NEW.halted_by, coalesce(NEW.removed_why, ''));
    ELSE
        NULL;
    END CASE;
    -- Of a BEFORE trigger this is the row that is written.
    RETURN NEW;
END
$$;
