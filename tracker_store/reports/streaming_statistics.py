"""Read batches, output operations and receivers for `/metrics` and the JSON API.

Every read takes no locks and costs what it returns, or what has changed since the last call: never a scan of all
batches, blocks, events or dead letters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tracker_store.blocks.replica_events import REPLICA_PROBLEMS
from tracker_store.connection.engine import named_failures
from tracker_store.receivers.receivers import is_degraded, is_not_storing
from tracker_store.reports.rows import only, read_statement
from tracker_store.schema.states import BatchState, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class WatchedPipeline:
    """Hold a declared pipeline; `receivers` counts those of the streams that it reads.

    `due` counts the batch times that have come and are not decided yet, by the database's clock; 0 while it is stopped.
    """

    pipeline_id: int
    name: str
    declaration: dict[str, Any]
    stream_ids: Sequence[int]
    interval: timedelta
    applied_at: datetime
    receivers: int
    due: int


@dataclass(frozen=True, slots=True)
class WatchedBatch:
    """Hold a batch with its newest attempt; `ended_at` is null until an attempt has ended, or nothing had to run."""

    batch_time: datetime
    oldest_time: datetime
    state: BatchState
    attempt: int
    records: int
    allocated_at: datetime
    reason: str
    run_id: str | None
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class UnfinishedBatches:
    """Count the batches of a pipeline that wait (also for another attempt), and those that run.

    `started_records` are those of the batches that have been tried.
    """

    waiting: int
    running: int
    started_records: int


@dataclass(frozen=True, slots=True)
class OutputResult:
    """Hold the commit of an output of a batch; `started_at`: when the attempt that made it started."""

    batch_time: datetime
    output: str
    attempt: int
    run_id: str | None
    location: str
    started_at: datetime | None
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class ReceiverCounters:
    """Hold a receiver's running totals; `kept_bytes` are those of its blocks that are not cleaned up.

    `queued` blocks are in its process's queue, not stored yet; null if no process holds it. `degraded`: it can't do its
    work, or not all of it, and its reason names the cause; `not_storing`: because it stores or registers nothing.
    `unread`: how much its source has that it has not read, in `unread_unit`, and `source_lag` the age in seconds of the
    oldest of it; null if it has not said. `partitions`: of how many it has said that. `fetched`: how many records its
    client holds; null if it does not say.
    """

    receiver_id: int
    stream: str
    ordinal: int
    state: ReceiverState
    process_id: int | None
    rate_limit: float | None
    records: int
    bytes: int
    kept_bytes: int
    queued: int | None
    not_storing: bool
    degraded: bool
    partitions: int = 0
    unread: int | None = None
    unread_unit: str | None = None
    source_lag: float | None = None
    fetched: int | None = None


@dataclass(frozen=True, slots=True)
class StreamCodec:
    """Count what a stream's receivers have stored by one codec (`none`: not compressed), in sealed segments."""

    stream: str
    codec: str
    blocks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class WatchedReceiver:
    """Hold a receiver with its last error, for display."""

    receiver_id: int
    stream: str
    ordinal: int
    state: ReceiverState
    agent: str | None
    host: str | None
    error_at: datetime | None
    error: str | None
    error_detail: str | None


@dataclass(frozen=True, slots=True)
class Added:
    """Rows of a growing table, counted by receiver, and where to continue: rows up to `settled_id` never change again.

    `settled` and `recent` are separate because the recent rows are read again the next time: a row with a lower id may
    still become visible.
    """

    settled_id: int
    settled: Mapping[int, int]
    recent: Mapping[int, int]


# Age after which all rows are visible: no statement takes this long (engine.STATEMENT_TIMEOUT is half of it).
_SETTLED = "interval '60 seconds'"

_STATES = {state.value: state for state in ReceiverState}

_BATCH_COLUMNS = """
    b.batch_time, b.oldest_time, b.state, b.attempt, b.records, b.allocated_at, b.reason, a.run_id, a.started_at,
    coalesce(b.completed_at, a.ended_at) AS ended_at
"""
_WITH_ATTEMPT = """
    LEFT JOIN forebay.batch_attempts a ON a.pipeline_id = b.pipeline_id
      AND a.batch_time = b.batch_time
      AND a.attempt = b.attempt
"""
_BATCH = f"SELECT {_BATCH_COLUMNS} FROM forebay.batches b {_WITH_ATTEMPT}"  # noqa: S608  our own names


