"""Test stopping and starting pipelines in the driver log: what a stop waits for, and what continues (K12, S04, W19)."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import INTERVAL, NOON, Log, add, block, claim_anew
from tests.support.driver_log.placing import schedule_receiver
from tracker_store.batches.batches import claim_attempt, complete_batch
from tracker_store.batches.pipeline_states import (
    advance_stops,
    all_ended,
    start_pipelines,
    stop_pipelines,
    stop_progress,
)
from tracker_store.batches.pipelines import apply_pipeline, get_pipeline, remove_pipeline
from tracker_store.batches.readers import attach_reader
from tracker_store.batches.received_block_tracker import batch_times
from tracker_store.connection.errors import DriverLogError, NotAppliedError
from tracker_store.receivers.changes import read_changes
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.receivers.processes import deregister_process, heartbeat, register_process
from tracker_store.receivers.receivers import (
    NoSuchReceiverError,
    ReceiverStoppedError,
    failed_receivers,
    placements,
    placements_on_agent,
    receiver_events,
    receivers_named,
    restart_receiver,
    set_desired_state,
    set_receiver_state,
)
from tracker_store.schema.states import (
    PIPELINE_TRANSITIONS,
    DesiredState,
    PipelineState,
    ProcessKind,
    ReceiverEventKind,
    ReceiverState,
)


@pytest.fixture
def term(log: Log) -> int:
    taken = take_leadership(log.connection, seen=read_leadership(log.connection), holder="me")
    assert taken is not None
    return taken


def run_receiver(log: Log, term: int) -> tuple[int, int]:
    """Place the log's receiver and let a process claim it; return its assignment and process."""
    agent = register_process(log.connection, kind=ProcessKind.AGENT, name="a", host="h", pid=1, slots=4)
    [receiver] = log.receiver_ids
    schedule_receiver(log.connection, term=term, receiver_id=receiver, agent_id=agent, why="")
    [placed] = placements_on_agent(log.connection, agent)
    process = register_process(log.connection, kind=ProcessKind.RECEIVER, name="r", host="h", pid=2)
    assert set_receiver_state(
        log.connection,
        receiver_id=receiver,
        assignment=placed.assignment,
        state=ReceiverState.ACTIVE,
        process_id=process,
    )
    return placed.assignment, process


def end_receiver(log: Log, assignment: int) -> None:
    """End the receiver as its process does when everything is registered."""
    [receiver] = log.receiver_ids
    assert set_receiver_state(
        log.connection, receiver_id=receiver, assignment=assignment, state=ReceiverState.INACTIVE, reason="stopped"
    )


def state(log: Log, name: str = "words") -> PipelineState:
    return get_pipeline(log.connection, name).state


def desired(log: Log) -> DesiredState:
    return placements(log.connection)[0].desired_state


def test_k12_s04_a_pipeline_is_stopped_only_when_receiver_blocks_and_batches_are_done(log: Log, term: int) -> None:
    [receiver] = log.receiver_ids
    claimed = log.add_at(receiver, NOON)
    assignment, process = run_receiver(log, term)
    assert stop_pipelines(log.connection) == ["words"]
    assert state(log) is PipelineState.STOPPING
    assert advance_stops(log.connection, term=term) == [("receiver stops", receiver)]
    [response] = heartbeat(log.connection, process_id=process, receiver_ids=[receiver])
    assert response.desired_state is DesiredState.STOPPED, "its process gets the stop"

    # It drains: it registers one more block after the stop was requested.
    add(log.connection, block(claimed, claimed.sequence + 2, segment_id=1))
    assert advance_stops(log.connection, term=term) == []
    [progress] = stop_progress(log.connection, ["words"])
    assert (progress.receivers, progress.waiting_records) == (("lines/1 ACTIVE",), 20)

    end_receiver(log, assignment)
    assert advance_stops(log.connection, term=term) == [], "records wait"
    # The next boundary after its last block, which the sensor reaches.
    log.connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :noon"), {"noon": NOON})
    time = NOON + INTERVAL
    log.tracker.allocate_blocks_to_batch(time)
    assert advance_stops(log.connection, term=term) == [], "the last batch has not run"
    [progress] = stop_progress(log.connection, ["words"])
    assert (progress.waiting_records, progress.unfinished_batches, progress.batch_state) == (0, 1, "ALLOCATED")
    run = register_process(log.connection, kind=ProcessKind.BATCH_RUN, name="run", host="h", pid=3)
    claim_attempt(log.connection, pipeline_id=log.pipeline_id, batch_time=time, attempt=1, run_id="run", process_id=run)
    assert advance_stops(log.connection, term=term) == [], "it runs"
    complete_batch(log.connection, pipeline_id=log.pipeline_id, batch_time=time, attempt=1, outputs=[])
    assert not all_ended(log.connection)
    assert advance_stops(log.connection, term=term) == [("pipeline stopped", log.pipeline_id)]
    assert state(log) is PipelineState.STOPPED
    assert all_ended(log.connection)
    assert not all_ended(log.connection, after_seconds=60)
    with pytest.raises(DriverLogError, match="stopped and makes no batch"):
        log.tracker.allocate_blocks_to_batch(time + INTERVAL)


