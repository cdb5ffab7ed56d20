"""Check on live data that the driver log keeps its promises (`forebay db check`, asset checks).

There is one function per promise. Each check is one statement, so one snapshot: concurrent work can't falsify it. The
server does all the work in the order of an index (windows over one receiver, one partition, one pipeline at a time):
memory stays bounded with millions of rows, and time is that of a scan. The result is a count and the first few
offenders, by name.

Nothing here writes, locks or repairs: a broken promise is a bug, and its evidence is kept.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from tracker_store.connection.engine import connect, engine_beside, named_failures, with_statement_timeout
from tracker_store.install.event_triggers import (
    EVENT_TRIGGERS,
    RANGE_TRIGGERS,
    TOTAL_TRIGGERS,
    missing_triggers,
)
from tracker_store.install.migrate import current_revision, newest_revision, way_out
from tracker_store.install.programs import FUNCTIONS, function_source, installed_fingerprint, programs_fingerprint
from tracker_store.long_texts import shortened
from tracker_store.schema.tables import SCHEMA, metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence

OFFENDERS_NAMED = 5
TIME_LIMIT = "30min"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Hold the result of a check. `violations` counts all; `offenders` names the first few."""

    check: str
    promise: str
    violations: int
    offenders: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Return whether the promise holds."""
        return self.violations == 0


# What $OF_STREAMS and $OF_PIPELINE in a query become: only receivers that the pipeline :pipeline reads, and only that
# pipeline itself. With null they select all.
_OF_STREAMS = """
    (
        CAST(:pipeline AS bigint) IS NULL
        OR r.stream_id = ANY (SELECT unnest(q.stream_ids) FROM forebay.pipelines q WHERE q.id = :pipeline)
    )
"""
_OF_PIPELINE = "(CAST(:pipeline AS bigint) IS NULL OR p.id = :pipeline)"


def _found(
    connection: sa.Connection,
    check: str,
    promise: str,
    query: str,
    pipeline_id: int | None,
    output: str | None = None,
) -> CheckResult:
    query = query.replace("$OF_STREAMS", _OF_STREAMS).replace("$OF_PIPELINE", _OF_PIPELINE)
    statement = sa.text(f"""
        SELECT o.offender, count(*) OVER () AS violations
        FROM ({query}) AS o(offender)
        LIMIT {OFFENDERS_NAMED}
    """)  # noqa: S608  our own text
    values: dict[str, object] = {"pipeline": pipeline_id} | ({"output": output} if ":output" in query else {})
    with named_failures():
        rows = connection.execute(statement, values).all()
    return CheckResult(check, promise, rows[0].violations if rows else 0, tuple(row.offender for row in rows))


def chains_are_gapless(connection: sa.Connection, pipeline_id: int | None = None) -> CheckResult:
    """Check that each receiver's sequence runs from low_mark + 1 to its newest without a gap. Cost: a scan."""
    return _found(
        connection,
        "chains_are_gapless",
        "each receiver's sequence runs from its low mark + 1 to its newest without a gap",
        """
        SELECT format('receiver %s: %s..%s is missing', w.receiver_id, w.before + 1, w.sequence - 1)
        FROM forebay.receivers r
        CROSS JOIN LATERAL (
            SELECT b.receiver_id, b.sequence, lag(b.sequence, 1, r.low_mark) OVER (ORDER BY b.sequence) AS before
            FROM forebay.blocks b WHERE b.receiver_id = r.id AND b.sequence > r.low_mark) AS w
        WHERE w.sequence <> w.before + 1 AND $OF_STREAMS
        UNION ALL
        -- The newest row is never cleaned up: the next row continues its sequence, epoch and totals.
        SELECT format('receiver %s: nothing is left above its low mark %s', r.id, r.low_mark)
        FROM forebay.receivers r
        WHERE r.low_mark > 0 AND $OF_STREAMS
          AND NOT EXISTS (SELECT 1 FROM forebay.blocks b WHERE b.receiver_id = r.id AND b.sequence > r.low_mark)
        """,
        pipeline_id,
    )