def _first_unfinished(pipeline: str) -> str:
    """Return SQL for the time of a pipeline's first unfinished batch. All batches before it are finished for ever.

    `pipeline`: SQL for its id. Looked up in the partial index.
    """
    return f"""
        coalesce(
            (
                SELECT u.batch_time
                FROM forebay.batches u
                WHERE u.pipeline_id = {pipeline} AND u.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
                ORDER BY u.batch_time LIMIT 1
            ),
            'infinity'
        )
    """  # noqa: S608  our own names


def _batch(row: sa.Row[Any]) -> WatchedBatch:
    return WatchedBatch(
        row.batch_time,
        row.oldest_time,
        BatchState(row.state),
        row.attempt,
        row.records,
        row.allocated_at,
        row.reason,
        row.run_id,
        row.started_at,
        row.ended_at,
    )


def _batches(connection: sa.Connection, which: str, values: Mapping[str, Any]) -> list[WatchedBatch]:
    with named_failures():
        rows = connection.execute(sa.text(f"{_BATCH} {which}"), values).all()
    return [_batch(row) for row in rows]


def watched_pipelines(connection: sa.Connection) -> list[WatchedPipeline]:
    """Return every declared pipeline. No locks."""
    return read_statement(
        connection,
        WatchedPipeline,
        """
        SELECT p.id, p.name, p.declaration, p.stream_ids, p.batch_interval, p.applied_at,
            (
                SELECT count(*)
                FROM forebay.receivers r
                WHERE r.stream_id = ANY (p.stream_ids) AND r.removed_at IS NULL
            ) AS receivers,
            s.due_batches
        FROM forebay.pipeline_status s
        JOIN forebay.pipelines p ON p.id = s.pipeline_id
        ORDER BY p.name
        """,
    )


def newest_finished_batches(connection: sa.Connection, pipeline_id: int, *, limit: int) -> list[WatchedBatch]:
    """Return the newest batches before the first unfinished one, in order of time. No locks; by the primary key."""
    which = f"""
        WHERE b.pipeline_id = :pipeline AND b.batch_time < {_first_unfinished(":pipeline")}
        ORDER BY b.batch_time DESC LIMIT :limit
    """
    return _batches(connection, which, {"pipeline": pipeline_id, "limit": limit})[::-1]


def next_finished_batches_of_each(
    connection: sa.Connection, after: Mapping[int, datetime], *, limit: int
) -> dict[int, list[WatchedBatch]]:
    """Return pipelines' batches after a time of each and before its first unfinished one, in order of time.

    At most `limit` of each pipeline; those without such batches are left out. No locks; O(result).
    """
    with named_failures():
        rows = connection.execute(
            sa.text(f"""
                SELECT asked.pipeline_id, {_BATCH_COLUMNS}
                FROM unnest(CAST(:pipelines AS bigint[]), CAST(:after AS timestamptz[])) AS asked(pipeline_id, after)
                CROSS JOIN LATERAL (
                    SELECT n.*
                    FROM forebay.batches n
                    WHERE n.pipeline_id = asked.pipeline_id
                      AND n.batch_time > asked.after
                      AND n.batch_time < {_first_unfinished("asked.pipeline_id")}
                    ORDER BY n.batch_time LIMIT :limit
                ) AS b
                {_WITH_ATTEMPT}
                ORDER BY b.batch_time
            """),  # noqa: S608  our own names
            {"pipelines": list(after), "after": list(after.values()), "limit": limit},
        ).all()
    found: dict[int, list[WatchedBatch]] = {}
    for row in rows:
        found.setdefault(row.pipeline_id, []).append(_batch(row))
    return found


def newest_batch_of_each(connection: sa.Connection) -> dict[int, WatchedBatch]:
    """Return the newest batch of each declared pipeline that has one. No locks; a probe of the key for each."""
    with named_failures():
        rows = connection.execute(
            sa.text(f"""
                SELECT p.id AS pipeline_id, {_BATCH_COLUMNS}
                FROM forebay.pipelines p
                CROSS JOIN LATERAL (
                    SELECT n.*
                    FROM forebay.batches n
                    WHERE n.pipeline_id = p.id
                    ORDER BY n.batch_time DESC LIMIT 1
                ) AS b
                {_WITH_ATTEMPT}
                WHERE p.removed_at IS NULL
            """)  # noqa: S608  our own names
        ).all()
    return {row.pipeline_id: _batch(row) for row in rows}


