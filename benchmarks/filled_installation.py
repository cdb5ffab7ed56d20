"""A driver log of a whole installation with a long history, filled by SQL.

Owns the statements that fill it: rows go straight into the tables, as the product would have written them, without
its triggers. A test runs the checks of `forebay db check` on the result. It has no idempotency keys, no dead letters
and no hand-overs.

The log is at rest: each pipeline has finished all its batches and keeps the newest one's blocks, so clean-up has
nothing to take. Two blocks of each receiver wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from benchmarks.scale_model import SECONDS_PER_DAY, WIDE_RECEIVERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.scale_model import Shape
    from benchmarks.server import Server

# Blocks of one receiver in a batch, and those that wait.
_BATCH_BLOCKS = 10
_WAITING_BLOCKS = 2
_RECORDS = 10
_BYTES = 1_000

WIDE = "wide"

# `base` is the start of the history: the newest batch is two minutes old. Batch k has the sequences after
# 1 + (k - 1) * blocks; the first one has the epoch marker too. A receiver was started again once a day, which left a
# marker in the place of a block.
_FACTS = """
CREATE TABLE public.filled AS
SELECT date_trunc('second', clock_timestamp()) - interval '2 minutes' - :batches * make_interval(secs => :interval)
           AS base,
       make_interval(secs => :interval) AS step, CAST(:batches AS bigint) AS batches,
       CAST(:per_day AS bigint) AS per_day, CAST((:batches - 1) / :per_day + 1 AS bigint) AS epochs