def running_totals_add_up(connection: sa.Connection, pipeline_id: int | None = None) -> CheckResult:
    """Check that totals are the predecessor's plus the row's own, and added_at never decreases. Cost: a scan."""
    return _found(
        connection,
        "running_totals_add_up",
        "each block's totals are its predecessor's plus its own, and its time is not before its predecessor's",
        """
        SELECT format('receiver %s, sequence %s: totals %s records, %s bytes at %s after %s, %s at %s', r.id,
                      w.sequence, w.total_records, w.total_bytes, w.added_at, w.records_before, w.bytes_before,
                      w.added_before)
        FROM forebay.receivers r
        CROSS JOIN LATERAL (
            SELECT b.*, lag(b.total_records) OVER chain AS records_before,
                   lag(b.total_bytes) OVER chain AS bytes_before, lag(b.added_at) OVER chain AS added_before,
                   lag(b.sequence) OVER chain AS before
            FROM forebay.blocks b WHERE b.receiver_id = r.id AND b.sequence > r.low_mark
            WINDOW chain AS (ORDER BY b.sequence)) AS w
        WHERE $OF_STREAMS
          -- Nothing can be said after a gap, which another check reports.
          AND (w.before = w.sequence - 1
               AND (w.total_records <> w.records_before + w.records OR w.total_bytes <> w.bytes_before + w.bytes
                    OR w.added_at < w.added_before)
               OR w.sequence = 1 AND (w.total_records <> w.records OR w.total_bytes <> w.bytes))
        """,
        pipeline_id,
    )


def epochs_begin_with_a_marker(connection: sa.Connection, pipeline_id: int | None = None) -> CheckResult:
    """Check the fence: an epoch begins with a marker, is higher than the last, ends with the next's. Cost: a scan."""
    return _found(
        connection,
        "epochs_begin_with_a_marker",
        "each epoch begins with a marker and is higher than the one before: a replaced process adds nothing",
        """
        -- Markers are never cleaned up, so the rule holds across the low mark too.
        SELECT format('receiver %s, sequence %s: %s of epoch %s follows epoch %s', r.id, w.sequence,
                      CASE WHEN w.segment_id IS NULL THEN 'a marker' ELSE 'a block' END, w.epoch,
                      coalesce(w.before::text, 'none'))
        FROM forebay.receivers r
        CROSS JOIN LATERAL (
            SELECT b.sequence, b.epoch, b.segment_id, lag(b.epoch) OVER (ORDER BY b.sequence) AS before
            FROM forebay.blocks b WHERE b.receiver_id = r.id) AS w
        WHERE $OF_STREAMS
          AND CASE WHEN w.segment_id IS NULL THEN w.epoch <= w.before ELSE w.epoch IS DISTINCT FROM w.before END
        """,
        pipeline_id,
    )


def source_positions_are_chained(connection: sa.Connection, pipeline_id: int | None = None) -> CheckResult:
    """Check that each link begins where the last ended, and each generation with an origin. Cost: a scan of links."""
    return _found(
        connection,
        "source_positions_are_chained",
        "each source position begins exactly where the one before it ended: nothing lost, nothing twice",
        """
        SELECT format('stream %s, %s/%s, generation %s: a %s link from %s follows one to %s of generation %s',
                      w.stream_id, w.source, w.partition, w.generation, w.kind, w.from_offset, w.to_before,
                      w.generation_before)
        FROM (
            SELECT o.*, lag(o.to_offset) OVER chain AS to_before, lag(o.generation) OVER chain AS generation_before
            FROM forebay.block_offsets o
            WHERE CAST(:pipeline AS bigint) IS NULL OR o.stream_id = ANY (
                SELECT unnest(q.stream_ids) FROM forebay.pipelines q WHERE q.id = :pipeline)
            WINDOW chain AS (PARTITION BY o.stream_id, o.source, o.partition ORDER BY o.generation, o.from_offset)) AS w
        -- Clean-up takes the oldest links, so the first one left may begin anywhere.
        WHERE w.generation_before IS NOT NULL
          AND CASE WHEN w.kind = 'origin' THEN w.generation <> w.generation_before + 1
                   ELSE w.generation <> w.generation_before OR w.from_offset <> w.to_before END
        UNION ALL
        SELECT format('stream %s, %s/%s: the link from %s belongs to block %s of receiver %s, which was never added',
                      o.stream_id, o.source, o.partition, o.from_offset, o.sequence, o.receiver_id)
        FROM forebay.block_offsets o
        JOIN forebay.receivers r ON r.id = o.receiver_id
        WHERE o.sequence > r.low_mark AND $OF_STREAMS
          AND NOT EXISTS (SELECT 1 FROM forebay.blocks b
                          WHERE b.receiver_id = o.receiver_id AND b.sequence = o.sequence)
        """,
        pipeline_id,
    )


