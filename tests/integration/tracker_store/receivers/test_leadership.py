"""Check leadership, placement and expiry: what a deposed leader still sends changes nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import wait_until_blocked
from tests.support.driver_log.placing import schedule_receiver
from tracker_store.connection.engine import connect
from tracker_store.receivers.leadership import raise_counter, read_leadership, resign, take_leadership
from tracker_store.receivers.processes import (
    ProcessExpiredError,
    deregister_process,
    expire_process,
    heartbeat,
    live_processes,
    register_process,
)
from tracker_store.receivers.receivers import (
    add_host_receiver,
    placements,
    receiver_events,
    release_receivers,
    set_receiver_state,
)
from tracker_store.schema.states import RECEIVER_TRANSITIONS, ProcessKind, ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from tests.support.driver_log.log import Log


def lead(log: Log, holder: str = "me") -> int:
    term = take_leadership(log.connection, seen=read_leadership(log.connection), holder=holder)
    assert term is not None
    return term


def agent(log: Log) -> int:
    return register_process(log.connection, kind=ProcessKind.AGENT, name="a", host="h", pid=1, slots=4)


def test_one_of_two_candidates_with_the_same_view_leads(log: Log) -> None:
    seen = read_leadership(log.connection)
    assert take_leadership(log.connection, seen=seen, holder="a") == 1
    assert take_leadership(log.connection, seen=seen, holder="b") is None


def test_a_living_leader_is_not_replaced_by_a_stale_view(log: Log) -> None:
    term = lead(log)
    seen = read_leadership(log.connection)
    assert raise_counter(log.connection, term=term)
    assert take_leadership(log.connection, seen=seen, holder="b") is None


def test_a_deposed_leader_decides_nothing(log: Log) -> None:
    old = lead(log)
    new = lead(log, "other")
    agent_id = agent(log)
    [receiver] = log.receiver_ids
    assert not raise_counter(log.connection, term=old)
    assert not schedule_receiver(log.connection, term=old, receiver_id=receiver, agent_id=agent_id, why="")
    assert expire_process(log.connection, term=old, process_id=agent_id, heartbeat=0, why="") == "deposed"
    assert schedule_receiver(log.connection, term=new, receiver_id=receiver, agent_id=agent_id, why="")


def test_a_leader_that_resigns_leaves_the_row_free(log: Log) -> None:
    term = lead(log)
    resign(log.connection, term=term)
    assert read_leadership(log.connection).holder is None


def test_every_placement_is_a_new_assignment_and_an_event(log: Log) -> None:
    term, agent_id = lead(log), agent(log)
    [receiver] = log.receiver_ids
    schedule_receiver(log.connection, term=term, receiver_id=receiver, agent_id=agent_id, why="placed on h")
    [placement] = placements(log.connection)
    assert (placement.state, placement.agent_id) == (ReceiverState.SCHEDULED, agent_id)
    # In milliseconds, as epochs are: an assignment that a failover lost is not given out again.
    assert placement.assignment > datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000
    assert not schedule_receiver(log.connection, term=term, receiver_id=receiver, agent_id=agent_id, why="")
    assert receiver_events(log.connection, receiver) == [(ReceiverEventKind.SCHEDULED, "placed on h", "")]


def test_an_expired_agent_frees_its_receivers_under_a_new_assignment(log: Log) -> None:
    term, agent_id = lead(log), agent(log)
    [receiver] = log.receiver_ids
    schedule_receiver(log.connection, term=term, receiver_id=receiver, agent_id=agent_id, why="")
    [before] = placements(log.connection)
    assert expire_process(log.connection, term=term, process_id=agent_id, heartbeat=0, why="silent") == "expired"
    [placement] = placements(log.connection)
    assert (placement.state, placement.agent_id) == (ReceiverState.INACTIVE, None)
    assert placement.assignment > before.assignment
    with pytest.raises(ProcessExpiredError):
        heartbeat(log.connection, process_id=agent_id)
    assert live_processes(log.connection) == []


FAR = 10**15


@pytest.mark.parametrize("decision", ["place", "release"])
@pytest.mark.parametrize(
    ("change", "acts"), [(f"assignment = {FAR}", True), ("state = 'FAILED', agent_id = NULL", False)]
)
def test_a_leader_that_waits_for_a_receiver_decides_by_what_is_there_then(
    engine: sa.Engine, log: Log, decision: str, change: str, *, acts: bool
) -> None:
    """Check statements that lock rows and write them: their snapshot is from before the wait."""
    term, agent_id = lead(log), agent(log)
    [receiver] = log.receiver_ids
    if decision == "release":
        assert schedule_receiver(log.connection, term=term, receiver_id=receiver, agent_id=agent_id, why="")

    def decide(connection: sa.Connection) -> bool:
        if decision == "release":
            return receiver in release_receivers(connection, term=term, agent_id=agent_id, why="draining")
        return schedule_receiver(connection, term=term, receiver_id=receiver, agent_id=agent_id, why="")

    with connect(engine) as other, connect(engine) as late, ThreadPoolExecutor(1) as pool:
        other.execute(sa.text("BEGIN"))
        other.execute(sa.text(f"UPDATE forebay.receivers SET {change}"))
        deciding = pool.submit(decide, late)
        wait_until_blocked(log.connection)
        other.execute(sa.text("COMMIT"))
        assert deciding.result(20) is acts
    [assignment] = log.connection.execute(sa.text("SELECT assignment FROM forebay.receivers")).scalars()
    assert (assignment == FAR + 1) is acts


def test_a_host_gets_no_receiver_of_a_stream_that_is_removed_while_the_leader_waits(
    engine: sa.Engine, log: Log
) -> None:
    term = lead(log)
    with connect(engine) as other, connect(engine) as late, ThreadPoolExecutor(1) as pool:
        other.execute(sa.text("BEGIN"))
        # As remove_stream locks it.
        other.execute(sa.text("SELECT FROM forebay.streams FOR UPDATE"))
        other.execute(sa.text("UPDATE forebay.streams SET removed_at = clock_timestamp()"))
        adding = pool.submit(add_host_receiver, late, term=term, stream_id=log.stream_id, host="h")
        wait_until_blocked(log.connection)
        other.execute(sa.text("COMMIT"))
        assert adding.result(20) is False
    assert len(placements(log.connection)) == len(log.receiver_ids)


def test_a_process_that_moved_meanwhile_is_not_expired(log: Log) -> None:
    term, agent_id = lead(log), agent(log)
    heartbeat(log.connection, process_id=agent_id)
    assert expire_process(log.connection, term=term, process_id=agent_id, heartbeat=0, why="") == "moved"


def test_a_process_that_signed_off_is_not_live(log: Log) -> None:
    agent_id = agent(log)
    deregister_process(log.connection, agent_id)
    assert live_processes(log.connection) == []


@pytest.mark.parametrize("source", list(ReceiverState))
@pytest.mark.parametrize("target", list(ReceiverState))
def test_a_receiver_moves_only_as_the_table_of_transitions_allows(
    log: Log, source: ReceiverState, target: ReceiverState
) -> None:
    [receiver] = log.receiver_ids
    log.connection.execute(sa.text("UPDATE forebay.receivers SET state = :s"), {"s": source.value})
    moved = set_receiver_state(log.connection, receiver_id=receiver, assignment=0, state=target)
    assert moved == (target is source or target in RECEIVER_TRANSITIONS[source])


def test_a_process_of_an_older_assignment_moves_nothing(log: Log) -> None:
    [receiver] = log.receiver_ids
    log.connection.execute(sa.text("UPDATE forebay.receivers SET state = 'SCHEDULED', assignment = 5"))
    assert not set_receiver_state(log.connection, receiver_id=receiver, assignment=4, state=ReceiverState.ACTIVE)
