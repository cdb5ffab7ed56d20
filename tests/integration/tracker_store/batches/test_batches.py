"""Test a batch's attempts: one holds it, a zombie changes nothing, failures are retried, then quarantined (W10)."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support.driver_log.attempts import claim_batch, commit_batch, fail_batch
from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log, oldest_unfinished_batch
from tracker_store.batches import batches, outputs
from tracker_store.batches.retry import FIRST, LONGEST, LONGEST_UNCOUNTED, PAUSES
from tracker_store.connection.errors import AttemptSupersededError, BatchHeldError, DriverLogError
from tracker_store.receivers.processes import deregister_process, register_process
from tracker_store.reports.status import pipeline_status
from tracker_store.schema.states import ATTEMPT_TRANSITIONS, AttemptFailure, AttemptState, BatchState, ProcessKind

if TYPE_CHECKING:
    from tracker_store.batches.batches import BatchRow

T1 = NOON + INTERVAL
FAILED, BLOCKED, LOST = AttemptFailure
MAX_LOST = 4


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    made = make_log(connection)
    made.add_at(made.receiver_ids[0], NOON + timedelta(seconds=1))
    made.tracker.allocate_blocks_to_batch(T1)
    return made


def claim(log: Log, attempt: int, run_id: str) -> int:
    process_id = register_process(log.connection, kind=ProcessKind.BATCH_RUN, name=run_id, host="h", pid=1)
    claim_batch(log.connection, log.pipeline_id, T1, attempt, run_id=run_id, process_id=process_id)
    return process_id


def fail(
    log: Log,
    attempt: int,
    failure: AttemptFailure = AttemptFailure.FAILED,
    *,
    error: str = "boom",
    max_attempts: int = 3,
    retry_after: float | None = 0,
) -> BatchState | None:
    return fail_batch(
        log.connection,
        log.pipeline_id,
        T1,
        attempt,
        run_id=f"run{attempt}",
        error=error,
        max_attempts=max_attempts,
        pauses=None if retry_after is None else [timedelta(seconds=retry_after)],
        failure=failure,
        max_lost_attempts=MAX_LOST,
    )


def commit(log: Log, attempt: int, time: datetime = T1) -> None:
    commit_batch(
        log.connection,
        log.pipeline_id,
        time,
        "counts",
        attempt,
        location=f"/attempt={attempt}",
        rows=attempt,
        code_version=f"code {attempt}",
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
    assert oldest_unfinished_batch(log.connection, log.pipeline_id) is None


def test_a_second_run_gets_the_name_of_the_batchs_holder(log: Log) -> None:
    claim(log, 1, "run1")
    with pytest.raises(BatchHeldError, match="run1"):
        claim(log, 1, "run2")
    with pytest.raises(BatchHeldError, match="run1"):
        claim(log, 2, "run2")


def test_two_attempts_at_a_batch_never_run_at_once_whatever_writes_them(log: Log) -> None:
    """Check that the table's constraint holds even if a statement is wrong."""
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


def test_a_run_executed_by_two_processes_has_its_attempt_once(log: Log) -> None:
    """Check this because both processes would write to the attempt's own location, and both might commit."""
    claim(log, 1, "run1")
    with pytest.raises(BatchHeldError, match="run1"):
        claim(log, 1, "run1")


def test_a_zombie_attempt_commits_nothing(log: Log) -> None:
    claim(log, 1, "run1")
    fail(log, 1)
    claim(log, 2, "run2")
    with pytest.raises(AttemptSupersededError, match="attempt 2"):
        commit(log, 1)
    commit(log, 2)
    [kept] = outputs.commits_of_batch(log.connection, log.pipeline_id, T1)
    assert (kept.attempt, kept.code_version) == (2, "code 2")
    complete(log, 2)
    with pytest.raises(AttemptSupersededError):
        commit(log, 1)
    [counts] = outputs.commits_of_batch(log.connection, log.pipeline_id, T1)
    assert (counts.attempt, counts.location, counts.rows) == (2, "/attempt=2", 2)