def ranges_are_contiguous(connection: sa.Connection, pipeline_id: int | None = None) -> CheckResult:
    """Check that a pipeline's ranges of a receiver are contiguous, up to its cursor. Cost: its allocations."""
    return _found(
        connection,
        "ranges_are_contiguous",
        "a pipeline's ranges follow each other without a gap in the order of batch times, up to its cursor",
        """
        SELECT format('%s, receiver %s: the range of batch %s begins at %s, the one before ended at %s', p.name,
                      w.receiver_id, w.batch_time, lower(w.sequences), w.next - 1)
        FROM forebay.pipelines p
        CROSS JOIN LATERAL (
            SELECT a.*, lag(upper(a.sequences)) OVER earlier AS next, lag(a.batch_time) OVER earlier AS before
            FROM forebay.batch_allocations a WHERE a.pipeline_id = p.id
            WINDOW earlier AS (PARTITION BY a.receiver_id ORDER BY a.batch_time)) AS w
        WHERE lower(w.sequences) <> w.next AND $OF_PIPELINE
          -- Of the forgotten history only quarantined batches are left.
          AND w.before >= coalesce(p.history_from, '-infinity')
          -- Blocks that a stream's retention took unread are a counted loss, not a gap.
          AND NOT EXISTS (SELECT 1 FROM forebay.cleanup_events e
                          WHERE e.receiver_id = w.receiver_id AND e.unread_records > 0
                            AND e.sequences && int8range(w.next, lower(w.sequences)))
          -- Clean-up deletes ranges with their blocks, and leaves those that a quarantined batch needs.
          AND NOT (w.before < clock_timestamp() - interval '1 hour'
                   AND EXISTS (SELECT FROM forebay.receivers r
                               WHERE r.id = w.receiver_id AND r.low_mark >= lower(w.sequences) - 1))
        UNION ALL
        SELECT format('%s, receiver %s: the cursor is at %s, the newest range ended at %s', p.name, c.receiver_id,
                      c.next_sequence, newest.next - 1)
        FROM forebay.pipelines p
        JOIN forebay.cursors c ON c.consumer_id = p.id
        CROSS JOIN LATERAL (
            SELECT max(upper(a.sequences)) AS next FROM forebay.batch_allocations a
            WHERE a.pipeline_id = p.id AND a.receiver_id = c.receiver_id
              AND a.batch_time >= coalesce(p.history_from, '-infinity')) AS newest
        WHERE c.next_sequence <> newest.next AND $OF_PIPELINE
          -- Clean-up may have deleted the last ranges, with their blocks.
          AND NOT (newest.next < c.next_sequence
                   AND EXISTS (SELECT FROM forebay.receivers r
                               WHERE r.id = c.receiver_id AND r.low_mark >= c.next_sequence - 1))
        UNION ALL
        SELECT format('%s, receiver %s: the cursor is at %s, the newest block is %s', p.name, c.receiver_id,
                      c.next_sequence, coalesce(newest.sequence, 0))
        FROM forebay.pipelines p
        JOIN forebay.cursors c ON c.consumer_id = p.id
        LEFT JOIN LATERAL (
            SELECT b.sequence FROM forebay.blocks b WHERE b.receiver_id = c.receiver_id
            ORDER BY b.sequence DESC LIMIT 1) AS newest ON true
        WHERE c.next_sequence > coalesce(newest.sequence, 0) + 1 AND $OF_PIPELINE
        """,
        pipeline_id,
    )


