"""Test the tracker on a real driver log, with a clock that the test moves."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from orchestration.tracker import tracker as tracker_module
from orchestration.tracker.change_watch import FULL_SCAN_SECONDS
from orchestration.tracker.receiver_placement import ReceiverPlacement
from orchestration.tracker.tracker import LEADERSHIP_LIMIT_SECONDS, LONGEST_TICK_SECONDS, Tracker
from tests.support.clock import Clock
from tests.support.driver_log.attempts import claim_batch
from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log
from tests.support.polling import eventually, joined
from tracker_store.batches import batches
from tracker_store.connection.errors import DriverLogUnavailableError
from tracker_store.receivers.leadership import end_leadership_of, holder_name, read_leadership
from tracker_store.receivers.processes import heartbeat, register_process
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import BatchState, ProcessKind, ReceiverState

if TYPE_CHECKING:
    import sqlalchemy as sa

LIMIT = 10.0


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    return make_log(connection, receivers=2)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def tracker(engine: sa.Engine, clock: Clock, name: str = "t") -> Tracker:
    return Tracker(engine, heartbeat_limit_seconds=LIMIT, clock=clock, name=name)


def agent(log: Log, name: str = "a", slots: int = 4) -> int:
    return register_process(log.connection, kind=ProcessKind.AGENT, name=name, host=name, pid=1, slots=slots)


def test_a_first_tracker_leads_and_places_receivers_evenly(engine: sa.Engine, log: Log, clock: Clock) -> None:
    agents = [agent(log, "a"), agent(log, "b")]
    tracker(engine, clock).tick(log.connection)
    placed = placements(log.connection)
    assert [placement.state for placement in placed] == [ReceiverState.SCHEDULED] * 2
    assert sorted(placement.agent_id or 0 for placement in placed) == agents


def test_without_a_slot_a_receiver_waits_and_is_placed_when_there_is_one(
    engine: sa.Engine, log: Log, clock: Clock
) -> None:
    agent(log, "a", slots=1)
    leader = tracker(engine, clock)
    leader.tick(log.connection)
    assert [placement.state.value for placement in placements(log.connection)] == ["SCHEDULED", "INACTIVE"]
    agent(log, "b", slots=1)
    leader.tick(log.connection)
    assert [placement.state.value for placement in placements(log.connection)] == ["SCHEDULED", "SCHEDULED"]


def test_a_second_tracker_leads_only_when_the_first_stands_still(engine: sa.Engine, log: Log, clock: Clock) -> None:
    first, second = tracker(engine, clock, "first"), tracker(engine, clock, "second")
    for _ in range(10):
        first.tick(log.connection)
        second.tick(log.connection)
        clock.now += 1
    assert (first.term, second.term) == (1, None)
    for _ in range(2):
        clock.now += LEADERSHIP_LIMIT_SECONDS / 2
        second.tick(log.connection)
    assert second.term == 2
    # The first tracker was only paused: its next tick finds that it is deposed.
    first.tick(log.connection)
    assert first.term is None


def test_a_leader_whose_process_was_seen_to_end_is_replaced_at_once(engine: sa.Engine, log: Log, clock: Clock) -> None:
    first, second = tracker(engine, clock, "here:1"), tracker(engine, clock, "here:2")
    first.tick(log.connection)
    second.tick(log.connection)
    assert not end_leadership_of(log.connection, holder_name("here", 2)), "process 2 does not lead"
    second.tick(log.connection)
    assert second.term is None
    assert end_leadership_of(log.connection, holder_name("here", 1))
    second.tick(log.connection)
    assert second.term == 2


def test_a_silent_agents_receivers_move_and_a_beating_ones_stay(engine: sa.Engine, log: Log, clock: Clock) -> None:
    silent = agent(log, "silent", slots=1)
    alive = agent(log, "alive", slots=2)
    leader = tracker(engine, clock)
    first: dict[int, int] = {}
    for _ in range(13):
        heartbeat(log.connection, process_id=alive)
        leader.tick(log.connection)
        clock.now += 1
        first = first or {placement.receiver_id: placement.assignment for placement in placements(log.connection)}
    assert {placement.agent_id for placement in placements(log.connection)} == {alive}
    assert silent not in {placement.agent_id for placement in placements(log.connection)}
    moved = [
        placement for placement in placements(log.connection) if placement.assignment > first[placement.receiver_id]
    ]
    assert len(moved) == 1


def test_a_stopped_receiver_is_not_placed(engine: sa.Engine, log: Log, clock: Clock) -> None:
    import sqlalchemy as sa  # noqa: PLC0415

    agent(log)
    log.connection.execute(sa.text("UPDATE forebay.receivers SET desired_state = 'stopped'"))
    tracker(engine, clock).tick(log.connection)
    assert {placement.state for placement in placements(log.connection)} == {ReceiverState.INACTIVE}


def test_an_attempt_of_a_silent_process_is_failed_for_a_retry(engine: sa.Engine, log: Log, clock: Clock) -> None:
    log.add_at(log.receiver_ids[0], NOON + timedelta(seconds=1))
    time = NOON + INTERVAL
    log.tracker.allocate_blocks_to_batch(time)
    claim_batch(log.connection, log.pipeline_id, time, run_id="run1")
    leader = tracker(engine, clock)
    for _ in range(3):
        leader.tick(log.connection)
        clock.now += LIMIT / 2
    batch = batches.get_batch(log.connection, log.pipeline_id, time)
    assert batch is not None
    assert batch.state is BatchState.FAILED
    assert "run1" in batch.reason


def test_a_long_tick_does_not_cost_the_leadership_and_a_hanging_one_does(
    engine: sa.Engine, log: Log, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, candidate = tracker(engine, clock, "leader"), tracker(engine, clock, "candidate")
    leader.tick(log.connection)
    candidate.tick(log.connection)
    seconds: list[int] = []

    def long_look(*_: object, **__: object) -> None:
        while candidate.term is None and len(seconds) < 100:
            clock.now += 1
            seconds.append(1)
            leader.vouch(log.connection)
            candidate.tick(log.connection)

    monkeypatch.setattr(ReceiverPlacement, "tick", long_look)
    clock.now += FULL_SCAN_SECONDS
    leader.tick(log.connection)
    assert candidate.term == 2
    assert LONGEST_TICK_SECONDS < len(seconds) <= LONGEST_TICK_SECONDS + LEADERSHIP_LIMIT_SECONDS + 2
    leader.tick(log.connection)
    assert leader.term is None


def test_a_leader_whose_ticks_all_fail_lets_another_one_try(
    engine: sa.Engine, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        message = "a function that this release does not know"
        raise DriverLogUnavailableError(message)

    monkeypatch.setattr(tracker_module, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(tracker_module, "MOST_FAILED_TICKS", 3)
    monkeypatch.setattr(ReceiverPlacement, "tick", fail)
    leader = Tracker(engine, heartbeat_limit_seconds=LIMIT, name="leader")
    stop = threading.Event()
    running = threading.Thread(target=leader.run, args=(stop,))
    running.start()
    try:
        eventually(
            lambda: (read_leadership(log.connection).term, read_leadership(log.connection).holder) == (1, None),
            "the leader has resigned",
        )
    finally:
        stop.set()
        joined(running)