def test_w10_a_batch_without_its_outputs_never_completes(log: Log) -> None:
    claim(log, 1, "run1")
    with pytest.raises(DriverLogError, match=r"counts.*Run all outputs"):
        complete(log, 1)
    assert state(log) is BatchState.RUNNING


def test_w10_a_failed_batch_waits_for_its_retry_and_is_finally_quarantined(log: Log) -> None:
    claim(log, 1, "run1")
    assert fail(log, 1, max_attempts=2, retry_after=60) is BatchState.FAILED
    batch = oldest_unfinished_batch(log.connection, log.pipeline_id)
    assert batch is not None
    assert (batch.state, batch.retry_due, batch.reason) == (BatchState.FAILED, False, "boom")
    claim(log, 2, "run2")
    assert fail(log, 2, max_attempts=2) is BatchState.QUARANTINED
    assert oldest_unfinished_batch(log.connection, log.pipeline_id) is None
    with pytest.raises(BatchHeldError, match="QUARANTINED"):
        claim(log, 3, "run3")


def test_a_run_that_died_before_its_claim_uses_its_attempt_up(log: Log) -> None:
    assert fail(log, 1) is BatchState.FAILED
    with pytest.raises(BatchHeldError):
        claim(log, 1, "run1")
    claim(log, 2, "run2")


def test_a_failure_reported_twice_counts_once(log: Log) -> None:
    claim(log, 1, "run1")
    assert fail(log, 1) is BatchState.FAILED
    assert fail(log, 1) is None


def test_an_unknown_batch_can_not_be_committed(log: Log) -> None:
    with pytest.raises(AttemptSupersededError):
        commit(log, 1, T1 + INTERVAL)


def tried(log: Log, attempt: int, failure: AttemptFailure, error: str, **limits: int) -> BatchRow:
    """Claim and fail an attempt; return the batch after it."""
    claim(log, attempt, f"run{attempt}")
    fail(log, attempt, failure, error=error, **limits)
    return batch_of(log)


def batch_of(log: Log) -> BatchRow:
    batch = batches.get_batch(log.connection, log.pipeline_id, T1)
    assert batch is not None
    return batch


def errors(log: Log) -> list[tuple[AttemptState, str]]:
    return [(row.state, row.error) for row in batches.attempts_of_batch(log.connection, log.pipeline_id, T1)]


def test_the_reason_stays_the_cause_when_a_later_attempt_is_lost(log: Log) -> None:
    """Check with attempts 1 and 2 that named a corrupt block, and a third one whose process was killed."""
    tried(log, 1, FAILED, "BlockCorruptError: block 7")
    assert tried(log, 2, FAILED, "BlockCorruptError: block 8").reason == "BlockCorruptError: block 8"
    lost = tried(log, 3, LOST, "the process of run run3 ended")
    assert (lost.state, lost.reason) == (BatchState.FAILED, "BlockCorruptError: block 8")
    assert (lost.attempt_state, lost.attempt_error) == (AttemptState.LOST, "the process of run run3 ended")
    assert [row.retry_reason for row in pipeline_status(log.connection)] == ["BlockCorruptError: block 8"]
    given_up = tried(log, 4, FAILED, "BlockCorruptError: block 9")
    assert [row.retry_reason for row in pipeline_status(log.connection)] == [""]
    assert (given_up.state, given_up.reason) == (BatchState.QUARANTINED, "BlockCorruptError: block 9")
    assert [state for state, _ in errors(log)] == [AttemptState(kind) for kind in (FAILED, FAILED, LOST, FAILED)]
    shown = log.connection.execute(sa.text("SELECT reason FROM forebay.batch_stats")).scalar_one()
    assert shown == "BlockCorruptError: block 9"


def test_lost_attempts_use_up_none_of_max_attempts_and_have_their_own_bound(log: Log) -> None:
    for attempt in range(1, MAX_LOST):
        assert tried(log, attempt, LOST, f"killed {attempt}", max_attempts=1).state is BatchState.FAILED
    given_up = tried(log, MAX_LOST, LOST, "killed at last", max_attempts=1)
    assert given_up.state is BatchState.QUARANTINED
    assert given_up.reason == "4 attempts were lost (max_lost_attempts=4), the last one: killed at last"