def batches_count_their_ranges(connection: sa.Connection, pipeline_id: int | None = None) -> CheckResult:
    """Check that a batch's counts are its ranges' sums, and a range's counts its blocks'. Cost: the allocations."""
    return _found(
        connection,
        "batches_count_their_ranges",
        "a batch's records, bytes and blocks are the sums of its ranges, and theirs are their blocks'",
        """
        SELECT format('%s, batch %s: it counts %s records, %s bytes, %s blocks; its ranges %s, %s, %s', p.name,
                      t.batch_time, t.records, t.bytes, t.blocks, sums.records, sums.bytes, sums.blocks)
        FROM forebay.pipelines p
        JOIN forebay.batches t ON t.pipeline_id = p.id
        CROSS JOIN LATERAL (
            SELECT coalesce(sum(a.records), 0) AS records, coalesce(sum(a.bytes), 0) AS bytes,
                   coalesce(sum(upper(a.sequences) - lower(a.sequences)), 0) AS blocks
            FROM forebay.batch_allocations a
            WHERE a.pipeline_id = t.pipeline_id AND a.batch_time = t.batch_time) AS sums
        WHERE (t.records, t.bytes, t.blocks) IS DISTINCT FROM (sums.records, sums.bytes, sums.blocks)
          AND $OF_PIPELINE
          -- Clean-up deletes a range with its blocks: of a finished batch that is an hour old, of a receiver whose low
          -- mark has moved.
          AND NOT (t.batch_time < clock_timestamp() - interval '1 hour' AND t.state IN ('COMPLETED', 'DISCARDED')
                   AND sums.records <= t.records AND sums.bytes <= t.bytes AND sums.blocks < t.blocks
                   AND EXISTS (SELECT FROM forebay.cursors c JOIN forebay.receivers r ON r.id = c.receiver_id
                               WHERE c.consumer_id = t.pipeline_id AND r.low_mark > 0
                                 AND NOT EXISTS (SELECT FROM forebay.batch_allocations a
                                                 WHERE a.pipeline_id = t.pipeline_id AND a.batch_time = t.batch_time
                                                   AND a.receiver_id = c.receiver_id)))
        UNION ALL
        SELECT format('%s, batch %s: the range %s of receiver %s counts %s records, its blocks %s', p.name,
                      a.batch_time, a.sequences, a.receiver_id, a.records,
                      last.total_records - first.total_records + first.records)
        FROM forebay.pipelines p
        JOIN forebay.batch_allocations a ON a.pipeline_id = p.id
        JOIN forebay.receivers r ON r.id = a.receiver_id AND lower(a.sequences) > r.low_mark
        JOIN forebay.blocks first ON first.receiver_id = a.receiver_id AND first.sequence = lower(a.sequences)
        JOIN forebay.blocks last ON last.receiver_id = a.receiver_id AND last.sequence = upper(a.sequences) - 1
        WHERE (a.records, a.bytes) IS DISTINCT FROM (
                  last.total_records - first.total_records + first.records,
                  last.total_bytes - first.total_bytes + first.bytes) AND $OF_PIPELINE
        UNION ALL
        SELECT format('%s: receiver %s has a range at %s, which is no batch', p.name, a.receiver_id, a.batch_time)
        FROM forebay.pipelines p
        JOIN forebay.batch_allocations a ON a.pipeline_id = p.id
        WHERE $OF_PIPELINE
          AND NOT EXISTS (SELECT 1 FROM forebay.batches t
                          WHERE t.pipeline_id = a.pipeline_id AND t.batch_time = a.batch_time)
        """,
        pipeline_id,
    )


def unfinished_batches_have_their_blocks(connection: sa.Connection, pipeline_id: int | None = None) -> CheckResult:
    """Check that clean-up took nothing that a batch may still read (W09). Cost: the unfinished batches."""
    return _found(
        connection,
        "unfinished_batches_have_their_blocks",
        "what a batch that is not finished can still ask for is there",
        """
        SELECT format('%s, batch %s (%s): the range %s of receiver %s is cleaned up to %s', p.name, t.batch_time,
                      t.state, a.sequences, a.receiver_id, r.low_mark)
        FROM forebay.pipelines p
        JOIN forebay.batches t ON t.pipeline_id = p.id AND t.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
        JOIN forebay.batch_allocations a ON a.pipeline_id = t.pipeline_id AND a.batch_time = t.batch_time
        JOIN forebay.receivers r ON r.id = a.receiver_id
        WHERE p.removed_at IS NULL AND lower(a.sequences) <= r.low_mark AND $OF_PIPELINE
        UNION ALL
        SELECT format('%s, batch %s (QUARANTINED): it has %s records, of which %s are kept', p.name, t.batch_time,
                      t.records, coalesce(kept.records, 0))
        FROM forebay.pipelines p
        JOIN forebay.batches t ON t.pipeline_id = p.id AND t.state = 'QUARANTINED'
        LEFT JOIN LATERAL (
            -- Only its own blocks; kept_blocks also has those that a window needs. Rows are counted, not totals
            -- subtracted: a row that is missing between the first and the last must be seen.
            SELECT sum(k.records) AS records FROM forebay.kept_blocks k
            JOIN forebay.batch_allocations a ON a.pipeline_id = k.pipeline_id AND a.batch_time = k.batch_time
                 AND a.receiver_id = k.receiver_id AND k.sequence <@ a.sequences
            WHERE k.pipeline_id = t.pipeline_id AND k.batch_time = t.batch_time) AS kept ON true
        WHERE p.removed_at IS NULL AND t.records <> coalesce(kept.records, 0) AND $OF_PIPELINE
        """,
        pipeline_id,
    )