def test_a_stop_asked_for_again_changes_nothing_and_a_start_takes_it_back(log: Log, term: int) -> None:
    assignment, _ = run_receiver(log, term)
    stop_pipelines(log.connection)
    advance_stops(log.connection, term=term)
    [before] = stop_progress(log.connection, ["words"])
    stop_pipelines(log.connection)
    assert stop_progress(log.connection, ["words"]) == [before]
    assert desired(log) is DesiredState.STOPPED
    assert start_pipelines(log.connection) == ["words"]
    advance_stops(log.connection, term=term)
    assert (state(log), desired(log)) == (PipelineState.RUNNING, DesiredState.RUNNING)
    assert placements(log.connection)[0].assignment == assignment
    assert not all_ended(log.connection)
    assert start_pipelines(log.connection) == []


def test_an_operators_desired_state_of_a_receiver_applies_again_after_the_start(log: Log, term: int) -> None:
    [receiver] = log.receiver_ids
    set_desired_state(log.connection, receiver_ids=[receiver], desired=DesiredState.PAUSED)
    stop_pipelines(log.connection)
    advance_stops(log.connection, term=term)
    assert (state(log), desired(log)) == (PipelineState.STOPPED, DesiredState.STOPPED)
    with pytest.raises(ReceiverStoppedError, match="forebay start"):
        set_desired_state(log.connection, receiver_ids=[receiver], desired=DesiredState.RUNNING)
    start_pipelines(log.connection, names=["words"])
    advance_stops(log.connection, term=term)
    assert desired(log) is DesiredState.PAUSED


def test_the_receivers_of_a_stream_stop_when_nothing_reads_it_and_go_on_with_a_new_reader(log: Log, term: int) -> None:
    [receiver] = log.receiver_ids
    run_receiver(log, term)
    apply_pipeline(
        log.connection,
        name="words",
        declaration={"max_attempts": 3, "streams": []},
        stream_ids=[],
        interval=INTERVAL,
    )
    assert desired(log) is DesiredState.STOPPED
    assert advance_stops(log.connection, term=term) == []
    with pytest.raises(ReceiverStoppedError, match="apply a pipeline that does"):
        set_desired_state(log.connection, receiver_ids=[receiver], desired=DesiredState.RUNNING)
    before = read_changes(log.connection).placement
    attach_reader(log.connection, name="query", stream="lines", start="latest")
    assert read_changes(log.connection).placement > before, "the tracker sees it"
    assert advance_stops(log.connection, term=term) == [("receiver goes on", receiver)]
    assert desired(log) is DesiredState.RUNNING