def unfinished_batches(connection: sa.Connection, pipeline_id: int, *, limit: int) -> list[WatchedBatch]:
    """Return the batches from the first unfinished one on, in order of time. No locks."""
    which = f"""
        WHERE b.pipeline_id = :pipeline AND b.batch_time >= {_first_unfinished(":pipeline")}
        ORDER BY b.batch_time LIMIT :limit
    """
    return _batches(connection, which, {"pipeline": pipeline_id, "limit": limit})


def newest_batches(connection: sa.Connection, pipeline_id: int, *, limit: int) -> list[WatchedBatch]:
    """Return the newest batches in any state, in order of time. No locks; by the primary key."""
    which = "WHERE b.pipeline_id = :pipeline ORDER BY b.batch_time DESC LIMIT :limit"
    return _batches(connection, which, {"pipeline": pipeline_id, "limit": limit})[::-1]


def batch_between(
    connection: sa.Connection, pipeline_id: int, first: datetime, before: datetime
) -> WatchedBatch | None:
    """Return the first batch whose time is from `first` to before `before`, or None. No locks."""
    which = """
        WHERE b.pipeline_id = :pipeline AND b.batch_time >= :first AND b.batch_time < :before
        ORDER BY b.batch_time LIMIT 1
    """
    return only(_batches(connection, which, {"pipeline": pipeline_id, "first": first, "before": before}))


def count_unfinished_batches(connection: sa.Connection) -> dict[int, UnfinishedBatches]:
    """Count waiting and running batches by pipeline; idle ones are left out. No locks; by the partial index."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT b.pipeline_id, count(*) FILTER (WHERE b.state <> 'RUNNING') AS waiting,
                    count(*) FILTER (WHERE b.state = 'RUNNING') AS running,
                    coalesce(sum(b.records) FILTER (WHERE b.attempt > 0), 0)::bigint AS started_records
                FROM forebay.batches b
                WHERE b.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
                GROUP BY b.pipeline_id
            """)
        ).all()
    return {row.pipeline_id: UnfinishedBatches(row.waiting, row.running, row.started_records) for row in rows}


def output_commits(
    connection: sa.Connection, pipeline_id: int, *, outputs: Sequence[str], first: datetime, last: datetime
) -> list[OutputResult]:
    """Return commits of these outputs, of the batches from `first` to `last`. No locks; one key range per output."""
    return read_statement(
        connection,
        OutputResult,
        """
        SELECT c.batch_time, c.output, c.attempt, a.run_id, c.location, a.started_at, c.committed_at
        FROM forebay.output_commits c
        LEFT JOIN forebay.batch_attempts a ON a.pipeline_id = c.pipeline_id
          AND a.batch_time = c.batch_time
          AND a.attempt = c.attempt
        WHERE c.pipeline_id = :pipeline
          AND c.output = ANY (CAST(:outputs AS text[]))
          AND c.batch_time BETWEEN :first AND :last
        ORDER BY c.batch_time, c.output
        """,
        {"pipeline": pipeline_id, "outputs": list(outputs), "first": first, "last": last},
    )


