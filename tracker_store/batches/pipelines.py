"""Read and write `streams` and `pipelines`: declarations as versioned rows.

Only `forebay apply` (and `forebay up` at its start) declares here, and `forebay pipelines remove` removes a pipeline.
Applying an unchanged declaration again changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.connection.errors import DriverLogError, NotAppliedError
from tracker_store.schema.states import PipelineState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tracker_store.schema.batch_calendar import BatchCalendar

# How often to look for the boundary after the last batch, while batches are decided that pass it.
_LOOKS = 5


def still_runs(name: str) -> DriverLogError:
    """Return the error for a pipeline that can't be removed because it, or an attempt at a batch of it, runs."""
    return DriverLogError(
        f"pipeline {name!r}",
        f"It runs, or an attempt at a batch of it does: stop it first, `forebay stop --pipeline {name}`. If no code "
        "has it any more: with `--timeout 0s`, for what waits can't come out then.",
    )


@dataclass(frozen=True, slots=True)
class RemovedPipeline:
    """Count what a removed pipeline left: records that had been in no batch, and batches that did not complete."""

    waiting_records: int
    unfinished_batches: int
    kept_batches: int


@dataclass(frozen=True, slots=True)
class StreamRow:
    """Hold a declared stream as applied."""

    stream_id: int
    name: str
    version: int
    declaration: dict[str, Any]
    receivers: int


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """Hold a declared pipeline as applied; every batch time up to `last_batch_time` is decided.

    `halted_by`: the quarantined batch that halts it (on_failure = "halt").
    """

    pipeline_id: int
    name: str
    version: int
    declaration: dict[str, Any]
    stream_ids: tuple[int, ...]
    interval: timedelta
    last_batch_time: datetime
    state: PipelineState
    halted_by: datetime | None = None


def list_streams(connection: sa.Connection) -> list[StreamRow]:
    """Return every live stream with the number of its receivers. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT s.id, s.name, s.version, s.declaration,
                    (
                        SELECT count(*)
                        FROM forebay.receivers r
                        WHERE r.stream_id = s.id AND r.removed_at IS NULL
                    ) AS receivers
                FROM forebay.streams s
                WHERE s.removed_at IS NULL
                ORDER BY s.name
            """)
        ).all()
    return [StreamRow(row.id, row.name, row.version, row.declaration, row.receivers) for row in rows]


def list_pipelines(connection: sa.Connection) -> list[PipelineRow]:
    """Return every live pipeline. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT id, name, version, declaration, stream_ids, batch_interval, last_batch_time, state, halted_by
                FROM forebay.pipelines
                WHERE removed_at IS NULL
                ORDER BY name
            """)
        ).all()
    return [_pipeline(row) for row in rows]


@dataclass(frozen=True, slots=True)
class KeptBlocksReader:
    """Describe a pipeline, removed or not, that has taken blocks of these streams that clean-up has not deleted."""

    name: str
    declaration: dict[str, Any]
    is_removed: bool
    stream_ids: tuple[int, ...]


