"""Test replays, blocked and discarded batches, and halted pipelines in the driver log (docs/how-to/replay.md)."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from orchestration.tracker.tracker import Tracker
from tests.support.driver_log.attempts import claim_batch, commit_batch, fail_batch
from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log, oldest_unfinished_batch, wait_until_blocked
from tests.support.polling import eventually
from tracker_store.batches import batches, outputs
from tracker_store.batches.pipeline_states import start_pipelines
from tracker_store.batches.pipelines import get_pipeline, remove_pipeline
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import (
    AttemptSupersededError,
    BatchHeldError,
    BlocksNotRetainedError,
    DriverLogError,
)
from tracker_store.receivers.processes import register_process
from tracker_store.receivers.rates import completed_batches
from tracker_store.reports import checks
from tracker_store.retention.cleanup import clean_up_receiver
from tracker_store.schema.states import AttemptFailure, AttemptState, BatchState, ProcessKind

if TYPE_CHECKING:
    from datetime import datetime

STATS = sa.text(
    "SELECT pipeline_id, batch_time, state, attempt, kind, run_id, completed_at, processing_time "
    "FROM forebay.batch_stats ORDER BY batch_time"
)
T1, T2, T3 = (NOON + n * INTERVAL for n in (1, 2, 3))


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    """Yield a log with three batches of one block each."""
    made = make_log(connection)
    for time in (T1, T2, T3):
        made.add_at(made.receiver_ids[0], time - timedelta(seconds=1))
        made.tracker.allocate_blocks_to_batch(time)
    return made


def process(log: Log) -> int:
    return register_process(log.connection, kind=ProcessKind.BATCH_RUN, name="n", host="h", pid=1)


def claim(log: Log, attempt: int = 1, time: datetime = T1) -> None:
    claim_batch(log.connection, log.pipeline_id, time, attempt, run_id=f"run{attempt}", process_id=process(log))


def claim_replay(log: Log, time: datetime = T1, run_id: str = "replay", reach: timedelta = timedelta(0)) -> int:
    return batches.claim_replay(
        log.connection,
        pipeline_id=log.pipeline_id,
        batch_time=time,
        run_id=run_id,
        process_id=process(log),
        reach=reach,
    )


def fail(
    log: Log,
    attempt: int,
    time: datetime = T1,
    *,
    max_attempts: int = 1,
    failure: AttemptFailure = AttemptFailure.FAILED,
) -> BatchState | None:
    return fail_batch(
        log.connection,
        log.pipeline_id,
        time,
        attempt,
        run_id=f"run{attempt}",
        error="boom",
        max_attempts=max_attempts,
        failure=failure,
    )


def commit(log: Log, attempt: int, time: datetime = T1, output: str = "counts") -> None:
    commit_batch(log.connection, log.pipeline_id, time, output, attempt, location=f"/attempt={attempt}", rows=attempt)


def complete(log: Log, attempt: int = 1, time: datetime = T1) -> None:
    commit(log, attempt, time)
    batches.complete_batch(
        log.connection, pipeline_id=log.pipeline_id, batch_time=time, attempt=attempt, outputs=["counts"]
    )


def complete_replay(log: Log, attempt: int, time: datetime = T1, *, due: tuple[str, ...] = ("counts",)) -> None:
    batches.complete_replay(
        log.connection,
        pipeline_id=log.pipeline_id,
        batch_time=time,
        attempt=attempt,
        outputs=["counts"],
        due=due,
    )


def state(log: Log, time: datetime = T1) -> tuple[BatchState, int]:
    batch = batches.get_batch(log.connection, log.pipeline_id, time)
    assert batch is not None
    return batch.state, batch.attempt


def attempts(log: Log, time: datetime = T1) -> list[AttemptState]:
    return [row.state for row in batches.attempts_of_batch(log.connection, log.pipeline_id, time)]


def clean_up(log: Log, connection: sa.Connection | None = None) -> int:
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET retention = interval '0'"))
    return cleaned_blocks(log, connection or log.connection)


def cleaned_blocks(log: Log, connection: sa.Connection) -> int:
    return clean_up_receiver(connection, receiver_id=log.receiver_ids[0], threshold=T3 + INTERVAL, max_rows=1000).blocks


def finish(log: Log, *times: datetime) -> None:
    for time in times:
        claim(log, time=time)
        complete(log, time=time)


def test_w10_only_what_is_finished_can_be_replayed(log: Log) -> None:
    with pytest.raises(BatchHeldError, match="is ALLOCATED"):
        claim_replay(log)
    claim(log)
    with pytest.raises(BatchHeldError, match=r"its attempt 1 \(run\) is running in run run1"):
        claim_replay(log)
    complete(log)
    assert claim_replay(log) == 2
    assert claim_replay(log) == 2
    with pytest.raises(BatchHeldError, match=r"its attempt 2 \(replay\) is running in run replay"):
        claim_replay(log, run_id="another")
    with pytest.raises(BatchHeldError, match="COMPLETED"):
        claim(log, 3)


def test_a_replay_changes_its_outputs_and_nothing_else_of_its_batch(log: Log) -> None:
    finish(log, T1)
    before = log.connection.execute(STATS).all()
    number = claim_replay(log)
    with pytest.raises(DriverLogError, match="no commit of replay 2: counts"):
        complete_replay(log, number)
    commit(log, number)
    complete_replay(log, number)
    complete_replay(log, number)
    [counts] = outputs.commits_of_batch(log.connection, log.pipeline_id, T1)
    assert (counts.attempt, counts.location) == (2, "/attempt=2")
    assert log.connection.execute(STATS).all() == before
    replays = log.connection.execute(sa.text("SELECT replays FROM forebay.batch_stats ORDER BY batch_time")).scalars()
    assert list(replays) == [1, 0, 0]


def test_a_zombie_replay_commits_and_completes_nothing(log: Log) -> None:
    finish(log, T1)
    zombie = claim_replay(log)
    assert fail(log, zombie) is BatchState.COMPLETED
    newer = claim_replay(log, run_id="newer")
    for doing in (commit, complete_replay):
        with pytest.raises(AttemptSupersededError):
            doing(log, zombie)
    commit(log, newer)
    complete_replay(log, newer)
    for doing in (commit, complete_replay):
        with pytest.raises(AttemptSupersededError):
            doing(log, zombie)
    [counts] = outputs.commits_of_batch(log.connection, log.pipeline_id, T1)
    assert counts.attempt == newer
    assert attempts(log) == [AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.SUCCEEDED]
    assert fail(log, newer) is None


def test_a_replay_is_in_nobodys_way(log: Log) -> None:
    """Check that it is no unfinished batch and uses up no attempt, and that back pressure counts only the run."""
    finish(log, T1, T2, T3)
    after = {(log.pipeline_id, log.stream_id): NOON}
    first = completed_batches(log.connection, after=after, limit=10)
    number = claim_replay(log, T2)
    assert oldest_unfinished_batch(log.connection, log.pipeline_id) is None
    commit(log, number, T2)
    complete_replay(log, number, T2)
    assert len(first[log.pipeline_id, log.stream_id]) == 3
    assert first == completed_batches(log.connection, after=after, limit=10)


def test_back_pressure_does_not_reckon_with_a_quarantined_batch_that_came_out_by_replay(log: Log) -> None:
    claim(log)
    assert fail(log, 1) is BatchState.QUARANTINED
    number = claim_replay(log)
    commit(log, number)
    complete_replay(log, number)
    assert state(log) == (BatchState.COMPLETED, 2)
    after = {(log.pipeline_id, log.stream_id): NOON}
    [[batch]] = completed_batches(log.connection, after=after, limit=10).values()
    assert batch.started_at is None


def test_a_replay_that_brings_a_batch_out_leaves_its_scheduling_delay(log: Log) -> None:
    delays = sa.text(
        "SELECT attempt, scheduling_delay, processing_time, total_delay, processing_started_at - oldest_time AS late "
        "FROM forebay.batch_stats WHERE batch_time = :time"
    )
    claim(log)
    fail(log, 1)
    # The run began 2 s after its time, and the replay days later.
    log.connection.execute(
        sa.text("UPDATE forebay.batch_attempts SET started_at = batch_time + interval '2 s' WHERE batch_time = :time"),
        {"time": T1},
    )
    number = claim_replay(log)
    commit(log, number)
    complete_replay(log, number)
    row = log.connection.execute(delays, {"time": T1}).one()
    assert row.attempt == number
    assert row.scheduling_delay == timedelta(seconds=2)
    assert row.late > timedelta(days=1)
    assert row.total_delay == row.scheduling_delay + row.processing_time


def test_a_quarantined_batch_is_completed_when_all_its_outputs_are_committed(log: Log) -> None:
    claim(log)
    fail(log, 1)
    number = claim_replay(log)
    commit(log, number)
    complete_replay(log, number, due=("counts", "others"))
    assert state(log) == (BatchState.QUARANTINED, 1)
    assert log.connection.execute(sa.text("SELECT count(*) FROM forebay.kept_blocks")).scalar_one() == 1
    number = claim_replay(log)
    commit(log, number)
    commit(log, number, output="others")
    complete_replay(log, number, due=("counts", "others"))
    assert state(log) == (BatchState.COMPLETED, 3)
    assert log.connection.execute(sa.text("SELECT count(*) FROM forebay.kept_blocks")).scalar_one() == 0


def test_a_row_follows_the_targets_commit_of_an_ended_attempt_and_never_goes_back(log: Log) -> None:
    def follow(attempt: int, time: datetime = T1) -> bool:
        return outputs.follow_commit(
            log.connection,
            pipeline_id=log.pipeline_id,
            batch_time=time,
            attempt=attempt,
            output="counts",
            location=f"/attempt={attempt}",
            rows=attempt,
        )

    def to_follow() -> list[tuple[str, datetime]]:
        return outputs.commits_to_follow(
            log.connection, log.pipeline_id, ["counts"], within=timedelta(hours=1), limit=10
        )

    assert not follow(1), "no attempt has begun"
    claim(log)
    assert not follow(1), "the running attempt writes its row itself"
    complete(log)
    assert not follow(1), "it is there"
    failed, replayed = claim_replay(log), 3
    assert not follow(failed)
    assert to_follow() == []
    fail(log, failed)
    assert to_follow() == [("counts", T1)]
    assert claim_replay(log) == replayed
    assert to_follow() == [], "the running attempt will find the commit"
    commit(log, replayed)
    assert not follow(failed), "a newer one is committed"
    fail(log, replayed)
    assert to_follow() == []
    fail(log, claim_replay(log))
    assert follow(4)
    assert outputs.commits_of_batch(log.connection, log.pipeline_id, T1)[0].attempt == 4
    assert not follow(2, T2), "the batch's next attempt will write the row"
    log.connection.execute(sa.text("UPDATE forebay.batch_attempts SET ended_at = ended_at - interval '2 hours'"))
    fail(log, claim_replay(log))
    log.connection.execute(sa.text("UPDATE forebay.batch_attempts SET ended_at = ended_at - interval '2 hours'"))
    assert to_follow() == []


def test_m08_a_batchs_history_has_every_attempt_and_replay_with_what_it_brought_out(log: Log) -> None:
    claim(log)
    fail(log, 1, max_attempts=3)
    claim(log, 2)
    commit(log, 2, output="others")
    complete(log, 2)
    number = claim_replay(log)
    commit(log, number)
    rows = log.connection.execute(
        sa.text(
            "SELECT batch_time, attempt, kind, attempt_state, run_id, error, outputs, host, duration IS NULL AS runs, "
            "state FROM forebay.batch_history WHERE pipeline = 'words' ORDER BY batch_time, attempt"
        )
    ).all()
    assert [tuple(row) for row in rows] == [
        (T1, 1, "run", "FAILED", "run1", "boom", None, "h", False, "COMPLETED"),
        (T1, 2, "run", "SUCCEEDED", "run2", "", ["others"], "h", False, "COMPLETED"),
        (T1, 3, "replay", "RUNNING", "replay", "", ["counts"], "h", True, "COMPLETED"),
        *((time, None, None, None, None, None, None, None, True, "ALLOCATED") for time in (T2, T3)),
    ]


def test_w09_a_replay_that_runs_holds_clean_up_back_with_its_window(log: Log) -> None:
    finish(log, T1, T2, T3)
    number = claim_replay(log, T2, reach=2 * INTERVAL)
    assert clean_up(log) == 0
    fail(log, number, T2)
    number = claim_replay(log, T2)
    assert clean_up(log) == 2
    fail(log, number, T2)
    # The newest batch's marker too; its block is the receiver's newest row.
    assert clean_up(log) == 3
    with pytest.raises(BlocksNotRetainedError, match=r"can't be replayed: of its 10 records, 10 were cleaned up"):
        claim_replay(log, T2)
    with pytest.raises(BlocksNotRetainedError, match=r"with the batch of .* in its window"):
        claim_replay(log, T3, reach=2 * INTERVAL)
    assert claim_replay(log, T3) == 2


def test_a_replay_and_clean_up_decide_in_the_order_of_the_receivers_lock(log: Log, engine: sa.Engine) -> None:
    """Check that clean-up waits for a claim that has the lock, then sees it and deletes nothing that it needs."""
    finish(log, T1, T2, T3)
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET retention = interval '0'"))
    cleaned: list[int] = []
    raw = engine.raw_connection()
    try:
        assert raw.driver_connection is not None
        raw.driver_connection.autocommit = False
        cursor = raw.cursor()
        cursor.execute(
            "SELECT outcome FROM forebay.claim_replay(%s, %s, 'replay', %s, interval '0')",
            (log.pipeline_id, T1, process(log)),
        )
        assert cursor.fetchone() == ("claimed",)

        def clean() -> None:
            with connect(engine) as connection:
                cleaned.append(cleaned_blocks(log, connection))

        thread = threading.Thread(target=clean)
        thread.start()
        eventually(lambda: _waits(log.connection), "clean-up to wait for the receiver's row")
        raw.driver_connection.commit()
        thread.join(30)
    finally:
        raw.invalidate()
    assert cleaned == [0]


def _waits(connection: sa.Connection) -> bool:
    waiting: bool = connection.execute(
        sa.text(
            "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND query LIKE '%clean_up_receiver%' AND pid <> pg_backend_pid())"
        )
    ).scalar_one()
    return waiting


def test_a_blocked_attempt_is_not_counted_and_its_batch_continues(log: Log) -> None:
    for attempt in (1, 2, 3):
        claim(log, attempt)
        assert fail(log, attempt, max_attempts=2, failure=AttemptFailure.BLOCKED) is BatchState.BLOCKED
        oldest = oldest_unfinished_batch(log.connection, log.pipeline_id)
        assert oldest is not None
        assert (oldest.state, oldest.attempt, oldest.reason) == (BatchState.BLOCKED, attempt, "boom")
    claim(log, 4)
    assert fail(log, 4, max_attempts=2) is BatchState.FAILED
    claim(log, 5)
    assert fail(log, 5, max_attempts=2) is BatchState.QUARANTINED
    assert attempts(log) == [*[AttemptState.BLOCKED] * 3, *[AttemptState.FAILED] * 2]


def halted(log: Log) -> datetime | None:
    return get_pipeline(log.connection, "words").halted_by


def declare_halting(log: Log) -> None:
    log.connection.execute(
        sa.text("""UPDATE forebay.pipelines SET declaration = '{"settings": {"on_failure": "halt"}}'""")
    )


def quarantine(log: Log, *times: datetime) -> None:
    for time in times:
        claim(log, time=time)
        fail(log, 1, time)


def test_a_pipeline_halts_at_a_quarantined_batch_only_where_it_is_declared(log: Log) -> None:
    quarantine(log, T1)
    assert halted(log) is None
    declare_halting(log)
    quarantine(log, T2, T3)
    assert halted(log) == T2


def test_a_replay_or_a_discard_of_the_halting_batch_lets_a_pipeline_continue(log: Log) -> None:
    declare_halting(log)
    quarantine(log, T1, T2)
    number = claim_replay(log)
    with pytest.raises(DriverLogError, match="a replay runs in run replay"):
        batches.discard_batch(log.connection, pipeline_id=log.pipeline_id, batch_time=T1)
    assert halted(log) == T1
    commit(log, number)
    complete_replay(log, number)
    assert halted(log) == T2
    # A marker and a block.
    assert batches.discard_batch(log.connection, pipeline_id=log.pipeline_id, batch_time=T2) == 2
    assert halted(log) is None
    assert state(log, T2) == (BatchState.DISCARDED, 1)
    with pytest.raises(DriverLogError, match="is DISCARDED"):
        batches.discard_batch(log.connection, pipeline_id=log.pipeline_id, batch_time=T2)
    with pytest.raises(BatchHeldError, match="is DISCARDED"):
        claim_replay(log, T2)


def test_a_blocked_batch_can_be_discarded_and_is_never_claimed_again(log: Log) -> None:
    """A key or a store that will not come back would hold up all batches behind it."""
    claim(log)
    with pytest.raises(DriverLogError, match="is RUNNING"):
        batches.discard_batch(log.connection, pipeline_id=log.pipeline_id, batch_time=T1)
    assert fail(log, 1, failure=AttemptFailure.BLOCKED) is BatchState.BLOCKED
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET retention = interval '0'"))
    assert clean_up(log) == 0
    assert batches.discard_batch(log.connection, pipeline_id=log.pipeline_id, batch_time=T1) == 0
    assert state(log) == (BatchState.DISCARDED, 1)
    with pytest.raises(BatchHeldError, match="is DISCARDED"):
        claim(log, 2)
    assert checks.attempts_agree_with_their_batch(log.connection).passed
    # Nothing needs its block any more, nor the receiver's marker before it.
    assert clean_up(log) == 2


def test_a_start_lifts_the_halt_and_a_restart_of_the_system_does_not(log: Log) -> None:
    declare_halting(log)
    quarantine(log, T1)
    assert start_pipelines(log.connection, lift_halts=False) == []
    assert halted(log) == T1
    assert start_pipelines(log.connection, names=["words"]) == ["words"]
    assert halted(log) is None
    assert state(log) == (BatchState.QUARANTINED, 1)
    assert start_pipelines(log.connection) == []


def test_the_tracker_ends_a_replay_of_a_silent_process(log: Log, engine: sa.Engine) -> None:
    finish(log, T1)
    number = claim_replay(log)
    now = [1000.0]
    leader = Tracker(engine, heartbeat_limit_seconds=10.0, clock=lambda: now[0], name="t")
    for _ in range(8):
        leader.tick(log.connection)
        now[0] += 3.0
    assert attempts(log) == [AttemptState.SUCCEEDED, AttemptState.LOST]
    assert state(log) == (BatchState.COMPLETED, 1)
    assert claim_replay(log, run_id="next") == number + 1


def test_an_older_batch_quarantined_after_a_newer_one_halts_the_pipeline_too(log: Log) -> None:
    """Check with several concurrent batches: a replayed batch lifts its own halt, and not the other's."""
    declare_halting(log)
    quarantine(log, T2, T1)
    assert halted(log) == T1
    for time, after in ((T2, T1), (T1, None)):
        number = claim_replay(log, time)
        commit(log, number, time)
        complete_replay(log, number, time)
        assert halted(log) == after


@pytest.mark.parametrize("is_replay", [False, True])
def test_no_run_begins_for_a_pipeline_being_removed(log: Log, engine: sa.Engine, is_replay: bool) -> None:
    """Check this because clean-up keeps nothing for it from then on: a run would output only its remaining blocks."""
    if is_replay:
        finish(log, T1)
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET state = 'STOPPED'"))
    refused: list[str] = []

    def late() -> None:
        try:
            with connect(engine) as own:
                mine = Log(own, log.stream_id, log.pipeline_id, log.receiver_ids)
                if is_replay:
                    claim_replay(mine)
                else:
                    claim(mine)
        except BatchHeldError as error:
            refused.append(str(error))

    with engine.connect().execution_options(isolation_level="READ COMMITTED") as other:
        with other.begin():
            remove_pipeline(other, "words")
            thread = threading.Thread(target=late)
            thread.start()
            wait_until_blocked(log.connection)
        thread.join(30)
    assert len(refused) == 1
    assert "was removed" in refused[0]
    assert AttemptState.RUNNING not in attempts(log)
