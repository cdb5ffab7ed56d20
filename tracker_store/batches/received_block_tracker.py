"""Allocate received blocks to batches: the original's ReceivedBlockTracker (T01-T08), with its state in the driver log.

Allocation moves a cursor: ``functions/batches/allocate_blocks_to_batch.sql`` says what it decides and for how long that
holds. Nothing is kept in memory between calls.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tracker_store.blocks.blocks import BlockHandle
from tracker_store.connection.engine import named_failures
from tracker_store.connection.errors import BlocksNotRetainedError, DriverLogError, NotAppliedError
from tracker_store.schema.batch_calendar import BatchCalendar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracker_store.schema.batch_calendar import DecidedTimes
    from tracker_store.schema.declarations import WindowDeclaration, WindowTimes


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Hold a pipeline's boundaries by the database's clock: `next_due` has passed when it is at most `newest`.

    `due_at` is when the next boundary is due: at `next_due`, unless `set_back`. In that case the database's clock was
    set back, and `last` is more than an interval ahead of it; the next boundary is then due two intervals after the
    last batch was decided, whatever the boundary's time. `calendar` is None if they are multiples of the interval.
    """

    last: datetime
    next_due: datetime
    newest: datetime
    now: datetime
    due_at: datetime
    set_back: bool
    calendar: BatchCalendar | None = None


@dataclass(frozen=True, slots=True)
class AllocatedBlock:
    """Hold a block of a batch: `path` is its segment's, relative to the block store's root.

    An `ephemeral` one was never synced: a crash may have lost it.
    """

    receiver_id: int
    sequence: int
    records: int
    path: str
    handle: BlockHandle
    added_at: datetime
    ephemeral: bool = False

    @classmethod
    def of(cls, row: Any) -> AllocatedBlock:  # noqa: ANN401  a row has no type
        """Build one from a row with a block's columns, its segment's path, and whether it is ephemeral."""
        return cls(
            receiver_id=row.receiver_id,
            sequence=row.sequence,
            records=row.records,
            path=row.path,
            handle=BlockHandle(row.segment_id, row.offset, row.length, row.crc32c),
            added_at=row.added_at,
            ephemeral=row.ephemeral,
        )


# A pipeline's boundaries by the database's clock; a WHERE about `p` follows.
_TIMES = """
    SELECT p.id, p.batch_interval, p.last_batch_time AS last,
        coalesce(
            p.next_batch_time,
            date_bin(p.batch_interval, p.last_batch_time, timestamptz 'epoch') + p.batch_interval
        ) AS next_due,
        p.next_batch_time,
        date_bin(p.batch_interval, clock.now, timestamptz 'epoch') AS newest, clock.now,
        -- The same condition as in allocate_blocks_to_batch.
        p.last_batch_time > clock.now + p.batch_interval AS set_back,
        CASE
            WHEN b.allocated_at <= clock.now THEN b.allocated_at + 2 * p.batch_interval
            ELSE clock.now
        END AS paced
    FROM forebay.pipelines p
    LEFT JOIN forebay.batches b ON b.pipeline_id = p.id AND b.batch_time = p.last_batch_time,
        (SELECT clock_timestamp() AS now OFFSET 0) AS clock
"""


@dataclass(frozen=True, slots=True)
class DuePipelines:
    """Name by id the pipelines that need a launcher now: a boundary has passed, or an unfinished batch has no run yet.

    `next_due_in` is the time until the next boundary of the others (None: there is none). `any_short`: a pipeline has a
    short interval.
    """

    due: frozenset[int]
    unlaunched: frozenset[int]
    next_due_in: timedelta | None
    any_short: bool