def blocks_have_their_segment(connection: sa.Connection, pipeline_id: int | None = None) -> CheckResult:
    """Check that the log knows each block's file, and clean-up won't delete it. Cost: a scan of blocks."""
    return _found(
        connection,
        "blocks_have_their_segment",
        "the file of each block is known, and is not about to be deleted",
        """
        SELECT format('receiver %s: %s blocks from sequence %s on lie in segment %s, which is %s', r.id, w.blocks,
                      w.first, w.segment_id, coalesce(g.state, 'not known'))
        FROM forebay.receivers r
        CROSS JOIN LATERAL (
            SELECT b.segment_id, count(*) AS blocks, min(b.sequence) AS first FROM forebay.blocks b
            WHERE b.receiver_id = r.id AND b.segment_id IS NOT NULL GROUP BY b.segment_id) AS w
        LEFT JOIN forebay.log_segments g ON g.id = w.segment_id AND g.receiver_id = r.id
        WHERE (g.id IS NULL OR g.state = 'DELETING') AND $OF_STREAMS
        UNION ALL
        -- Clean-up deletes a file below the low mark by this count.
        SELECT format('receiver %s: segment %s counts %s kept blocks, there are %s', r.id,
                      coalesce(g.id, passed.segment_id), coalesce(g.kept_blocks, 0), coalesce(passed.blocks, 0))
        FROM (SELECT k.id, k.receiver_id, k.kept_blocks FROM forebay.log_segments k WHERE k.kept_blocks > 0) AS g
        FULL JOIN (
            SELECT b.receiver_id, b.segment_id, count(*) AS blocks FROM forebay.receivers q
            JOIN forebay.blocks b ON b.receiver_id = q.id AND b.sequence <= q.low_mark
            WHERE b.segment_id IS NOT NULL GROUP BY b.receiver_id, b.segment_id) AS passed
             ON passed.segment_id = g.id
        JOIN forebay.receivers r ON r.id = coalesce(g.receiver_id, passed.receiver_id)
        WHERE g.kept_blocks IS DISTINCT FROM passed.blocks AND $OF_STREAMS
        """,
        pipeline_id,
    )


def attempts_agree_with_their_batch(connection: sa.Connection, pipeline_id: int | None = None) -> CheckResult:
    """Check that a batch is RUNNING while its newest attempt is, and COMPLETED when that SUCCEEDED.

    Cost: batches and attempts.
    """
    return _found(
        connection,
        "attempts_agree_with_their_batch",
        "a batch runs while its newest attempt does, and is completed when that has succeeded",
        """
        SELECT format('%s, batch %s is %s; its attempt %s is %s', p.name, t.batch_time, t.state, t.attempt,
                      coalesce(a.state, 'not there'))
        FROM forebay.pipelines p
        JOIN forebay.batches t ON t.pipeline_id = p.id
        LEFT JOIN forebay.batch_attempts a ON a.pipeline_id = t.pipeline_id AND a.batch_time = t.batch_time
             AND a.attempt = t.attempt
        WHERE $OF_PIPELINE
          -- A lost attempt leaves its batch in the same state as a failed one.
          AND CASE a.state WHEN 'LOST' THEN 'FAILED' ELSE a.state END IS DISTINCT FROM CASE t.state
              -- A person discards it after a failed attempt, or while it is blocked.
              WHEN 'RUNNING' THEN 'RUNNING' WHEN 'FAILED' THEN 'FAILED' WHEN 'QUARANTINED' THEN 'FAILED'
              WHEN 'BLOCKED' THEN 'BLOCKED'
              WHEN 'DISCARDED' THEN CASE a.state WHEN 'BLOCKED' THEN 'BLOCKED' ELSE 'FAILED' END
              WHEN 'COMPLETED' THEN CASE WHEN t.attempt > 0 THEN 'SUCCEEDED' END END
        """,
        pipeline_id,
    )


