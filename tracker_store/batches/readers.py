"""Read and write `readers` and their `cursors`: streaming queries that read a stream by cursors of their own.

A named reader has cursors like a pipeline's (docs/how-to/streaming-queries.md): clean-up keeps what it has not read,
and only its query's commits move the cursors, forward. Positions map a receiver to the next sequence to read; a
receiver without one is read from its first block. Everything read here is committed: a receiver's blocks are added in
the order of their sequences, so a read up to its newest row never misses a block that is added later.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import sqlalchemy as sa

from tracker_store.batches.pipelines import unknown_stream
from tracker_store.batches.received_block_tracker import AllocatedBlock
from tracker_store.connection.engine import named_failures
from tracker_store.connection.errors import READER_POSITION, DriverLogError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

ReaderStart = Literal["earliest", "latest"]
Positions = dict[int, int]

_REMOVED = (
    "Start the query again, and it goes on if nothing is lost: a named reader that was removed holds nothing back."
)
_OTHER_STREAM = (
    "Give the query another reader's name, or remove this one (`forebay readers`): a reader belongs to one stream."
)

# What each receiver of a reader's stream has from :positions on.
_WAITING = """
    SELECT r.id AS receiver_id, r.low_mark, coalesce(p.value::bigint, 1) AS first, newest.sequence AS newest,
        newest.total_records AS newest_records, first_row.total_records - first_row.records AS base_records
    FROM forebay.readers d
    JOIN forebay.receivers r ON r.stream_id = d.stream_id
    LEFT JOIN jsonb_each_text(CAST(:positions AS jsonb)) AS p ON p.key::bigint = r.id
    LEFT JOIN forebay.blocks first_row ON first_row.receiver_id = r.id
      AND first_row.sequence = coalesce(p.value::bigint, 1)
    LEFT JOIN LATERAL (
        SELECT b.sequence, b.total_records
        FROM forebay.blocks b
        WHERE b.receiver_id = r.id
        ORDER BY b.sequence DESC LIMIT 1
    ) AS newest ON true
    WHERE d.id = :reader
