"""Write `/metrics`: one look at the driver log, in Prometheus' text format.

Owns the metrics' names. `streaming_*` are the gauges of the original's StreamingSource (O01) under its own names, one
series per pipeline; a missing value is -1, as in the original. `forebay_*` are ours: seconds, bytes, counters that end
in `_total`, and no series where there is no value. Pure: it reads nothing itself.
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

#: The original's gauges: name and help text.
STREAMING_SOURCE: Mapping[str, str] = {
    "receivers": "Receivers of the streams that the pipeline reads",
    "totalCompletedBatches": "Finished batches, including those that failed for good",
    "totalReceivedRecords": "Records in batches that have been started",
    "totalProcessedRecords": "Records in finished batches",
    "unprocessedBatches": "Batches that wait or run",
    "waitingBatches": "Batches that wait: due, or allocated and waiting for an attempt",
    "runningBatches": "Batches that run",
    "retainedCompletedBatches": "Finished batches over which the JSON API averages (at most 1000)",
    "lastCompletedBatch_submissionTime": "When the newest finished batch was allocated, in ms since 1970",
    "lastCompletedBatch_processingStartTime": "When its newest attempt started, in ms since 1970",
    "lastCompletedBatch_processingEndTime": "When it finished, in ms since 1970",
    "lastCompletedBatch_processingDelay": "How long that attempt took, in ms",
    "lastCompletedBatch_schedulingDelay": "Time from its batch time to the start of that attempt, in ms",
    "lastCompletedBatch_totalDelay": "Time from its batch time to its end, in ms",
    "lastReceivedBatch_submissionTime": "When the newest batch, finished or not, was allocated, in ms since 1970",
    "lastReceivedBatch_processingStartTime": "When its newest attempt started, in ms since 1970",
    "lastReceivedBatch_processingEndTime": "When it finished, in ms since 1970",
    "lastReceivedBatch_records": "Records in the newest batch, finished or not",
}

#: Forebay's metrics: name, type, labels, help text.
FOREBAY: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "forebay_driver_log_up": ("gauge", (), "1 if the driver log answered; 0: only this and the next two exist"),
    "forebay_tracker_leading": ("gauge", (), "1 if this tracker leads, else 0"),
    "forebay_leadership_term": ("gauge", (), "Term in which this tracker leads; no value where it does not lead"),
    "forebay_quarantined_batches_total": ("counter", _PIPELINE, "Batches that failed for good and wait for a person"),
    "forebay_pipeline_state": ("gauge", (*_PIPELINE, "state"), "1 for the pipeline's state, 0 for the others"),
    "forebay_pipeline_holds_back_seconds": (
        "gauge",
        _PIPELINE,
        "Time for which it has completed no batch while blocks wait, which clean-up must keep; 0 where nothing waits",
    ),
    "forebay_stream_waiting_blocks": ("gauge", _STREAM, "Blocks not yet in a batch of the pipeline"),
    "forebay_stream_waiting_records": ("gauge", _STREAM, "Records in these blocks"),
    "forebay_stream_waiting_bytes": ("gauge", _STREAM, "Bytes of these blocks as stored"),
    "forebay_stream_lag_seconds": ("gauge", _STREAM, "Age of the oldest of these blocks; 0 where nothing waits"),
    "forebay_reader_waiting_records": (
        "gauge",
        _READER,
        "Records that its query has not committed, including those of its last batch",
    ),
    "forebay_reader_waiting_bytes": ("gauge", _READER, "Bytes of these records as stored; clean-up must keep them"),
    "forebay_receiver_records_total": ("counter", _RECEIVER, "Records registered since the receiver was created"),
    "forebay_receiver_bytes_total": ("counter", _RECEIVER, "Bytes of these records as stored"),
    "forebay_receiver_records_per_second": (
        "gauge",
        _RECEIVER,
        "Records registered per second since the previous look at the driver log; no value at the first look",
    ),
    "forebay_receiver_bytes_per_second": ("gauge", _RECEIVER, "The same in bytes as stored"),
    "forebay_receiver_state": ("gauge", (*_RECEIVER, "state"), "1 for the receiver's state, 0 for the others"),
    "forebay_receiver_hindered": (
        "gauge",
        _RECEIVER,
        "1 while it holds data and could store or register none of it for progress_timeout; its reason says why",
    ),
    "forebay_receiver_rate_limit": ("gauge", _RECEIVER, "Most records per second it may take; no value: unlimited"),
    "forebay_receiver_lease_age_seconds": (
        "gauge",
        _RECEIVER,
        "Time since its process's heartbeat counter last moved, seen by the leading tracker; no value on others",
    ),
    "forebay_receiver_wal_bytes": ("gauge", _RECEIVER, "Bytes of its blocks that are not cleaned up yet"),
    "forebay_receiver_queue_blocks": (
        "gauge",
        _RECEIVER,
        "Blocks in its queue that are not stored yet, at its newest heartbeat; no value where no process runs it",
    ),
    "forebay_receiver_restarts_total": ("counter", _RECEIVER, "Restarts and crashes, since this tracker's first look"),
    "forebay_receiver_dead_letters_total": (
        "counter",
        _RECEIVER,
        "Records written to the dead letters as not processable, since this tracker's first look",
    ),
    "forebay_receiver_replica_problems_total": (
        "counter",
        _RECEIVER,
        "Replicas found lost, damaged or lagging (events), since this tracker's first look",
    ),
}


def streaming_source(progress: PipelineProgress) -> dict[str, int]:
    """Return the values of the original's gauges for one pipeline."""
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
    # Before a batch is finished, `ended_at` is only the end of one of its attempts.
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
    """The collector that prometheus_client asks for the metrics."""

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
    """Return the metrics as text. `progress`: None if the driver log does not answer; `term`: None if not leading."""
    registry = CollectorRegistry()
    registry.register(_Found(progress, term, lease_ages))
    text: bytes = generate_latest(registry)
    return text
