"""Test what a tracker reads while nothing changes, and that it sees each change at its next tick."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from orchestration.tracker.change_watch import FOLLOW_SECONDS, FULL_SCAN_SECONDS
from orchestration.tracker.tracker import Tracker
from tests.support.clock import Clock
from tests.support.driver_log.log import INTERVAL, Log, make_log
from tests.support.postgres.counted_statements import Counted, counted
from tracker_store.batches.pipeline_states import stop_pipelines
from tracker_store.batches.pipelines import apply_pipeline, apply_stream
from tracker_store.connection.engine import connect
from tracker_store.receivers.agents import set_draining
from tracker_store.receivers.changes import read_changes
from tracker_store.receivers.hand_overs import request_rebalance
from tracker_store.receivers.processes import ProcessExpiredError, deregister_process, heartbeat, register_process
from tracker_store.receivers.rates import set_rate_limits
from tracker_store.receivers.receivers import placements, restart_receiver, set_desired_state, set_receiver_state
from tracker_store.schema.states import DesiredState, ProcessKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Rig:
    """A leading tracker on a log with an agent, whose receivers all are placed."""

    def __init__(self, engine: sa.Engine, connection: sa.Connection) -> None:
        self.log: Log = make_log(connection, receivers=3)
        self.connection = connection
        self.clock = Clock()
        self.agent = register_process(connection, kind=ProcessKind.AGENT, name="a", host="a", pid=1, slots=10_000)
        self.tracker = Tracker(engine, heartbeat_limit_seconds=10.0, clock=self.clock, name="t")
        self.settle()

    def tick(self) -> Counted:
        """Let a second pass, in which the agent's counter moves."""
        self.clock.now += 1
        with suppress(ProcessExpiredError):  # it has signed off
            heartbeat(self.connection, process_id=self.agent)
        with counted(self.connection) as sent:
            self.tracker.tick(self.connection)
        return sent

    def looks(self) -> bool:
        """Return whether the next tick reads the receivers."""
        return any("forebay.receivers" in statement for statement in self.tick().statements)

    def settle(self) -> None:
        """Tick until everything is placed, and nothing is looked at any more; what is placed starts."""
        for _ in range(20):
            if not self.looks():
                return
            for placement in placements(self.connection):
                if placement.state is ReceiverState.SCHEDULED:
                    set_receiver_state(
                        self.connection,
                        receiver_id=placement.receiver_id,
                        assignment=placement.assignment,
                        state=ReceiverState.ACTIVE,
                    )
        pytest.fail("the tracker goes on looking though nothing changes")

    def fill(self, receivers: int) -> None:
        """Have that many receivers, all placed and running, in ten streams of their own, each with a pipeline."""
        for number in range(10):
            stream = apply_stream(
                self.connection, name=f"s{number}", declaration={"source": {}, "settings": {}}, receivers=0
            )
            apply_pipeline(
                self.connection,
                name=f"p{number}",
                declaration={"max_attempts": 3, "streams": [f"s{number}"]},
                stream_ids=[stream],
                interval=INTERVAL,
            )
            self.connection.execute(
                sa.text("""
                    INSERT INTO forebay.receivers (stream_id, ordinal, state, agent_id, assignment)
                    SELECT :stream, n, 'ACTIVE', :agent, 1
                    FROM generate_series(1, :receivers) AS n
                    ON CONFLICT DO NOTHING
                """),
                {"stream": stream, "agent": self.agent, "receivers": receivers // 10},
            )
        self.settle()


@pytest.fixture
def rig(engine: sa.Engine) -> Iterator[Rig]:
    with connect(engine) as connection:
        yield Rig(engine, connection)


def test_an_idle_tick_reads_the_same_whatever_the_number_of_receivers(rig: Rig) -> None:
    rig.fill(10)
    few = rig.tick().sizes
    rig.fill(1_000)
    assert rig.tick().sizes == few
    # The leader's counter, the processes' counters, lost attempts, the counters of changes.
    assert few == (4, 3)


def test_a_full_look_is_made_now_and_then(rig: Rig) -> None:
    looks = [rig.looks() for _ in range(2 * int(FULL_SCAN_SECONDS))]
    assert sum(looks) == 2


def _stops(rig: Rig) -> None:
    stop_pipelines(rig.connection, name="words")


def _declares(rig: Rig) -> None:
    declaration = {"source": {"port": 1}, "settings": {}}
    apply_stream(rig.connection, name="lines", declaration=declaration, receivers=3)


def _changes_the_interval(rig: Rig) -> None:
    apply_pipeline(
        rig.connection,
        name="words",
        declaration={"max_attempts": 3, "streams": ["lines"]},
        stream_ids=[rig.log.stream_id],
        interval=timedelta(seconds=20),
    )


def _hands_over(rig: Rig) -> None:
    rig.connection.execute(
        sa.text("""
            INSERT INTO forebay.hand_overs (receiver_id, from_assignment, agent_id, assignment, why)
            SELECT id, assignment, :agent, assignment + 1, ''
            FROM forebay.receivers LIMIT 1
        """),
        {"agent": rig.agent},
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda rig: set_desired_state(
            rig.connection, receiver_ids=[rig.log.receiver_ids[0]], desired=DesiredState.STOPPED
        ),
        lambda rig: restart_receiver(rig.connection, receiver_id=rig.log.receiver_ids[0], why="asked for"),
        lambda rig: register_process(rig.connection, kind=ProcessKind.AGENT, name="b", host="b", pid=2, slots=1),
        lambda rig: deregister_process(rig.connection, rig.agent),
        lambda rig: set_draining(rig.connection, name="a", draining=True),
        lambda rig: request_rebalance(rig.connection, listeners=False),
        _hands_over,
        _stops,
        _declares,
        _changes_the_interval,
    ],
)
def test_the_next_tick_sees_each_change(rig: Rig, change: Callable[[Rig], object]) -> None:
    assert not rig.looks()
    change(rig)
    assert rig.looks()