def test_a_stream_that_another_pipeline_reads_goes_on(log: Log, term: int) -> None:
    """Check that blocks from before the stop get their batch; later ones wait behind the stopped pipeline's cursor."""
    [receiver] = log.receiver_ids
    claimed = log.add_at(receiver, NOON)
    run_receiver(log, term)
    apply_pipeline(
        log.connection,
        name="other",
        declaration={"max_attempts": 3, "streams": ["lines"]},
        stream_ids=[log.stream_id],
        interval=INTERVAL,
    )
    stop_pipelines(log.connection, name="words")
    assert advance_stops(log.connection, term=term) == []
    assert desired(log) is DesiredState.RUNNING
    time = NOON + INTERVAL
    log.tracker.allocate_blocks_to_batch(time)
    complete(log, time)
    add(log.connection, block(claimed, claimed.sequence + 2, segment_id=1))
    assert advance_stops(log.connection, term=term) == [("pipeline stopped", log.pipeline_id)]
    assert not all_ended(log.connection), "one of two pipelines stopped, and the system was not asked to end"
    # It starts where it stopped: the interval of the waiting blocks is not skipped.
    start_pipelines(log.connection, names=["words"])
    assert batch_times(log.connection, log.pipeline_id).last == time
    assert log.tracker.has_unallocated_blocks()
    stop_pipelines(log.connection)
    assert advance_stops(log.connection, term=term) == [("receiver stops", receiver)], "no pipeline reads it any more"


@pytest.mark.parametrize("asked", ["before the removal", "after it"])
def test_a_system_whose_pipelines_are_removed_ends_when_a_person_stops_it(log: Log, asked: str) -> None:
    is_after = asked == "after it"
    stop_pipelines(log.connection, name="words" if is_after else None)
    remove_pipeline(log.connection, "words")
    if is_after:
        assert not all_ended(log.connection), "no person asked the system to end"
        assert stop_pipelines(log.connection) == []
    assert not all_ended(log.connection, after_seconds=60)
    log.connection.exec_driver_sql("UPDATE forebay.pipelines SET removed_at = now() + interval '1 day'")
    assert all_ended(log.connection, after_seconds=2), "the clock was set back"
    apply_pipeline(
        log.connection,
        name="words",
        declaration={"max_attempts": 3, "streams": ["lines"]},
        stream_ids=[log.stream_id],
        interval=INTERVAL,
    )
    start_pipelines(log.connection, names=["words"])
    stop_pipelines(log.connection, name="words")
    remove_pipeline(log.connection, "words")
    assert not all_ended(log.connection), "the start took the request back"


def complete(log: Log, time: object) -> None:
    log.connection.execute(
        sa.text("UPDATE forebay.batches SET state = 'COMPLETED', completed_at = now() WHERE batch_time = :time"),
        {"time": time},
    )


def test_after_a_stop_the_intervals_in_between_make_no_batches(log: Log, term: int) -> None:
    stop_pipelines(log.connection)
    advance_stops(log.connection, term=term)
    # Not the newest boundary after the start, because another may have passed by then.
    before = batch_times(log.connection, log.pipeline_id)
    assert before.last == NOON, "long ago"
    start_pipelines(log.connection)
    times = batch_times(log.connection, log.pipeline_id)
    assert before.newest <= times.last <= times.newest
    assert times.next_due > before.now


def test_a_receiver_that_was_placed_and_never_claimed_is_not_waited_for(log: Log, term: int) -> None:
    agent = register_process(log.connection, kind=ProcessKind.AGENT, name="a", host="h", pid=1, slots=4)
    [receiver] = log.receiver_ids
    schedule_receiver(log.connection, term=term, receiver_id=receiver, agent_id=agent, why="")
    stop_pipelines(log.connection)
    assert advance_stops(log.connection, term=term) == [
        ("receiver stops", receiver),
        ("receiver ended", receiver),
        ("pipeline stopped", log.pipeline_id),
    ]


def test_a_receiver_taken_from_its_agent_is_waited_for_while_it_drains(log: Log, term: int) -> None:
    [receiver] = log.receiver_ids
    _, process = run_receiver(log, term)
    assert restart_receiver(log.connection, receiver_id=receiver, why="asked for")
    stop_pipelines(log.connection)
    assert advance_stops(log.connection, term=term) == [("receiver stops", receiver)]
    deregister_process(log.connection, process, "drained")
    assert advance_stops(log.connection, term=term) == [("pipeline stopped", log.pipeline_id)]


