"""A batch's attempts: one holds it, a zombie changes nothing, failures are retried and then quarantined (W10)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.driver_log import INTERVAL, NOON, Log, make_log
from tracker_store import batches, outputs
from tracker_store.engine import connect
from tracker_store.errors import AttemptSupersededError, BatchHeldError, OutputNotCommittedError
from tracker_store.processes import deregister_process, register_process
from tracker_store.retry import LONGEST, retry_delay
from tracker_store.schema import BatchState, ProcessKind

if TYPE_CHECKING:
    from collections.abc import Iterator

T1 = NOON + INTERVAL


@pytest.fixture
def log(engine: sa.Engine) -> Iterator[Log]:
    with connect(engine) as connection:
        made = make_log(connection)
        made.add_at(made.receiver_ids[0], NOON + timedelta(seconds=1))
        made.tracker.allocate_blocks_to_batch(T1)
        yield made


def claim(log: Log, attempt: int, run_id: str) -> int:
    process_id = register_process(log.connection, kind=ProcessKind.BATCH_RUN, name=run_id, host="h", pid=1)
    batches.claim_attempt(
        log.connection,
        pipeline_id=log.pipeline_id,
        batch_time=T1,
        attempt=attempt,
        run_id=run_id,
        process_id=process_id,
    )
    return process_id


def fail(log: Log, attempt: int, *, max_attempts: int = 3, retry_after: float = 0) -> BatchState | None:
    return batches.fail_attempt(
        log.connection,
        pipeline_id=log.pipeline_id,
        batch_time=T1,
        attempt=attempt,
        run_id=f"run{attempt}",
        error="boom",
        max_attempts=max_attempts,
        retry_after=timedelta(seconds=retry_after),
    )


def commit(log: Log, attempt: int, time: datetime = T1) -> None:
    outputs.commit_output(
        log.connection,
        pipeline_id=log.pipeline_id,
        batch_time=time,
        attempt=attempt,
        output="counts",
        location=f"/attempt={attempt}",
        rows=attempt,
    )


def complete(log: Log, attempt: int) -> None:
    batches.complete_batch(
        log.connection, pipeline_id=log.pipeline_id, batch_time=T1, attempt=attempt, outputs=["counts"]
    )


def state(log: Log) -> BatchState:
    batch = batches.get_batch(log.connection, log.pipeline_id, T1)
    assert batch is not None
    return batch.state


def test_a_batch_runs_commits_and_completes_once(log: Log) -> None:
    claim(log, 1, "run1")
    assert state(log) is BatchState.RUNNING
    commit(log, 1)
    complete(log, 1)
    complete(log, 1)
    assert state(log) is BatchState.COMPLETED
    assert batches.oldest_unfinished_batch(log.connection, log.pipeline_id) is None


def test_a_second_run_is_told_who_holds_the_batch(log: Log) -> None:
    claim(log, 1, "run1")
    with pytest.raises(BatchHeldError, match="run1"):
        claim(log, 1, "run2")
    with pytest.raises(BatchHeldError, match="run1"):
        claim(log, 2, "run2")


def test_two_attempts_at_a_batch_never_run_at_once_whoever_writes_them(log: Log) -> None:
    """The table says so, where a statement should be wrong one day."""
    claim(log, 1, "run1")
    with pytest.raises(sa.exc.IntegrityError, match="batch_attempts_running"):
        log.connection.execute(
            sa.text(
                "INSERT INTO forebay.batch_attempts (pipeline_id, batch_time, attempt, run_id, kind) "
                "VALUES (:pipeline, :time, 2, 'run2', 'replay')"
            ),
            {"pipeline": log.pipeline_id, "time": T1},
        )


def test_the_same_run_started_again_keeps_its_attempt(log: Log) -> None:
    process_id = claim(log, 1, "run1")
    deregister_process(log.connection, process_id)
    claim(log, 1, "run1")
    assert state(log) is BatchState.RUNNING


def test_a_run_that_two_processes_execute_has_its_attempt_once(log: Log) -> None:
    """Both would write to the attempt's own place, and both might commit."""
    claim(log, 1, "run1")
    with pytest.raises(BatchHeldError, match="run1"):
        claim(log, 1, "run1")


def test_point_11_a_zombie_attempt_commits_nothing(log: Log) -> None:
    claim(log, 1, "run1")
    fail(log, 1)
    claim(log, 2, "run2")
    with pytest.raises(AttemptSupersededError, match="attempt 2"):
        commit(log, 1)
    commit(log, 2)
    complete(log, 2)
    with pytest.raises(AttemptSupersededError):
        commit(log, 1)
    [counts] = outputs.commits_of_batch(log.connection, log.pipeline_id, T1)
    assert (counts.attempt, counts.location, counts.rows) == (2, "/attempt=2", 2)


def test_w10_a_batch_without_its_outputs_never_completes(log: Log) -> None:
    claim(log, 1, "run1")
    with pytest.raises(OutputNotCommittedError, match="counts"):
        complete(log, 1)
    assert state(log) is BatchState.RUNNING


def test_w10_a_failed_batch_waits_for_its_retry_and_is_quarantined_at_last(log: Log) -> None:
    claim(log, 1, "run1")
    assert fail(log, 1, max_attempts=2, retry_after=60) is BatchState.FAILED
    batch = batches.oldest_unfinished_batch(log.connection, log.pipeline_id)
    assert batch is not None
    assert (batch.state, batch.retry_due, batch.reason) == (BatchState.FAILED, False, "boom")
    claim(log, 2, "run2")
    assert fail(log, 2, max_attempts=2) is BatchState.QUARANTINED
    assert batches.oldest_unfinished_batch(log.connection, log.pipeline_id) is None
    with pytest.raises(BatchHeldError, match="QUARANTINED"):
        claim(log, 3, "run3")


def test_a_run_that_died_before_it_claimed_uses_its_attempt_up(log: Log) -> None:
    assert fail(log, 1) is BatchState.FAILED
    with pytest.raises(BatchHeldError):
        claim(log, 1, "run1")
    claim(log, 2, "run2")


def test_a_failure_reported_twice_counts_once(log: Log) -> None:
    claim(log, 1, "run1")
    assert fail(log, 1) is BatchState.FAILED
    assert fail(log, 1) is None


def test_an_unknown_batch_is_no_ones(log: Log) -> None:
    with pytest.raises(AttemptSupersededError):
        commit(log, 1, T1 + INTERVAL)


def test_backoff_doubles_and_is_bounded() -> None:
    assert retry_delay(2) == 2 * retry_delay(1)
    assert retry_delay(50) == LONGEST
