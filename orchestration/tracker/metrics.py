"""Write `/metrics`: one look at the driver log, in Prometheus' text format.

Owns the metrics' names. `streaming_*` are the gauges of the original's StreamingSource (O01) under its own names, one
series per pipeline; a missing value is -1, as in the original. `forebay_*` are ours: seconds, bytes, counters that end
in `_total`, and no series where there is no value. `forebay_stream_*` with the label `stream` alone are sums of all
receivers of the stream; a limit bounds how many receivers have samples of their own, because a page of ten thousand
costs its reader and its writer seconds. Pure: it reads nothing itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from orchestration.tracker.streaming_api import delays, epoch_ms
from tracker_store.states import PipelineState, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from orchestration.tracker.streaming_progress import PipelineProgress, Progress, ReceiverProgress
    from tracker_store.streaming_statistics import WatchedBatch

MISSING = -1
#: The default of FOREBAY_METRICS_MAX_RECEIVERS.
MAX_RECEIVERS = 1_000

_PIPELINE = ("pipeline",)
_RECEIVER = ("stream", "receiver")
_READER = ("reader", "stream")
_STREAM = ("pipeline", "stream")
_SUM = ("stream",)

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
    "forebay_stream_receivers": ((*_SUM, "state"), "Receivers of the stream in this state"),
    "forebay_stream_hindered_receivers": (_SUM, "Receivers of the stream that are hindered, as below"),
    "forebay_stream_degraded_receivers": (_SUM, "Receivers of the stream that are degraded, as below"),
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
    "forebay_receiver_hindered": (
        _RECEIVER,
        "1 while it holds data and could store or register none of it for progress_timeout; its reason says why",
    ),
    "forebay_receiver_degraded": (
        _RECEIVER,
        "1 while it does not get all of its source: it can't reach it, or can't read some of it; its reason says why",
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


def _labels(**values: str) -> str:
    """Return labels as the text format has them: in order of their names, with escapes."""
    found = (f'{name}="{_escaped(value)}"' for name, value in sorted(values.items()))
    return "{" + ",".join(found) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class _Page:
    """The lines of each metric. Text from the beginning: an object for each of 38,000 samples costs half a second."""

    def __init__(self, term: int | None, lease_ages: Mapping[int, float], max_receivers: int) -> None:
        self._term = term
        self._lease_ages = lease_ages
        self._max_receivers = max_receivers
        self._samples: dict[str, list[str]] = {name: [] for name in METRICS}

    def text(self, progress: Progress | None) -> bytes:
        """Return all metrics that there are at this look."""
        self._put("forebay_driver_log_up", progress is not None)
        self._put("forebay_tracker_leading", self._term is not None)
        self._put("forebay_leadership_term", self._term)
        lines: list[str] = []
        if progress is not None:
            self._pipelines(progress)
            self._receivers(progress.receivers)
            lines += self._streaming_source(progress)
        for name in _FOREBAY:
            kind, _, help_text = METRICS[name]
            lines += self._metric(name, kind, help_text, self._samples[name])
        return "".join(lines).encode()

    @staticmethod
    def _metric(name: str, kind: str, help_text: str, samples: Sequence[str]) -> list[str]:
        return [f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n", *samples]

    def _put(self, name: str, value: float | None, labels: str = "") -> None:
        if value is not None:
            self._samples[name].append(f"{name}{labels} {float(value)!r}\n")

    def _streaming_source(self, progress: Progress) -> Iterator[str]:
        values = [(_labels(pipeline=each.pipeline.name), streaming_source(each)) for each in progress.pipelines]
        for name, help_text in STREAMING_SOURCE.items():
            full = f"streaming_{name}"
            yield from self._metric(
                full, "gauge", help_text, [f"{full}{labels} {float(gauges[name])!r}\n" for labels, gauges in values]
            )

    def _pipelines(self, progress: Progress) -> None:
        put = self._put
        for pipeline in progress.pipelines:
            put("forebay_quarantined_batches_total", pipeline.quarantined, _labels(pipeline=pipeline.pipeline.name))
        for status in progress.statuses:
            for state in PipelineState:
                labels = _labels(pipeline=status.pipeline, state=state.value)
                put("forebay_pipeline_state", status.state == state, labels)
            held = 0 if status.holds_back_for is None else status.holds_back_for.total_seconds()
            put("forebay_pipeline_holds_back_seconds", held, _labels(pipeline=status.pipeline))
        for lag in progress.lags:
            labels = _labels(pipeline=lag.pipeline, stream=lag.stream)
            put("forebay_stream_waiting_blocks", lag.waiting_blocks, labels)
            put("forebay_stream_waiting_records", lag.waiting_records, labels)
            put("forebay_stream_waiting_bytes", lag.waiting_bytes, labels)
            put("forebay_stream_lag_seconds", 0 if lag.lag is None else lag.lag.total_seconds(), labels)
        for reader in progress.readers:
            labels = _labels(reader=reader.reader, stream=reader.stream)
            put("forebay_reader_waiting_records", reader.waiting_records, labels)
            put("forebay_reader_waiting_bytes", reader.waiting_bytes, labels)
        for stored in progress.codecs:
            labels = _labels(codec=stored.codec, stream=stored.stream)
            put("forebay_stream_stored_blocks_total", stored.blocks, labels)
            put("forebay_stream_stored_bytes_total", stored.bytes, labels)

    def _receivers(self, receivers: Sequence[ReceiverProgress]) -> None:
        of_streams: dict[str, list[ReceiverProgress]] = {}
        for receiver in receivers:
            of_streams.setdefault(receiver.counters.stream, []).append(receiver)
        for stream, of_stream in of_streams.items():
            self._sums(stream, of_stream)
        # The oldest: a new receiver ends no series, whatever its stream's name.
        sampled = sorted(receivers, key=lambda receiver: receiver.counters.receiver_id)[: self._max_receivers]
        self._put("forebay_receivers_without_samples", len(receivers) - len(sampled))
        for receiver in sampled:
            self._receiver(receiver)

    def _sums(self, stream: str, receivers: Sequence[ReceiverProgress]) -> None:
        put = self._put
        rows = [receiver.counters for receiver in receivers]
        labels = _labels(stream=stream)
        states = Counter([row.state for row in rows])
        for state in ReceiverState:
            # As `_labels` would write it.
            put("forebay_stream_receivers", states[state], f'{{state="{state.value}",{labels[1:]}')
        put("forebay_stream_hindered_receivers", sum([row.hindered for row in rows]), labels)
        put("forebay_stream_degraded_receivers", sum([row.degraded for row in rows]), labels)
        put("forebay_stream_records_total", sum([row.records for row in rows]), labels)
        put("forebay_stream_bytes_total", sum([row.bytes for row in rows]), labels)
        records = [one.records_per_second for one in receivers if one.records_per_second is not None]
        put("forebay_stream_records_per_second", sum(records) if records else None, labels)
        nbytes = [one.bytes_per_second for one in receivers if one.bytes_per_second is not None]
        put("forebay_stream_bytes_per_second", sum(nbytes) if nbytes else None, labels)
        put("forebay_stream_wal_bytes", sum([row.kept_bytes for row in rows]), labels)
        put("forebay_stream_queue_blocks", sum([row.queued or 0 for row in rows]), labels)
        put("forebay_stream_restarts_total", sum([one.restarts for one in receivers]), labels)
        put("forebay_stream_dead_letters_total", sum([one.dead_letters for one in receivers]), labels)
        put("forebay_stream_replica_problems_total", sum([one.replica_problems for one in receivers]), labels)

    def _receiver(self, receiver: ReceiverProgress) -> None:
        put = self._put
        row = receiver.counters
        ordinal, stream = _escaped(str(row.ordinal)), _escaped(row.stream)
        labels = f'{{receiver="{ordinal}",stream="{stream}"}}'
        put("forebay_receiver_records_total", row.records, labels)
        put("forebay_receiver_bytes_total", row.bytes, labels)
        put("forebay_receiver_records_per_second", receiver.records_per_second, labels)
        put("forebay_receiver_bytes_per_second", receiver.bytes_per_second, labels)
        for state in ReceiverState:
            in_state = f'{{receiver="{ordinal}",state="{state.value}",stream="{stream}"}}'
            put("forebay_receiver_state", row.state is state, in_state)
        put("forebay_receiver_hindered", row.hindered, labels)
        put("forebay_receiver_degraded", row.degraded, labels)
        put("forebay_receiver_rate_limit", row.rate_limit, labels)
        age = None if row.process_id is None else self._lease_ages.get(row.process_id)
        put("forebay_receiver_lease_age_seconds", age, labels)
        put("forebay_receiver_wal_bytes", row.kept_bytes, labels)
        put("forebay_receiver_queue_blocks", row.queued, labels)
        put("forebay_receiver_restarts_total", receiver.restarts, labels)
        put("forebay_receiver_dead_letters_total", receiver.dead_letters, labels)
        put("forebay_receiver_replica_problems_total", receiver.replica_problems, labels)


def prometheus_text(
    progress: Progress | None, *, term: int | None, lease_ages: Mapping[int, float], max_receivers: int = MAX_RECEIVERS
) -> bytes:
    """Return the metrics as text. `progress`: None if the driver log does not answer; `term`: None if not leading."""
    return _Page(term, lease_ages, max_receivers).text(progress)