def test_a_deposed_leader_stops_nothing(log: Log, term: int) -> None:
    stop_pipelines(log.connection)
    take_leadership(log.connection, seen=read_leadership(log.connection), holder="another")
    assert advance_stops(log.connection, term=term) == [("deposed", None)]
    assert state(log) is PipelineState.STOPPING


def test_only_the_transitions_of_the_table_happen(log: Log, term: int) -> None:
    seen = {(PipelineState.RUNNING, PipelineState.RUNNING)}
    before = state(log)
    for step in (
        lambda: stop_pipelines(log.connection),
        lambda: start_pipelines(log.connection),
        lambda: stop_pipelines(log.connection, name="words"),
        lambda: advance_stops(log.connection, term=term),
        lambda: stop_pipelines(log.connection),
        lambda: start_pipelines(log.connection, names=["words"]),
    ):
        step()
        seen.add((before, state(log)))
        before = state(log)
    moves = {(old, new) for old, new in seen if old is not new}
    assert moves == {(old, new) for old, targets in PIPELINE_TRANSITIONS.items() for new in targets}


def test_an_unknown_pipeline_is_named(log: Log) -> None:
    with pytest.raises(NotAppliedError, match="'word'"):
        stop_pipelines(log.connection, name="word")
    with pytest.raises(NotAppliedError, match="'word'"):
        start_pipelines(log.connection, names=["words", "word"])


def test_k04_a_failed_receiver_is_restarted_once_an_episode_and_the_restarts_are_counted(log: Log, term: int) -> None:
    [receiver] = log.receiver_ids
    assignment, _ = run_receiver(log, term)
    set_receiver_state(
        log.connection, receiver_id=receiver, assignment=assignment, state=ReceiverState.FAILED, reason="it broke"
    )
    [failed] = failed_receivers(log.connection, ["lines"])
    assert (failed.receiver_id, failed.assignment, failed.reason, failed.restarts) == (
        receiver,
        assignment,
        "it broke",
        0,
    )
    assert failed_receivers(log.connection, ["others"]) == []
    arguments = {"receiver_id": receiver, "why": "it broke", "by": "Dagster run 1", "failed_under": assignment}
    assert restart_receiver(log.connection, **arguments)  # type: ignore[arg-type]
    assert not restart_receiver(log.connection, **arguments), "it is INACTIVE, under the next"  # type: ignore[arg-type]
    [placed] = placements(log.connection)
    assert (placed.state, placed.assignment) == (ReceiverState.INACTIVE, assignment + 1)
    assert (ReceiverEventKind.RESTARTED, "it broke", "Dagster run 1") in receiver_events(log.connection, receiver)
    log.connection.execute(sa.text("UPDATE forebay.receivers SET state = 'FAILED'"))
    assert failed_receivers(log.connection, ["lines"])[0].restarts == 1
    # A restart by a person is allowed whatever the count is, and is not counted.
    assert restart_receiver(log.connection, receiver_id=receiver, why="restarted by an operator")
    log.connection.execute(sa.text("UPDATE forebay.receivers SET state = 'FAILED'"))
    assert failed_receivers(log.connection, ["lines"])[0].restarts == 1
    set_desired_state(log.connection, receiver_ids=[receiver], desired=DesiredState.STOPPED)
    assert failed_receivers(log.connection, ["lines"]) == []
    assert not restart_receiver(log.connection, receiver_id=receiver, why="asked for"), "its desired state is STOPPED"


def test_receivers_are_found_by_their_names(log: Log) -> None:
    assert [row.ordinal for row in receivers_named(log.connection, "lines")] == [1]
    assert receivers_named(log.connection, "lines/1") == receivers_named(log.connection, "lines")
    assert claim_anew(log.connection, log.receiver_ids[0]).epoch
    for unknown in ("line", "lines/2", "lines/x"):
        with pytest.raises(NoSuchReceiverError, match=unknown):
            receivers_named(log.connection, unknown)
