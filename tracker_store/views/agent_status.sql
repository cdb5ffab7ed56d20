CREATE VIEW forebay.agent_status AS
SELECT a.name AS agent, a.id AS agent_id, a.host, a.slots,
       (SELECT count(*) FROM forebay.receivers r WHERE r.agent_id = a.id AND r.removed_at IS NULL) AS receivers,
       a.draining, a.started_at
FROM forebay.processes a
WHERE a.kind = 'agent' AND a.ended_at IS NULL;

COMMENT ON VIEW forebay.agent_status IS
    'Each agent that has not ended, and how many receivers are placed on it. Costs the live agents and their receivers.';
COMMENT ON COLUMN forebay.agent_status.agent IS 'The agent, by name';
COMMENT ON COLUMN forebay.agent_status.agent_id IS 'Its process''s id';
COMMENT ON COLUMN forebay.agent_status.host IS 'Its host';
COMMENT ON COLUMN forebay.agent_status.slots IS 'How many receivers it takes';
COMMENT ON COLUMN forebay.agent_status.receivers IS 'How many receivers are placed on it';
COMMENT ON COLUMN forebay.agent_status.draining IS 'True while it hands its receivers over and gets no new ones';
COMMENT ON COLUMN forebay.agent_status.started_at IS 'When it registered';
