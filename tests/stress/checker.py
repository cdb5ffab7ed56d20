"""Check a driver log at rest with SQL of its own; it shares only the tables of transitions with the code it checks.

A witness, installed before the first block, records every row of `blocks` and `block_offsets` in the transaction that
inserts it; clean-up does not reach it. The checker compares the log, and the blocks that receivers report as
acknowledged, with the witness. Safety: nothing lost, nothing twice, nothing out of order, nothing cleaned that was
needed, no state moved as its table of transitions does not allow. Liveness: no block waits behind a live cursor, and no
batch is unfinished.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.driver_log.state_moves import RECORDER, SEEN, illegal_moves

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg2.extensions

WITNESS = f"""{RECORDER}
CREATE SCHEMA witness;
CREATE TABLE witness.blocks (LIKE forebay.blocks);
CREATE TABLE witness.links (LIKE forebay.block_offsets);
CREATE FUNCTION witness.see_block() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
$$ BEGIN INSERT INTO witness.blocks SELECT NEW.*; RETURN NULL; END $$;
CREATE FUNCTION witness.see_link() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
$$ BEGIN INSERT INTO witness.links SELECT NEW.*; RETURN NULL; END $$;
CREATE TRIGGER see_block AFTER INSERT ON forebay.blocks FOR EACH ROW EXECUTE FUNCTION witness.see_block();
CREATE TRIGGER see_link AFTER INSERT ON forebay.block_offsets FOR EACH ROW EXECUTE FUNCTION witness.see_link();
"""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A block whose addition was acknowledged to its receiver."""

    receiver_id: int
    epoch: int
    sequence: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: `check` is its name, `count` the number of cases, `found` the first ones."""

    check: str
    count: int
    found: tuple[str, ...]

    def __str__(self) -> str:
        cases = "\n".join(f"    {case}" for case in self.found)
        return f"{self.check}: {self.count}\n{cases}"


# Each query returns violations. A complete witness has every sequence number from 1 on.
SAFETY = {
    "a sequence is missing or twice": """
        SELECT receiver_id, sequence, place FROM (
            SELECT receiver_id, sequence, row_number() OVER (PARTITION BY receiver_id ORDER BY sequence) AS place
            FROM witness.blocks) AS w
        WHERE sequence <> place""",
    "totals, times or epochs do not run on": """
        SELECT receiver_id, sequence FROM (
            SELECT w.*, lag(epoch, 1, 0::bigint) OVER chain AS epoch_before, lag(added_at) OVER chain AS time_before,
                   sum(records) OVER chain AS records_so_far, sum(bytes) OVER chain AS bytes_so_far
            FROM witness.blocks w WINDOW chain AS (PARTITION BY receiver_id ORDER BY sequence)) AS w
        WHERE total_records <> records_so_far OR total_bytes <> bytes_so_far OR added_at < time_before
           OR epoch < epoch_before OR (epoch > epoch_before) <> (segment_id IS NULL)""",
    "a block is registered twice": """
        SELECT segment_id, "offset", array_agg((receiver_id, sequence)::text) FROM witness.blocks
        WHERE segment_id IS NOT NULL GROUP BY segment_id, "offset" HAVING count(*) > 1""",
    "a row above the low mark, a marker or the newest row is missing": """
        SELECT w.receiver_id, w.sequence FROM witness.blocks w JOIN forebay.receivers r ON r.id = w.receiver_id
        WHERE (w.sequence > r.low_mark OR w.segment_id IS NULL)
          AND NOT EXISTS (SELECT 1 FROM forebay.blocks b WHERE b.receiver_id = w.receiver_id
                          AND b.sequence = w.sequence AND b = w::text::forebay.blocks)""",
    "a row is there that was cleaned away or never added": """
        SELECT b.receiver_id, b.sequence FROM forebay.blocks b JOIN forebay.receivers r ON r.id = b.receiver_id
        WHERE b.segment_id IS NOT NULL AND b.sequence <= r.low_mark
              AND NOT EXISTS (SELECT 1 FROM forebay.kept_ranges k WHERE k.receiver_id = b.receiver_id
                              AND b.sequence <@ k.sequences)
           OR NOT EXISTS (SELECT 1 FROM witness.blocks w WHERE w.receiver_id = b.receiver_id
                          AND w.sequence = b.sequence)""",
    "an acknowledged block is not in": """
        SELECT a.* FROM acknowledged a WHERE NOT EXISTS (
            SELECT 1 FROM witness.blocks w WHERE w.receiver_id = a.receiver_id AND w.sequence = a.sequence
            AND w.epoch = a.epoch AND w.crc32c = a.crc32c)""",
    "a source position is missing, twice, or without an origin": """
        SELECT stream_id, source, partition, generation, from_offset, before FROM (
            SELECT l.*, lag(to_offset) OVER chain AS before,
                   lag(generation, 1, -1) OVER (PARTITION BY stream_id, source, partition
                                                ORDER BY generation, from_offset) AS generation_before
            FROM witness.links l
            WINDOW chain AS (PARTITION BY stream_id, source, partition, generation ORDER BY from_offset)) AS l
        WHERE CASE WHEN before IS NULL THEN kind <> 'origin' OR generation <> generation_before + 1
                   ELSE from_offset <> before END""",
    "a source position is without its block": """
        SELECT l.* FROM witness.links l WHERE l.sequence > 0 AND NOT EXISTS (
            SELECT 1 FROM witness.blocks w WHERE w.receiver_id = l.receiver_id AND w.sequence = l.sequence)""",
    "a partition's newest position is gone": """
        SELECT DISTINCT ON (stream_id, source, partition) l.stream_id, l.source, l.partition FROM (
            SELECT DISTINCT ON (stream_id, source, partition) * FROM witness.links
            ORDER BY stream_id, source, partition, generation DESC, from_offset DESC) AS l
        WHERE NOT EXISTS (SELECT 1 FROM forebay.block_offsets o WHERE o.stream_id = l.stream_id AND o.source = l.source
                          AND o.partition = l.partition AND o = l::text::forebay.block_offsets)""",
    "a key is of no block": """
        SELECT k.stream_id, k.key FROM forebay.record_keys k WHERE NOT EXISTS (
            SELECT 1 FROM witness.blocks w WHERE w.receiver_id = k.receiver_id AND w.sequence = k.sequence)""",
    "ranges of a pipeline overlap or leave a block out": """
        SELECT pipeline_id, receiver_id, batch_time, sequences, before FROM (
            SELECT a.*, lag(upper(sequences)) OVER (PARTITION BY pipeline_id, receiver_id ORDER BY batch_time) AS before
            FROM forebay.batch_allocations a) AS a
        WHERE lower(sequences) <> before""",
    "a block is in two batches of one pipeline": """
        SELECT a.pipeline_id, w.receiver_id, w.sequence FROM witness.blocks w
        JOIN forebay.batch_allocations a ON a.receiver_id = w.receiver_id AND w.sequence <@ a.sequences
        GROUP BY a.pipeline_id, w.receiver_id, w.sequence HAVING count(*) > 1""",
    "a cursor is not where its last range ended": """
        SELECT c.consumer_id, c.receiver_id, c.next_sequence FROM forebay.cursors c
        WHERE c.next_sequence <> (SELECT max(upper(a.sequences)) FROM forebay.batch_allocations a
                                  WHERE a.pipeline_id = c.consumer_id AND a.receiver_id = c.receiver_id)""",
    "a range's counts are not its blocks'": """
        SELECT a.pipeline_id, a.batch_time, a.receiver_id FROM forebay.batch_allocations a
        CROSS JOIN LATERAL (SELECT sum(records) AS records, sum(bytes) AS bytes, count(*) AS rows
                            FROM witness.blocks w WHERE w.receiver_id = a.receiver_id
                            AND w.sequence >= lower(a.sequences) AND w.sequence < upper(a.sequences)) AS w
        WHERE w.records IS DISTINCT FROM a.records OR w.bytes IS DISTINCT FROM a.bytes
           OR w.rows <> upper(a.sequences) - lower(a.sequences)""",
    "a batch's counts are not its ranges'": """
        SELECT t.pipeline_id, t.batch_time FROM forebay.batches t
        LEFT JOIN (SELECT pipeline_id, batch_time, sum(records) AS records, sum(bytes) AS bytes
                   FROM forebay.batch_allocations GROUP BY 1, 2) AS a USING (pipeline_id, batch_time)
        WHERE t.records <> coalesce(a.records, 0) OR t.bytes <> coalesce(a.bytes, 0)""",
    "a batch has a block that was added at its time or later": """
        SELECT a.pipeline_id, a.batch_time, w.receiver_id, w.sequence FROM forebay.batch_allocations a
        JOIN witness.blocks w ON w.receiver_id = a.receiver_id AND w.sequence = upper(a.sequences) - 1
        WHERE w.added_at >= a.batch_time""",
    "a block was cleaned away that a live pipeline had not finished": """
        SELECT p.id, r.id, r.low_mark FROM forebay.pipelines p
        JOIN forebay.receivers r ON r.stream_id = ANY (p.stream_ids)
        LEFT JOIN forebay.cursors c ON c.consumer_id = p.id AND c.receiver_id = r.id
        WHERE p.removed_at IS NULL AND r.low_mark > 0
          AND (coalesce(c.next_sequence, 1) <= r.low_mark OR EXISTS (
              SELECT 1 FROM forebay.batch_allocations a JOIN forebay.batches t USING (pipeline_id, batch_time)
              WHERE a.pipeline_id = p.id AND a.receiver_id = r.id AND lower(a.sequences) <= r.low_mark
              AND t.state NOT IN ('COMPLETED', 'QUARANTINED', 'DISCARDED')))""",
    "events of clean-up do not cover what is gone": """
        SELECT r.id, r.low_mark FROM forebay.receivers r
        LEFT JOIN (SELECT receiver_id, range_agg(sequences) AS gone, sum(upper(sequences) - lower(sequences)) AS n
                   FROM forebay.cleanup_events GROUP BY receiver_id) AS e ON e.receiver_id = r.id
        WHERE r.low_mark <> coalesce(e.n, 0)
           OR r.low_mark > 0 AND e.gone <> int8multirange(int8range(1, r.low_mark, '[]'))""",
    "a quarantined batch's block is not kept": """
        SELECT a.pipeline_id, a.batch_time, w.receiver_id, w.sequence FROM forebay.batches t
        JOIN forebay.batch_allocations a USING (pipeline_id, batch_time)
        JOIN witness.blocks w ON w.receiver_id = a.receiver_id AND w.sequence <@ a.sequences
        WHERE t.state = 'QUARANTINED' AND w.segment_id IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM forebay.kept_blocks k WHERE k.pipeline_id = a.pipeline_id AND k.batch_time = a.batch_time
            AND k.receiver_id = w.receiver_id AND k.sequence = w.sequence AND k.segment_id = w.segment_id
            AND k."offset" = w."offset" AND k.crc32c = w.crc32c)""",
    "a completed batch has not every record in its output": """
        SELECT t.pipeline_id, t.batch_time, t.records, o.rows FROM forebay.batches t
        LEFT JOIN forebay.output_commits o USING (pipeline_id, batch_time)
        WHERE t.state = 'COMPLETED' AND t.records > 0 AND o.rows IS DISTINCT FROM t.records""",
    "a segment's kept blocks are miscounted": """
        SELECT coalesce(k.id, b.segment_id), k.kept_blocks, b.blocks
        FROM (SELECT g.id, g.kept_blocks FROM forebay.log_segments g WHERE g.kept_blocks > 0) AS k
        FULL JOIN (SELECT b.segment_id, count(*) AS blocks FROM forebay.blocks b
                   JOIN forebay.receivers r ON r.id = b.receiver_id
                   WHERE b.segment_id IS NOT NULL AND b.sequence <= r.low_mark GROUP BY b.segment_id) AS b
             ON b.segment_id = k.id
        WHERE k.kept_blocks IS DISTINCT FROM b.blocks""",
    "a segment's row is gone and its blocks are not": """
        SELECT b.receiver_id, b.sequence, b.segment_id FROM (
            SELECT receiver_id, sequence, segment_id FROM forebay.blocks WHERE segment_id IS NOT NULL
            ) AS b
        WHERE NOT EXISTS (SELECT 1 FROM forebay.log_segments g WHERE g.id = b.segment_id AND g.state <> 'DELETING')""",
}

ILLEGAL_MOVE = "a state moved as its table of transitions does not allow"

LIVENESS = {
    "a block waits behind a live cursor": """
        SELECT p.name, r.id AS receiver_id, coalesce(c.next_sequence, 1) AS cursor, newest.sequence AS newest
        FROM forebay.pipelines p
        JOIN forebay.receivers r ON r.stream_id = ANY (p.stream_ids)
        LEFT JOIN forebay.cursors c ON c.consumer_id = p.id AND c.receiver_id = r.id
        CROSS JOIN LATERAL (SELECT max(sequence) AS sequence FROM witness.blocks w WHERE w.receiver_id = r.id
                            AND w.segment_id IS NOT NULL) AS newest
        WHERE p.removed_at IS NULL AND newest.sequence >= coalesce(c.next_sequence, 1)""",
    "a batch is unfinished": """
        SELECT p.name, t.batch_time, t.state, t.attempt FROM forebay.batches t
        JOIN forebay.pipelines p ON p.id = t.pipeline_id
        WHERE p.removed_at IS NULL AND t.state NOT IN ('COMPLETED', 'QUARANTINED', 'DISCARDED')""",
}

CLEANED = {
    "a block stays that nobody can ask for": """
        SELECT receiver_id, sequence FROM (
            SELECT b.*, max(sequence) OVER (PARTITION BY receiver_id) AS newest FROM forebay.blocks b) AS b
        WHERE segment_id IS NOT NULL AND sequence < newest
          AND NOT EXISTS (SELECT 1 FROM forebay.kept_ranges k WHERE k.receiver_id = b.receiver_id
                          AND k.released_at IS NULL AND b.sequence <@ k.sequences)""",
    "a released range stays": "SELECT * FROM forebay.kept_ranges WHERE released_at IS NOT NULL",
}


def check(
    connection: psycopg2.extensions.connection,
    acknowledged: Iterable[Acknowledged] = (),
    *,
    cleaned: bool = False,
) -> list[Violation]:
    """Return the violations in a log at rest; an empty list if there are none.

    `connection` is in autocommit. `cleaned`: clean-up has ended too, with no retention.
    """
    checks = {**SAFETY, **LIVENESS, **(CLEANED if cleaned else {})}
    violations = []
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMP TABLE IF NOT EXISTS acknowledged "
            "(receiver_id bigint, epoch bigint, sequence bigint, crc32c bigint)"
        )
        cursor.execute("TRUNCATE acknowledged")
        rows = [(a.receiver_id, a.epoch, a.sequence, a.crc32c) for a in acknowledged]
        cursor.execute(
            "INSERT INTO acknowledged SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])",
            [[row[column] for row in rows] for column in range(4)],
        )
        cursor.execute("CREATE INDEX IF NOT EXISTS witness_blocks ON witness.blocks (receiver_id, sequence)")
        cursor.execute("ANALYZE acknowledged, witness.blocks")
        for name, query in checks.items():
            cursor.execute(query)
            found = cursor.fetchall()
            if found:
                cases = tuple(", ".join(map(str, row)) for row in found[:5])
                violations.append(Violation(name, len(found), cases))
        cursor.execute(SEEN)
        if illegal := illegal_moves(cursor.fetchall()):
            violations.append(Violation(ILLEGAL_MOVE, len(illegal), tuple(illegal[:5])))
    return violations


def is_at_rest(connection: psycopg2.extensions.connection, *, cleaned: bool = False) -> bool:
    """Return whether everything that was added is allocated, completed, and (`cleaned`) cleaned up."""
    with connection.cursor() as cursor:
        for query in {**LIVENESS, **(CLEANED if cleaned else {})}.values():
            cursor.execute(query)
            if cursor.fetchone():
                return False
    return True
