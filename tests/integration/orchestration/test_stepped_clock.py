"""Check that setting the database's or a host's clock expires no process, deposes no leader, and saves no dead one."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import sqlalchemy as sa

from orchestration.tracker.tracker import LEADERSHIP_LIMIT_SECONDS, Tracker
from tests.support.clock import Clock
from tests.support.driver_log.log import Log, make_log
from tracker_store.receivers.processes import heartbeat, live_processes, register_process
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import ProcessKind
from tracker_store.schema.tables import metadata

LIMIT = 10.0
STEPS = (timedelta(days=400), timedelta(days=-400))


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    return make_log(connection, receivers=2)


def step(log: Log, monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    """Set every clock forward (or back): make what was written so far that much older than the clocks say."""
    for name in ("processes", "leadership", "receivers"):
        for column in metadata.tables[f"forebay.{name}"].columns:
            if isinstance(column.type, sa.DateTime):
                log.connection.execute(
                    sa.text(f"UPDATE forebay.{name} SET {column.name} = {column.name} - CAST(:by AS interval)"),
                    {"by": by},
                )
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + by.total_seconds())


@pytest.mark.parametrize("by", STEPS, ids=["forward", "back"])
def test_a_stepped_clock_expires_no_process_and_deposes_no_leader(
    engine: sa.Engine, log: Log, monkeypatch: pytest.MonkeyPatch, by: timedelta
) -> None:
    clock = Clock()
    agent = register_process(log.connection, kind=ProcessKind.AGENT, name="a", host="a", pid=1, slots=4)
    leader, candidate = (Tracker(engine, heartbeat_limit_seconds=LIMIT, clock=clock, name=name) for name in "ab")
    for tracker in (leader, candidate, leader):
        tracker.tick(log.connection)
    placed = placements(log.connection)
    step(log, monkeypatch, by)
    for _ in range(30):
        clock.now += 1.0
        heartbeat(log.connection, process_id=agent)
        leader.tick(log.connection)
        candidate.tick(log.connection)
    assert [process.process_id for process in live_processes(log.connection)] == [agent]
    assert [(row.receiver_id, row.agent_id, row.assignment) for row in placements(log.connection)] == [
        (row.receiver_id, row.agent_id, row.assignment) for row in placed
    ]
    assert (leader.term, candidate.term) == (1, None)


@pytest.mark.parametrize("by", STEPS, ids=["forward", "back"])
def test_a_silent_process_expires_after_the_same_time_whatever_the_clocks_say(
    engine: sa.Engine, log: Log, monkeypatch: pytest.MonkeyPatch, by: timedelta
) -> None:
    clock = Clock()
    register_process(log.connection, kind=ProcessKind.AGENT, name="a", host="a", pid=1, slots=4)
    leader, candidate = (Tracker(engine, heartbeat_limit_seconds=LIMIT, clock=clock, name=name) for name in "ab")
    for tracker in (leader, candidate):
        tracker.tick(log.connection)
    step(log, monkeypatch, by)
    # The leader is gone too.
    for _ in range(int(LEADERSHIP_LIMIT_SECONDS)):
        assert candidate.term is None
        clock.now += 1.0
        candidate.tick(log.connection)
    assert candidate.term == 2
    for _ in range(int(LIMIT)):
        assert live_processes(log.connection)
        clock.now += 1.0
        candidate.tick(log.connection)
    assert live_processes(log.connection) == []
    assert {row.agent_id for row in placements(log.connection)} == {None}