"""

_STEPS: tuple[tuple[str, str], ...] = (
    (
        "streams",
        """
        INSERT INTO forebay.streams (id, name, declaration)
        SELECT s, 'stream_' || s,
               jsonb_build_object('source', '{}'::jsonb, 'settings', '{}'::jsonb, 'receivers', :per_stream)
        FROM generate_series(1, :streams) AS s
        """,
    ),
    (
        "pipelines",
        """
        INSERT INTO forebay.pipelines
            (id, name, declaration, stream_ids, batch_interval, retention, last_batch_time, applied_at, state_since)
        SELECT p, CASE WHEN p > :pipelines THEN :wide ELSE 'pipeline_' || p END,
               jsonb_build_object('max_attempts', 3, 'streams', to_jsonb(ARRAY(SELECT 'stream_' || unnest(r.ids)))),
               r.ids, f.step, CASE WHEN p > :pipelines THEN interval '0' ELSE f.step END, f.base + f.batches * f.step,
               f.base, f.base
        FROM public.filled f, generate_series(1, :pipelines + 1) AS p
        CROSS JOIN LATERAL (
            SELECT CASE WHEN p > :pipelines
                        THEN ARRAY(SELECT generate_series(1, greatest(1, least(:receivers, :wide_receivers)
                                                                         / :per_stream))::bigint)
                        ELSE ARRAY(SELECT generate_series((p - 1) * :per_pipeline + 1, p * :per_pipeline)::bigint)
                   END AS ids) AS r
        """,
    ),
    (
        "processes",
        """
        INSERT INTO forebay.processes (id, kind, name, host, pid, slots, started_at, queued)
        SELECT n, CASE WHEN n <= :agents THEN 'agent' ELSE 'receiver' END, 'process ' || n,
               'host_' || CASE WHEN n <= :agents THEN n ELSE (n - :agents - 1) * :agents / :processes + 1 END, n,
               CASE WHEN n <= :agents THEN 600 ELSE 0 END, f.base,
               CASE WHEN n > :agents THEN (
                   SELECT jsonb_object_agg(r, 0)
                   FROM generate_series((n - :agents - 1) * :grouped + 1,
                                        least(:receivers, (n - :agents) * :grouped)) AS r) END
        FROM public.filled f, generate_series(1, :agents + :processes) AS n
        UNION ALL
        -- Those that ended: each was started again once a day.
        SELECT :agents + :processes + row_number() OVER (), 'receiver', 'process ' || n, 'host', n, 0,
               f.base + (day - 1) * interval '1 day', NULL
        FROM public.filled f, generate_series(1, greatest(1, :days)) AS day, generate_series(1, :processes) AS n
        """,
    ),
    (
        "ended processes",
        """
        UPDATE forebay.processes SET ended_at = started_at + interval '1 day', end_reason = 'stopped'
        WHERE id > :agents + :processes
        """,
    ),
    (
        "receivers",
        """
        INSERT INTO forebay.receivers
            (id, stream_id, ordinal, state, since, assignment, agent_id, process_id, low_mark, bound_to_host)
        SELECT r, (r - 1) / :per_stream + 1, (r - 1) % :per_stream + 1, 'ACTIVE', f.base, 1,
               ((r - 1) / :grouped) * :agents / :processes + 1, :agents + (r - 1) / :grouped + 1,
               1 + (f.batches - 1) * :blocks, false
        FROM public.filled f, generate_series(1, :receivers) AS r
        """,
    ),
    (
        "segments",
        """
        INSERT INTO forebay.log_segments
            (id, receiver_id, epoch, path, source_rule, state, length, opened_at, sealed_at)
        SELECT 2 * r - 1 + n, r, f.epochs, r || '/' || n, 'not_sent_again', CASE n WHEN 0 THEN 'SEALED' ELSE 'OPEN' END,
               CASE n WHEN 0 THEN :blocks * :bytes END, f.base, CASE n WHEN 0 THEN f.base + f.batches * f.step END
        FROM public.filled f, generate_series(1, :receivers) AS r, generate_series(0, 1) AS n
        """,
    ),
    (
        "epoch markers",
        """
        INSERT INTO forebay.blocks
            (receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes)
        SELECT r, m.sequence, e, f.base + (e - 1) * f.per_day * f.step, 0, 0, (m.sequence - 1) * :records,
               (m.sequence - 1) * :bytes
        FROM public.filled f, generate_series(1, :receivers) AS r
        CROSS JOIN LATERAL generate_series(1, f.epochs) AS e
        CROSS JOIN LATERAL (
            SELECT CASE e WHEN 1 THEN 1 ELSE 2 + ((e - 1) * f.per_day - 1) * :blocks END AS sequence) AS m
        """,
    ),
    (
        "blocks",
        """
        INSERT INTO forebay.blocks
            (receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes,
             segment_id, "offset", length, crc32c)
        SELECT r, s.sequence, f.epochs,
               CASE WHEN n <= :blocks THEN f.base + (f.batches - 1) * f.step + n * f.step / (:blocks + 1)
                    ELSE f.base + f.batches * f.step + n * interval '1 second' END,
               :records, :bytes, (s.sequence - 1) * :records, (s.sequence - 1) * :bytes,
               2 * r - CASE WHEN n <= :blocks THEN 1 ELSE 0 END, n * :bytes, :bytes, n
        FROM public.filled f, generate_series(1, :receivers) AS r
        CROSS JOIN generate_series(1, :blocks + :waiting) AS n
        CROSS JOIN LATERAL (SELECT 1 + (f.batches - 1) * :blocks + n AS sequence) AS s
        """,
    ),
    (
        "source positions",
        """
        INSERT INTO forebay.block_offsets
            (stream_id, source, partition, generation, from_offset, to_offset, kind, receiver_id, sequence)
        SELECT (b.receiver_id - 1) / :per_stream + 1, 'topic', b.receiver_id::text, 0, (b.sequence - 1) * :records,
               b.sequence * :records, 'block', b.receiver_id, b.sequence
        FROM forebay.blocks b WHERE b.segment_id IS NOT NULL ORDER BY b.receiver_id, b.sequence
        """,
    ),
    (
        "cursors",
        """
        INSERT INTO forebay.cursors (pipeline_id, receiver_id, next_sequence)
        SELECT p.id, r.id, 2 + f.batches * :blocks
        FROM public.filled f, forebay.pipelines p JOIN forebay.receivers r ON r.stream_id = ANY (p.stream_ids)
        ORDER BY p.id, r.id
        """,
    ),
    (
        "batches",
        """
        INSERT INTO forebay.batches
            (pipeline_id, batch_time, oldest_time, state, attempt, records, bytes, blocks, allocated_at, completed_at,
             launch_attempt, launched_at, launched_by, inputs)
        SELECT p, t.at, t.at, 'COMPLETED', 1, :of_pipeline * :blocks * :records, :of_pipeline * :blocks * :bytes,
               :of_pipeline * (:blocks + CASE k WHEN 1 THEN 1 ELSE 0 END), t.at, t.at + interval '5 seconds',
               1, t.at, 'the tracker', 0
        FROM public.filled f, generate_series(1, :pipelines) AS p
        CROSS JOIN LATERAL generate_series(1, f.batches) AS k
        CROSS JOIN LATERAL (SELECT f.base + k * f.step AS at) AS t
        ORDER BY k, p
        """,
    ),
    (
        "attempts",
        """
        INSERT INTO forebay.batch_attempts (pipeline_id, batch_time, attempt, state, run_id, started_at, ended_at)
        SELECT b.pipeline_id, b.batch_time, 1, 'SUCCEEDED', gen_random_uuid()::text, b.allocated_at, b.completed_at
        FROM forebay.batches b ORDER BY b.batch_time, b.pipeline_id
        """,
    ),
    (
        "output commits",
        """
        INSERT INTO forebay.output_commits (pipeline_id, output, batch_time, attempt, location, rows, committed_at)
        SELECT b.pipeline_id, 'counts', b.batch_time, 1, 'attempts/' || b.batch_time, b.records, b.completed_at
        FROM forebay.batches b ORDER BY b.batch_time, b.pipeline_id
        """,
    ),
    (
        "events of batches",
        """
        INSERT INTO forebay.events (transaction_id, at, kind, pipeline_id, batch_time, attempt, records, message)
        SELECT 1, b.allocated_at, kind, b.pipeline_id, b.batch_time, 1, b.records, ''
        FROM forebay.batches b
        CROSS JOIN unnest(ARRAY['batch_allocated', 'batch_started', 'output_committed', 'batch_completed']) AS kind
        ORDER BY b.batch_time, b.pipeline_id
        """,
    ),
    (
        "events of receivers",
        """
        INSERT INTO forebay.receiver_events (receiver_id, epoch, at, kind, message)
        SELECT r, e, f.base + (e - 1) * f.per_day * f.step, 'STARTED', 'started on its host'
        FROM public.filled f, generate_series(1, :receivers) AS r, generate_series(1, f.epochs) AS e
        ORDER BY e, r
        """,
    ),
)

# In pieces of some ten thousand receivers' batches, with progress.
_ALLOCATIONS = """
INSERT INTO forebay.batch_allocations (pipeline_id, batch_time, receiver_id, sequences, records, bytes)
SELECT (r - 1) / :of_pipeline + 1, f.base + k * f.step, r,
       int8range(CASE k WHEN 1 THEN 1 ELSE 2 + (k - 1) * :blocks END, 1 + k * :blocks, '[]'),
       :blocks * :records, :blocks * :bytes