def test_what_comes_each_second_is_no_change(rig: Rig) -> None:
    before = read_changes(rig.connection)
    heartbeat(rig.connection, process_id=rig.agent, receiver_ids=rig.log.receiver_ids, queued={1: 1})
    set_rate_limits(rig.connection, term=1, rates={rig.log.receiver_ids[0]: 10.0})
    run = register_process(rig.connection, kind=ProcessKind.BATCH_RUN, name="words", host="a", pid=3)
    deregister_process(rig.connection, run)
    after = read_changes(rig.connection)
    assert (after.placement, after.batches) == (before.placement, before.batches)


def test_a_change_that_is_committed_later_is_seen_then(engine: sa.Engine, rig: Rig) -> None:
    with connect(engine) as other:
        other.exec_driver_sql("BEGIN")
        [receiver_id, *_] = rig.log.receiver_ids
        restart_receiver(other, receiver_id=receiver_id, why="asked for")
        for _ in range(int(FOLLOW_SECONDS) - 1):
            assert rig.looks(), "the counter has moved, and the transaction that moved it is open"
        rig.tick()
        assert not rig.looks(), "a transaction that stays open is not followed for ever"
        before = {placement.receiver_id: placement.assignment for placement in placements(rig.connection)}
        other.exec_driver_sql("COMMIT")
    rig.tick()
    after = {placement.receiver_id: placement.assignment for placement in placements(rig.connection)}
    assert after[receiver_id] > before[receiver_id] + 1, "it was placed again at the next tick"


def test_a_new_leader_looks_at_everything(engine: sa.Engine, rig: Rig) -> None:
    follower = Tracker(engine, heartbeat_limit_seconds=10.0, clock=rig.clock, name="u")
    rig.connection.execute(sa.text("UPDATE forebay.leadership SET holder = NULL, counter = counter + 1"))
    with counted(rig.connection) as sent:
        follower.tick(rig.connection)
    assert follower.term is not None
    assert any("forebay.receivers" in statement for statement in sent.statements)
