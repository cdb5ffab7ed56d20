"""Build the JSON of the original's REST endpoints (O03) from the driver log's rows: field names, statuses, formats.

Pure: takes rows, returns values that JSON can hold. Missing values are left out, times are UTC to the millisecond, as
in Spark (org.apache.spark.status.api.v1.streaming).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tracker_store.schema.declarations import PipelineDeclaration
from tracker_store.schema.states import BatchState, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from orchestration.tracker.http.streaming_progress import PipelineTotals
    from tracker_store.reports.streaming_statistics import OutputResult, WatchedBatch, WatchedPipeline, WatchedReceiver

JsonObject = dict[str, Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
# The end time that Spark gives for an application that has not ended.
_NEVER = "1969-12-31T23:59:59.999GMT"


class BatchStatus(StrEnum):
    """Name a batch's status as the original does, which has these three."""

    COMPLETED = "COMPLETED"
    QUEUED = "QUEUED"
    PROCESSING = "PROCESSING"


STATUS: Mapping[BatchState, BatchStatus] = {
    BatchState.ALLOCATED: BatchStatus.QUEUED,
    BatchState.RUNNING: BatchStatus.PROCESSING,
    BatchState.COMPLETED: BatchStatus.COMPLETED,
    # Its next attempt waits.
    BatchState.FAILED: BatchStatus.QUEUED,
    BatchState.BLOCKED: BatchStatus.QUEUED,
    # In the original a batch that failed is completed, with failed operations.
    BatchState.QUARANTINED: BatchStatus.COMPLETED,
    BatchState.DISCARDED: BatchStatus.COMPLETED,
}
_FINISHED = (BatchState.COMPLETED, BatchState.QUARANTINED, BatchState.DISCARDED)


def milliseconds(duration: timedelta) -> int:
    """Return a duration in whole milliseconds."""
    return duration // _MILLISECOND


def epoch_ms(at: datetime) -> int:
    """Return a time in milliseconds since 1970, the number of a batch in the API."""
    return milliseconds(at - EPOCH)


def gmt(at: datetime) -> str:
    """Return a time in Spark's form."""
    at = at.astimezone(UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}GMT"


def present(fields: Mapping[str, Any]) -> JsonObject:
    """Return the fields whose value is not None."""
    return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Delays:
    """Hold a batch's delays in milliseconds; None while not known."""

    scheduling: int | None
    processing: int | None
    total: int | None


def delays(batch: WatchedBatch) -> Delays:
    """Return the delays of the newest attempt; scheduling and total delay count from the batch's oldest time."""
    if batch.started_at is None:
        return Delays(None, None, None)
    scheduling = milliseconds(batch.started_at - batch.oldest_time)
    if batch.state not in _FINISHED or batch.ended_at is None:
        return Delays(scheduling, None, None)
    return Delays(
        scheduling, milliseconds(batch.ended_at - batch.started_at), milliseconds(batch.ended_at - batch.oldest_time)
    )


def output_names(pipeline: WatchedPipeline) -> list[str]:
    """Return the names of the pipeline's outputs; an output operation's id is its index in this list."""
    return sorted(PipelineDeclaration.of(pipeline.declaration).outputs)


@dataclass(frozen=True, slots=True)
class OutputOperation:
    """One output of one batch: committed, or pending; `failed`: the attempt that was to write it has failed.

    `error` is its own newest failure; empty if none was recorded, because its process died or it was not run.
    """

    operation_id: int
    name: str
    commit: OutputResult | None
    active: bool
    failed: bool
    error: str = ""


def operations(
    pipeline: WatchedPipeline,
    batch: WatchedBatch,
    commits: Iterable[OutputResult],
    errors: Mapping[str, str] = MappingProxyType({}),
) -> list[OutputOperation]:
    """Return a batch's output operations. `errors` has the newest error of each output that has failed.

    A batch that ran nothing because it had no records has none.
    """
    committed = {commit.output: commit for commit in commits}
    found = []
    whole = PipelineDeclaration.of(pipeline.declaration)
    declared = whole.outputs
    for number, name in enumerate(output_names(pipeline)):
        commit = committed.get(name)
        due = declared[name].is_due(batch.batch_time, whole.calendar)
        # A completed batch has all its commits, so an output without one was declared later.
        if commit is None and (batch.state is BatchState.COMPLETED or not due):
            continue
        pending = commit is None
        found.append(
            OutputOperation(
                number,
                name,
                commit,
                active=pending and batch.state is BatchState.RUNNING,
                failed=pending and batch.state in (BatchState.FAILED, BatchState.QUARANTINED, BatchState.DISCARDED),
                error=errors.get(name, ""),
            )
        )
    return found


def application(pipeline: WatchedPipeline, now: datetime) -> JsonObject:
    """Return a pipeline in the form of an application in Spark's list."""
    started = pipeline.applied_at
    return {
        "id": pipeline.name,
        "name": pipeline.name,
        "attempts": [
            {
                "startTime": gmt(started),
                "endTime": _NEVER,
                "lastUpdated": gmt(now),
                "duration": max(0, milliseconds(now - started)),
                "sparkUser": "forebay",
                "completed": False,
                "appSparkVersion": version("pyspark"),
                "startTimeEpoch": epoch_ms(started),
                "endTimeEpoch": -1,
                "lastUpdatedEpoch": epoch_ms(now),
            }
        ],
    }


