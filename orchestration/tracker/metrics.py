"""`/metrics`: what a look found, in Prometheus' text format.

Owns the metrics' names. `streaming_*` are the gauges of the original's StreamingSource (O01) under its own names, a
pipeline each; where the original says -1 for what is missing, so does this. `forebay_*` are ours: seconds, bytes,
counters that end in `_total`, and no value where there is none. Pure; it asks nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from orchestration.tracker.streaming_api import delays, epoch_ms
from tracker_store.states import PipelineState, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from orchestration.tracker.streaming_progress import PipelineProgress, Progress, ReceiverProgress
    from tracker_store.streaming_statistics import WatchedBatch

MISSING = -1

_PIPELINE = ("pipeline",)
_RECEIVER = ("stream", "receiver")
_READER = ("reader", "stream")
_STREAM = ("pipeline", "stream")

#: The original's gauges: name and meaning.
STREAMING_SOURCE: Mapping[str, str] = {
    "receivers": "Receivers of the streams that the pipeline reads",
    "totalCompletedBatches": "Batches that are done, those that failed for good among them",
    "totalReceivedRecords": "Records of the batches that have been started",
    "totalProcessedRecords": "Records of the batches that are done",
    "unprocessedBatches": "Batches that wait or run",
    "waitingBatches": "Batches that wait: due, or allocated, for their first attempt or another one",
    "runningBatches": "Batches that run",
    "retainedCompletedBatches": "Batches over which the JSON API's averages go, at most",
    "lastCompletedBatch_submissionTime": "When the newest batch that is done was allocated, in ms since 1970",
    "lastCompletedBatch_processingStartTime": "When its newest attempt started, in ms since 1970",
    "lastCompletedBatch_processingEndTime": "When it was done, in ms since 1970",
    "lastCompletedBatch_processingDelay": "How long that attempt took, in ms",
    "lastCompletedBatch_schedulingDelay": "How long after its batch time that attempt started, in ms",
    "lastCompletedBatch_totalDelay": "How long after its batch time it was done, in ms",
    "lastReceivedBatch_submissionTime": "When the newest batch of all was allocated, in ms since 1970",
    "lastReceivedBatch_processingStartTime": "When its newest attempt started, in ms since 1970",
    "lastReceivedBatch_processingEndTime": "When it was done, in ms since 1970",
    "lastReceivedBatch_records": "Its records",
}

#: Ours: name, type, labels, meaning.
FOREBAY: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "forebay_driver_log_up": ("gauge", (), "Whether the driver log answered; 0: only this and the next two are there"),
    "forebay_tracker_leading": ("gauge", (), "Whether this tracker leads"),
    "forebay_leadership_term": ("gauge", (), "The term in which this tracker leads; none where it does not"),
    "forebay_quarantined_batches_total": ("counter", _PIPELINE, "Batches that failed for good and wait for a person"),
    "forebay_pipeline_state": ("gauge", (*_PIPELINE, "state"), "1 for the state that it is in, 0 for the others"),
    "forebay_pipeline_holds_back_seconds": (
        "gauge",
        _PIPELINE,
        "So long it has completed nothing while blocks wait, which clean-up must keep; 0 where nothing waits",
    ),
    "forebay_stream_waiting_blocks": ("gauge", _STREAM, "Blocks that no batch of the pipeline has yet"),
    "forebay_stream_waiting_records": ("gauge", _STREAM, "Records in them"),
    "forebay_stream_waiting_bytes": ("gauge", _STREAM, "The same in bytes as stored"),
    "forebay_stream_lag_seconds": ("gauge", _STREAM, "Age of the oldest of them; 0 where nothing waits"),
    "forebay_reader_waiting_records": (
        "gauge",
        _READER,
        "Records that its query has not committed, the last batch's too",
    ),
    "forebay_reader_waiting_bytes": ("gauge", _READER, "The same in bytes as stored, which clean-up must keep"),
    "forebay_receiver_records_total": ("counter", _RECEIVER, "Records registered in all its life"),
    "forebay_receiver_bytes_total": ("counter", _RECEIVER, "The same in bytes as stored"),
    "forebay_receiver_records_per_second": ("gauge", _RECEIVER, "Since the look before this one; none at the first"),
    "forebay_receiver_bytes_per_second": ("gauge", _RECEIVER, "The same in bytes as stored"),
    "forebay_receiver_state": ("gauge", (*_RECEIVER, "state"), "1 for the state that it is in, 0 for the others"),
    "forebay_receiver_hindered": (
        "gauge",
        _RECEIVER,
        "1 while it holds data and could store or register none of it for progress_timeout; its reason says why",
    ),
    "forebay_receiver_rate_limit": ("gauge", _RECEIVER, "Records per second it may take in; none where unlimited"),
    "forebay_receiver_lease_age_seconds": (
        "gauge",
        _RECEIVER,
        "Since its process's heartbeat counter moved, as the leading tracker sees it; none on others",
    ),
    "forebay_receiver_wal_bytes": ("gauge", _RECEIVER, "Bytes of its blocks that are not cleaned up"),
    "forebay_receiver_queue_blocks": (
        "gauge",
        _RECEIVER,
        "Blocks in its queue that are not stored yet, at its newest heartbeat; none where no process holds it",
    ),
    "forebay_receiver_restarts_total": ("counter", _RECEIVER, "Restarts and crashes, since this tracker's first look"),
    "forebay_receiver_dead_letters_total": (
        "counter",
        _RECEIVER,
        "Records set aside as not processable, since this tracker's first look",
    ),
    "forebay_receiver_replica_problems_total": (
        "counter",
        _RECEIVER,
        "Events of a replica found lost, damaged or lagging, since this tracker's first look",
    ),
}


def streaming_source(progress: PipelineProgress) -> dict[str, int]:
    """The original's gauges of one pipeline."""
    completed, received = progress.last_completed, progress.last_received
    return {
        "receivers": progress.pipeline.receivers,
        "totalCompletedBatches": progress.completed,
        "totalReceivedRecords": progress.received_records,
        "totalProcessedRecords": progress.processed_records,
        "unprocessedBatches": progress.unprocessed,
        "waitingBatches": progress.waiting,
        "runningBatches": progress.unfinished.running,
        "retainedCompletedBatches": progress.retained,
        **_times("lastCompletedBatch", completed),
        **_delays("lastCompletedBatch", completed),
        **_times("lastReceivedBatch", received),
        "lastReceivedBatch_records": 0 if received is None else received.records,
    }


