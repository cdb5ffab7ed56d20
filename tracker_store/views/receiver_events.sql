-- Processes report through this view. Its check option refuses a row without an epoch, and a constraint of `events` allows
-- only these kinds to a row with one: a login that may insert here makes no event of a batch or of a state.
CREATE VIEW forebay.receiver_events AS
SELECT e.id, e.receiver_id, e.epoch, e.at, e.kind, e.message, e.detail
FROM forebay.events e
WHERE e.epoch IS NOT NULL
WITH CASCADED CHECK OPTION;

COMMENT ON VIEW forebay.receiver_events IS
    'What happened to a receiver, and why. The newest of each kind is kept for ever. Costs what it returns, with a '
    'condition on id, at, or receiver_id and kind.';
COMMENT ON COLUMN forebay.receiver_events.id IS 'The event; ids rise in the order of insertion';
COMMENT ON COLUMN forebay.receiver_events.receiver_id IS 'The receiver';
COMMENT ON COLUMN forebay.receiver_events.epoch IS
    'The epoch of the reporting process; 0 if the tracker or an agent reports';
COMMENT ON COLUMN forebay.receiver_events.at IS 'When, by the database''s clock';
COMMENT ON COLUMN forebay.receiver_events.kind IS
    'SCHEDULED, STARTED, CONNECTED, RESTARTED, PAUSED, RESUMED, STOPPED, ERROR, EXITED, FENCED, FAILED, LEASE_EXPIRED, '
    'BAD_RECORD or SALVAGED';
COMMENT ON COLUMN forebay.receiver_events.message IS 'In one sentence, for people';
COMMENT ON COLUMN forebay.receiver_events.detail IS 'The rest, such as a stack; may be empty';
