"""Test what the driver log keeps of outputs that failed, and what a quarantined batch says of those that did not."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from orchestration.batches.attempt_failure import LONGEST
from tests.support.driver_log.attempts import claim_batch, commit_batch, fail_batch
from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log
from tracker_store.batches import batches
from tracker_store.batches.batch_outputs import (
    OutputState,
    fail_output,
    newest_output_failures,
    outputs_of_batch,
    partial_commit,
    quarantined_batches,
)
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.long_texts import stored
from tracker_store.reports.batch_statistics import pipeline_queue
from tracker_store.retention.history import clean_up_history
from tracker_store.schema.states import AttemptFailure, BatchState

if TYPE_CHECKING:
    from datetime import datetime

    from tracker_store.batches.batch_outputs import BatchOutput

T1 = NOON + INTERVAL
DECLARATION = (
    '{"streams": ["lines"], "max_attempts": 3, "outputs": {"counts": {"inputs": ["lines"]}, '
    '"totals": {"inputs": ["lines"]}, "hourly": {"inputs": [{"window": "lines", "length_ms": 3600000, '
    '"slide_ms": 3600000}]}}}'
)


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    """Yield a log with a batch that has two due outputs of three, and runs its first attempt."""
    made = make_log(connection)
    connection.execute(sa.text("UPDATE forebay.pipelines SET declaration = :d"), {"d": DECLARATION})
    made.add_at(made.receiver_ids[0], T1 - timedelta(seconds=1))
    made.tracker.allocate_blocks_to_batch(T1)
    claim(made, 1)
    return made


def claim(log: Log, attempt: int) -> None:
    claim_batch(log.connection, log.pipeline_id, T1, attempt, run_id=f"run{attempt}")


def fail_attempt(
    log: Log,
    attempt: int,
    *,
    max_attempts: int,
    failure: AttemptFailure = AttemptFailure.FAILED,
    time: datetime = T1,
    error: str = "totals: boom",
) -> None:
    fail_batch(
        log.connection,
        log.pipeline_id,
        time,
        attempt,
        run_id=f"run{attempt}",
        error=error,
        max_attempts=max_attempts,
        failure=failure,
        max_lost_attempts=max_attempts,
    )


def fail(log: Log, attempt: int, output: str = "totals", error: str = "boom") -> bool:
    return fail_output(
        log.connection,
        pipeline_id=log.pipeline_id,
        batch_time=T1,
        attempt=attempt,
        output=output,
        failure=AttemptFailure.FAILED,
        error=error,
    )


def commit(log: Log, attempt: int, output: str = "counts", *, time: datetime = T1) -> None:
    commit_batch(log.connection, log.pipeline_id, time, output, attempt, location=f"/attempt={attempt}", rows=7)


def found(log: Log) -> list[BatchOutput]:
    return outputs_of_batch(log.connection, get_pipeline(log.connection, "words"), T1)


def states(log: Log) -> dict[str, OutputState]:
    return {output.output: output.state for output in found(log)}


def reason(log: Log) -> str:
    batch = batches.get_batch(log.connection, log.pipeline_id, T1)
    assert batch is not None
    return batch.reason


def test_each_due_output_is_pending_failed_or_committed(log: Log) -> None:
    assert states(log) == {"counts": OutputState.PENDING, "totals": OutputState.PENDING}
    assert partial_commit(found(log)) == ""
    commit(log, 1)
    assert fail(log, 1)
    assert states(log) == {"counts": OutputState.COMMITTED, "totals": OutputState.FAILED}
    assert partial_commit(found(log)) == "partially committed: counts committed; totals not"
    fail_attempt(log, 1, max_attempts=3)
    claim(log, 2)
    assert fail(log, 2, error="boom again")
    [_, totals] = found(log)
    assert (totals.failed_attempt, totals.error, totals.attempt) == (2, "boom again", None)
    assert [
        (row.output, row.attempt, row.error)
        for row in newest_output_failures(log.connection, log.pipeline_id, first=T1, last=T1)
    ] == [("totals", 2, "boom again")]
    commit(log, 2, "totals")
    assert set(states(log).values()) == {OutputState.COMMITTED}
    assert partial_commit(found(log)) == ""


def test_a_failure_is_recorded_once_and_only_of_the_attempt_that_runs(log: Log) -> None:
    assert fail(log, 1, error="first")
    assert not fail(log, 1, error="second"), "a lost answer is asked for again"
    assert not fail(log, 2), "it has not begun"
    fail_attempt(log, 1, max_attempts=3)
    assert not fail(log, 1, output="counts"), "it is over"
    assert [output.error for output in found(log)] == ["", "first"]


@pytest.mark.parametrize("failure", [AttemptFailure.FAILED, AttemptFailure.LOST])
def test_a_batch_that_is_quarantined_with_an_output_committed_says_so(log: Log, failure: AttemptFailure) -> None:
    commit(log, 1)
    fail_attempt(log, 1, max_attempts=2, failure=failure)
    assert reason(log) == "totals: boom", "it is tried again"
    claim(log, 2)
    fail_attempt(log, 2, max_attempts=2, failure=failure)
    assert reason(log).startswith("partially committed (only counts): ")
    assert reason(log).endswith("totals: boom")
    assert quarantined_batches(log.connection, log.pipeline_id, newest=5) == [T1]
    [stats] = log.connection.execute(sa.text("SELECT state, reason FROM forebay.batch_stats")).all()
    assert tuple(stats) == (BatchState.QUARANTINED.value, reason(log))


@pytest.mark.parametrize("failure", [AttemptFailure.FAILED, AttemptFailure.LOST])
def test_the_event_of_a_batch_that_is_quarantined_has_the_end_of_the_longest_error(
    log: Log, failure: AttemptFailure
) -> None:
    commit(log, 1)
    fail_attempt(log, 1, max_attempts=1, failure=failure, error=stored("an error " * 500 + "its way out", LONGEST))
    said = log.connection.execute(
        sa.text("SELECT message FROM forebay.listener_events WHERE kind = 'batch_quarantined'")
    ).scalar_one()
    assert said == reason(log)
    assert said.endswith(" its way out")


def test_a_batch_without_a_committed_output_does_not_say_so(log: Log) -> None:
    fail_attempt(log, 1, max_attempts=1)
    assert reason(log) == "totals: boom"


def test_a_batch_whose_outputs_are_all_committed_does_not_say_so(log: Log) -> None:
    """Check the case that only their publishing failed; `hourly` is not due."""
    for output in ("counts", "totals"):
        commit(log, 1, output)
    fail_attempt(log, 1, max_attempts=1)
    assert reason(log) == "totals: boom"


def test_a_batch_without_an_output_that_is_due_by_its_window_says_so(log: Log) -> None:
    hour = NOON + timedelta(hours=1)
    for table in ("batches", "batch_attempts", "batch_allocations"):
        log.connection.execute(sa.text(f"UPDATE forebay.{table} SET batch_time = :hour"), {"hour": hour})
    for output in ("counts", "totals"):
        commit(log, 1, output, time=hour)
    fail_attempt(log, 1, max_attempts=1, time=hour)
    batch = batches.get_batch(log.connection, log.pipeline_id, hour)
    assert batch is not None
    assert batch.reason == "partially committed (only counts, totals): totals: boom"


def test_quarantined_batches_are_found_without_a_kept_block(log: Log) -> None:
    """Check this because of a batch without records nothing is kept."""
    log.connection.execute(sa.text("DELETE FROM forebay.batch_allocations"))
    fail_attempt(log, 1, max_attempts=1)
    assert log.connection.execute(sa.text("SELECT count(*) FROM forebay.kept_blocks")).scalar_one() == 0
    assert quarantined_batches(log.connection, log.pipeline_id) == [T1]
    queue = pipeline_queue(log.connection, log.pipeline_id)
    assert (queue.quarantined, queue.newest_quarantined) == (1, T1)


def test_the_view_has_committed_and_failed_outputs(log: Log) -> None:
    commit(log, 1)
    fail(log, 1)
    rows = log.connection.execute(
        sa.text(
            "SELECT pipeline, batch_state, output, state, attempt, rows, failed_attempt, failure, error "
            "FROM forebay.batch_outputs ORDER BY output"
        )
    ).all()
    assert [tuple(row) for row in rows] == [
        ("words", "RUNNING", "counts", "COMMITTED", 1, 7, None, None, ""),
        ("words", "RUNNING", "totals", "FAILED", None, None, 1, "FAILED", "boom"),
    ]


def test_failures_are_forgotten_with_their_batch(log: Log) -> None:
    fail(log, 1)
    commit(log, 1)
    batches.complete_batch(log.connection, pipeline_id=log.pipeline_id, batch_time=T1, attempt=1, outputs=["counts"])
    log.tracker.allocate_blocks_to_batch(T1 + INTERVAL)
    done = clean_up_history(log.connection, pipeline_id=log.pipeline_id, keep=timedelta(0), max_rows=10, term=None)
    assert done.rows == 1
    assert log.connection.execute(sa.text("SELECT count(*) FROM forebay.output_failures")).scalar_one() == 0