def due_pipelines(connection: sa.Connection, *, short_below: timedelta, delay: timedelta) -> DuePipelines:
    """Return which of the pipelines that make batches need a launcher; intervals from `short_below` on are due later.

    They are due `delay` after their boundary. One row, whatever the number of pipelines; reads each live pipeline's row
    without its declaration, and its unfinished batches. No locks.
    """
    with named_failures():
        row = connection.execute(
            sa.text(f"""
                SELECT coalesce(array_agg(t.id) FILTER (WHERE t.due_in <= interval '0'), '{{}}') AS due,
                    coalesce(array_agg(t.id) FILTER (WHERE t.unlaunched), '{{}}') AS unlaunched,
                    min(t.due_in) FILTER (WHERE t.due_in > interval '0') AS next_due_in,
                    coalesce(bool_or(t.batch_interval < :short), false) AS any_short
                FROM (
                    SELECT times.id, times.batch_interval,
                        CASE WHEN times.set_back THEN times.paced ELSE times.next_due END - times.now
                            + CASE WHEN times.batch_interval < :short THEN interval '0' ELSE :delay END AS due_in,
                        EXISTS (
                            SELECT
                            FROM forebay.batches u
                            WHERE u.pipeline_id = times.id
                              AND u.state IN ('ALLOCATED', 'FAILED', 'BLOCKED')
                              AND u.launch_attempt IS DISTINCT FROM u.attempt + 1
                        ) AS unlaunched
                    FROM (
                        {_TIMES}
                        WHERE p.removed_at IS NULL AND p.state <> 'STOPPED' AND p.halted_by IS NULL
                    ) AS times
                ) AS t
            """),  # noqa: S608  a constant
            {"short": short_below, "delay": delay},
        ).one()
    return DuePipelines(frozenset(row.due), frozenset(row.unlaunched), row.next_due_in, row.any_short)


def batch_times(connection: sa.Connection, pipeline_id: int) -> BatchTimes:
    """Return the pipeline's last decided, next and newest boundary. No locks.

    Raises NotAppliedError, and DriverLogError for a time zone that this host does not know.
    """
    with named_failures():
        row = connection.execute(
            sa.text(f"""
                SELECT times.*, d.declaration -> 'calendar' AS calendar
                FROM (
                    {_TIMES}
                    WHERE p.id = :pipeline AND p.removed_at IS NULL
                ) AS times
                JOIN forebay.pipelines d ON d.id = times.id
            """),  # noqa: S608  a constant
            {"pipeline": pipeline_id},
        ).one_or_none()
    if row is None:
        raise NotAppliedError(f"pipeline {pipeline_id} is not in the driver log")
    calendar, next_due, newest = BatchCalendar.of(row.calendar), row.next_due, row.newest
    if calendar is not None:
        with known_zones():
            if row.next_batch_time is None:
                next_due = calendar.next_after(row.last)
            # The boundary in the row counts, whatever this host's rules say: another host may have decided it.
            newest = max(calendar.newest_up_to(row.now), next_due if next_due <= row.now else row.last)
    if not row.set_back:
        return BatchTimes(row.last, next_due, newest, row.now, next_due, set_back=False, calendar=calendar)
    newest = next_due if row.paced <= row.now else newest
    return BatchTimes(row.last, next_due, newest, row.now, row.paced, set_back=True, calendar=calendar)


@contextmanager
def known_zones() -> Iterator[None]:
    """Raise DriverLogError for a time zone that this host does not know, though the one that applied it does."""
    try:
        yield
    except ValueError as error:
        raise DriverLogError(
            str(error), "Install the package tzdata of the system or of PyPI on this host, in a version with the zone."
        ) from error


def _as_json(windows: Sequence[WindowDeclaration], times: Sequence[WindowTimes]) -> str | None:
    """Return the windows as `allocate_blocks_to_batch` reads them."""
    if times:
        return json.dumps([one.to_row() for one in times])
    if not windows:
        return None
    return json.dumps(
        [
            {
                "stream": window.stream,
                "length": _interval(window.length),
                "slide": None if window.slide is None else _interval(window.slide),
            }
            for window in windows
        ]
    )


def _interval(duration: timedelta) -> str:
    return f"{duration // timedelta(milliseconds=1)} ms"