FROM public.filled f, generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS k,
     generate_series(1, :receivers) AS r
ORDER BY 1, 2, 3
"""
_CLEAN_UPS = """
WITH gone AS (
    INSERT INTO forebay.cleanup_events (receiver_id, sequences, blocks, records, bytes, at)
    SELECT r, int8range(CASE k WHEN 1 THEN 1 ELSE 2 + (k - 1) * :blocks END, 1 + k * :blocks, '[]'), :blocks,
           :blocks * :records, :blocks * :bytes, f.base + (k + 1) * f.step
    FROM public.filled f, generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS k,
         generate_series(1, :receivers) AS r
    WHERE k < f.batches
    ORDER BY k, r
    RETURNING at, receiver_id, records
)
INSERT INTO forebay.events (transaction_id, at, kind, receiver_id, records, message)
SELECT 1, at, 'blocks_cleaned_up', receiver_id, records, 'its oldest blocks' FROM gone
"""
_PIECE_ROWS = 100_000
_WITH_TRIGGERS = "segments"

_IDENTITIES = ("streams", "pipelines", "processes", "receivers", "log_segments", "cleanup_events", "receiver_events")
# A block of each receiver of a pipeline, in the segment that is open.
_ONE_MORE_EACH = """
INSERT INTO forebay.blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes,
                            segment_id, "offset", length, crc32c)
SELECT r.id, newest.sequence + 1, newest.epoch, clock_timestamp(), :records, :bytes, newest.total_records + :records,
       newest.total_bytes + :bytes, 2 * r.id, newest.sequence * :bytes, :bytes, 1
FROM forebay.pipelines p
JOIN forebay.receivers r ON r.stream_id = ANY (p.stream_ids)
CROSS JOIN LATERAL (SELECT b.* FROM forebay.blocks b WHERE b.receiver_id = r.id ORDER BY b.sequence DESC LIMIT 1)
    AS newest
