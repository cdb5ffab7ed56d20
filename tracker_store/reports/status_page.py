"""Read what the status page shows, from the views that people have too (docs/reference/schema.md).

Every read takes no locks and returns at most a page. What it costs depends on the page, or on the receivers and the
unfinished batches that there are now, and never on the history.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.receivers.receivers import condition_of
from tracker_store.reports.listener_events import ListenerEvent
from tracker_store.reports.rows import columns, only, read, read_statement
from tracker_store.schema.batch_calendar import shown_calendar
from tracker_store.schema.declarations import RECORDS_FIELD

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class PagePipeline:
    """Hold a row of the view `pipeline_status`, read at `now`.

    `due` counts the batch times that have come and are not decided; 0 while the pipeline is stopped.
    """

    pipeline: str
    pipeline_id: int
    state: str
    state_since: datetime
    batch_interval: timedelta
    last_batch_time: datetime
    waiting_records: int
    waiting_bytes: int
    oldest_added_at: datetime | None
    unfinished_batches: int
    running_batches: int
    last_completed_time: datetime | None
    halted_by: datetime | None
    quarantined_batches: int
    now: datetime
    due: int
    calendar: dict[str, str] | None = None

    @property
    def interval(self) -> str | None:
        """Return its interval with its time zone; None: its batch times are multiples of `batch_interval`."""
        return shown_calendar(self.calendar)


@dataclass(frozen=True, slots=True)
class PageBatch:
    """Hold a row of the view `batch_stats`."""

    pipeline_id: int
    batch_time: datetime
    oldest_time: datetime
    state: str
    attempt: int
    records: int
    bytes: int
    blocks: int
    reason: str
    run_id: str | None
    processing_started_at: datetime | None
    completed_at: datetime | None
    scheduling_delay: timedelta | None
    processing_time: timedelta | None
    total_delay: timedelta | None


@dataclass(frozen=True, slots=True)
class PageStream:
    """Hold a row of the view `stream_status`, with what waits there for one pipeline, or null if none was asked for."""

    stream: str
    receivers: int
    active: int
    scheduled: int
    paused: int
    inactive: int
    failed: int
    records: int
    bytes: int
    last_block_at: datetime | None
    waiting_records: int | None
    oldest_added_at: datetime | None


@dataclass(frozen=True, slots=True)
class PageReceiver:
    """Hold a row of the view `receiver_status`."""

    ordinal: int
    receiver_id: int
    state: str
    reason: str
    since: datetime
    agent: str | None
    host: str | None
    records: int
    records_per_second: float | None
    rate_limit: float | None
    queued_blocks: int | None
    last_block_at: datetime | None
    dead_letters: int
    last_error_at: datetime | None
    last_error: str | None
    unread: int | None
    unread_unit: str | None
    oldest_unread_at: datetime | None

    @property
    def condition(self) -> str:
        """Return the state for people (``condition_of``)."""
        return condition_of(self.state, self.reason)


@dataclass(frozen=True, slots=True)
class PageAgent:
    """Hold a row of the view `agent_status`."""

    agent: str
    host: str
    slots: int
    receivers: int
    draining: bool
    started_at: datetime


@dataclass(frozen=True, slots=True)
class PageAttempt:
    """Hold a row of the view `batch_history`."""

    attempt: int
    kind: str
    attempt_state: str
    run_id: str
    started_at: datetime
    duration: timedelta | None
    process: str | None
    host: str | None
    error: str


@dataclass(frozen=True, slots=True)
class PageOutput:
    """Hold a row of the view `batch_outputs`."""

    output: str
    state: str
    attempt: int | None
    rows: int | None
    location: str | None
    committed_at: datetime | None
    failed_attempt: int | None
    failure: str | None
    error: str


@dataclass(frozen=True, slots=True)
class PagePositions:
    """Hold a row of the view `batch_input_metadata`."""

    stream: str
    source: str
    partition: str
    generation: int
    from_offset: int
    to_offset: int
    positions: int
    lost: int


@dataclass(frozen=True, slots=True)
class PageBlock:
    """Hold a row of the view `batch_blocks`."""

    stream: str
    ordinal: int
    sequence: int
    added_at: datetime
    records: int
    bytes: int
    path: str | None
    offset: int
    kept: bool


class BatchOrder(StrEnum):
    """Name the columns by which finished batches are sorted."""

    TIME = "batch_time"
    RECORDS = "records"
    SCHEDULING_DELAY = "scheduling_delay"
    PROCESSING_TIME = "processing_time"
    TOTAL_DELAY = "total_delay"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class BatchSort:
    """Say by which column finished batches are sorted, and how."""

    order: BatchOrder
    ascending: bool


class FinishedState(StrEnum):
    """Name the states in which a batch is never run again by itself. A request asks for all of them, or for one."""

    COMPLETED = "COMPLETED"
    QUARANTINED = "QUARANTINED"
    DISCARDED = "DISCARDED"


# Read at the database's clock, with which the times are compared.
_PIPELINE = """
    SELECT pipeline, pipeline_id, state, state_since, batch_interval, last_batch_time, waiting_records, waiting_bytes,
        CASE WHEN waiting_records > 0 THEN oldest_added_at END AS oldest_added_at, unfinished_batches,
        running_batches, last_completed_time, halted_by, quarantined_batches, clock_timestamp() AS now,
        due_batches AS due, calendar
    FROM forebay.pipeline_status
