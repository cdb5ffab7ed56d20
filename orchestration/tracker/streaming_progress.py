"""What has happened, for who watches: the counts of the original's StreamingJobProgressListener, out of the driver log.

Owns the totals that no row holds: they are added up in this process, from the newest finished batches that it finds at
its first look on, so that a look costs what is new and never the history. It decides nothing, and writes nothing.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tracker_store import streaming_statistics as store
from tracker_store.readers import ReaderLag, list_readers
from tracker_store.states import BatchState
from tracker_store.status import PipelineStatus, StreamLag, pipeline_status, stream_lag

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import sqlalchemy as sa

    from tracker_store.streaming_statistics import (
        Added,
        ReceiverCounters,
        UnfinishedBatches,
        WatchedBatch,
        WatchedPipeline,
    )

# spark.streaming.ui.retainedBatches
RETAINED_BATCHES = 1000
# Who looks more often than this gets the same answer again.
SAME_LOOK_SECONDS = 1.0


@dataclass(slots=True)
class BatchTotals:
    """A pipeline's finished batches, counted from `since` on."""

    since: datetime
    completed: int = 0
    quarantined: int = 0
    records: int = 0
    # Everything up to here is counted.
    counted_to: datetime | None = None
    newest: WatchedBatch | None = None

    def count(self, batches: Sequence[WatchedBatch]) -> None:
        """Add batches that come after those counted, in order of time."""
        for batch in batches:
            # As in the original, a batch that failed for good is done, too.
            self.completed += 1
            self.quarantined += batch.state is BatchState.QUARANTINED
            self.records += batch.records
            self.counted_to = batch.batch_time
            self.newest = batch


@dataclass(frozen=True, slots=True)
class PipelineProgress:
    """A pipeline at one look; `completed` counts finished batches since `since`, `processed_records` theirs."""

    pipeline: WatchedPipeline
    since: datetime
    completed: int
    quarantined: int
    processed_records: int
    unfinished: UnfinishedBatches
    last_completed: WatchedBatch | None
    last_received: WatchedBatch | None

    @property
    def retained(self) -> int:
        """How many completed batches the averages and lists go back."""
        return min(self.completed, RETAINED_BATCHES)

    @property
    def waiting(self) -> int:
        """Batches that wait, those among them that are due and not allocated yet.

        The original generates each at its time; here the next is allocated when the one before it is done.
        """
        return self.pipeline.due + self.unfinished.waiting

    @property
    def unprocessed(self) -> int:
        """Batches that wait or run."""
        return self.waiting + self.unfinished.running

    @property
    def received_records(self) -> int:
        """Records of the batches that have been started (the original adds a batch's at its start)."""
        return self.processed_records + self.unfinished.started_records


@dataclass(frozen=True, slots=True)
class ReceiverProgress:
    """A receiver at one look; rates are since the look before, and null at the first; the rest since the first."""

    counters: ReceiverCounters
    records_per_second: float | None
    bytes_per_second: float | None
    restarts: int
    dead_letters: int
    replica_problems: int


@dataclass(frozen=True, slots=True)
class Progress:
    """All that one look found."""

    pipelines: Sequence[PipelineProgress]
    receivers: Sequence[ReceiverProgress]
    lags: Sequence[StreamLag]
    statuses: Sequence[PipelineStatus]
    readers: Sequence[ReaderLag]


@dataclass(slots=True)
class _Growing:
    """Counts rows of a table that only grows."""

    after: int | None = None
    settled: dict[int, int] = field(default_factory=dict)
    recent: Mapping[int, int] = field(default_factory=dict)

    def add(self, added: Added) -> None:
        for receiver_id, count in added.settled.items():
            self.settled[receiver_id] = self.settled.get(receiver_id, 0) + count
        self.recent = added.recent
        self.after = added.settled_id

    def total(self, receiver_id: int) -> int:
        return self.settled.get(receiver_id, 0) + self.recent.get(receiver_id, 0)


class StreamingProgress:
    """Looks at the driver log when asked. Any thread; one looks at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._totals: dict[int, BatchTotals] = {}
        self._restarts = _Growing()
        self._dead_letters = _Growing()
        self._replica_problems = _Growing()
        self._counters: dict[int, ReceiverCounters] = {}
        self._looked_at: float | None = None
        self._seen: Progress | None = None

    def look(self, connect: Callable[[], AbstractContextManager[sa.Connection]]) -> Progress:
        """What there is now, or was a moment ago. `connect` is called only when the driver log is to be asked.

        Raises what the driver log's statements raise; the next look goes on from the last that succeeded.
        """
        with self._lock:
            now = self._clock()
            if self._seen is None or self._looked_at is None or now - self._looked_at >= SAME_LOOK_SECONDS:
                with connect() as connection:
                    self._seen = self._look(connection, now)
                self._looked_at = now
            return self._seen

    def _look(self, connection: sa.Connection, now: float) -> Progress:
        pipelines = store.watched_pipelines(connection)
        unfinished = store.count_unfinished_batches(connection)
        none = store.UnfinishedBatches(0, 0, 0)
        self._totals = {pipeline.pipeline_id: self._counted(connection, pipeline.pipeline_id) for pipeline in pipelines}
        self._restarts.add(store.restarts_after(connection, self._restarts.after))
        self._dead_letters.add(store.dead_letters_after(connection, self._dead_letters.after))
        self._replica_problems.add(store.replica_problems_after(connection, self._replica_problems.after))
        counters = store.receiver_counters(connection)
        progress = Progress(
            [
                self._pipeline(connection, pipeline, unfinished.get(pipeline.pipeline_id, none))
                for pipeline in pipelines
            ],
            [self._receiver(row, now) for row in counters],
            stream_lag(connection),
            pipeline_status(connection),
            list_readers(connection),
        )
        self._counters = {row.receiver_id: row for row in counters}
        return progress

    def _counted(self, connection: sa.Connection, pipeline_id: int) -> BatchTotals:
        totals = self._totals.get(pipeline_id)
        if totals is None or totals.counted_to is None:
            found = store.newest_finished_batches(connection, pipeline_id, limit=RETAINED_BATCHES)
            if totals is None or found:
                since = found[0].batch_time if found else datetime.now(UTC)
                totals = BatchTotals(since)
                totals.count(found)
            return totals
        while True:
            found = store.next_finished_batches(
                connection, pipeline_id, after=totals.counted_to, limit=RETAINED_BATCHES
            )
            totals.count(found)
            if len(found) < RETAINED_BATCHES:
                return totals

    def _pipeline(
        self, connection: sa.Connection, pipeline: WatchedPipeline, unfinished: UnfinishedBatches
    ) -> PipelineProgress:
        totals = self._totals[pipeline.pipeline_id]
        received = store.newest_batches(connection, pipeline.pipeline_id, limit=1)
        return PipelineProgress(
            pipeline,
            totals.since,
            totals.completed,
            totals.quarantined,
            totals.records,
            unfinished,
            totals.newest,
            received[0] if received else None,
        )

    def _receiver(self, row: ReceiverCounters, now: float) -> ReceiverProgress:
        before = self._counters.get(row.receiver_id)
        records_per_second = bytes_per_second = None
        if before is not None and self._looked_at is not None:
            seconds = now - self._looked_at
            records_per_second = max(0, row.records - before.records) / seconds
            bytes_per_second = max(0, row.bytes - before.bytes) / seconds
        return ReceiverProgress(
            row,
            records_per_second,
            bytes_per_second,
            self._restarts.total(row.receiver_id),
            self._dead_letters.total(row.receiver_id),
            self._replica_problems.total(row.receiver_id),
        )
