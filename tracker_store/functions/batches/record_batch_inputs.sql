-- record_batch_inputs: write down once which positions of its sources a batch has, before clean-up deletes the links.
--
-- Called by an attempt, which reads every block of the batch anyway: allocation stays O(receivers). Clean-up deletes
-- nothing of a batch that an attempt or a replay runs. Returns the number of ranges; null if there is no such batch, or
-- some of its links are gone already (it was finished before Forebay recorded positions, and is replayed).
-- Locks: the inserted rows' keys, then the batch's row.
CREATE FUNCTION forebay.record_batch_inputs(pipeline bigint, at_time timestamptz)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = forebay, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    recorded integer;
    in_batch bigint;
BEGIN
    SELECT b.inputs, b.records INTO recorded, in_batch
    FROM batches b WHERE b.pipeline_id = pipeline AND b.batch_time = at_time;
    IF NOT FOUND OR recorded IS NOT NULL THEN
        RETURN recorded;
    END IF;
    IF in_batch > (
        SELECT coalesce(sum(a.records), 0) FROM batch_allocations a JOIN receivers r ON r.id = a.receiver_id
        WHERE a.pipeline_id = pipeline AND a.batch_time = at_time AND lower(a.sequences) > r.low_mark) THEN
        RETURN NULL;
    END IF;
    INSERT INTO batch_inputs (pipeline_id, batch_time, stream_id, source, partition, generation, from_offset, to_offset,
                              lost)
    SELECT pipeline, at_time, i.stream_id, i.source, i.partition, i.generation, i.from_offset, i.to_offset, i.lost
    FROM batch_inputs_of(pipeline, at_time) i
    ON CONFLICT DO NOTHING;
    SELECT count(*) INTO recorded FROM batch_inputs i WHERE i.pipeline_id = pipeline AND i.batch_time = at_time;
    UPDATE batches SET inputs = recorded WHERE pipeline_id = pipeline AND batch_time = at_time;
    RETURN recorded;
END
$$;
