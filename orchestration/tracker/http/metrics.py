"""Make the page of `/metrics` from one look at the driver log, in the format that the request asks for.

Owns the metrics' names. `streaming_*` are the gauges of the original's StreamingSource (O01) under its own names, one
series per pipeline; a missing value is -1, as in the original. `forebay_*` are ours: seconds, bytes, counters that end
in `_total`, and no series where there is no value. `forebay_stream_*` with the label `stream` alone are sums of all
receivers of the stream; a limit bounds how many receivers have samples of their own, because a page of ten thousand
costs its reader and its writer seconds. Pure: it reads nothing itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from orchestration.tracker.http.streaming_api import delays, epoch_ms
from tracker_store.schema.states import PipelineState, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from orchestration.tracker.http.streaming_progress import PipelineTotals, ReceiverProgress, SystemProgress
    from tracker_store.reports.streaming_statistics import WatchedBatch

    # A metric's name, its labels' values in the order of METRICS, and its value: None if there is no sample.
    _Sample = tuple[str, tuple[str, ...], float | None]

MISSING = -1
#: The default of FOREBAY_METRICS_MAX_RECEIVERS.
MAX_RECEIVERS = 1_000

_PIPELINE = ("pipeline",)
_RECEIVER = ("stream", "receiver")
_READER = ("reader", "stream")
_STREAM = ("pipeline", "stream")
_SUM = ("stream",)
_OUTPUT = ("pipeline", "output")
_UNREAD = (*_RECEIVER, "unit")
_UNREAD_SUM = (*_SUM, "unit")

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

# Forebay's metrics: name, labels, help text.
_FOREBAY: Mapping[str, tuple[tuple[str, ...], str]] = {
    "forebay_driver_log_up": ((), "1 if the driver log answered; 0: only this and the next two exist"),
    "forebay_tracker_leading": ((), "1 if this tracker leads, else 0"),
    "forebay_leadership_term": ((), "Term in which this tracker leads; no value where it does not lead"),
    "forebay_quarantined_batches_total": (_PIPELINE, "Batches that failed for good and wait for a person"),
    "forebay_pipeline_state": ((*_PIPELINE, "state"), "1 for the pipeline's state, 0 for the others"),
    "forebay_pipeline_holds_back_seconds": (
        _PIPELINE,
        "Time for which it has completed no batch while blocks wait, which clean-up must keep; 0 where nothing waits",
    ),
    "forebay_stream_waiting_blocks": (_STREAM, "Blocks not yet in a batch of the pipeline"),
    "forebay_stream_waiting_records": (_STREAM, "Records in these blocks"),
    "forebay_stream_waiting_bytes": (_STREAM, "Bytes of these blocks as stored"),
    "forebay_stream_lag_seconds": (_STREAM, "Age of the oldest of these blocks; 0 where nothing waits"),
    "forebay_reader_waiting_records": (
        _READER,
        "Records that its query has not committed, including those of its last batch",
    ),
    "forebay_reader_waiting_bytes": (_READER, "Bytes of these records as stored; clean-up must keep them"),
    "forebay_state_keys": (_OUTPUT, "Keys in the output's state; no value where it is not known"),
    "forebay_state_bytes": (_OUTPUT, "Bytes that the newest batch in the output's state has written of it"),
    "forebay_state_replay": (
        _OUTPUT,
        "1 while a replay forward of the output is not finished, for which its new batches wait, else 0",
    ),
    "forebay_watermark_lag_seconds": (
        _OUTPUT,
        "Time from the watermark of an output by event time to the newest batch in its state; no value: it has none",
    ),
    "forebay_late_records_total": (
        _OUTPUT,
        "Records that were too late for all their windows, of all batches in the output's state",
    ),
    "forebay_stream_receivers": ((*_SUM, "state"), "Receivers of the stream in this state"),
    "forebay_stream_degraded_receivers": (
        (*_SUM, "cause"),
        "Receivers of the stream that are degraded by this cause, as below",
    ),
    "forebay_stream_records_total": (_SUM, "Records registered by all its receivers, removed ones left out"),
    "forebay_stream_bytes_total": (_SUM, "Bytes of these records as stored"),
    "forebay_stream_stored_blocks_total": (
        (*_SUM, "codec"),
        "Blocks that its receivers stored with this codec (none: not compressed), counted when their segment is sealed",
    ),
    "forebay_stream_stored_bytes_total": ((*_SUM, "codec"), "Bytes of these blocks as stored"),
    "forebay_stream_records_per_second": (
        _SUM,
        "Records registered per second since the previous look at the driver log; no value at the first look",
    ),
    "forebay_stream_bytes_per_second": (_SUM, "The same in bytes as stored"),
    "forebay_stream_wal_bytes": (_SUM, "Bytes of its receivers' blocks that are not cleaned up yet"),
    "forebay_stream_queue_blocks": (_SUM, "Blocks in its receivers' queues that are not stored yet"),
    "forebay_stream_fetched_records": (_SUM, "Records that its receivers' clients have fetched and hold, as below"),
    "forebay_stream_partitions": (_SUM, "Partitions, files or queues that its receivers have said they read"),
    "forebay_stream_unread": (
        _UNREAD_SUM,
        "Records, bytes, files or messages (unit) that its source has and its receivers have not read, as they said",
    ),
    "forebay_stream_source_lag_seconds": (
        _SUM,
        "Age of the oldest of these at least: the source is this far ahead; no value where it is unknown",
    ),
    "forebay_stream_restarts_total": (_SUM, "Restarts and crashes of its receivers, since this tracker's first look"),
    "forebay_stream_dead_letters_total": (
        _SUM,
        "Records that could not be processed, kept as dead letters or counted only, since this tracker's first look",
    ),
    "forebay_stream_replica_problems_total": (
        _SUM,
        "Replicas found lost, damaged or lagging (events), since this tracker's first look",
    ),
    "forebay_receivers_without_samples": (
        (),
        "Receivers that have no series below, because there are more than FOREBAY_METRICS_MAX_RECEIVERS",
    ),
    "forebay_receiver_records_total": (_RECEIVER, "Records registered since the receiver was created"),
    "forebay_receiver_bytes_total": (_RECEIVER, "Bytes of these records as stored"),
    "forebay_receiver_records_per_second": (
        _RECEIVER,
        "Records registered per second since the previous look at the driver log; no value at the first look",
    ),
    "forebay_receiver_bytes_per_second": (_RECEIVER, "The same in bytes as stored"),
    "forebay_receiver_state": ((*_RECEIVER, "state"), "1 for the receiver's state, 0 for the others"),
    "forebay_receiver_degraded": (
        (*_RECEIVER, "cause"),
        (
            "1 while it is degraded: it does not get all of its source (cause source), or could store or register "
            "nothing of what it holds for progress_timeout (cause storing); its reason says more"
        ),
    ),
    "forebay_receiver_rate_limit": (_RECEIVER, "Most records per second it may take; no value: unlimited"),
    "forebay_receiver_lease_age_seconds": (
        _RECEIVER,
        "Time since its process's heartbeat counter last moved, seen by the leading tracker; no value on others",
    ),
    "forebay_receiver_wal_bytes": (_RECEIVER, "Bytes of its blocks that are not cleaned up yet"),
    "forebay_receiver_queue_blocks": (
        _RECEIVER,
        "Blocks in its queue that are not stored yet, at its newest heartbeat; no value where no process runs it",
    ),
    "forebay_receiver_fetched_records": (
        _RECEIVER,
        "Records that its Kafka, JetStream or AMQP client has fetched and holds, at its newest heartbeat",
    ),
    "forebay_receiver_partitions": (_RECEIVER, "Partitions, files or queues that it has said it reads"),
    "forebay_receiver_unread": (
        _UNREAD,
        "Records, bytes, files or messages (unit) that its source has and it has not read, as it last said",
    ),
    "forebay_receiver_source_lag_seconds": (
        _RECEIVER,
        "Age of the oldest of these at least: the source is this far ahead; no value where it is unknown",
    ),
    "forebay_receiver_restarts_total": (_RECEIVER, "Restarts and crashes, since this tracker's first look"),
    "forebay_receiver_dead_letters_total": (
        _RECEIVER,
        "Records that could not be processed, kept as dead letters or counted only, since this tracker's first look",
    ),
    "forebay_receiver_replica_problems_total": (
        _RECEIVER,
        "Replicas found lost, damaged or lagging (events), since this tracker's first look",
    ),
}
#: All metrics in the order of the page: name, type, labels, help text.
METRICS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    **{f"streaming_{name}": ("gauge", _PIPELINE, text) for name, text in STREAMING_SOURCE.items()},
    **{
        name: ("counter" if name.endswith("_total") else "gauge", labels, text)
        for name, (labels, text) in _FOREBAY.items()
    },
}
# What each receiver has as `forebay_receiver_*` and its stream, as the sum of all its receivers, as `forebay_stream_*`.
_SUMMED: Mapping[str, Callable[[ReceiverProgress], float | None]] = {
    "records_total": lambda receiver: receiver.counters.records,
    "bytes_total": lambda receiver: receiver.counters.bytes,
    "records_per_second": lambda receiver: receiver.records_per_second,
    "bytes_per_second": lambda receiver: receiver.bytes_per_second,
    "wal_bytes": lambda receiver: receiver.counters.kept_bytes,
    "queue_blocks": lambda receiver: receiver.counters.queued,
    "fetched_records": lambda receiver: receiver.counters.fetched,
    "partitions": lambda receiver: receiver.counters.partitions or None,
    "restarts_total": lambda receiver: receiver.restarts,
    "dead_letters_total": lambda receiver: receiver.dead_letters,
    "replica_problems_total": lambda receiver: receiver.replica_problems,
}


def streaming_source(progress: PipelineTotals) -> dict[str, int]:
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


def _samples(
    progress: SystemProgress | None, term: int | None, lease_ages: Mapping[int, float], max_receivers: int
) -> Iterator[_Sample]:
    yield "forebay_driver_log_up", (), progress is not None
    yield "forebay_tracker_leading", (), term is not None
    yield "forebay_leadership_term", (), term
    if progress is None:
        return
    yield from _pipelines(progress)
    of_streams: dict[str, list[ReceiverProgress]] = {}
    for receiver in progress.receivers:
        of_streams.setdefault(receiver.counters.stream, []).append(receiver)
    for stream, receivers in of_streams.items():
        yield from _stream((stream,), receivers)
    # The oldest: a new receiver ends no series, whatever its stream's name.
    sampled = sorted(progress.receivers, key=lambda receiver: receiver.counters.receiver_id)[:max_receivers]
    yield "forebay_receivers_without_samples", (), len(progress.receivers) - len(sampled)
    for receiver in sampled:
        yield from _receiver(receiver, lease_ages)


def _pipelines(progress: SystemProgress) -> Iterator[_Sample]:
    for pipeline in progress.pipelines:
        labels: tuple[str, ...] = (pipeline.pipeline.name,)
        for name, value in streaming_source(pipeline).items():
            yield f"streaming_{name}", labels, value
        yield "forebay_quarantined_batches_total", labels, pipeline.quarantined
    for status in progress.statuses:
        for state in PipelineState:
            yield "forebay_pipeline_state", (status.pipeline, state), status.state == state
        held = 0 if status.holds_back_for is None else status.holds_back_for.total_seconds()
        yield "forebay_pipeline_holds_back_seconds", (status.pipeline,), held
    for lag in progress.lags:
        labels = (lag.pipeline, lag.stream)
        yield "forebay_stream_waiting_blocks", labels, lag.waiting_blocks
        yield "forebay_stream_waiting_records", labels, lag.waiting_records
        yield "forebay_stream_waiting_bytes", labels, lag.waiting_bytes
        yield "forebay_stream_lag_seconds", labels, 0 if lag.lag is None else lag.lag.total_seconds()
    for reader in progress.readers:
        labels = (reader.reader, reader.stream)
        yield "forebay_reader_waiting_records", labels, reader.waiting_records
        yield "forebay_reader_waiting_bytes", labels, reader.waiting_bytes
    for kept in progress.states:
        labels = (kept.pipeline, kept.output)
        yield "forebay_state_keys", labels, kept.keys
        yield "forebay_state_bytes", labels, kept.bytes
        yield "forebay_state_replay", labels, kept.replay is not None
        lag_of_watermark = kept.watermark_lag
        yield (
            "forebay_watermark_lag_seconds",
            labels,
            None if lag_of_watermark is None else lag_of_watermark.total_seconds(),
        )
        yield "forebay_late_records_total", labels, kept.late_total
    for stored in progress.codecs:
        labels = (stored.stream, stored.codec)
        yield "forebay_stream_stored_blocks_total", labels, stored.blocks
        yield "forebay_stream_stored_bytes_total", labels, stored.bytes


def _stream(labels: tuple[str], receivers: Sequence[ReceiverProgress]) -> Iterator[_Sample]:
    rows = [receiver.counters for receiver in receivers]
    states = Counter([row.state for row in rows])
    for state in ReceiverState:
        yield "forebay_stream_receivers", (*labels, state), states[state]
    not_storing = sum([row.not_storing for row in rows])
    yield "forebay_stream_degraded_receivers", (*labels, "source"), sum([row.degraded for row in rows]) - not_storing
    yield "forebay_stream_degraded_receivers", (*labels, "storing"), not_storing
    for name, value_of in _SUMMED.items():
        values = [value for receiver in receivers if (value := value_of(receiver)) is not None]
        # Receivers without a process have empty queues, but those without a rate have not been seen twice.
        yield f"forebay_stream_{name}", labels, sum(values) if values or name == "queue_blocks" else None
    unread = [(row.unread_unit, row.unread) for row in rows if row.unread is not None]
    for unit in sorted({unit for unit, _ in unread if unit is not None}):
        yield "forebay_stream_unread", (*labels, unit), sum(amount for of, amount in unread if of == unit)
    yield (
        "forebay_stream_source_lag_seconds",
        labels,
        max((row.source_lag for row in rows if row.source_lag is not None), default=None),
    )


def _receiver(receiver: ReceiverProgress, lease_ages: Mapping[int, float]) -> Iterator[_Sample]:
    row = receiver.counters
    labels = (row.stream, str(row.ordinal))
    for name, value_of in _SUMMED.items():
        yield f"forebay_receiver_{name}", labels, value_of(receiver)
    if row.unread_unit is not None:
        yield "forebay_receiver_unread", (*labels, row.unread_unit), row.unread
    yield "forebay_receiver_source_lag_seconds", labels, row.source_lag
    for state in ReceiverState:
        yield "forebay_receiver_state", (*labels, state), row.state is state
    yield "forebay_receiver_degraded", (*labels, "source"), row.degraded and not row.not_storing
    yield "forebay_receiver_degraded", (*labels, "storing"), row.not_storing
    yield "forebay_receiver_rate_limit", labels, row.rate_limit
    age = None if row.process_id is None else lease_ages.get(row.process_id)
    yield "forebay_receiver_lease_age_seconds", labels, age


@dataclass(frozen=True, eq=False)
class _Collector:
    """Collect a page's samples into families, in the order of the reference."""

    samples: Iterable[_Sample]

    def collect(self) -> Iterable[Metric]:
        """Return all families, those without samples too."""
        families = {
            name: (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, text, labels=labels)
            for name, (kind, labels, text) in METRICS.items()
        }
        for name, labels, value in self.samples:
            if value is not None:
                families[name].add_metric(labels, value)
        return families.values()


def metrics_page(
    progress: SystemProgress | None,
    *,
    term: int | None,
    lease_ages: Mapping[int, float],
    max_receivers: int = MAX_RECEIVERS,
    accept: str = "",
) -> tuple[bytes, str]:
    """Return the page and its content type.

    `progress` is None if the driver log does not answer, `term` is None if this tracker does not lead. The page is in
    OpenMetrics if the request's header `accept` asks for that, else in Prometheus' text format.
    """
    try:
        encode, content_type = choose_encoder(accept)
    except TypeError:  # a version that is not made of numbers
        encode, content_type = choose_encoder("")
    registry = CollectorRegistry()
    registry.register(_Collector(_samples(progress, term, lease_ages, max_receivers)))
    return encode(registry), content_type
