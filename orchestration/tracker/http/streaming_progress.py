"""Count batches and records for monitoring, as the original's StreamingJobProgressListener, from the driver log.

Owns the totals that no row holds. They are added up in this process, starting with the newest finished batches at its
first look, so that the cost of a look depends on what is new and never on the history. It decides and writes nothing.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tracker_store.batches.readers import ReaderLag, list_readers
from tracker_store.reports import streaming_statistics as store
from tracker_store.reports.state_status import output_states
from tracker_store.reports.status import PipelineStatus, StreamLag, pipeline_status_with, stream_lag
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import sqlalchemy as sa

    from tracker_store.reports.state_status import OutputState
    from tracker_store.reports.streaming_statistics import (
        Added,
        ReceiverCounters,
        StreamCodec,
        UnfinishedBatches,
        WatchedBatch,
        WatchedPipeline,
    )

# spark.streaming.ui.retainedBatches
RETAINED_BATCHES = 1000
# Within this many seconds of a look, callers get the same answer again.
POLL_SECONDS = 1.0


@dataclass(slots=True)
class BatchTotals:
    """Counts of a pipeline's finished batches from `since` on."""

    since: datetime
    completed: int = 0
    quarantined: int = 0
    records: int = 0
    # Batch time of the newest counted batch.
    counted_to: datetime | None = None
    newest: WatchedBatch | None = None

    def count(self, batches: Sequence[WatchedBatch]) -> None:
        """Add batches that are newer than those already counted, in order of time."""
        for batch in batches:
            # As in the original, a batch that failed for good counts as completed.
            self.completed += 1
            self.quarantined += batch.state is BatchState.QUARANTINED
            self.records += batch.records
            self.counted_to = batch.batch_time
            self.newest = batch


@dataclass(frozen=True, slots=True)
class PipelineTotals:
    """Describe a pipeline at one look; `completed` and `processed_records` count finished batches since `since`."""

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
        """Return how many completed batches the averages and lists cover."""
        return min(self.completed, RETAINED_BATCHES)

    @property
    def waiting(self) -> int:
        """Return the number of batches that wait, including those that are due and not allocated yet.

        The original generates each batch at its time; here a batch is allocated when the one before it is finished.
        """
        return self.pipeline.due + self.unfinished.waiting

    @property
    def unprocessed(self) -> int:
        """Return the number of batches that wait or run."""
        return self.waiting + self.unfinished.running

    @property
    def received_records(self) -> int:
        """Return the records of the batches that have started (the original adds a batch's records at its start)."""
        return self.processed_records + self.unfinished.started_records


@dataclass(frozen=True, slots=True)
class ReceiverProgress:
    """Describe a receiver at one look. Rates are since the previous look, None at the first; counts since the first."""

    counters: ReceiverCounters
    records_per_second: float | None
    bytes_per_second: float | None
    restarts: int
    dead_letters: int
    replica_problems: int


@dataclass(frozen=True, slots=True)
class SystemProgress:
    """Everything that one look found."""

    pipelines: Sequence[PipelineTotals]
    receivers: Sequence[ReceiverProgress]
    lags: Sequence[StreamLag]
    statuses: Sequence[PipelineStatus]
    readers: Sequence[ReaderLag]
    codecs: Sequence[StreamCodec] = ()
    states: Sequence[OutputState] = ()


@dataclass(slots=True)
class _Growing:
    """Count the rows of an append-only table by receiver."""

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
    """Read progress from the driver log on request. Thread-safe; one thread looks at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without counts; `clock` is monotonic, in seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._totals: dict[int, BatchTotals] = {}
        self._restarts = _Growing()
        self._dead_letters = _Growing()
        self._replica_problems = _Growing()
        self._counters: dict[int, ReceiverCounters] = {}
        self._polled_at: float | None = None
        self._seen: SystemProgress | None = None

    def poll(self, connect: Callable[[], AbstractContextManager[sa.Connection]]) -> SystemProgress:
        """Return the current progress, at most POLL_SECONDS old. Call `connect` only if it must be read again.

        Raises what the driver log's statements raise; the next look continues from the last that succeeded.
        """
        with self._lock:
            now = self._clock()
            if self._seen is None or self._polled_at is None or now - self._polled_at >= POLL_SECONDS:
                with connect() as connection:
                    self._seen = self._read(connection, now)
                self._polled_at = now
            return self._seen

    def _read(self, connection: sa.Connection, now: float) -> SystemProgress:
        pipelines = store.watched_pipelines(connection)
        unfinished = store.count_unfinished_batches(connection)
        none = store.UnfinishedBatches(0, 0, 0)
        self._totals = self._counted(connection, [pipeline.pipeline_id for pipeline in pipelines])
        received = store.newest_batch_of_each(connection)
        self._restarts.add(store.restarts_after(connection, self._restarts.after))
        self._dead_letters.add(store.dead_letters_after(connection, self._dead_letters.after))
        self._replica_problems.add(store.replica_problems_after(connection, self._replica_problems.after))
        counters = store.receiver_counters(connection)
        lags = stream_lag(connection)
        progress = SystemProgress(
            [
                self._pipeline(pipeline, unfinished.get(pipeline.pipeline_id, none), received.get(pipeline.pipeline_id))
                for pipeline in pipelines
            ],
            [self._receiver(row, now) for row in counters],
            lags,
            pipeline_status_with(connection, lags),
            list_readers(connection),
            store.stream_codecs(connection),
            output_states(connection),
        )
        self._counters = {row.receiver_id: row for row in counters}
        return progress

    def _counted(self, connection: sa.Connection, pipeline_ids: Sequence[int]) -> dict[int, BatchTotals]:
        """Return the pipelines' totals up to now; one statement counts what is new of all that were counted before."""
        counted: dict[int, BatchTotals] = {}
        waiting: dict[int, datetime] = {}
        for pipeline_id in pipeline_ids:
            totals = self._totals.get(pipeline_id)
            if totals is not None and totals.counted_to is not None:
                waiting[pipeline_id] = totals.counted_to
            else:
                found = store.newest_finished_batches(connection, pipeline_id, limit=RETAINED_BATCHES)
                if totals is None or found:
                    totals = BatchTotals(found[0].batch_time if found else datetime.now(UTC))
                    totals.count(found)
            if totals is not None:
                counted[pipeline_id] = totals
        while waiting:
            new = store.next_finished_batches_of_each(connection, waiting, limit=RETAINED_BATCHES)
            for pipeline_id, batches in new.items():
                counted[pipeline_id].count(batches)
            waiting = {
                pipeline_id: batches[-1].batch_time
                for pipeline_id, batches in new.items()
                if len(batches) == RETAINED_BATCHES
            }
        return counted

    def _pipeline(
        self, pipeline: WatchedPipeline, unfinished: UnfinishedBatches, received: WatchedBatch | None
    ) -> PipelineTotals:
        totals = self._totals[pipeline.pipeline_id]
        return PipelineTotals(
            pipeline,
            totals.since,
            totals.completed,
            totals.quarantined,
            totals.records,
            unfinished,
            totals.newest,
            received,
        )

    def _receiver(self, row: ReceiverCounters, now: float) -> ReceiverProgress:
        before = self._counters.get(row.receiver_id)
        records_per_second = bytes_per_second = None
        if before is not None and self._polled_at is not None:
            seconds = now - self._polled_at
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