"""


@dataclass(frozen=True, slots=True)
class AttachedReader:
    """Hold an attached reader; `positions` are those of its cursors."""

    reader_id: int
    stream_id: int
    positions: Positions


@dataclass(frozen=True, slots=True)
class ReaderLag:
    """Hold a row of the view `reader_lag`."""

    reader: str
    stream: str
    waiting_blocks: int
    waiting_records: int
    waiting_bytes: int
    oldest_added_at: datetime | None
    moved_at: datetime
    attached_at: datetime


def attach_reader(
    connection: sa.Connection,
    *,
    name: str,
    stream: str,
    start: ReaderStart = "earliest",
    positions: Mapping[int, int] | None = None,
) -> AttachedReader:
    """Create the reader, or find it; a new one begins at `start`, or at the `positions` of a query's checkpoint.

    Locks: the stream's receivers FOR SHARE. Raises NotAppliedError, and DriverLogError where
    blocks at those positions are cleaned up.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT outcome, detail, reader_id
                FROM forebay.attach_reader(:name, :stream, :start, CAST(:positions AS jsonb))
            """),
            {
                "name": name,
                "stream": stream,
                "start": start,
                "positions": None if positions is None else _plain(positions),
            },
        ).one()
        if row.outcome != "attached":
            if row.outcome == "no stream":
                raise unknown_stream(connection, stream)
            raise DriverLogError(row.detail, READER_POSITION if row.outcome == "cleaned" else _OTHER_STREAM)
        cursors = connection.execute(
            sa.text("""
                SELECT d.stream_id, c.receiver_id, c.next_sequence
                FROM forebay.readers d
                LEFT JOIN forebay.cursors c ON c.consumer_id = d.id
                WHERE d.id = :reader
                ORDER BY c.receiver_id
            """),
            {"reader": row.reader_id},
        ).all()
    placed = {cursor.receiver_id: cursor.next_sequence for cursor in cursors if cursor.receiver_id is not None}
    return AttachedReader(row.reader_id, cursors[0].stream_id, placed)


def next_positions(
    connection: sa.Connection,
    reader_id: int,
    positions: Mapping[int, int],
    *,
    max_blocks: int | None = None,
    max_records: int | None = None,
) -> Positions:
    """Return the positions up to which there is something to read; unchanged where only markers wait.

    With a limit, each receiver that has something gets its share of the limit, and at least one block with records. No
    locks. Costs two probes per receiver, and with a limit the blocks that it lets through. Raises DriverLogError,
    and DriverLogError where the log does not hold what follows `positions`.
    """
    with named_failures():
        _check_not_removed(connection, reader_id)
        rows = connection.execute(sa.text(_WAITING), {"reader": reader_id, "positions": _plain(positions)}).all()
    for row in rows:
        _check_position(row.receiver_id, row.first, row.low_mark, row.newest)
    waiting = {
        row.receiver_id: row for row in rows if row.base_records is not None and row.newest_records > row.base_records
    }
    reached = dict(positions) | {receiver: row.newest + 1 for receiver, row in waiting.items()}
    if not waiting or (max_blocks is None and max_records is None):
        return reached
    with named_failures():
        cuts = connection.execute(
            sa.text("""
                SELECT w.receiver_id,
                    greatest(
                        least(
                            w.newest + 1, w.first + CAST(:blocks AS bigint),
                            (
                                SELECT b.sequence
                                FROM forebay.blocks b
                                WHERE b.receiver_id = w.receiver_id
                                  AND b.sequence >= w.first
                                  AND b.total_records > w.base + CAST(:records AS bigint)
                                ORDER BY b.sequence LIMIT 1
                            )
                        ),
                        1 + (
                            SELECT b.sequence
                            FROM forebay.blocks b
                            WHERE b.receiver_id = w.receiver_id AND b.sequence >= w.first AND b.records > 0
                            ORDER BY b.sequence LIMIT 1
                        )
                    ) AS next_sequence
                FROM unnest(
                    CAST(:receivers AS bigint[]), CAST(:firsts AS bigint[]), CAST(:newest AS bigint[]),
                    CAST(:bases AS bigint[])
                ) AS w (receiver_id, first, newest, base)
            """),
            {
                "blocks": None if max_blocks is None else max(1, max_blocks // len(waiting)),
                "records": None if max_records is None else max(1, max_records // len(waiting)),
                "receivers": list(waiting),
                "firsts": [row.first for row in waiting.values()],
                "newest": [row.newest for row in waiting.values()],
                "bases": [row.base_records for row in waiting.values()],
            },
        ).all()
    return reached | {cut.receiver_id: cut.next_sequence for cut in cuts}


def newest_positions(connection: sa.Connection, reader_id: int) -> Positions:
    """Return the next sequence after each receiver's newest row. No locks. Raises DriverLogError."""
    with named_failures():
        _check_not_removed(connection, reader_id)
        rows = connection.execute(sa.text(_WAITING), {"reader": reader_id, "positions": "{}"}).all()
    return {row.receiver_id: row.newest + 1 for row in rows if row.newest is not None}


