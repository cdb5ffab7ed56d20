"""The receiver tracker's rows of the parity list that no other test covers (K01, K02, K06)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from orchestration.tracker.tracker import Tracker
from tests.support.driver_log.log import add, block, claim_anew, make_log
from tracker_store.receivers.leadership import read_leadership
from tracker_store.receivers.processes import heartbeat, register_process
from tracker_store.receivers.rates import set_rate_limits
from tracker_store.receivers.receivers import placements, set_receiver_state
from tracker_store.schema.states import DesiredState, ProcessKind, ReceiverState

if TYPE_CHECKING:
    from tests.support.driver_log.log import Log


def tracker(engine: sa.Engine, name: str) -> Tracker:
    return Tracker(engine, heartbeat_limit_seconds=10.0, name=name)


def test_k01_a_tracker_without_receivers_does_nothing(engine: sa.Engine, connection: sa.Connection) -> None:
    register_process(connection, kind=ProcessKind.AGENT, name="a", host="a", pid=1, slots=4)
    tracker(engine, "one").tick(connection)
    assert read_leadership(connection).holder == "one"
    assert connection.execute(sa.text("SELECT count(*) FROM forebay.receiver_events")).scalar_one() == 0


def test_k01_a_second_start_is_no_error_and_decides_nothing(engine: sa.Engine, connection: sa.Connection) -> None:
    first, second = tracker(engine, "one"), tracker(engine, "two")
    first.tick(connection)
    make_log(connection)
    register_process(connection, kind=ProcessKind.AGENT, name="a", host="a", pid=1, slots=4)
    second.tick(connection)
    assert second.term is None
    assert [placement.state for placement in placements(connection)] == [ReceiverState.INACTIVE]
    first.tick(connection)
    assert [placement.state for placement in placements(connection)] == [ReceiverState.SCHEDULED]


def test_k02_stop_and_rate_reach_a_receiver_with_its_next_answer(engine: sa.Engine, connection: sa.Connection) -> None:
    """Check StopReceiver and UpdateRateLimit, which in the original an unregistered receiver misses (K10)."""
    log: Log = make_log(connection)
    [receiver_id] = log.receiver_ids
    leader = tracker(engine, "one")
    leader.tick(connection)
    assert leader.term is not None
    process_id = register_process(connection, kind=ProcessKind.RECEIVER, name="r", host="a", pid=1)
    claimed = claim_anew(connection, receiver_id)
    set_rate_limits(connection, term=leader.term, rates={receiver_id: 5.0})
    assert add(connection, block(claimed, 2)).response.rate_limit == 5
    connection.execute(sa.text("UPDATE forebay.receivers SET desired_state = 'stopped'"))
    assert add(connection, block(claimed, 3)).response.desired_state is DesiredState.STOPPED
    [idle] = heartbeat(connection, process_id=process_id, receiver_ids=[receiver_id])
    assert (idle.rate_limit, idle.desired_state) == (5, DesiredState.STOPPED)


def test_k06_who_registers_again_replaces_the_one_before(connection: sa.Connection) -> None:
    """Replace as the original does, but also refuse the previous process from then on, and an older placement."""
    [receiver_id] = make_log(connection).receiver_ids
    connection.execute(sa.text("UPDATE forebay.receivers SET state = 'SCHEDULED', assignment = 2"))
    first, second = (claim_anew(connection, receiver_id, assignment=2) for _ in range(2))
    assert second.epoch > first.epoch
    assert add(connection, block(first, 2)).outcome == "fenced"
    assert add(connection, block(second, 3)).outcome == "added"
    assert not set_receiver_state(connection, receiver_id=receiver_id, assignment=1, state=ReceiverState.ACTIVE)
    assert set_receiver_state(connection, receiver_id=receiver_id, assignment=2, state=ReceiverState.ACTIVE)