def is_short(connection: sa.Connection, pipeline_id: int, *, most: int) -> bool:
    """Return whether the checks of a pipeline have at most `most` batches and blocks to read. No locks; O(most)."""
    with named_failures():
        found: bool = connection.execute(
            sa.text("""
                SELECT (
                    SELECT count(*) FROM (
                        SELECT FROM forebay.batches b WHERE b.pipeline_id = :pipeline LIMIT :enough
                    ) AS batches
                ) <= :most AND (
                    SELECT count(*) FROM (
                        SELECT
                        FROM forebay.pipelines p
                        JOIN forebay.receivers r ON r.stream_id = ANY (p.stream_ids)
                        JOIN forebay.blocks b ON b.receiver_id = r.id
                        WHERE p.id = :pipeline
                        LIMIT :enough
                    ) AS blocks
                ) <= :most
            """),
            {"pipeline": pipeline_id, "most": most, "enough": most + 1},
        ).scalar_one()
    return found


def outputs_are_committed_once(
    connection: sa.Connection, pipeline_id: int | None = None, output: str | None = None
) -> CheckResult:
    """Check that each declared output has one commit for each COMPLETED batch that ran. Cost: batches and commits.

    Only batches that were allocated after the pipeline was last applied are held to its outputs, because the
    declaration of earlier batches is no longer known. An output of a window has a commit where its slide is due. Every
    commit must name an attempt that exists.
    """
    return _found(
        connection,
        "outputs_are_committed_once",
        "each declared output is committed, once, for each completed batch that ran",
        """
        SELECT format('%s, batch %s: %s has no commit', p.name, t.batch_time, d.output)
        FROM forebay.pipelines p
        JOIN forebay.batches t ON t.pipeline_id = p.id AND t.state = 'COMPLETED' AND t.attempt > 0
             AND t.allocated_at > p.applied_at
        CROSS JOIN LATERAL (
            SELECT o.key AS output, max((i.value ->> 'slide_ms')::bigint) AS slide,
                bool_and((t.calendar -> 'slides' ->> (i.value ->> 'slide'))::boolean) AS by_calendar
            FROM jsonb_each(CASE jsonb_typeof(p.declaration -> 'outputs') WHEN 'object'
                            THEN p.declaration -> 'outputs' ELSE '{}' END) AS o
            LEFT JOIN LATERAL jsonb_array_elements(o.value -> 'inputs') AS i ON jsonb_typeof(i.value) = 'object'
            GROUP BY o.key) AS d
        WHERE $OF_PIPELINE
          AND (d.slide IS NULL OR (extract(epoch FROM t.batch_time) * 1000)::bigint % d.slide = 0)
          AND d.by_calendar IS NOT FALSE
          AND (CAST(:output AS text) IS NULL OR d.output = :output)
          AND NOT EXISTS (SELECT 1 FROM forebay.output_commits c WHERE c.pipeline_id = p.id
                          AND c.output = d.output AND c.batch_time = t.batch_time)
        UNION ALL
        SELECT format('%s, batch %s: the commit of %s names attempt %s, which is not there', p.name, c.batch_time,
                      c.output, c.attempt)
        FROM forebay.pipelines p
        JOIN forebay.output_commits c ON c.pipeline_id = p.id
        WHERE $OF_PIPELINE AND (CAST(:output AS text) IS NULL OR c.output = :output)
          AND NOT EXISTS (SELECT 1 FROM forebay.batch_attempts a WHERE a.pipeline_id = p.id
                          AND a.batch_time = c.batch_time AND a.attempt = c.attempt)
        """,
        pipeline_id,
        output,
    )


