"""Show `streams` with what reads them and what they hold, and remove one.

`tracker_store.batches.pipelines` applies streams. What is removed here is never changed again: a stream that is applied
under the same name is a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.batches.pipelines import unknown_stream
from tracker_store.connection.engine import named_failures
from tracker_store.connection.errors import DriverLogError
from tracker_store.schema.declarations import RECORDS_FIELD

if TYPE_CHECKING:
    from datetime import timedelta


@dataclass(frozen=True, slots=True)
class StreamOverview:
    """Describe a live stream: `source` is its source's kind, and clean-up has not deleted the `stored_records`.

    `columns` are what a typed stream's receivers parse, as (name, Arrow type in text); `required` names those that are
    NOT NULL. `dead_letters` counts those of every reason that are kept, or were counted only.
    """

    stream: str
    source: str
    receivers: int
    active_receivers: int
    pipelines: tuple[str, ...]
    readers: tuple[str, ...]
    stored_records: int
    retention: timedelta
    columns: tuple[tuple[str, str], ...]
    required: tuple[str, ...]
    dead_letters: int


def stream_overview(connection: sa.Connection) -> list[StreamOverview]:
    """Return every live stream. No locks. Costs three probes for each receiver."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT s.name, coalesce(s.declaration #>> '{source,kind}', '') AS source,
                    receivers.number, receivers.active,
                    ARRAY(
                        SELECT p.name
                        FROM forebay.pipelines p
                        WHERE p.removed_at IS NULL AND s.id = ANY (p.stream_ids)
                        ORDER BY p.name
                    ) AS pipelines,
                    ARRAY(
                        SELECT d.name
                        FROM forebay.readers d
                        WHERE d.removed_at IS NULL AND d.stream_id = s.id
                        ORDER BY d.name
                    ) AS readers,
                    receivers.records, s.retention, receivers.dead_letters,
                    coalesce(s.declaration -> 'source' -> CAST(:records AS text), '{}') AS typed
                FROM forebay.streams s
                CROSS JOIN LATERAL (
                    -- A removed receiver may hold blocks too.
                    SELECT count(*) FILTER (WHERE r.removed_at IS NULL) AS number,
                        count(*) FILTER (WHERE r.removed_at IS NULL AND r.state = 'ACTIVE') AS active,
                        coalesce(
                            sum(newest.total_records - first_row.total_records + first_row.records), 0
                        )::bigint AS records,
                        coalesce(sum(letters.number), 0)::bigint AS dead_letters
                    FROM forebay.receivers r
                    LEFT JOIN LATERAL (
                        SELECT t.dead_letters + t.dropped_dead_letters AS number
                        FROM forebay.storage_totals t
                        WHERE t.receiver_id = r.id
                    ) AS letters ON true
                    LEFT JOIN LATERAL (
                        SELECT b.total_records, b.records
                        FROM forebay.blocks b
                        WHERE b.receiver_id = r.id AND b.sequence = r.low_mark + 1
                        OFFSET 0
                    ) AS first_row ON true
                    LEFT JOIN LATERAL (
                        SELECT b.total_records
                        FROM forebay.blocks b
                        WHERE b.receiver_id = r.id
                        ORDER BY b.sequence DESC LIMIT 1
                    ) AS newest ON true
                    WHERE r.stream_id = s.id
                ) AS receivers
                WHERE s.removed_at IS NULL
                ORDER BY s.name
            """),
            {"records": RECORDS_FIELD},
        ).all()
    return [
        StreamOverview(
            row.name,
            row.source,
            row.number,
            row.active,
            tuple(row.pipelines),
            tuple(row.readers),
            row.records,
            row.retention,
            tuple((name, kind) for name, kind in row.typed.get("columns", ())),
            tuple(row.typed.get("required", ())),
            row.dead_letters,
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class UnreadStream:
    """Describe a live stream that nothing reads, with records that no pipeline has had in a batch."""

    stream: str
    records: int
    retention: timedelta


def unread_streams(connection: sa.Connection) -> list[UnreadStream]:
    """Return the streams with records that nothing will read. No locks; two probes for each of their receivers."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT s.name, waiting.records, s.retention
                FROM forebay.streams s
                CROSS JOIN LATERAL (
                    SELECT coalesce(
                        sum(newest.total_records - first_row.total_records + first_row.records), 0
                    )::bigint AS records
                    FROM forebay.receivers r
                    CROSS JOIN LATERAL (
                        SELECT coalesce(max(c.next_sequence), 1) AS sequence
                        FROM forebay.cursors c
                        JOIN forebay.pipelines p ON p.id = c.consumer_id
                        WHERE c.receiver_id = r.id
                    ) AS next
                    CROSS JOIN LATERAL (
                        SELECT b.total_records, b.records
                        FROM forebay.blocks b
                        WHERE b.receiver_id = r.id AND b.sequence = greatest(next.sequence, r.low_mark + 1)
                    ) AS first_row
                    CROSS JOIN LATERAL (
                        SELECT b.total_records
                        FROM forebay.blocks b
                        WHERE b.receiver_id = r.id
                        ORDER BY b.sequence DESC LIMIT 1
                    ) AS newest
                    WHERE r.stream_id = s.id
                ) AS waiting
                WHERE s.removed_at IS NULL
                  AND waiting.records > 0
                  AND NOT EXISTS (
                      SELECT FROM forebay.pipelines p WHERE p.removed_at IS NULL AND s.id = ANY (p.stream_ids)
                  )
                  AND NOT EXISTS (
                      SELECT FROM forebay.readers d WHERE d.removed_at IS NULL AND d.stream_id = s.id
                  )
                ORDER BY s.name
            """)
        ).all()
    return [UnreadStream(row.name, row.records, row.retention) for row in rows]


def _removal(kind: str, name: str) -> str:
    return f"`forebay {kind}s remove {name}`"


def remove_stream(connection: sa.Connection, name: str, *, with_waiting: bool) -> int:
    """Remove a stream and its receivers; return how many receivers that were. Locks: its row, its receivers' by id.

    Raises NotAppliedError for an unknown name, DriverLogError while a pipeline or a named reader reads it, and, unless
    `with_waiting`, if it has records that no pipeline has had in a batch.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT outcome, read_by, waiting_records, receivers
                FROM forebay.remove_stream(:name, :with_waiting)
            """),
            {"name": name, "with_waiting": with_waiting},
        ).one()
    if row.outcome == "unknown":
        raise unknown_stream(connection, name)
    if row.outcome == "read":
        raise DriverLogError(
            f"stream {name!r} is read by {', '.join(row.read_by)}",
            f"Remove what reads it first: {', '.join(_removal(*read.split(' ', 1)) for read in row.read_by)}.",
        )
    if row.outcome == "waiting":
        raise DriverLogError(
            f"stream {name!r} has {row.waiting_records:,} records that no pipeline has read",
            "Apply a pipeline that reads it, or give these records up: "
            f"`forebay streams remove {name} --with-records`.",
        )
    removed: int = row.receivers
    return removed
