"""Test replays forward of an output with a state: stopped, resumed, completed and undone."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import INTERVAL
from tests.support.driver_log.stated_log import (
    BUCKETS,
    DECLARATION,
    OUTPUT,
    StatedLog,
    batch_time,
    frame,
    make_stated_log,
)
from tracker_store.batches import batches, state_replays, state_versions
from tracker_store.batches.pipelines import apply_pipeline
from tracker_store.batches.state_versions import VersionKey
from tracker_store.connection.errors import BatchHeldError, BlocksNotRetainedError, DriverLogError, StateMovedError
from tracker_store.receivers.processes import deregister_process
from tracker_store.reports.state_status import output_states
from tracker_store.retention import state_files
from tracker_store.retention.cleanup import clean_up_receiver
from tracker_store.retention.history import clean_up_history
from tracker_store.retention.state_files import state_versions_to_delete
from tracker_store.schema.states import BatchState, StateReplayState

T1, T2, T3, T4 = (batch_time(number) for number in (1, 2, 3, 4))
WINDOW, KEEP = timedelta(hours=1), timedelta(days=14)


@pytest.fixture
def stated(connection: sa.Connection) -> StatedLog:
    """Make a log with an output that has a state, and three batches that are committed."""
    made = make_stated_log(connection)
    for number in (1, 2, 3):
        made.run(number)
    return made


def begin(stated: StatedLog, number: int = 2) -> int:
    return state_replays.begin_state_replay(stated.connection, **stated.where, from_time=batch_time(number))


def state(stated: StatedLog, replay: int) -> StateReplayState:
    return state_replays.state_replay(stated.connection, replay).state


def run_all(stated: StatedLog, replay: int, *, at_most: int = 10) -> list[VersionKey]:
    made: list[VersionKey] = []
    while len(made) < at_most and (time := state_replays.next_batch(stated.connection, replay)) is not None:
        made.append(stated.replay(time, forward=replay))
    return made


def reads(stated: StatedLog, version: VersionKey) -> VersionKey | None:
    found = state_versions.version(
        stated.connection, **stated.where, batch_time=version.batch_time, attempt=version.attempt
    )
    assert found is not None
    return found.read


def test_a_replay_makes_a_chain_of_its_own_and_its_last_batch_puts_it_in_force(stated: StatedLog) -> None:
    replay = begin(stated)
    [first] = run_all(stated, replay, at_most=1)
    assert reads(stated, first) == VersionKey(T1, 1)
    assert stated.head() == VersionKey(T3, 1)
    found = state_replays.state_replay(stated.connection, replay)
    assert (found.head, found.is_unfinished) == (first, True)
    [second] = run_all(stated, replay)
    assert reads(stated, second) == first
    assert stated.head() == second == VersionKey(T3, 2)
    assert state(stated, replay) is StateReplayState.COMPLETED
    assert [stated.state_attempt(time) for time in (T1, T2, T3)] == [1, 2, 2]
    assert reads(stated, stated.run(4)) == second
    assert [row.replay_id for row in state_replays.state_replays(stated.connection, pipeline_id=1)] == [replay]


def test_new_batches_wait_for_an_unfinished_replay(stated: StatedLog) -> None:
    time = stated.allocate(4)
    stated.claim(time)
    stated.begin(time, 1, stated.head())
    stated.note(time, 1)
    replay = begin(stated)
    assert stated.to_read(time).replay == replay
    with pytest.raises(StateMovedError, match=f"replay {replay} of the output is RUNNING"):
        stated.begin(time, 1, stated.head())
    with pytest.raises(StateMovedError, match=f"replay {replay} of the output is RUNNING"):
        stated.commit(time, 1)
    with pytest.raises(DriverLogError, match=f"replay {replay} of output totals is RUNNING"):
        begin(stated, 1)
    state_replays.stop_state_replay(stated.connection, replay)
    assert stated.to_read(time).replay == replay
    state_replays.resume_state_replay(stated.connection, replay)
    *_, last = run_all(stated, replay)
    assert stated.to_read(time).head == last
    with pytest.raises(StateMovedError, match="is in force"):
        stated.commit(time, 1)
    stated.begin(time, 1, last)
    stated.note(time, 1)
    stated.commit(time, 1)


def test_a_stopped_replay_goes_on_where_it_was(stated: StatedLog) -> None:
    replay = begin(stated)
    first = run_all(stated, replay, at_most=1)
    # A batch of it runs while it is stopped, and may commit.
    attempt = stated.claim_replay(T3, forward=replay)
    stated.begin(T3, attempt, first[0], replay=replay)
    state_replays.stop_state_replay(stated.connection, replay)
    state_replays.stop_state_replay(stated.connection, replay)
    assert state_replays.next_batch(stated.connection, replay) is None
    with pytest.raises(StateMovedError, match="is STOPPED"):
        stated.to_read(T3, forward=replay)
    stated.fail(T3, attempt)
    with pytest.raises(BatchHeldError, match=f"replay {replay} is STOPPED"):
        stated.claim_replay(T3, forward=replay)
    state_replays.resume_state_replay(stated.connection, replay)
    assert state_replays.next_batch(stated.connection, replay) == T3
    [last] = run_all(stated, replay)
    assert reads(stated, last) == first[0]
    with pytest.raises(DriverLogError, match="is COMPLETED"):
        state_replays.stop_state_replay(stated.connection, replay)


def test_the_last_batch_completes_a_replay_that_is_stopped_meanwhile(stated: StatedLog) -> None:
    replay = begin(stated, 3)
    attempt = stated.claim_replay(T3, forward=replay)
    stated.begin(T3, attempt, VersionKey(T2, 1), replay=replay)
    stated.note(T3, attempt)
    state_replays.stop_state_replay(stated.connection, replay)
    stated.commit(T3, attempt)
    assert state(stated, replay) is StateReplayState.COMPLETED
    assert stated.head() == VersionKey(T3, attempt)


@pytest.mark.parametrize("made", [0, 1, 2])
def test_an_undone_replay_leaves_every_version_as_it_was(stated: StatedLog, made: int) -> None:
    replay = begin(stated)
    versions = run_all(stated, replay, at_most=made)
    assert len(versions) == made
    state_replays.undo_state_replay(stated.connection, replay)
    if made:
        with pytest.raises(DriverLogError, match="has still the result"):
            state_replays.end_undoing(stated.connection, replay)
    restored = []
    while (time := state_replays.next_batch(stated.connection, replay)) is not None:
        found = stated.to_read(time, forward=replay)
        assert found.restores == 1
        assert found.head == reads(stated, VersionKey(time, 1))
        restored.append(stated.replay(time, forward=replay))
    assert restored == [VersionKey(version.batch_time, 1) for version in versions]
    assert stated.to_read(T4).replay == replay
    state_replays.end_undoing(stated.connection, replay)
    assert stated.head() == VersionKey(T3, 1)
    assert [stated.state_attempt(time) for time in (T1, T2, T3)] == [1, 1, 1]
    assert [version for version, committed, _ in stated.versions() if not committed] == versions
    assert reads(stated, stated.run(4)) == VersionKey(T3, 1)


def test_while_it_is_undone_nothing_but_the_former_version_is_committed(stated: StatedLog) -> None:
    replay = begin(stated)
    run_all(stated, replay)
    state_replays.undo_state_replay(stated.connection, replay)
    attempt = stated.claim_replay(T2, forward=replay)
    with pytest.raises(StateMovedError, match="is UNDOING"):
        stated.begin(T2, attempt, VersionKey(T1, 1), replay=replay)
    with pytest.raises(StateMovedError):
        stated.commit(T2, attempt)
    with pytest.raises(StateMovedError):
        stated.commit(T2, attempt, state_attempt=2)
    stated.commit(T2, attempt, state_attempt=1)
    assert stated.state_attempt(T2) == 1


def test_what_a_later_batch_has_read_is_not_undone(stated: StatedLog) -> None:
    replay = begin(stated)
    run_all(stated, replay)
    four = stated.run(4)
    with pytest.raises(DriverLogError, match="a later batch, 2026-01-01 12:00:40"):
        state_replays.undo_state_replay(stated.connection, replay)
    assert stated.head() == four


def test_a_batch_that_was_skipped_comes_in_and_keeps_its_result_when_undone(stated: StatedLog) -> None:
    skipped = stated.quarantine(4)
    five = stated.run(5)
    replay = begin(stated, 4)
    first, _ = run_all(stated, replay)
    assert reads(stated, first) == VersionKey(T3, 1)
    batch = batches.get_batch(stated.connection, stated.pipeline_id, skipped)
    assert batch is not None
    assert batch.state is BatchState.COMPLETED
    state_replays.undo_state_replay(stated.connection, replay)
    assert state_replays.next_batch(stated.connection, replay) == five.batch_time
    stated.replay(five.batch_time, forward=replay)
    assert state_replays.next_batch(stated.connection, replay) is None
    state_replays.end_undoing(stated.connection, replay)
    assert stated.head() == five
    assert stated.state_attempt(skipped) is None
    assert stated.to_read(batch_time(6)).hole is None


def test_a_replay_from_the_first_batch_reads_nothing(stated: StatedLog) -> None:
    replay = begin(stated, 1)
    found = stated.to_read(T1, forward=replay)
    assert (found.head, found.ordinal) == (None, 1)
    first, *_ = run_all(stated, replay)
    assert reads(stated, first) is None
    assert state(stated, replay) is StateReplayState.COMPLETED


def test_a_rebuild_reads_nothing_from_whichever_batch_on(stated: StatedLog) -> None:
    replay = state_replays.begin_state_replay(
        stated.connection, **stated.where, from_time=batch_time(2), from_nothing=True
    )
    assert stated.to_read(batch_time(2), forward=replay).head is None
    first, *_ = run_all(stated, replay)
    assert reads(stated, first) is None
    assert state(stated, replay) is StateReplayState.COMPLETED


def test_what_can_not_be_replayed_is_refused(stated: StatedLog) -> None:
    stated.allocate(4, records=False)
    for number, why in ((4, "the newest batch in the state"), (9, "has no batch")):
        with pytest.raises(DriverLogError, match=why):
            begin(stated, number)
    stated.run(5)
    with pytest.raises(DriverLogError, match="made no version"):
        begin(stated, 4)
    with pytest.raises(DriverLogError, match="has no state yet"):
        state_replays.begin_state_replay(
            stated.connection, pipeline_id=stated.pipeline_id, output="other", from_time=T1
        )
    stated.connection.execute(sa.text("UPDATE forebay.state_versions SET deleting_at = now() WHERE ordinal = 1"))
    with pytest.raises(BlocksNotRetainedError, match="its version of batch 2026-01-01 12:00:10"):
        begin(stated, 3)
    with pytest.raises(DriverLogError, match="there is no replay 7"):
        state_replays.undo_state_replay(stated.connection, 7)
    with pytest.raises(DriverLogError, match="there is no replay 7"):
        state_replays.state_replay(stated.connection, 7)


def test_clean_up_keeps_what_an_unfinished_replay_reads(stated: StatedLog) -> None:
    def clean_up() -> tuple[int, int]:
        cleaned = clean_up_receiver(
            stated.connection, receiver_id=stated.log.receiver_ids[0], threshold=T4, max_rows=100
        )
        history = clean_up_history(stated.connection, pipeline_id=1, keep=timedelta(0), max_rows=100)
        return cleaned.blocks, history.rows

    replay = begin(stated)
    taken, forgotten = clean_up()
    # Those of the first batch: their blocks, markers among them, and the batch.
    assert (taken > 0, forgotten) == (True, 1)
    assert clean_up() == (0, 0)
    run_all(stated, replay)
    assert state(stated, replay) is StateReplayState.COMPLETED
    assert (
        clean_up_receiver(stated.connection, receiver_id=stated.log.receiver_ids[0], threshold=T4, max_rows=100).blocks
        > 0
    )
    with pytest.raises(BlocksNotRetainedError, match="blocks of batch 2026-01-01 12:00:20"):
        begin(stated)


def test_a_replay_whose_first_window_has_lost_blocks_is_refused_before_it_begins(stated: StatedLog) -> None:
    slide = {"window": "lines", "length_ms": 20_000, "slide_ms": 10_000}
    apply_pipeline(
        stated.connection,
        name="words",
        declaration={**DECLARATION, "outputs": {OUTPUT: {"inputs": [slide], "state": {"version": 1}}}},
        stream_ids=[stated.log.stream_id],
        interval=INTERVAL,
    )
    clean_up_receiver(stated.connection, receiver_id=stated.log.receiver_ids[0], threshold=T2, max_rows=100)
    with pytest.raises(BlocksNotRetainedError, match=r"after 2026-01-01 12:00:00.*blocks of batch .*00:10"):
        begin(stated)
    replay = begin(stated, 3)
    state_replays.undo_state_replay(stated.connection, replay)
    state_replays.end_undoing(stated.connection, replay)
    clean_up_history(stated.connection, pipeline_id=stated.pipeline_id, keep=timedelta(0), max_rows=1)
    with pytest.raises(BlocksNotRetainedError, match=r"after 2026-01-01 12:00:00.*batches before .* were"):
        begin(stated)


def test_clean_up_keeps_the_base_of_a_replay_that_can_be_undone(
    stated: StatedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_files, "CHAIN_STEPS", 2)

    def gone() -> set[VersionKey]:
        stated.age(2 * WINDOW)
        stated.connection.execute(sa.text("UPDATE forebay.pipelines SET applied_at = clock_timestamp()"))
        found = state_versions_to_delete(stated.connection, restore_window=WINDOW, keep=KEEP, limit=100)
        return {VersionKey(state.batch_time, state.attempt) for state in found}

    for number in range(4, 9):
        stated.run(number)
    replay = begin(stated, 3)
    assert gone() == set()
    run_all(stated, replay)
    assert gone() == set(), "it can be undone"
    stated.run(9)
    assert {VersionKey(T1, 1), VersionKey(batch_time(4), 1)} <= gone()
    [frames] = state_versions.chain(stated.connection, **stated.where, version=stated.head())
    assert frames == [frame(bucket, frames[0][1], is_full=True) for bucket in range(BUCKETS)]


def test_the_views_show_what_is_in_force_and_how_far_a_replay_is(stated: StatedLog) -> None:
    def status() -> tuple[object, ...]:
        return tuple(
            stated.connection.execute(
                sa.text(
                    "SELECT pipeline, output, batch_time, attempt, ordinal, bytes, generation, versions, stored_bytes, "
                    "replay, replay_state, replay_from, replayed_to, replay_to FROM forebay.state_status"
                )
            ).one()
        )

    size = 100 * BUCKETS
    assert status() == ("words", OUTPUT, T3, 1, 3, size, 1, 3, 3 * size, None, None, None, None, None)
    replay = begin(stated)
    run_all(stated, replay, at_most=1)
    assert status() == ("words", OUTPUT, T3, 1, 3, size, 1, 4, 4 * size, replay, "RUNNING", T2, T2, T3)
    run_all(stated, replay)
    assert status() == ("words", OUTPUT, T3, 2, 3, size, 2, 5, 5 * size, None, None, None, None, None)
    rows = stated.connection.execute(
        sa.text(
            "SELECT batch_time, state_attempt, state_ordinal, state_changed, state_deleted, state_bytes, state_replay "
            "FROM forebay.batch_outputs ORDER BY 1"
        )
    )
    assert [tuple(row) for row in rows] == [
        (T1, 1, 1, 1, 0, size, None),
        (T2, 2, 2, 1, 0, size, replay),
        (T3, 2, 3, 1, 0, size, replay),
    ]


def test_a_batch_that_was_discarded_with_a_result_can_not_be_replayed(stated: StatedLog) -> None:
    time = stated.allocate(4)
    stated.claim(time)
    stated.begin(time, 1, stated.head())
    stated.note(time, 1)
    stated.commit(time, 1)
    assert stated.fail(time, 1) is BatchState.QUARANTINED
    replay = begin(stated, 4)
    with pytest.raises(DriverLogError, match=f"replay forward {replay} is to run it again"):
        batches.discard_batch(stated.connection, pipeline_id=stated.pipeline_id, batch_time=time)
    # Another output of the batch has no result: it stays quarantined.
    attempt = stated.claim_replay(time, forward=replay)
    stated.begin(time, attempt, VersionKey(T3, 1), replay=replay)
    stated.note(time, attempt)
    stated.commit(time, attempt)
    stated.fail(time, attempt)
    batches.discard_batch(stated.connection, pipeline_id=stated.pipeline_id, batch_time=time)
    with pytest.raises(DriverLogError, match="was discarded since"):
        state_replays.undo_state_replay(stated.connection, replay)
    with pytest.raises(BlocksNotRetainedError, match="or given up"):
        begin(stated, 3)


def test_one_process_has_a_replay_until_it_has_ended_and_then_does_nothing_more_to_it(stated: StatedLog) -> None:
    def claim(process: int) -> int:
        return batches.claim_replay(
            stated.connection,
            pipeline_id=stated.pipeline_id,
            batch_time=T2,
            run_id=f"replay {process}",
            process_id=process,
            reach=timedelta(0),
            stateful=[OUTPUT],
            forward=replay,
        )

    def runs() -> bool | None:
        [found] = output_states(stated.connection)
        return found.replay_runs

    assert runs() is None
    replay = begin(stated)
    assert runs() is False
    first, second = stated.process(), stated.process()
    for _ in range(2):
        state_replays.take_state_replay(stated.connection, replay, first)
    assert runs() is True
    with pytest.raises(DriverLogError, match="is run by process 1 on host h"):
        state_replays.take_state_replay(stated.connection, replay, second)
    with pytest.raises(BatchHeldError, match=f"is run by process {first}"):
        claim(second)
    with pytest.raises(DriverLogError, match="is run by process 1 on host h: end that first"):
        state_replays.undo_state_replay(stated.connection, replay)
    deregister_process(stated.connection, first)
    assert runs() is False
    with pytest.raises(BatchHeldError, match=f"not by process {first}"):
        claim(first)
    state_replays.take_state_replay(stated.connection, replay, second)
    with pytest.raises(BatchHeldError, match=f"is run by process {second}"):
        claim(first)
    with pytest.raises(DriverLogError, match=f"taken over by process {second}"):
        state_replays.stop_state_replay(stated.connection, replay, process_id=first)
    assert state(stated, replay) is StateReplayState.RUNNING
    attempt = claim(second)
    stated.fail(T2, attempt)
    state_replays.stop_state_replay(stated.connection, replay, process_id=second)
    with pytest.raises(DriverLogError, match="is STOPPED"):
        state_replays.take_state_replay(stated.connection, replay, second)