def revision_is_the_newest(connection: sa.Connection, pipeline_id: int | None = None) -> CheckResult:
    """Check that the schema is at the revision that this installation expects."""
    del pipeline_id  # all pipelines share one schema
    found, expected = current_revision(connection), newest_revision()
    offenders: tuple[str, ...] = ()
    if found != expected:
        offenders = (f"revision {found or 'none'}, expected {expected}: {way_out(found)}",)
    elif installed_fingerprint(connection) != programs_fingerprint():
        offenders = ("functions, views and rights are another version's: forebay db upgrade",)
    return CheckResult(
        "revision_is_the_newest", "the schema is at this installation's revision", len(offenders), offenders
    )


def tables_are_as_declared(connection: sa.Connection, pipeline_id: int | None = None) -> CheckResult:
    """Check that the database's tables are those of schema.py: columns, types, defaults, indexes, comments."""
    del pipeline_id

    def ours(name: str | None, kind: str, parents: MutableMapping[str, str | None]) -> bool:
        return name == SCHEMA if kind == "schema" else parents.get("schema_name") == SCHEMA

    options = {
        "include_schemas": True,
        "include_name": ours,
        "version_table_schema": SCHEMA,
        "compare_type": True,
        "compare_server_default": True,
    }
    # For a user named like the schema it is the default schema, and tables are then reflected without its name.
    plain = engine_beside(connection.engine, "forebay db check", search_path="public")
    with connect(plain) as beside:
        differences = compare_metadata(MigrationContext.configure(beside, opts=options), metadata)
    plain.dispose()
    return CheckResult(
        "tables_are_as_declared",
        "the tables are those that this installation declares",
        len(differences),
        tuple(shortened(str(difference), 200) for difference in differences[:OFFENDERS_NAMED]),
    )


_DEFINITION = re.compile(
    r"CREATE FUNCTION forebay\.(?P<name>\w+)\((?P<arguments>.*?)\)\s*RETURNS (?P<head>.*?)AS \$\$(?P<body>.*)\$\$;",
    re.DOTALL,
)


