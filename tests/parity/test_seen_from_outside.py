"""O01, O03: check that `/metrics` and the JSON API use the names of Spark's own classes."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from orchestration.tracker.http import streaming_api as api
from orchestration.tracker.http.metrics import STREAMING_SOURCE, streaming_source
from orchestration.tracker.http.streaming_progress import PipelineTotals
from tests.support.driver_log.log import INTERVAL, NOON
from tests.support.spark.class_file import read_class
from tracker_store.reports.streaming_statistics import (
    OutputResult,
    UnfinishedBatches,
    WatchedBatch,
    WatchedPipeline,
    WatchedReceiver,
)
from tracker_store.schema.states import BatchState, ReceiverState

SPARK_API = "org.apache.spark.status.api.v1"
SECOND = timedelta(seconds=1)

PIPELINE = WatchedPipeline(
    1,
    "words",
    {"outputs": {"counts": {"inputs": ["lines"]}, "kept": {"inputs": ["lines"]}}},
    [1],
    INTERVAL,
    NOON,
    1,
    0,
)
BATCH = WatchedBatch(NOON, NOON, BatchState.QUARANTINED, 1, 10, NOON, "boom", "run", NOON + SECOND, NOON + 4 * SECOND)
COMMIT = OutputResult(NOON, "counts", 1, "run", "/counts", NOON + SECOND, NOON + 2 * SECOND)
RECEIVER = WatchedReceiver(1, "lines", 1, ReceiverState.ACTIVE, "a", "h", NOON, "refused", "a stack")
PROGRESS = PipelineTotals(PIPELINE, NOON, 1, 1, 10, UnfinishedBatches(2, 1, 5), BATCH, BATCH)


def spark_fields(name: str, package: str = f"{SPARK_API}.streaming", jar: str = "spark-streaming") -> list[str]:
    fields = read_class(jar, f"{package}.{name}").fields
    assert len(fields) > 3
    return fields


def test_o01_the_gauges_are_those_of_sparks_streaming_source() -> None:
    strings = read_class("spark-streaming", "org.apache.spark.streaming.StreamingSource").strings
    # The source's own name and the application's pattern are not gauges.
    assert set(STREAMING_SOURCE) == strings - {"streaming", "%s.StreamingMetrics"}
    assert list(streaming_source(PROGRESS)) == list(STREAMING_SOURCE)


def test_o01_what_is_missing_is_minus_one_and_records_are_0() -> None:
    nothing = PipelineTotals(PIPELINE, NOON, 0, 0, 0, UnfinishedBatches(0, 0, 0), None, None)
    missing = {name for name, value in streaming_source(nothing).items() if value == -1}
    assert missing == {
        name for name in STREAMING_SOURCE if name.startswith(("lastCompletedBatch_", "lastReceivedBatch_"))
    } - {"lastReceivedBatch_records"}


@pytest.mark.parametrize("state", list(BatchState))
def test_o01_an_end_is_an_end_only_when_the_batch_is_done(state: BatchState) -> None:
    gauges = streaming_source(dataclasses.replace(PROGRESS, last_received=dataclasses.replace(BATCH, state=state)))
    done = state in (BatchState.COMPLETED, BatchState.QUARANTINED, BatchState.DISCARDED)
    assert (gauges["lastReceivedBatch_processingEndTime"] != -1) is done


def test_o03_statistics_have_sparks_fields() -> None:
    found = api.statistics(PROGRESS, [BATCH], [RECEIVER])
    assert list(found) == spark_fields("StreamingStatistics")


def test_o03_a_receiver_has_sparks_fields() -> None:
    found = api.receiver_info(PIPELINE, RECEIVER, [BATCH], {(NOON, 1): 10})
    assert list(found) == spark_fields("ReceiverInfo")
    assert found["eventRates"] == [[api.epoch_ms(NOON), 1.0]]


def test_o03_a_batch_has_sparks_fields() -> None:
    found = api.batch_info(PIPELINE, BATCH, api.operations(PIPELINE, BATCH, [COMMIT]))
    assert list(found) == spark_fields("BatchInfo")


def test_o03_an_output_operation_has_sparks_fields() -> None:
    done, failed = (api.operation_info(BATCH, each) for each in api.operations(PIPELINE, BATCH, [COMMIT]))
    assert list(failed) == spark_fields("OutputOperationInfo")
    assert set(done) == set(failed) - {"failureReason"}


def test_o03_an_application_has_sparks_fields_as_far_as_there_are_any() -> None:
    found = api.application(PIPELINE, NOON + SECOND)
    # Cores and memory are optional in Spark, and left out if they are unknown.
    known = [name for name in spark_fields("ApplicationInfo", SPARK_API, "spark-core") if "PerExec" not in name]
    assert list(found) == [name for name in known if name not in ("coresGranted", "maxCores")]
    attempt = list(found["attempts"][0])
    fields = spark_fields("ApplicationAttemptInfo", SPARK_API, "spark-core")
    # The fields before and after these are optional; epochs are methods of its class that Spark's JSON has as well.
    assert attempt[:7] == fields[fields.index("startTime") : fields.index("appSparkVersion") + 1]
    assert attempt[7:] == ["startTimeEpoch", "endTimeEpoch", "lastUpdatedEpoch"]


def test_o03_statuses_are_sparks() -> None:
    fields = read_class("spark-streaming", f"{SPARK_API}.streaming.BatchStatus").strings
    assert {status.value for status in api.BatchStatus} == fields
    assert set(api.STATUS) == set(BatchState)


def test_o03_times_are_in_sparks_form() -> None:
    assert api.gmt(NOON + timedelta(microseconds=1_234_567)) == "2026-01-01T12:00:01.234GMT"


@pytest.mark.parametrize(
    ("state", "active", "completed", "failed"),
    [
        (BatchState.ALLOCATED, 0, 0, 0),
        (BatchState.RUNNING, 2, 0, 0),
        (BatchState.FAILED, 0, 0, 2),
        (BatchState.QUARANTINED, 0, 0, 2),
        (BatchState.COMPLETED, 0, 0, 0),
    ],
)
def test_o03_operations_by_the_state_of_the_batch(state: BatchState, active: int, completed: int, failed: int) -> None:
    batch = dataclasses.replace(BATCH, state=state)
    found = api.batch_info(PIPELINE, batch, api.operations(PIPELINE, batch, []))
    assert [found[f"num{what}OutputOps"] for what in ("Active", "Completed", "Failed")] == [active, completed, failed]
    assert ("firstFailureReason" in found) is bool(failed)
