CREATE VIEW forebay.channel_progress AS
SELECT s.name AS stream, c.stream_id, c.sender, c.channel, c.position, c.moved_at, c.receiver_id, r.ordinal AS receiver
FROM forebay.channels c
JOIN forebay.streams s ON s.id = c.stream_id
LEFT JOIN forebay.receivers r ON r.id = c.receiver_id
WHERE s.removed_at IS NULL;

COMMENT ON VIEW forebay.channel_progress IS
    'Up to which offset each channel is stored: a sender''s sequence of records. Costs a scan of the channels.';
COMMENT ON COLUMN forebay.channel_progress.stream IS 'The stream';
COMMENT ON COLUMN forebay.channel_progress.stream_id IS 'The stream''s id';
COMMENT ON COLUMN forebay.channel_progress.sender IS
    'The reference of the sender''s token, as it is declared; empty where the source has no tokens';
COMMENT ON COLUMN forebay.channel_progress.channel IS 'The channel''s name, as its sender gives it';
COMMENT ON COLUMN forebay.channel_progress.position IS
    'The offset of the next record: all before it are in blocks, or dead letters';
COMMENT ON COLUMN forebay.channel_progress.moved_at IS 'When it was moved last';
COMMENT ON COLUMN forebay.channel_progress.receiver_id IS 'The receiver that moved it last';
COMMENT ON COLUMN forebay.channel_progress.receiver IS 'That receiver''s number; null: it is forgotten';