class ReceivedBlockTracker:
    """Allocation of received blocks to the batches of one pipeline."""

    def __init__(self, connection: sa.Connection, pipeline_id: int) -> None:
        """Work for `pipeline_id` on `connection`; keeps no other state."""
        self._connection = connection
        self._pipeline_id = pipeline_id

    def allocate_blocks_to_batch(
        self,
        batch_time: datetime,
        *,
        oldest_time: datetime | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        run_empty: bool = False,
        windows: Sequence[WindowDeclaration] = (),
        window_times: Sequence[WindowTimes] = (),
        next_boundary: datetime | None = None,
        decided: DecidedTimes | None = None,
    ) -> None:
        """Allocate every block added before `batch_time` to the batch, once; repeating it changes nothing (T04).

        Args:
            batch_time: where the cut is, however late this is called.
            oldest_time: the oldest boundary that the batch covers, when missed ones are merged into it.
            max_records: cut each receiver's range at its share of this, but not before its first block with records.
            max_bytes: the same, in bytes as stored.
            run_empty: whether a batch without records runs.
            windows: for which of its windows it runs all the same if their content has changed.
            window_times: the same windows by the pipeline's calendar, in place of `windows`.
            next_boundary: the boundary after `batch_time` by the pipeline's calendar; None: it has none.
            decided: what the calendar decides with the batch.

        Locks: the pipeline's row. Raises DriverLogError for a time that has passed or has not come.
        """
        with named_failures():
            row = self._connection.execute(
                sa.text("""
                    SELECT outcome, detail
                    FROM forebay.allocate_blocks_to_batch(
                        :pipeline, :time, :oldest, :max_records, :max_bytes, :run_empty,
                        CAST(:windows AS jsonb), :next_boundary, CAST(:decided AS jsonb)
                    )
                """),
                {
                    "pipeline": self._pipeline_id,
                    "time": batch_time,
                    "oldest": oldest_time or batch_time,
                    "max_records": max_records,
                    "max_bytes": max_bytes,
                    "run_empty": run_empty,
                    "windows": _as_json(windows, window_times),
                    "next_boundary": next_boundary,
                    "decided": None if decided is None else json.dumps(decided.to_row()),
                },
            ).one()
        if row.outcome not in ("allocated", "decided before"):
            raise DriverLogError(
                row.detail,
                "Ask for a boundary that has passed and is after the last one: the batch can't be allocated at this "
                "time.",
            )

    def get_blocks_of_batch(self, batch_time: datetime) -> list[AllocatedBlock]:
        """Return every block of the batch, ordered by (receiver, sequence), without markers (T05). No locks."""
        return self._blocks(batch_time, batch_time, stream_id=None)

    def get_blocks_of_batch_and_stream(self, batch_time: datetime, stream_id: int) -> list[AllocatedBlock]:
        """Return the batch's blocks of one stream, ordered by (receiver, sequence) (T05). No locks."""
        return self._blocks(batch_time, batch_time, stream_id=stream_id)

    def whole_blocks_of_batch_and_stream(self, batch_time: datetime, stream_id: int) -> list[AllocatedBlock]:
        """Return the same blocks for reading; raises if some are missing, because a partial read would go unnoticed.

        No locks: what the batch was given never changes. Raises BlocksNotRetainedError.
        """
        blocks = self.get_blocks_of_batch_and_stream(batch_time, stream_id)
        with named_failures():
            found = self._connection.execute(
                sa.text("""
                    SELECT coalesce(sum(a.records) FILTER (WHERE r.stream_id = :stream), 0)::bigint AS allocated,
                        coalesce(sum(a.records), 0)::bigint AS left,
                        (
                            SELECT t.records FROM forebay.batches t
                            WHERE t.pipeline_id = :pipeline AND t.batch_time = :time
                        ) AS records
                    FROM forebay.batch_allocations a
                    JOIN forebay.receivers r ON r.id = a.receiver_id
                    WHERE a.pipeline_id = :pipeline AND a.batch_time = :time
                """),
                {"pipeline": self._pipeline_id, "time": batch_time, "stream": stream_id},
            ).one()
        there = sum(block.records for block in blocks)
        if there < found.allocated:
            raise BlocksNotRetainedError(
                f"batch {batch_time.isoformat()} can't be read: of its {found.allocated} records of stream "
                f"{stream_id}, {found.allocated - there} are no longer in the driver log"
            )
        # Of a range that went with its blocks, nothing says of which stream it was.
        if found.left < (found.records or 0):
            raise BlocksNotRetainedError(
                f"batch {batch_time.isoformat()} can't be read: of its {found.records} records, "
                f"{found.records - found.left} are no longer in the driver log"
            )
        return blocks

    def get_blocks_of_window_and_stream(
        self, batch_time: datetime, length: timedelta, stream_id: int
    ) -> list[AllocatedBlock]:
        """Return the blocks of one stream in all batches of the `length` that ends with `batch_time`. No locks."""
        # The window is (batch_time - length, batch_time]; batch times are whole microseconds.
        return self._blocks(batch_time - length + timedelta(microseconds=1), batch_time, stream_id=stream_id)

    def last_batch_of_output(
        self, batch_time: datetime, output: str, *, slide: timedelta | None, calendar_slide: str | None = None
    ) -> datetime | None:
        """Return the last batch before this one in which the output was due; `slide` None: it is due in any.

        With a `calendar_slide` it is due where that was decided with the batch.

        A batch that was COMPLETED without a run, because it had nothing new, is left out. One with a result counts
        whatever the slide was then. It is the same one for a replay. No locks; O(batches in a slide).
        """
        with named_failures():
            return self._connection.execute(
                sa.text("""
                    SELECT t.batch_time
                    FROM forebay.batches t
                    LEFT JOIN forebay.output_commits c
                      ON c.pipeline_id = t.pipeline_id AND c.batch_time = t.batch_time AND c.output = :output
                    WHERE t.pipeline_id = :pipeline
                      AND t.batch_time < :time
                      AND (
                          c.output IS NOT NULL
                          OR (t.state <> 'COMPLETED' OR t.attempt > 0) AND CASE
                              WHEN CAST(:calendar_slide AS text) IS NOT NULL
                              THEN coalesce((t.calendar -> 'slides' ->> CAST(:calendar_slide AS text))::boolean, false)
                              ELSE CAST(:slide AS interval) IS NULL
                                  OR date_bin(:slide, t.batch_time, to_timestamp(0)) = t.batch_time
                          END
                      )
                    ORDER BY t.batch_time DESC
                    LIMIT 1
                """),
                {
                    "pipeline": self._pipeline_id,
                    "time": batch_time,
                    "output": output,
                    "slide": None if calendar_slide is not None else slide,
                    "calendar_slide": calendar_slide,
                },
            ).scalar_one_or_none()

    def _blocks(self, first: datetime, last: datetime, *, stream_id: int | None) -> list[AllocatedBlock]:
        """Return the blocks of the batches from `first` to `last`."""
        with named_failures():
            rows = self._connection.execute(
                sa.text("""
                    SELECT b.receiver_id, b.sequence, b.records, g.path, b.segment_id, b."offset", b.length, b.crc32c,
                        b.added_at, g.durability = 'ephemeral' AS ephemeral
                    FROM forebay.batch_allocations a
                    JOIN forebay.receivers r ON r.id = a.receiver_id
                    JOIN forebay.blocks b ON b.receiver_id = a.receiver_id
                      AND b.sequence >= lower(a.sequences)
                      AND b.sequence < upper(a.sequences)
                    JOIN forebay.log_segments g ON g.id = b.segment_id
                    WHERE a.pipeline_id = :pipeline
                      AND a.batch_time BETWEEN :first AND :last
                      AND (CAST(:stream AS bigint) IS NULL OR r.stream_id = :stream)
                    ORDER BY receiver_id, sequence
                """),
                {"pipeline": self._pipeline_id, "first": first, "last": last, "stream": stream_id},
            ).all()
        return [AllocatedBlock.of(row) for row in rows]

    def has_unallocated_blocks(self) -> bool:
        """Return whether a block with records lies past the pipeline's cursors (T05). No locks; O(receivers)."""
        with named_failures():
            found: bool = self._connection.execute(
                sa.text("""
                    SELECT EXISTS (
                        SELECT 1
                        FROM forebay.stream_lag
                        WHERE pipeline_id = :pipeline AND waiting_records > 0
                    )
                """),
                {"pipeline": self._pipeline_id},
            ).scalar_one()
        return found
