"""Record and read what a batch read from its sources: ranges of positions (the view ``batch_input_metadata``).

A batch's first attempt records them, because the links that they come from are deleted with the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class InputRange:
    """Positions of one partition that a batch read, from `from_offset` up to the one before `to_offset`.

    `lost` of them the source no longer had. For a file, positions are bytes.
    """

    stream: str
    source: str
    partition: str
    generation: int
    from_offset: int
    to_offset: int
    lost: int


@dataclass(frozen=True, slots=True)
class InputMetadata:
    """Describe what a batch read from its sources.

    Attributes:
        ranges: the first ranges, by stream, source and partition.
        total: how many ranges there are.
        no_positions: the streams of which the batch has records and no range.
        known: False if the links are gone and no attempt recorded them; then `ranges` is empty and says nothing.
    """

    ranges: Sequence[InputRange]
    total: int
    no_positions: Sequence[str]
    known: bool


def record_input_metadata(connection: sa.Connection, pipeline_id: int, batch_time: datetime) -> int | None:
    """Record the ranges of a batch that an attempt or a replay runs; returns how many, None if links are gone.

    Idempotent. Costs the batch's links. Locks: the new rows, the batch's row.
    """
    with named_failures():
        recorded: int | None = connection.execute(
            sa.text("SELECT forebay.record_batch_inputs(:pipeline, :time)"),
            {"pipeline": pipeline_id, "time": batch_time},
        ).scalar_one()
    return recorded


def input_metadata(
    connection: sa.Connection, pipeline_id: int, batch_time: datetime, *, limit: int | None = None
) -> InputMetadata:
    """Return what a batch read: as recorded, or computed from its links while its blocks are all there. No locks.

    Costs the batch's ranges, or its links before its first attempt. `limit`: the most ranges to return.
    """
    values = {"pipeline": pipeline_id, "time": batch_time, "limit": limit}
    with named_failures():
        batch = connection.execute(
            sa.text("""
                SELECT b.inputs,
                    b.records = (
                        SELECT coalesce(sum(a.records), 0)
                        FROM forebay.batch_allocations a
                        JOIN forebay.receivers r ON r.id = a.receiver_id
                        WHERE a.pipeline_id = b.pipeline_id
                          AND a.batch_time = b.batch_time
                          AND lower(a.sequences) > r.low_mark
                    ) AS has_links
                FROM forebay.batches b
                WHERE b.pipeline_id = :pipeline AND b.batch_time = :time
            """),
            values,
        ).one_or_none()
        if batch is None or (batch.inputs is None and not batch.has_links):
            return InputMetadata((), 0, (), known=False)
        source = (
            "forebay.batch_inputs_of(:pipeline, :time)"
            if batch.inputs is None
            else "(SELECT * FROM forebay.batch_inputs WHERE pipeline_id = :pipeline AND batch_time = :time)"
        )
        rows = connection.execute(
            sa.text(f"""
                SELECT s.name, i.source, i.partition, i.generation, i.from_offset, i.to_offset, i.lost,
                    count(*) OVER () AS total
                FROM {source} AS i
                JOIN forebay.streams s ON s.id = i.stream_id
                ORDER BY s.name, i.source, length(i.partition), i.partition, i.generation, i.from_offset
                LIMIT :limit
            """),  # noqa: S608  our own text
            values,
        ).all()
        without = (
            connection.execute(
                sa.text(f"""
                    SELECT DISTINCT s.name
                    FROM forebay.batch_allocations a
                    JOIN forebay.receivers r ON r.id = a.receiver_id
                    JOIN forebay.streams s ON s.id = r.stream_id
                    WHERE a.pipeline_id = :pipeline
                      AND a.batch_time = :time
                      AND a.records > 0
                      AND s.id NOT IN (SELECT i.stream_id FROM {source} AS i)
                    ORDER BY s.name
                """),  # noqa: S608  our own text
                values,
            )
            .scalars()
            .all()
        )
    return InputMetadata([InputRange(*row[:-1]) for row in rows], rows[0].total if rows else 0, without, known=True)