"""


def page_pipeline(connection: sa.Connection, name: str) -> PagePipeline | None:
    """Return a declared pipeline, or None. No locks; two probes per receiver of its streams."""
    return only(read_statement(connection, PagePipeline, f"{_PIPELINE} WHERE pipeline = :name", {"name": name}))


def newest_finished_of_each(
    connection: sa.Connection, pipeline_ids: Sequence[int], *, limit: int
) -> dict[int, list[PageBatch]]:
    """Return each pipeline's newest finished batches in order of time, if it has any. No locks; by the primary key."""
    rows = read_statement(
        connection,
        PageBatch,
        f"""
        SELECT found.*
        FROM unnest(CAST(:pipelines AS bigint[])) AS asked(pipeline_id)
        CROSS JOIN LATERAL (
            SELECT {columns(PageBatch)}
            FROM forebay.batch_stats
            WHERE pipeline_id = asked.pipeline_id AND state IN ('COMPLETED', 'QUARANTINED', 'DISCARDED')
            ORDER BY batch_time DESC LIMIT :limit
        ) AS found
        """,  # noqa: S608  our own names
        {"pipelines": list(pipeline_ids), "limit": limit},
    )
    found: dict[int, list[PageBatch]] = {}
    for row in sorted(rows, key=lambda row: row.batch_time):
        found.setdefault(row.pipeline_id, []).append(row)
    return found


def newest_finished(connection: sa.Connection, pipeline_id: int, *, limit: int) -> list[PageBatch]:
    """Return a pipeline's newest finished batches in order of time. No locks; by the primary key."""
    return newest_finished_of_each(connection, [pipeline_id], limit=limit).get(pipeline_id, [])


def page_of_finished(
    connection: sa.Connection,
    pipeline_id: int,
    *,
    before: datetime | None,
    window: int,
    states: Sequence[FinishedState],
    sort: BatchSort,
    offset: int,
    limit: int,
) -> list[PageBatch]:
    """Return a page of the newest `window` finished batches before a time, sorted; those without a value come last.

    No locks; O(window), by the primary key or, for quarantined batches alone, by their partial index.
    """
    which = ", ".join(f"'{FinishedState(state).value}'" for state in states)
    direction = "ASC" if sort.ascending else "DESC"
    return read_statement(
        connection,
        PageBatch,
        f"""
        SELECT *
        FROM (
            SELECT {columns(PageBatch)}
            FROM forebay.batch_stats
            WHERE pipeline_id = :pipeline
              AND state IN ({which})
              AND batch_time < coalesce(CAST(:before AS timestamptz), 'infinity')
            ORDER BY batch_time DESC LIMIT :window
        ) AS newest
        ORDER BY {BatchOrder(sort.order).value} {direction} NULLS LAST, batch_time DESC
        OFFSET :offset LIMIT :limit
        """,  # noqa: S608  our own names
        {"pipeline": pipeline_id, "before": before, "window": window, "offset": offset, "limit": limit},
    )


def unfinished(connection: sa.Connection, pipeline_id: int, *, limit: int) -> list[PageBatch]:
    """Return the oldest batches that wait or run, in order of time. No locks; by the partial index."""
    return read(
        connection,
        PageBatch,
        """
        FROM forebay.batch_stats
        WHERE pipeline_id = :pipeline AND state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
        ORDER BY batch_time LIMIT :limit
        """,
        {"pipeline": pipeline_id, "limit": limit},
    )