def functions_are_the_files(connection: sa.Connection, pipeline_id: int | None = None) -> CheckResult:
    """Check that the functions are exactly those of the files: arguments, settings, owner's rights, body."""
    del pipeline_id
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT p.proname, p.prosrc, p.prosecdef, p.provolatile, coalesce(p.proconfig, '{}') AS settings,
                    ARRAY(
                        SELECT format('%s %s', coalesce(p.proargnames[n], ''), format_type(t, NULL))
                        FROM unnest(p.proargtypes) WITH ORDINALITY AS a(t, n)
                    ) AS arguments
                FROM pg_proc p
                WHERE p.pronamespace = CAST('forebay' AS regnamespace)
            """)
        ).all()
    installed = {row.proname: row for row in rows}
    offenders = [f"{name}: not in the database" for name in FUNCTIONS if name not in installed]
    offenders += [f"{name}: no file of ours" for name in installed if name not in FUNCTIONS]
    for name in FUNCTIONS:
        if name in installed:
            differing = _differing(function_source(name), installed[name])
            offenders += [f"{name}: its {what} is not the file's" for what in differing]
    return CheckResult(
        "functions_are_the_files",
        "the functions are those of this installation, unchanged",
        len(offenders),
        tuple(offenders[:OFFENDERS_NAMED]),
    )


_TYPES = {"timestamptz": "timestamp with time zone", "timestamptz[]": "timestamp with time zone[]"}
_VOLATILITY = {"v": "VOLATILE", "s": "STABLE", "i": "IMMUTABLE"}


def _differing(source: str, installed: sa.Row[Any]) -> list[str]:
    """Return the parts of an installed function that differ from its file."""
    match = _DEFINITION.search(source)
    assert match is not None, "each file has one CREATE FUNCTION of this form"
    plain = re.sub(r"--[^\n]*", "", match["arguments"])
    arguments = [
        " ".join([name, _TYPES.get(kind, kind)])
        for name, kind in (
            re.sub(r"\s+DEFAULT\b.*", "", argument.strip(), flags=re.DOTALL).split(None, 1)
            for argument in re.split(r",(?![^']*'(?:[^']*'[^']*')*[^']*$)", plain)
            if argument.strip() and not argument.strip().startswith("OUT ")
        )
    ]
    head = re.sub(r"--[^\n]*", "", match["head"])
    settings = sorted(f"{name}={value.strip()}" for name, value in re.findall(r"SET (\w+) = ([^\n]*)", head))
    return [
        what
        for what, same in {
            "body": installed.prosrc == match["body"],
            "argument list": installed.arguments == arguments,
            "list of settings": sorted(installed.settings) == settings,
            "SECURITY DEFINER": installed.prosecdef is ("SECURITY DEFINER" in head),
            "volatility": _VOLATILITY[installed.provolatile] in head,
        }.items()
        if not same
    ]


def changes_are_told(connection: sa.Connection, pipeline_id: int | None = None) -> CheckResult:
    """Check that the triggers that write events are there and enabled."""
    del pipeline_id
    return _triggers_are_there(
        connection,
        EVENT_TRIGGERS,
        function="record_event",
        name="changes_are_told",
        promise="every change of a state writes an event",
    )


def totals_are_kept(connection: sa.Connection, pipeline_id: int | None = None) -> CheckResult:
    """Check that the triggers that keep sums of segments and dead letters are there and enabled."""
    del pipeline_id
    return _triggers_are_there(
        connection,
        TOTAL_TRIGGERS,
        function="keep_storage_totals",
        name="totals_are_kept",
        promise="every change of a segment or a dead letter changes its receiver's sums",
    )


def ranges_are_checked(connection: sa.Connection, pipeline_id: int | None = None) -> CheckResult:
    """Check that the triggers that refuse overlapping ranges are there and enabled."""
    del pipeline_id
    return _triggers_are_there(
        connection,
        RANGE_TRIGGERS,
        function="check_ranges",
        name="ranges_are_checked",
        promise="a range that overlaps with another one of its pipeline is refused when it is written",
    )


def _triggers_are_there(
    connection: sa.Connection, triggers: Mapping[str, Sequence[str]], *, function: str, name: str, promise: str
) -> CheckResult:
    missing = missing_triggers(connection, triggers, function=function)
    offenders = tuple(f"{trigger}: not in the database, or disabled" for trigger in missing[:OFFENDERS_NAMED])
    return CheckResult(name, promise, len(missing), offenders)


DATA_CHECKS: tuple[Callable[[sa.Connection, int | None], CheckResult], ...] = (
    chains_are_gapless,
    running_totals_add_up,
    epochs_begin_with_a_marker,
    source_positions_are_chained,
    ranges_are_contiguous,
    batches_count_their_ranges,
    unfinished_batches_have_their_blocks,
    blocks_have_their_segment,
    attempts_agree_with_their_batch,
    outputs_are_committed_once,
)
SCHEMA_CHECKS: tuple[Callable[[sa.Connection, int | None], CheckResult], ...] = (
    revision_is_the_newest,
    tables_are_as_declared,
    functions_are_the_files,
    changes_are_told,
    totals_are_kept,
    ranges_are_checked,
)


@contextmanager
def patient(connection: sa.Connection) -> Iterator[None]:
    """Raise the statement timeout: a check of millions of rows takes longer than any statement of the product may."""
    with with_statement_timeout(connection, TIME_LIMIT):
        yield


def check_schema(connection: sa.Connection, *, begins: Callable[[str], None] | None = None) -> list[CheckResult]:
    """Run the checks of what is installed. No locks. `begins` is called with each check's name before it runs."""
    return _run(SCHEMA_CHECKS, connection, None, begins)


def check_data(
    connection: sa.Connection, pipeline_id: int | None = None, *, begins: Callable[[str], None] | None = None
) -> list[CheckResult]:
    """Run the checks of the log itself, or of one pipeline and the streams that it reads. No locks.

    `begins` is called with each check's name before it runs.
    """
    with patient(connection):
        return _run(DATA_CHECKS, connection, pipeline_id, begins)


def _run(
    checks: Sequence[Callable[[sa.Connection, int | None], CheckResult]],
    connection: sa.Connection,
    pipeline_id: int | None,
    begins: Callable[[str], None] | None,
) -> list[CheckResult]:
    results = []
    for check in checks:
        if begins is not None:
            begins(check.__name__)
        results.append(check(connection, pipeline_id))
    return results
