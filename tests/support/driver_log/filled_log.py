"""Fill a driver log by SQL as if it had run for long, and count what a statement reads in it.

For tests of growth and for benchmarks: it imports nothing of pytest. A filled log is in the state of a healthy
installation: every batch is COMPLETED, clean-up is done except for the newest blocks of each receiver. What it must
never do is to measure time.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa


@dataclass(frozen=True, slots=True)
class Size:
    """How large a log is. Receivers are shared out among streams, and each pipeline reads one stream."""

    receivers: int = 4
    streams: int = 2
    pipelines: int = 2
    #: Completed batches of each pipeline, one block of each receiver in each; their blocks are cleaned up.
    batches: int = 50
    #: Blocks of each receiver that clean-up has not taken: they are of the newest batches.
    retained: int = 5
    #: Events of each receiver, segments that are not deleted, and clean-up's events.
    events: int = 50
    segments: int = 5
    #: For each stream: partitions, links in each, and idempotency keys within their window.
    partitions: int = 2
    links: int = 20
    keys: int = 50
    dead_letters: int = 20
    processes: int = 50
    interval_seconds: float = 10.0


# In order; each takes the size's fields by name. Times end now, so that nothing is older than a history of 14 days
# unless the size reaches further back.
_STATEMENTS = (
    """
    INSERT INTO forebay.streams (name, declaration)
    SELECT format('stream%%s', n), '{"source": {}, "settings": {}}' FROM generate_series(1, %(streams)s) AS n
    """,
    """
    INSERT INTO forebay.receivers (stream_id, ordinal, low_mark, state)
    SELECT s.id, n, greatest(0, %(batches)s + 1 - %(retained)s), 'INACTIVE'
    FROM (SELECT id, row_number() OVER (ORDER BY id) AS place FROM forebay.streams) AS s
    CROSS JOIN generate_series(1, %(receivers)s / %(streams)s) AS n
    """,
    """
    INSERT INTO forebay.pipelines (name, declaration, stream_ids, batch_interval, last_batch_time)
    SELECT format('pipeline%%s', n), '{"outputs": {"counts": {"inputs": []}}, "max_attempts": 3}', ARRAY[s.id],
           %(interval_seconds)s * interval '1 s', to_timestamp(%(now)s)
    FROM generate_series(1, %(pipelines)s) AS n
    JOIN (SELECT id, row_number() OVER (ORDER BY id) AS place FROM forebay.streams) AS s
         ON s.place = 1 + (n - 1) %% %(streams)s
    """,
    # Sequence 1 is the marker; batch n has the block n + 1.
    """
    INSERT INTO forebay.blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes,
                                segment_id, "offset", length, crc32c)
    SELECT r.id, 1, 1, to_timestamp(%(now)s) - (%(batches)s + 1) * %(interval_seconds)s * interval '1 s', 0, 0, 0, 0,
           NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint
    FROM forebay.receivers r
    UNION ALL
    SELECT r.id, n + 1, 1, to_timestamp(%(now)s) - (%(batches)s - n + 0.5) * %(interval_seconds)s * interval '1 s',
           10, 100, n * 10, n * 100, (r.id - 1) * %(segments)s + %(segments)s, n * 100, 100, n
    FROM forebay.receivers r
    CROSS JOIN generate_series(greatest(1, %(batches)s + 1 - %(retained)s), %(batches)s) AS n
    """,
    """
    INSERT INTO forebay.log_segments (receiver_id, epoch, path, source_rule, state, length, sealed_at)
    SELECT r.id, 1, format('%%s/%%s', r.id, n), 'not_sent_again',
           CASE WHEN n < %(segments)s THEN 'SEALED' ELSE 'OPEN' END,
           CASE WHEN n < %(segments)s THEN 1000 END, CASE WHEN n < %(segments)s THEN clock_timestamp() END
    FROM forebay.receivers r CROSS JOIN generate_series(1, %(segments)s) AS n ORDER BY r.id, n
    """,
    """
    INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, attempt, records, bytes, blocks,
                                 allocated_at, completed_at)
    SELECT p.id, t.at, t.at, 'COMPLETED', 1, 0, 0, 0, t.at, t.at
    FROM forebay.pipelines p
    CROSS JOIN generate_series(1, %(batches)s) AS n
    CROSS JOIN LATERAL (
        SELECT to_timestamp(%(now)s) - (%(batches)s - n) * %(interval_seconds)s * interval '1 s') AS t(at)
    """,
    """
    INSERT INTO forebay.batch_allocations (pipeline_id, batch_time, receiver_id, sequences, records, bytes)
    SELECT p.id, to_timestamp(%(now)s) - (%(batches)s - n) * %(interval_seconds)s * interval '1 s', r.id,
           int8range(CASE n WHEN 1 THEN 1 ELSE n + 1 END, n + 2), 10, 100
    FROM forebay.pipelines p
    JOIN forebay.receivers r ON r.stream_id = ANY (p.stream_ids)
    CROSS JOIN generate_series(1, %(batches)s) AS n
    """,
    """
    UPDATE forebay.batches t SET records = a.records, bytes = a.bytes, blocks = a.blocks
    FROM (SELECT pipeline_id, batch_time, sum(records) AS records, sum(bytes) AS bytes,
                 sum(upper(sequences) - lower(sequences)) AS blocks
          FROM forebay.batch_allocations GROUP BY 1, 2) AS a
    WHERE a.pipeline_id = t.pipeline_id AND a.batch_time = t.batch_time
    """,
    # Clean-up has deleted them with their blocks.
    """
    DELETE FROM forebay.batch_allocations a USING forebay.receivers r
    WHERE r.id = a.receiver_id AND upper(a.sequences) <= r.low_mark + 1
      AND a.batch_time < to_timestamp(%(now)s) - interval '1 hour'
    """,
    """
    INSERT INTO forebay.batch_attempts (pipeline_id, batch_time, attempt, state, run_id, started_at, ended_at)
    SELECT pipeline_id, batch_time, 1, 'SUCCEEDED', format('run%%s', batch_time), batch_time, batch_time
    FROM forebay.batches
    """,
    """
    INSERT INTO forebay.output_commits (pipeline_id, output, batch_time, attempt, location, rows, committed_at)
    SELECT pipeline_id, 'counts', batch_time, 1, '/attempt=1', records, batch_time FROM forebay.batches
    """,
    """
    INSERT INTO forebay.cursors (consumer_id, receiver_id, next_sequence)
    SELECT p.id, r.id, %(batches)s + 2
    FROM forebay.pipelines p JOIN forebay.receivers r ON r.stream_id = ANY (p.stream_ids)
    """,
    """
    INSERT INTO forebay.cleanup_events (receiver_id, sequences, blocks, records, bytes, at)
    SELECT r.id, int8range(n, n + 1), 1, 10, 100, clock_timestamp() - n * interval '1 s'
    FROM forebay.receivers r CROSS JOIN generate_series(1, %(events)s) AS n ORDER BY n DESC
    """,
    """
    INSERT INTO forebay.receiver_events (receiver_id, epoch, kind, message, at)
    SELECT r.id, 1, CASE n %% 2 WHEN 0 THEN 'STARTED' ELSE 'STOPPED' END, '', clock_timestamp() - n * interval '1 s'
    FROM forebay.receivers r CROSS JOIN generate_series(1, %(events)s) AS n ORDER BY n DESC
    """,
    """
    INSERT INTO forebay.events (kind, receiver_id, message, at)
    SELECT 'receiver started', r.id, '', clock_timestamp()
    FROM forebay.receivers r CROSS JOIN generate_series(1, %(events)s) AS n
    """,
    """
    INSERT INTO forebay.block_offsets (stream_id, source, partition, generation, from_offset, to_offset, kind,
                                       receiver_id, sequence)
    -- Their blocks are still there: the newest ones.
    SELECT r.stream_id, 'topic', p::text, 0, CASE n WHEN 0 THEN -1 ELSE n * 10 END, n * 10 + 10,
           CASE n WHEN 0 THEN 'origin' ELSE 'block' END, r.id, %(batches)s + 1
    FROM (SELECT DISTINCT ON (stream_id) stream_id, id FROM forebay.receivers ORDER BY stream_id, id) AS r
    CROSS JOIN generate_series(1, %(partitions)s) AS p CROSS JOIN generate_series(0, %(links)s) AS n
    """,
    """
    INSERT INTO forebay.record_keys (stream_id, key, receiver_id, sequence, added_at)
    SELECT r.stream_id, format('key%%s', n), r.id, %(batches)s + 1, clock_timestamp()
    FROM (SELECT DISTINCT ON (stream_id) stream_id, id FROM forebay.receivers ORDER BY stream_id, id) AS r
    CROSS JOIN generate_series(1, %(keys)s) AS n
    """,
    """
    INSERT INTO forebay.dead_letters (receiver_id, epoch, reason, part, bytes, segment_id, "offset", length, crc32c)
    SELECT r.id, 1, 'too long', 0, 10, r.id * %(segments)s, n * 10, 10, n
    FROM (SELECT min(id) AS id FROM forebay.receivers) AS r CROSS JOIN generate_series(1, %(dead_letters)s) AS n
    """,
    """
    INSERT INTO forebay.processes (kind, name, host, pid, ended_at, end_reason)
    SELECT 'batch run', format('run%%s', n), 'h', n, clock_timestamp(), 'done'
    FROM generate_series(1, %(processes)s) AS n
    """,
)


def fill(connection: sa.Connection, size: Size) -> None:
    """Fill an empty, migrated log. The connection is in autocommit; its user must be a superuser (triggers are off)."""
    values = {name: getattr(size, name) for name in Size.__slots__}
    interval = size.interval_seconds
    now: float = connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())::float8").scalar_one()
    values["now"] = now - now % interval
    connection.exec_driver_sql("SET session_replication_role = replica")
    connection.exec_driver_sql("SET statement_timeout = 0")
    try:
        for statement in _STATEMENTS:
            connection.exec_driver_sql(statement, values)
        connection.exec_driver_sql("VACUUM ANALYZE")
    finally:
        connection.exec_driver_sql("RESET session_replication_role")
        connection.exec_driver_sql("RESET statement_timeout")


@dataclass(slots=True)
class Read:
    """What was read of the driver log's tables and their indexes.

    The server counts a row that was found by an index with the index: `rows` are those of scans without one, `entries`
    are those of indexes. `of`: both, by the name of the table or index.
    """

    rows: int = 0
    buffers: int = 0
    entries: int = 0
    of: dict[str, int] = field(default_factory=dict)


# Counters of the transaction itself: exact, at once, and of no other process.
_COUNTED = """
    SELECT c.relname,
           CASE c.relkind WHEN 'r'
               THEN pg_stat_get_xact_tuples_returned(c.oid) + pg_stat_get_xact_tuples_fetched(c.oid) ELSE 0 END AS rows,
           pg_stat_get_xact_blocks_fetched(c.oid) AS buffers,
           CASE c.relkind WHEN 'i' THEN pg_stat_get_xact_tuples_returned(c.oid) ELSE 0 END AS entries
    FROM pg_class c WHERE c.relnamespace = 'forebay'::regnamespace AND c.relkind IN ('r', 'i')
"""


@contextmanager
def reading(connection: sa.Connection, *, keep: bool = False) -> Iterator[Read]:
    """Count what the block reads, in a transaction that is rolled back unless `keep`.

    The connection is in autocommit, and the block's statements run on it.
    """
    read = Read()
    connection.exec_driver_sql("BEGIN")
    try:
        before = _counted(connection)
        yield read
        for name, after in _counted(connection).items():
            rows, buffers, entries = (now - then for now, then in zip(after, before.get(name, (0, 0, 0)), strict=True))
            read.rows, read.buffers, read.entries = read.rows + rows, read.buffers + buffers, read.entries + entries
            if rows + entries:
                read.of[name] = rows + entries
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT" if keep else "ROLLBACK")


def _counted(connection: sa.Connection) -> dict[str, tuple[int, int, int]]:
    found = connection.exec_driver_sql(_COUNTED)
    return {row.relname: (int(row.rows), int(row.buffers), int(row.entries)) for row in found}