def page_batch(connection: sa.Connection, pipeline_id: int, first: datetime, before: datetime) -> PageBatch | None:
    """Return the first batch from `first` to before `before`, or None. No locks; by the primary key."""
    found = read(
        connection,
        PageBatch,
        """
        FROM forebay.batch_stats
        WHERE pipeline_id = :pipeline AND batch_time >= :first AND batch_time < :before
        ORDER BY batch_time LIMIT 1
        """,
        {"pipeline": pipeline_id, "first": first, "before": before},
    )
    return only(found)


def page_of_streams(connection: sa.Connection, *, offset: int, limit: int) -> list[PageStream]:
    """Return streams by name. No locks; a probe per receiver."""
    return read_statement(
        connection,
        PageStream,
        """
        SELECT stream, receivers, active, scheduled, paused, inactive, failed, records, bytes, last_block_at,
            NULL, NULL
        FROM forebay.stream_status
        ORDER BY stream OFFSET :offset LIMIT :limit
        """,
        {"offset": offset, "limit": limit},
    )


def streams_of_pipeline(connection: sa.Connection, pipeline_id: int, *, limit: int) -> list[PageStream]:
    """Return the streams that a pipeline reads, with what waits there. No locks; three probes per receiver."""
    return read_statement(
        connection,
        PageStream,
        """
        SELECT s.stream, s.receivers, s.active, s.scheduled, s.paused, s.inactive, s.failed, s.records,
            s.bytes, s.last_block_at, l.waiting_records,
            CASE WHEN l.waiting_records > 0 THEN l.oldest_added_at END AS oldest_added_at
        FROM forebay.stream_lag l
        JOIN forebay.stream_status s ON s.stream_id = l.stream_id
        WHERE l.pipeline_id = :pipeline
        ORDER BY s.stream LIMIT :limit
        """,
        {"pipeline": pipeline_id, "limit": limit},
    )


def page_stream(connection: sa.Connection, name: str) -> tuple[int, PageStream] | None:
    """Return a stream with its id, or None. No locks; a probe per receiver."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT stream_id, stream, receivers, active, scheduled, paused, inactive, failed, records, bytes,
                    last_block_at, NULL, NULL
                FROM forebay.stream_status
                WHERE stream = :name
            """),
            {"name": name},
        ).one_or_none()
    return None if row is None else (row.stream_id, PageStream(*row[1:]))


@dataclass(frozen=True, slots=True)
class PageColumns:
    """Hold the columns of a stream, version by version, each as (name, Arrow type in text), and its dead letters.

    `parsed`: those that a typed stream's receivers parse, as they are declared now, and `required`, the names of those
    that are NOT NULL. `dead_letters` are kept, and `dropped_dead_letters` were counted only.
    """

    versions: Sequence[Sequence[tuple[str, str]]]
    parsed: Sequence[tuple[str, str]]
    required: Sequence[str]
    dead_letters: int
    dropped_dead_letters: int


def page_columns(connection: sa.Connection, stream_id: int) -> PageColumns:
    """Return a stream's columns and dead letters. No locks; a row per version and per receiver."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT coalesce(s.declaration -> 'source' -> CAST(:records AS text), '{}') AS records,
                    ARRAY(
                        SELECT v.columns
                        FROM forebay.stream_schemas v
                        WHERE v.stream_id = s.id
                        ORDER BY v.version
                    ) AS versions,
                    letters.kept, letters.dropped
                FROM forebay.streams s
                CROSS JOIN LATERAL (
                    SELECT coalesce(sum(t.dead_letters), 0)::bigint AS kept,
                        coalesce(sum(t.dropped_dead_letters), 0)::bigint AS dropped
                    FROM forebay.receivers r
                    JOIN forebay.storage_totals t ON t.receiver_id = r.id
                    WHERE r.stream_id = s.id
                ) AS letters
                WHERE s.id = :stream
            """),
            {"stream": stream_id, "records": RECORDS_FIELD},
        ).one()
    return PageColumns(
        [[(name, kind) for name, kind in version] for version in row.versions],
        [(name, kind) for name, kind in row.records.get("columns", ())],
        row.records.get("required", ()),
        row.kept,
        row.dropped,
    )