WHERE p.id = :pipeline
"""


@dataclass(frozen=True, slots=True)
class FilledInstallation:
    """A filled log. Its ids count from 1: streams, pipelines (the wide one is the last), receivers."""

    server: Server
    shape: Shape

    @property
    def wide_pipeline(self) -> int:
        """Return the id of the pipeline that reads `WIDE_RECEIVERS` receivers, or all if there are fewer."""
        return self.shape.pipelines + 1

    def process_of(self, number: int) -> tuple[int, range]:
        """Return the id of the receiver process with this number, from 0, and its receivers."""
        grouped = self.shape.receivers_per_process
        first = number * grouped + 1
        return self.shape.agents + number + 1, range(first, min(self.shape.receivers, first + grouped - 1) + 1)

    def add_a_block_each(self, connection: sa.Connection, pipeline_id: int) -> None:
        """Add a block of each receiver that the pipeline reads, which waits for its next batch."""
        connection.execute(sa.text(_ONE_MORE_EACH), {"pipeline": pipeline_id, "records": _RECORDS, "bytes": _BYTES})

    def finish_batches(self, connection: sa.Connection, pipeline_id: int) -> None:
        """Let the pipeline's unfinished batches be completed, as if they had run."""
        connection.execute(
            sa.text(
                "UPDATE forebay.batches SET state = 'COMPLETED', completed_at = clock_timestamp() "
                "WHERE pipeline_id = :pipeline AND state = 'ALLOCATED'"
            ),
            {"pipeline": pipeline_id},
        )


def fill(server: Server, shape: Shape, told: Callable[[str, float], None]) -> FilledInstallation:
    """Fill the empty driver log of `server`; `told` gets each step and how much of all rows is done, from 0 to 1."""
    values: dict[str, object] = {
        "receivers": shape.receivers,
        "streams": shape.streams,
        "pipelines": shape.pipelines,
        "per_stream": shape.receivers // shape.streams,
        "per_pipeline": shape.streams // shape.pipelines,
        "of_pipeline": shape.receivers // shape.pipelines,
        "agents": shape.agents,
        "processes": shape.processes,
        "grouped": shape.receivers_per_process,
        "days": int(shape.days),
        "interval": shape.interval,
        "batches": shape.batches,
        "per_day": max(1, min(SECONDS_PER_DAY // shape.interval, shape.batches - 1)),
        "blocks": _BATCH_BLOCKS,
        "waiting": _WAITING_BLOCKS,
        "records": _RECORDS,
        "bytes": _BYTES,
        "wide": WIDE,
        "wide_receivers": WIDE_RECEIVERS,
    }
    with server.engine.connect() as connection:
        # The product's own statements may take 30 s. No trigger: the events of the history are written here.
        for setting in ("statement_timeout = 0", "synchronous_commit = off"):
            connection.exec_driver_sql(f"SET {setting}")
        connection.execute(sa.text(_FACTS), values)
        for name, statement in _STEPS:
            told(name, 0.0)
            # Sums that triggers keep are wanted; segments have no event.
            role = "origin" if name == _WITH_TRIGGERS else "replica"
            connection.exec_driver_sql(f"SET session_replication_role = {role}")
            connection.execute(sa.text(statement), values)
        connection.exec_driver_sql("SET session_replication_role = replica")
        piece = max(1, _PIECE_ROWS // shape.receivers)
        for first in range(1, shape.batches + 1, piece):
            told("allocations and clean-ups", (first - 1) / shape.batches)
            bounds = {"first": first, "last": min(shape.batches, first + piece - 1)}
            connection.execute(sa.text(_ALLOCATIONS), values | bounds)
            connection.execute(sa.text(_CLEAN_UPS), values | bounds)
        for table in _IDENTITIES:
            connection.exec_driver_sql(
                f"SELECT setval(pg_get_serial_sequence('forebay.{table}', 'id'), max(id)) FROM forebay.{table}"  # noqa: S608  ours
            )
        told("vacuum", 1.0)
        connection.exec_driver_sql("DROP TABLE public.filled")
        connection.exec_driver_sql("VACUUM (ANALYZE)")
        connection.exec_driver_sql("CHECKPOINT")
    server.engine.dispose()
    return FilledInstallation(server, shape)