def blocks_between(
    connection: sa.Connection, reader_id: int, start: Mapping[int, int], end: Mapping[int, int]
) -> list[AllocatedBlock]:
    """Return the blocks from `start` to before `end`, ordered by (receiver, sequence), without markers. No locks.

    Raises DriverLogError where the log does not hold all of them.
    """
    ranges = {
        receiver: (start.get(receiver, 1), past) for receiver, past in end.items() if past > start.get(receiver, 1)
    }
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT b.receiver_id, b.sequence, b.records, g.path, b.segment_id, b."offset", b.length, b.crc32c,
                    b.added_at, g.durability = 'ephemeral' AS ephemeral
                FROM unnest(
                    CAST(:receivers AS bigint[]), CAST(:firsts AS bigint[]), CAST(:ends AS bigint[])
                ) AS w (receiver_id, first, past)
                JOIN forebay.receivers r ON r.id = w.receiver_id
                JOIN forebay.readers d ON d.id = :reader AND d.stream_id = r.stream_id
                JOIN forebay.blocks b ON b.receiver_id = w.receiver_id AND b.sequence >= w.first AND b.sequence < w.past
                JOIN forebay.log_segments g ON g.id = b.segment_id
                ORDER BY b.receiver_id, b.sequence
            """),
            {
                "reader": reader_id,
                "receivers": list(ranges),
                "firsts": [first for first, _ in ranges.values()],
                "ends": [past for _, past in ranges.values()],
            },
        ).all()
        # Read after the blocks: what clean-up has not deleted by now existed when they were read.
        marks = connection.execute(sa.text(_WAITING), {"reader": reader_id, "positions": _plain(start)}).all()
    for mark in marks:
        if mark.receiver_id in ranges:
            _check_position(mark.receiver_id, mark.first, mark.low_mark, mark.newest)
            _check_position(mark.receiver_id, end[mark.receiver_id], mark.low_mark, mark.newest)
    return [AllocatedBlock.of(row) for row in rows]


def move_reader(connection: sa.Connection, reader_id: int, positions: Mapping[int, int]) -> None:
    """Release what lies before `positions`; a cursor never goes back.

    Locks: the reader's row, its cursors. Raises DriverLogError.
    """
    with named_failures():
        moved = connection.execute(
            sa.text("SELECT forebay.move_reader(:reader, CAST(:positions AS jsonb))"),
            {"reader": reader_id, "positions": _plain(positions)},
        ).scalar_one()
    if not moved:
        raise DriverLogError(f"reader {reader_id}", _REMOVED)


def list_readers(connection: sa.Connection) -> list[ReaderLag]:
    """Return each named reader with what waits for it. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT reader, stream, waiting_blocks, waiting_records, waiting_bytes, oldest_added_at, moved_at,
                    attached_at
                FROM forebay.reader_lag
                ORDER BY reader
            """)
        ).all()
    return [ReaderLag(*row) for row in rows]


def remove_reader(connection: sa.Connection, name: str) -> None:
    """Remove a reader, so that it holds nothing back. Locks: its row. Raises DriverLogError if there is none."""
    with named_failures():
        removed = connection.execute(
            sa.text(
                "UPDATE forebay.readers SET removed_at = clock_timestamp() WHERE name = :name AND removed_at IS NULL"
            ),
            {"name": name},
        ).rowcount
    if not removed:
        names = [row.reader for row in list_readers(connection)]
        raise UnknownNameError.of("reader", name, names, "`forebay readers` lists those that there are.")


def _plain(positions: Mapping[int, int]) -> str:
    return json.dumps({str(receiver): position for receiver, position in positions.items()})


def _check_not_removed(connection: sa.Connection, reader_id: int) -> None:
    row = connection.execute(
        sa.text("SELECT name FROM forebay.readers WHERE id = :reader AND removed_at IS NULL"), {"reader": reader_id}
    ).one_or_none()
    if row is None:
        raise DriverLogError(f"reader {reader_id} was removed while its query ran", _REMOVED)


def _check_position(receiver_id: int, position: int, low_mark: int, newest: int | None) -> None:
    if position <= low_mark:
        raise DriverLogError(
            f"receiver {receiver_id}: blocks {position} to {low_mark} are cleaned up, and the checkpoint has not read "
            "them",
            READER_POSITION,
        )
    if position > (newest or 0) + 1:
        raise DriverLogError(
            f"receiver {receiver_id}: the checkpoint is at block {position}, and the newest in the driver log is "
            f"{newest or 0} (was it restored from a backup?)",
            READER_POSITION,
        )