def page_of_receivers(
    connection: sa.Connection, stream_id: int, *, state: str | None, after: int, limit: int
) -> list[PageReceiver]:
    """Return a stream's receivers after an ordinal, of one state or of all, by ordinal. No locks.

    A few probes for each receiver that it returns, by the key of (stream, ordinal).
    """
    return read(
        connection,
        PageReceiver,
        """
        FROM forebay.receiver_status
        -- The page's receivers first: the view probes for each receiver, and would before it sorts.
        WHERE receiver_id = ANY (ARRAY(
            SELECT r.id
            FROM forebay.receivers r
            WHERE r.stream_id = :stream
              AND r.ordinal > :after
              AND r.removed_at IS NULL
              AND (CAST(:state AS text) IS NULL OR r.state = :state)
            ORDER BY r.ordinal LIMIT :limit
        ))
        ORDER BY ordinal
        """,
        {"stream": stream_id, "after": after, "state": state, "limit": limit},
    )


def page_of_agents(connection: sa.Connection, *, offset: int, limit: int) -> list[PageAgent]:
    """Return live agents by name. No locks; by the partial indexes of live processes and placed receivers."""
    return read(
        connection,
        PageAgent,
        """
        FROM forebay.agent_status
        ORDER BY agent, agent_id OFFSET :offset LIMIT :limit
        """,
        {"offset": offset, "limit": limit},
    )


def attempts_of_batch(
    connection: sa.Connection, pipeline_id: int, batch_time: datetime, *, limit: int
) -> list[PageAttempt]:
    """Return the newest attempts and replays of a batch, newest first. No locks; by the primary key."""
    return read(
        connection,
        PageAttempt,
        """
        FROM forebay.batch_history
        WHERE pipeline_id = :pipeline AND batch_time = :time AND attempt IS NOT NULL
        ORDER BY attempt DESC LIMIT :limit
        """,
        {"pipeline": pipeline_id, "time": batch_time, "limit": limit},
    )


def outputs_of_batch(
    connection: sa.Connection, pipeline_id: int, batch_time: datetime, *, limit: int
) -> list[PageOutput]:
    """Return the outputs of a batch that were committed or have failed, by name. No locks; by the batch's keys."""
    return read(
        connection,
        PageOutput,
        """
        FROM forebay.batch_outputs
        WHERE pipeline_id = :pipeline AND batch_time = :time
        ORDER BY output LIMIT :limit
        """,
        {"pipeline": pipeline_id, "time": batch_time, "limit": limit},
    )


def positions_of_batch(
    connection: sa.Connection, pipeline_id: int, batch_time: datetime, *, offset: int, limit: int
) -> list[PagePositions]:
    """Return a page of the source positions that a batch read. No locks; O(the batch's ranges)."""
    return read(
        connection,
        PagePositions,
        """
        FROM forebay.batch_input_metadata
        WHERE pipeline_id = :pipeline AND batch_time = :time
        ORDER BY stream, source, partition, generation, from_offset OFFSET :offset LIMIT :limit
        """,
        {"pipeline": pipeline_id, "time": batch_time, "offset": offset, "limit": limit},
    )


def blocks_of_batch(
    connection: sa.Connection, pipeline_id: int, batch_time: datetime, *, offset: int, limit: int
) -> list[PageBlock]:
    """Return a page of a batch's blocks that are kept. No locks; O(the batch's blocks)."""
    return read(
        connection,
        PageBlock,
        """
        FROM forebay.batch_blocks
        WHERE pipeline_id = :pipeline AND batch_time = :time
        ORDER BY receiver_id, sequence OFFSET :offset LIMIT :limit
        """,
        {"pipeline": pipeline_id, "time": batch_time, "offset": offset, "limit": limit},
    )


def page_of_events(connection: sa.Connection, *, before: tuple[int, int] | None, limit: int) -> list[ListenerEvent]:
    """Return the newest events before a position (transaction_id, id), newest first. No locks; O(result)."""
    transaction_id, number = before or (2**63 - 1, 2**63 - 1)
    return read(
        connection,
        ListenerEvent,
        """
        FROM forebay.listener_events
        WHERE (transaction_id, id) < (:t, :i)
        ORDER BY transaction_id DESC, id DESC LIMIT :limit
        """,
        {"t": transaction_id, "i": number, "limit": limit},
    )
