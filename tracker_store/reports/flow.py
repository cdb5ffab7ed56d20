"""Read what the overview's picture has beside the views of status: sources, outputs, and the newest batches by stream.

Every read takes no locks. What it costs depends on the pipelines and batches that are asked for, never on the history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracker_store.reports.rows import read_statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    import sqlalchemy as sa


@dataclass(frozen=True, slots=True)
class FlowStream:
    """Name a live stream and its source's kind; no pipeline reads it if `is_read` is False."""

    stream: str
    source: str
    is_read: bool


@dataclass(frozen=True, slots=True)
class FlowOutput:
    """Describe an output of a pipeline by its newest commit; `failed_at`: it has failed in a later batch since.

    `spans`: from the oldest to the newest boundary that the commit's batch stands for.
    """

    pipeline_id: int
    output: str
    sink: str
    rows: int | None
    spans: timedelta | None
    committed_at: datetime | None
    failed_at: datetime | None


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """Give the records that a batch has of one stream; `oldest_time` as in `batch_stats`."""

    pipeline_id: int
    batch_time: datetime
    oldest_time: datetime
    stream: str
    records: int


def flow_streams(connection: sa.Connection) -> list[FlowStream]:
    """Return every live stream, by name. No locks; O(streams x pipelines)."""
    return read_statement(
        connection,
        FlowStream,
        """
        SELECT s.name, coalesce(s.declaration #>> '{source,kind}', ''),
            EXISTS (SELECT FROM forebay.pipelines p WHERE p.removed_at IS NULL AND s.id = ANY (p.stream_ids))
        FROM forebay.streams s
        WHERE s.removed_at IS NULL
        ORDER BY s.name
        """,
    )


def flow_outputs(connection: sa.Connection, pipeline_ids: Sequence[int]) -> list[FlowOutput]:
    """Return the declared outputs of pipelines, by name. No locks; three probes for each, by the primary keys.

    The last is of the failures in batches after the newest commit.
    """
    return read_statement(
        connection,
        FlowOutput,
        """
        SELECT p.id, o.name, coalesce(o.declared #>> '{sink,kind}', ''), newest.rows, newest.batch_time - b.oldest_time,
            newest.committed_at, failed.at
        FROM forebay.pipelines p
        CROSS JOIN LATERAL jsonb_each(p.declaration -> 'outputs') AS o(name, declared)
        LEFT JOIN LATERAL (
            SELECT c.batch_time, c.rows, c.committed_at
            FROM forebay.output_commits c
            WHERE c.pipeline_id = p.id AND c.output = o.name
            ORDER BY c.batch_time DESC LIMIT 1
        ) AS newest ON true
        LEFT JOIN forebay.batches b ON b.pipeline_id = p.id AND b.batch_time = newest.batch_time
        LEFT JOIN LATERAL (
            SELECT f.failed_at AS at
            FROM forebay.output_failures f
            WHERE f.pipeline_id = p.id
              AND f.output = o.name
              AND f.batch_time > coalesce(newest.batch_time, '-infinity')
            ORDER BY f.batch_time DESC, f.attempt DESC LIMIT 1
        ) AS failed ON true
        WHERE p.id = ANY (CAST(:pipelines AS bigint[]))
        ORDER BY p.id, o.name
        """,
        {"pipelines": list(pipeline_ids)},
    )


def newest_by_stream(connection: sa.Connection, batches: Mapping[int, int]) -> list[StreamBatch]:
    """Return the records by stream of each pipeline's newest batches, the oldest first: as many as are asked for.

    A stream without records in a batch has no row. No locks; O(the batches' ranges of receivers), by the primary keys.
    """
    return read_statement(
        connection,
        StreamBatch,
        """
        SELECT asked.pipeline_id, b.batch_time, b.oldest_time, s.name, sum(a.records)::bigint
        FROM unnest(CAST(:pipelines AS bigint[]), CAST(:batches AS bigint[])) AS asked(pipeline_id, batches)
        CROSS JOIN LATERAL (
            SELECT t.batch_time, t.oldest_time
            FROM forebay.batches t
            WHERE t.pipeline_id = asked.pipeline_id
            ORDER BY t.batch_time DESC LIMIT asked.batches
        ) AS b
        CROSS JOIN LATERAL (
            SELECT u.receiver_id, u.records
            FROM forebay.batch_allocations u
            WHERE u.pipeline_id = asked.pipeline_id AND u.batch_time = b.batch_time
            OFFSET 0
        ) AS a
        JOIN forebay.receivers r ON r.id = a.receiver_id
        JOIN forebay.streams s ON s.id = r.stream_id
        GROUP BY asked.pipeline_id, b.batch_time, b.oldest_time, s.name
        ORDER BY asked.pipeline_id, b.batch_time, s.name
        """,
        {"pipelines": list(batches), "batches": list(batches.values())},
    )