def readers_of_kept_blocks(connection: sa.Connection, stream_ids: Collection[int]) -> list[KeptBlocksReader]:
    """Return the pipelines that have taken kept blocks of some of these streams, the newest first.

    No locks. Reads the cursors of all pipelines that ever read the streams: for a person's command, not for a loop.
    """
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT p.name, p.declaration, p.removed_at IS NOT NULL AS is_removed, taken.stream_ids
                FROM forebay.pipelines p
                CROSS JOIN LATERAL (
                    SELECT array_agg(DISTINCT r.stream_id) AS stream_ids
                    FROM forebay.cursors c
                    JOIN forebay.receivers r ON r.id = c.receiver_id
                    WHERE c.consumer_id = p.id AND c.next_sequence > r.low_mark + 1
                        AND r.stream_id = ANY (CAST(:ids AS bigint[]))
                ) AS taken
                WHERE p.stream_ids && CAST(:ids AS bigint[]) AND taken.stream_ids IS NOT NULL
                ORDER BY p.id DESC
            """),
            {"ids": sorted(stream_ids)},
        ).all()
    return [KeptBlocksReader(row.name, row.declaration, row.is_removed, tuple(row.stream_ids)) for row in rows]


def pipelines_by_id(connection: sa.Connection, pipeline_ids: Sequence[int]) -> list[PipelineRow]:
    """Return those of these pipelines that are not removed, by name. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT id, name, version, declaration, stream_ids, batch_interval, last_batch_time, state, halted_by
                FROM forebay.pipelines
                WHERE removed_at IS NULL AND id = ANY (CAST(:ids AS bigint[]))
                ORDER BY name
            """),
            {"ids": list(pipeline_ids)},
        ).all()
    return [_pipeline(row) for row in rows]


def stream_declarations(connection: sa.Connection, stream_ids: Collection[int]) -> dict[str, dict[str, Any]]:
    """Return the declarations of those of these streams that are not removed, by name. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT name, declaration
                FROM forebay.streams
                WHERE removed_at IS NULL AND id = ANY (CAST(:ids AS bigint[]))
            """),
            {"ids": sorted(stream_ids)},
        ).all()
    return {row.name: row.declaration for row in rows}


def declared_versions(connection: sa.Connection) -> dict[tuple[str, int], int]:
    """Return the version of each live declaration, by "pipeline" or "stream" and its id. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT 'pipeline' AS kind, id, version
                FROM forebay.pipelines
                WHERE removed_at IS NULL
                UNION ALL
                SELECT 'stream', id, version
                FROM forebay.streams
                WHERE removed_at IS NULL
            """)
        ).all()
    return {(row.kind, row.id): row.version for row in rows}


def per_host_streams(connection: sa.Connection) -> dict[int, str]:
    """Return the names of the live streams with one receiver per host, by id. No locks; reads the live streams."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT id, name
                FROM forebay.streams
                WHERE removed_at IS NULL AND declaration ->> 'receivers' = 'per_host'
                ORDER BY name
            """)
        ).all()
    return {row.id: row.name for row in rows}


_PIPELINES = sa.text("SELECT name FROM forebay.pipelines WHERE removed_at IS NULL ORDER BY name")
_STREAMS = sa.text("SELECT name FROM forebay.streams WHERE removed_at IS NULL ORDER BY name")


def unknown_pipeline(connection: sa.Connection, name: str) -> NotAppliedError:
    """Return the error for a name that no live pipeline has; it names those that there are. No locks."""
    return _unknown(connection, "pipeline", name, _PIPELINES)


def unknown_stream(connection: sa.Connection, name: str) -> NotAppliedError:
    """Return the error for a name that no live stream has; it names those that there are. No locks."""
    return _unknown(connection, "stream", name, _STREAMS)


def _unknown(connection: sa.Connection, kind: str, name: str, names: sa.TextClause) -> NotAppliedError:
    with named_failures():
        there = connection.execute(names).scalars().all()
    other = "Name one of them, or run `forebay apply` if it is new." if there else None
    return NotAppliedError.of(kind, name, there, other)


def get_pipeline(connection: sa.Connection, name: str) -> PipelineRow:
    """Return a live pipeline by name. No locks. Raises NotAppliedError, which names those that there are."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT id, name, version, declaration, stream_ids, batch_interval, last_batch_time, state, halted_by
                FROM forebay.pipelines
                WHERE name = :name AND removed_at IS NULL
            """),
            {"name": name},
        ).one_or_none()
    if row is None:
        raise unknown_pipeline(connection, name)
    return _pipeline(row)


def _pipeline(row: sa.Row[Any]) -> PipelineRow:
    return PipelineRow(
        pipeline_id=row.id,
        name=row.name,
        version=row.version,
        declaration=row.declaration,
        stream_ids=tuple(row.stream_ids),
        interval=row.batch_interval,
        last_batch_time=row.last_batch_time,
        state=PipelineState(row.state),
        halted_by=row.halted_by,
    )


def apply_stream(
    connection: sa.Connection,
    *,
    name: str,
    declaration: dict[str, Any],
    receivers: int | None,
    retention: timedelta = timedelta(days=7),
    preferred_host: str | None = None,
    renamed_from: str | None = None,
) -> int:
    """Write a stream and its receivers, in one transaction; returns the stream's id.

    Locks: the stream's row, then its receivers', by id.

    `renamed_from`: the name of a stream that this one is from now on, unless there is one with its name.
    `preferred_host`: where its receivers ask to run, as far as that is known before they start (None: not known).

    A changed declaration gives each of its receivers a new assignment. The process that holds the receiver stays named
    in its row: it stops reading, registers what it holds and signs off, and then the tracker starts the receiver with
    the new declaration. Receivers beyond the new number are removed in the same way: their blocks are allocated like
    any others. Without a number there is one receiver per host, which the tracker adds as agents come. When a number is
    declared again, receivers may run on any host, except those that listen at an address.
    """
    with named_failures():
        stream_id: int = connection.execute(
            sa.text("""
                SELECT forebay.apply_stream(
                    :name, CAST(:declaration AS jsonb), :retention, CAST(:receivers AS integer),
                    CAST(:preferred AS text), CAST(:renamed_from AS text)
                )
            """),
            {
                "name": name,
                "renamed_from": renamed_from,
                "declaration": json.dumps(declaration),
                "retention": retention,
                "receivers": receivers,
                "preferred": preferred_host,
            },
        ).scalar_one()
    return stream_id


def apply_pipeline(
    connection: sa.Connection,
    *,
    name: str,
    declaration: dict[str, Any],
    stream_ids: Sequence[int],
    interval: timedelta,
    retention: timedelta = timedelta(0),
    at_latest: bool = False,
    calendar: BatchCalendar | None = None,
) -> int:
    """Write a pipeline; returns its id. Locks: its row, then its streams' receivers FOR SHARE, by id.

    So a clean-up that did not see the pipeline has ended before a batch of it gets any block. A new pipeline's first
    batch time is the first multiple of its interval after now, by the database's clock; with `at_latest` a new one
    begins after the existing blocks, in the same transaction. With a `calendar`, batch times are its boundaries; an
    existing pipeline goes on at the first one after its last batch time.
    """
    values = {
        "name": name,
        "declaration": json.dumps(declaration),
        "streams": list(stream_ids),
        "interval": interval,
        "retention": retention,
        "at_latest": at_latest,
    }
    if calendar is None:
        return _apply_pipeline(connection, values, None, None)
    for _ in range(_LOOKS):
        with named_failures():
            row = connection.execute(
                sa.text("""
                    SELECT clock_timestamp() AS now, (
                            SELECT p.last_batch_time
                            FROM forebay.pipelines p
                            WHERE p.name = :name AND p.removed_at IS NULL
                        ) AS last
                """),
                {"name": name},
            ).one()
        newest = calendar.newest_up_to(row.now)
        following = calendar.next_after(newest if row.last is None else row.last)
        pipeline_id = _apply_pipeline(connection, values, newest, following)
        with named_failures():
            kept = connection.execute(
                sa.text("SELECT next_batch_time FROM forebay.pipelines WHERE id = :id"), {"id": pipeline_id}
            ).scalar_one()
        # None: a batch was decided in between. The look for due pipelines knows the calendar by this alone.
        if kept is not None:
            break
    return pipeline_id


def _apply_pipeline(
    connection: sa.Connection, values: dict[str, Any], newest: datetime | None, following: datetime | None
) -> int:
    with named_failures():
        pipeline_id: int = connection.execute(
            sa.text("""
                SELECT forebay.apply_pipeline(
                    :name, CAST(:declaration AS jsonb), CAST(:streams AS bigint[]), :interval, :retention, :at_latest,
                    :newest, :next
                )
            """),
            {**values, "newest": newest, "next": following},
        ).scalar_one()
    return pipeline_id


def remove_pipeline(connection: sa.Connection, name: str) -> RemovedPipeline:
    """Remove a pipeline, so that it holds no block back. Locks: its row.

    Raises NotAppliedError for an unknown name, DriverLogError while it runs.
    """
    with named_failures():
        row = connection.execute(
            sa.text(
                "SELECT outcome, waiting_records, unfinished_batches, kept_batches FROM forebay.remove_pipeline(:name)"
            ),
            {"name": name},
        ).one()
    if row.outcome == "unknown":
        raise unknown_pipeline(connection, name)
    if row.outcome != "removed":
        raise still_runs(name)
    return RemovedPipeline(row.waiting_records, row.unfinished_batches, row.kept_batches)


def records_in_batches(connection: sa.Connection, name: str) -> int:
    """Count the records of a pipeline's batches that are not complete, quarantined ones too. No locks."""
    with named_failures():
        records: int = connection.execute(
            sa.text("""
                SELECT coalesce(sum(b.records), 0)::bigint
                FROM forebay.pipelines p
                JOIN forebay.batches b ON b.pipeline_id = p.id
                WHERE p.name = :name
                  AND p.removed_at IS NULL
                  AND b.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED', 'QUARANTINED')
            """),
            {"name": name},
        ).scalar_one()
    return records


def waiting_records(connection: sa.Connection, pipeline_id: int, stream_id: int) -> int:
    """Count records of a stream that the pipeline has not given to a batch. No locks."""
    with named_failures():
        records: int = connection.execute(
            sa.text("""
                SELECT coalesce(sum(waiting_records), 0)::bigint
                FROM forebay.stream_lag
                WHERE pipeline_id = :pipeline AND stream_id = :stream
            """),
            {"pipeline": pipeline_id, "stream": stream_id},
        ).scalar_one()
    return records


def unfinished_records(connection: sa.Connection, pipeline_id: int, stream_id: int) -> int:
    """Count records of a stream in unfinished batches of the pipeline. No locks."""
    with named_failures():
        records: int = connection.execute(
            sa.text("""
                SELECT coalesce(sum(a.records), 0)::bigint
                FROM forebay.batches b
                JOIN forebay.batch_allocations a ON a.pipeline_id = b.pipeline_id AND a.batch_time = b.batch_time
                JOIN forebay.receivers r ON r.id = a.receiver_id
                WHERE b.pipeline_id = :pipeline
                  AND b.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
                  AND r.stream_id = :stream
            """),
            {"pipeline": pipeline_id, "stream": stream_id},
        ).scalar_one()
    return records