def _times(prefix: str, batch: WatchedBatch | None) -> dict[str, int]:
    started = None if batch is None else batch.started_at
    # Until a batch is done, only an attempt of it may have ended.
    ended = None if batch is None or (batch.started_at is not None and delays(batch).total is None) else batch.ended_at
    return {
        f"{prefix}_submissionTime": MISSING if batch is None else epoch_ms(batch.allocated_at),
        f"{prefix}_processingStartTime": MISSING if started is None else epoch_ms(started),
        f"{prefix}_processingEndTime": MISSING if ended is None else epoch_ms(ended),
    }


def _delays(prefix: str, batch: WatchedBatch | None) -> dict[str, int]:
    found = None if batch is None else delays(batch)
    values = (None, None, None) if found is None else (found.processing, found.scheduling, found.total)
    return {
        f"{prefix}_{name}": MISSING if value is None else value
        for name, value in zip(("processingDelay", "schedulingDelay", "totalDelay"), values, strict=True)
    }


class _Found:
    """What prometheus_client asks for its metrics."""

    def __init__(self, progress: Progress | None, term: int | None, lease_ages: Mapping[int, float]) -> None:
        self._progress = progress
        self._term = term
        self._lease_ages = lease_ages

    def collect(self) -> Iterator[Metric]:
        families = {
            name: (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, help_text, labels=labels)
            for name, (kind, labels, help_text) in FOREBAY.items()
        }

        def put(name: str, value: float | None, *labels: str) -> None:
            if value is not None:
                families[name].add_metric(labels, value)

        put("forebay_driver_log_up", float(self._progress is not None))
        put("forebay_tracker_leading", float(self._term is not None))
        put("forebay_leadership_term", self._term)
        if self._progress is not None:
            yield from self._streaming_source(self._progress)
            for pipeline in self._progress.pipelines:
                put("forebay_quarantined_batches_total", pipeline.quarantined, pipeline.pipeline.name)
            for status in self._progress.statuses:
                for state in PipelineState:
                    put("forebay_pipeline_state", float(status.state == state), status.pipeline, state.value)
                held = 0 if status.holds_back_for is None else status.holds_back_for.total_seconds()
                put("forebay_pipeline_holds_back_seconds", held, status.pipeline)
            for lag in self._progress.lags:
                labels = (lag.pipeline, lag.stream)
                put("forebay_stream_waiting_blocks", lag.waiting_blocks, *labels)
                put("forebay_stream_waiting_records", lag.waiting_records, *labels)
                put("forebay_stream_waiting_bytes", lag.waiting_bytes, *labels)
                put("forebay_stream_lag_seconds", 0 if lag.lag is None else lag.lag.total_seconds(), *labels)
            for reader in self._progress.readers:
                put("forebay_reader_waiting_records", reader.waiting_records, reader.reader, reader.stream)
                put("forebay_reader_waiting_bytes", reader.waiting_bytes, reader.reader, reader.stream)
            for receiver in self._progress.receivers:
                self._receiver(receiver, put)
        yield from families.values()

    @staticmethod
    def _streaming_source(progress: Progress) -> Iterator[Metric]:
        values = {each.pipeline.name: streaming_source(each) for each in progress.pipelines}
        for name, help_text in STREAMING_SOURCE.items():
            family = GaugeMetricFamily(f"streaming_{name}", help_text, labels=_PIPELINE)
            for pipeline, gauges in values.items():
                family.add_metric((pipeline,), gauges[name])
            yield family

    def _receiver(self, receiver: ReceiverProgress, put: Callable[..., None]) -> None:
        row = receiver.counters
        labels = (row.stream, str(row.ordinal))
        put("forebay_receiver_records_total", row.records, *labels)
        put("forebay_receiver_bytes_total", row.bytes, *labels)
        put("forebay_receiver_records_per_second", receiver.records_per_second, *labels)
        put("forebay_receiver_bytes_per_second", receiver.bytes_per_second, *labels)
        for state in ReceiverState:
            put("forebay_receiver_state", float(row.state is state), *labels, state.value)
        put("forebay_receiver_hindered", float(row.hindered), *labels)
        put("forebay_receiver_rate_limit", row.rate_limit, *labels)
        age = None if row.process_id is None else self._lease_ages.get(row.process_id)
        put("forebay_receiver_lease_age_seconds", age, *labels)
        put("forebay_receiver_wal_bytes", row.kept_bytes, *labels)
        put("forebay_receiver_queue_blocks", row.queued, *labels)
        put("forebay_receiver_restarts_total", receiver.restarts, *labels)
        put("forebay_receiver_dead_letters_total", receiver.dead_letters, *labels)
        put("forebay_receiver_replica_problems_total", receiver.replica_problems, *labels)


def prometheus_text(progress: Progress | None, *, term: int | None, lease_ages: Mapping[int, float]) -> bytes:
    """The text format. `progress`: None while the driver log does not answer; `term`: None where it does not lead."""
    registry = CollectorRegistry()
    registry.register(_Found(progress, term, lease_ages))
    text: bytes = generate_latest(registry)
    return text