def records_by_receiver(
    connection: sa.Connection, pipeline_id: int, *, receiver_ids: Sequence[int], first: datetime
) -> tuple[datetime, dict[tuple[datetime, int], int]]:
    """Return the records that batches have of these receivers, by batch time and receiver, and the first batch time.

    That is `first`, or after the last batch of which clean-up has deleted a range, which is more than an hour old. A
    receiver without records in a batch is left out. No locks; O(ranges of these batches).
    """
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT since.first, n.batch_time, n.receiver_id, n.records
                FROM (
                    SELECT coalesce(max(t.batch_time) + interval '1 us', :first) AS first
                    FROM forebay.batches t
                    WHERE t.pipeline_id = :pipeline
                      AND t.batch_time >= :first
                      AND t.batch_time < clock_timestamp() - interval '1 hour'
                      AND t.records > (
                          SELECT coalesce(sum(a.records), 0) FROM forebay.batch_allocations a
                          WHERE a.pipeline_id = t.pipeline_id AND a.batch_time = t.batch_time)
                ) AS since
                LEFT JOIN forebay.batch_allocations n ON n.pipeline_id = :pipeline
                  AND n.batch_time >= since.first
                  AND n.receiver_id = ANY (CAST(:receivers AS bigint[]))
            """),
            {"pipeline": pipeline_id, "first": first, "receivers": list(receiver_ids)},
        ).all()
    records = {(row.batch_time, row.receiver_id): row.records for row in rows if row.batch_time is not None}
    return rows[0].first, records


def receiver_counters(connection: sa.Connection) -> list[ReceiverCounters]:
    """Return every receiver's totals. No locks; two probes of the blocks' key per receiver, and its sources' rows."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT r.id, s.name, r.ordinal, r.state, r.process_id, r.rate_limit,
                    coalesce(newest.total_records, 0) AS records, coalesce(newest.total_bytes, 0) AS bytes,
                    coalesce(newest.total_bytes - oldest.total_bytes + oldest.bytes, 0) AS kept_bytes,
                    (holder.queued ->> r.id::text)::integer AS queued, r.reason, unread.partitions, unread.amount,
                    unread.unit,
                    extract(epoch FROM greatest(clock_timestamp(), unread.oldest_at) - unread.oldest_at)::float8 AS lag,
                    (holder.queued #>> ARRAY['fetched', r.id::text])::bigint AS fetched
                FROM forebay.receivers r
                JOIN forebay.streams s ON s.id = r.stream_id
                LEFT JOIN LATERAL (
                    SELECT p.queued
                    FROM forebay.processes p
                    WHERE p.id = r.process_id AND p.ended_at IS NULL
                    OFFSET 0
                ) AS holder ON true
                LEFT JOIN LATERAL (
                    SELECT b.total_records, b.total_bytes
                    FROM forebay.blocks b
                    WHERE b.receiver_id = r.id
                    ORDER BY b.sequence DESC LIMIT 1
                ) AS newest ON true
                LEFT JOIN LATERAL (
                    SELECT b.bytes, b.total_bytes
                    FROM forebay.blocks b
                    WHERE b.receiver_id = r.id AND b.sequence > r.low_mark
                    ORDER BY b.sequence LIMIT 1
                ) AS oldest ON true
                LEFT JOIN LATERAL (
                    SELECT count(*) AS partitions, sum(l.unread)::bigint AS amount, max(l.unit) AS unit,
                        min(l.oldest_at) AS oldest_at
                    FROM forebay.source_lag l
                    WHERE l.receiver_id = r.id
                ) AS unread ON true
                WHERE r.removed_at IS NULL
                ORDER BY s.name, r.ordinal
            """)
        ).all()
    # Plain tuples: an attribute of a row, and an enum's call, cost more than the rest.
    return [
        ReceiverCounters(
            receiver_id,
            stream,
            ordinal,
            _STATES[state],
            process_id,
            rate_limit,
            records,
            nbytes,
            kept_bytes,
            queued,
            is_not_storing(reason),
            is_degraded(reason),
            partitions,
            unread,
            unread_unit,
            # No age is known of a source that has nothing unread: none of it is old.
            0.0 if unread == 0 else source_lag,
            fetched,
        )
        for (
            receiver_id,
            stream,
            ordinal,
            state,
            process_id,
            rate_limit,
            records,
            nbytes,
            kept_bytes,
            queued,
            reason,
            partitions,
            unread,
            unread_unit,
            source_lag,
            fetched,
        ) in rows
    ]


def stream_codecs(connection: sa.Connection) -> list[StreamCodec]:
    """Return what each stream's receivers have stored by each codec. No locks; a row per receiver."""
    return read_statement(
        connection,
        StreamCodec,
        """
        SELECT s.name, c.codec, sum(c.blocks)::bigint, sum(c.bytes)::bigint
        FROM forebay.storage_totals t
        JOIN forebay.receivers r ON r.id = t.receiver_id AND r.removed_at IS NULL
        JOIN forebay.streams s ON s.id = r.stream_id
        CROSS JOIN LATERAL (
            VALUES ('lz4', t.lz4_blocks, t.lz4_bytes), ('zstd', t.zstd_blocks, t.zstd_bytes),
                ('none', t.none_blocks, t.none_bytes)
        ) AS c (codec, blocks, bytes)
        WHERE c.blocks > 0
        GROUP BY s.name, c.codec
        ORDER BY s.name, c.codec
        """,
    )


def watched_receivers(connection: sa.Connection, stream_ids: Sequence[int]) -> list[WatchedReceiver]:
    """Return the receivers of these streams. No locks; a few probes per receiver."""
    found = read_statement(
        connection,
        WatchedReceiver,
        """
        SELECT r.id, s.name, r.ordinal, r.state, agent.name AS agent, agent.host, error.at, error.message,
            error.detail
        FROM forebay.receivers r
        JOIN forebay.streams s ON s.id = r.stream_id
        LEFT JOIN LATERAL (
            SELECT p.name, p.host
            FROM forebay.processes p
            WHERE p.id = r.agent_id
            OFFSET 0
        ) AS agent ON true
        LEFT JOIN LATERAL (
            SELECT newest.at, newest.message, newest.detail
            FROM (VALUES ('ERROR'), ('FAILED')) AS failure (kind)
            CROSS JOIN LATERAL (
                SELECT v.id, v.at, v.message, v.detail
                FROM forebay.receiver_events v
                WHERE v.receiver_id = r.id AND v.kind = failure.kind
                ORDER BY v.id DESC LIMIT 1
            ) AS newest
            ORDER BY newest.id DESC LIMIT 1
        ) AS error ON true
        WHERE r.stream_id = ANY (CAST(:streams AS bigint[])) AND r.removed_at IS NULL
        ORDER BY r.id
        """,
        {"streams": list(stream_ids)},
    )
    return [replace(receiver, state=ReceiverState(receiver.state)) for receiver in found]


def restarts_after(connection: sa.Connection, after: int | None) -> Added:
    """Count restarts of receivers and of their processes by receiver: events after `after`. No locks; O(new events).

    With None it counts nothing and returns where to begin.
    """
    return _added_after(connection, after, "receiver_events", "at", "(kind IN ('RESTARTED', 'EXITED'))::integer")


def replica_problems_after(connection: sa.Connection, after: int | None) -> Added:
    """Count how often a replica was found lost, damaged or lagging, by receiver: events after `after`. No locks.

    O(new events). With None it counts nothing and returns where to begin.
    """
    problem = REPLICA_PROBLEMS.replace("'", "''")
    which = f"(kind = 'ERROR' AND message LIKE '{problem}')::integer"
    return _added_after(connection, after, "receiver_events", "at", which)


# Records, not parts of them.
_LETTERS = "CASE WHEN part = 0 THEN letters ELSE 0 END + dropped"


def dead_letters_after(connection: sa.Connection, after: int | None) -> Added:
    """Count dead letters by receiver, those too that were not kept: after `after`, each once. No locks; O(new rows).

    With None it counts nothing and returns where to begin.
    """
    return _added_after(connection, after, "dead_letters", "added_at", _LETTERS)


def _added_after(connection: sa.Connection, after: int | None, table: str, at: str, amount: str) -> Added:
    with named_failures():
        if after is None:
            newest: int = connection.execute(
                sa.text(f"SELECT coalesce(max(id), 0) FROM forebay.{table}")  # noqa: S608  our own names
            ).scalar_one()
            return Added(newest, {}, {})
        rows = connection.execute(
            sa.text(f"""
                WITH added AS MATERIALIZED (
                    SELECT t.id, t.receiver_id, t.{at} AS at, {amount} AS amount
                    FROM forebay.{table} t
                    WHERE t.id > :after
                ), boundary AS (
                    SELECT coalesce(max(d.id), :after) AS id
                    FROM added d
                    WHERE d.at < clock_timestamp() - {_SETTLED}
                )
                SELECT boundary.id AS settled_id, d.receiver_id,
                    coalesce(sum(d.amount) FILTER (WHERE d.id <= boundary.id), 0)::bigint AS settled,
                    coalesce(sum(d.amount) FILTER (WHERE d.id > boundary.id), 0)::bigint AS recent
                FROM boundary
                LEFT JOIN added d ON true
                GROUP BY boundary.id, d.receiver_id
            """),  # noqa: S608  our own names
            {"after": after},
        ).all()
    counted = [row for row in rows if row.receiver_id is not None]
    return Added(
        rows[0].settled_id,
        {row.receiver_id: row.settled for row in counted if row.settled},
        {row.receiver_id: row.recent for row in counted if row.recent},
    )