def _average(values: Sequence[int]) -> int | None:
    return int(sum(values) / len(values)) if values else None


def statistics(
    progress: PipelineTotals, retained: Sequence[WatchedBatch], receivers: Sequence[WatchedReceiver]
) -> JsonObject:
    """Return the answer to `streaming/statistics`; averages are over `retained` batches."""
    interval_ms = milliseconds(progress.pipeline.interval)
    active = sum(receiver.state is ReceiverState.ACTIVE for receiver in receivers)
    rates = [batch.records * 1000.0 / interval_ms for batch in retained]
    found = [delays(batch) for batch in retained]
    return present(
        {
            "startTime": gmt(progress.since),
            "batchDuration": interval_ms,
            "numReceivers": len(receivers),
            "numActiveReceivers": active,
            "numInactiveReceivers": len(receivers) - active,
            "numTotalCompletedBatches": progress.completed,
            "numRetainedCompletedBatches": progress.retained,
            "numActiveBatches": progress.unprocessed,
            "numProcessedRecords": progress.processed_records,
            "numReceivedRecords": progress.received_records,
            "avgInputRate": sum(rates) / len(rates) if rates else None,
            "avgSchedulingDelay": _average([delay.scheduling for delay in found if delay.scheduling is not None]),
            "avgProcessingTime": _average([delay.processing for delay in found if delay.processing is not None]),
            "avgTotalDelay": _average([delay.total for delay in found if delay.total is not None]),
        }
    )


def receiver_info(
    pipeline: WatchedPipeline,
    receiver: WatchedReceiver,
    retained: Sequence[WatchedBatch],
    records: Mapping[tuple[datetime, int], int],
) -> JsonObject:
    """Return the answer to `streaming/receivers/{id}`.

    A rate is a batch's records divided by the batch interval; there is one for each of `retained`.
    """
    interval_ms = milliseconds(pipeline.interval)
    rates = [
        [
            epoch_ms(batch.batch_time),
            records.get((batch.batch_time, receiver.receiver_id), 0) * 1000.0 / interval_ms,
        ]
        for batch in retained
    ]
    return present(
        {
            "streamId": receiver.receiver_id,
            "streamName": f"{receiver.stream}-{receiver.ordinal}",
            "isActive": receiver.state is ReceiverState.ACTIVE,
            "executorId": receiver.agent,
            "executorHost": receiver.host,
            "lastErrorTime": None if receiver.error_at is None else gmt(receiver.error_at),
            "lastErrorMessage": receiver.error or None,
            "lastError": receiver.error_detail or None,
            "avgEventRate": sum(rate for _, rate in rates) / len(rates) if rates else None,
            "eventRates": rates,
        }
    )


def batch_info(pipeline: WatchedPipeline, batch: WatchedBatch, found: Sequence[OutputOperation]) -> JsonObject:
    """Return the answer to `streaming/batches/{id}`."""
    delay = delays(batch)
    failed = sum(operation.failed for operation in found)
    return present(
        {
            "batchId": epoch_ms(batch.batch_time),
            "batchTime": gmt(batch.batch_time),
            "status": STATUS[batch.state].value,
            "batchDuration": milliseconds(pipeline.interval),
            "inputSize": batch.records,
            "schedulingDelay": delay.scheduling,
            "processingTime": delay.processing,
            "totalDelay": delay.total,
            "numActiveOutputOps": sum(operation.active for operation in found),
            "numCompletedOutputOps": sum(operation.commit is not None for operation in found),
            "numFailedOutputOps": failed,
            "numTotalOutputOps": len(found),
            "firstFailureReason": batch.reason or None if failed else None,
        }
    )


def operation_info(batch: WatchedBatch, operation: OutputOperation) -> JsonObject:
    """Return the answer to `streaming/batches/{id}/operations/{op}`.

    The ids of its Spark jobs are not recorded; the description names its Dagster run instead.
    """
    commit = operation.commit
    started: datetime | None
    ended: datetime | None
    if commit is not None:
        started, ended, attempt, run_id = commit.started_at, commit.committed_at, commit.attempt, commit.run_id
    else:
        tried = operation.active or operation.failed
        started = batch.started_at if tried else None
        ended = batch.ended_at if operation.failed else None
        attempt, run_id = batch.attempt, batch.run_id
    description = f"attempt {attempt}" + (f", Dagster run {run_id}" if run_id else "") if attempt else "not tried yet"
    return present(
        {
            "outputOpId": operation.operation_id,
            "name": operation.name,
            "description": description + ("" if commit is None else f": {commit.location}"),
            "startTime": None if started is None else gmt(started),
            "endTime": None if ended is None else gmt(ended),
            "duration": None if started is None or ended is None else milliseconds(ended - started),
            "failureReason": operation.error or batch.reason if operation.failed else None,
            "jobIds": [],
        }
    )