def test_a_batch_that_failed_and_was_lost_too_often_reports_both(log: Log) -> None:
    error = "BlockCorruptError: block 7\n  and its stack"
    tried(log, 1, FAILED, error)
    for attempt in range(2, MAX_LOST + 2):
        given_up = tried(log, attempt, LOST, "killed")
    assert given_up.state is BatchState.QUARANTINED
    lost = "4 attempts were lost, which ended it (max_lost_attempts=4)"
    assert given_up.reason == f"{lost}; another one failed: {error}"
    assert errors(log)[-1] == (AttemptState.LOST, "killed")


def test_losses_before_a_failure_use_up_none_of_its_attempts(log: Log) -> None:
    for attempt in (1, 2, 3):
        tried(log, attempt, LOST, "killed", max_attempts=2)
    assert tried(log, 4, FAILED, "a", max_attempts=2).state is BatchState.FAILED
    assert tried(log, 5, FAILED, "b", max_attempts=2).state is BatchState.QUARANTINED


def test_a_blocked_batch_shows_what_it_waits_for_and_later_its_failure_again(log: Log) -> None:
    tried(log, 1, FAILED, "BlockCorruptError: block 7")
    blocked = tried(log, 2, BLOCKED, "the store is not mounted")
    assert (blocked.state, blocked.reason) == (BatchState.BLOCKED, "the store is not mounted")
    assert tried(log, 3, LOST, "killed").reason == "BlockCorruptError: block 7"


def test_an_attempt_lost_before_its_claim_counts_as_lost(log: Log) -> None:
    """Check that such an attempt can't be blocked, because it has looked for no store."""
    assert fail(log, 1, LOST, max_attempts=1) is BatchState.FAILED
    assert fail(log, 2, BLOCKED, max_attempts=1) is BatchState.FAILED
    assert errors(log) == [(AttemptState.LOST, "boom")] * 2


def test_the_first_loss_is_retried_at_once_and_later_ones_after_growing_pauses(log: Log) -> None:
    pauses = []
    for attempt, failure in enumerate((FAILED, LOST, LOST, FAILED, LOST), start=1):
        claim(log, attempt, f"run{attempt}")
        fail(log, attempt, failure, retry_after=None)
        batch = batch_of(log)
        ended_at = batches.attempts_of_batch(log.connection, log.pipeline_id, T1)[-1].ended_at
        assert batch.retry_at is not None
        assert ended_at is not None
        # The function sets both times, on a machine that may stand still for a moment between them.
        pauses.append((batch.retry_at - ended_at) // FIRST * 2)
    assert pauses == [2, 0, 2, 4, 4], "each kind has its own"


def test_an_interrupted_run_has_a_pause_before_the_next_attempt(log: Log) -> None:
    claim(log, 1, "run1")
    fail_batch(
        log.connection,
        log.pipeline_id,
        T1,
        run_id="run1",
        error="interrupted",
        max_attempts=1,
        pauses=[timedelta(minutes=1)],
        failure=LOST,
    )
    assert not batch_of(log).retry_due


def test_each_kind_of_failure_of_an_attempt_is_a_state_that_ends_it(log: Log) -> None:
    """Check the table of transitions against the behaviour of the driver log."""
    ends = ATTEMPT_TRANSITIONS[AttemptState.RUNNING]
    assert {AttemptState(failure) for failure in AttemptFailure} | {AttemptState.SUCCEEDED} == ends
    assert all(not ATTEMPT_TRANSITIONS[state] for state in ends)
    for attempt, failure in enumerate(AttemptFailure, start=1):
        assert tried(log, attempt, failure, "x").attempt_state is AttemptState(failure)
        assert fail(log, attempt, failure) is None, "it has ended"


def test_pauses_double_and_are_bounded() -> None:
    for failure, longest in ((FAILED, LONGEST), (BLOCKED, LONGEST_UNCOUNTED), (LOST, LONGEST_UNCOUNTED)):
        growing = [pause for pause in PAUSES[failure] if pause]
        assert growing[0] == FIRST
        assert growing[-1] == longest
        assert all(later in (2 * sooner, longest) for sooner, later in pairwise(growing))
    assert PAUSES[LOST][0] == timedelta(0)
