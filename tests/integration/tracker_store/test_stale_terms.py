"""Check that each statement that a leader sends in a past term changes nothing (docs/explanation/driver-log.md).

A statement is late in two ways: the next leader is already there, or takes over while the statement waits for its lock.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import INTERVAL, NOON, Log, add, block, claim_anew, make_log, seal
from tests.support.driver_log.placing import schedule_receiver
from tests.support.polling import eventually
from tracker_store.batches import batches
from tracker_store.blocks.blocks import OffsetLink, open_partition
from tracker_store.blocks.segments import open_segment
from tracker_store.connection.engine import connect
from tracker_store.receivers import hand_overs, rates, receivers
from tracker_store.receivers.hand_overs import finish_rebalance_requests, request_rebalance
from tracker_store.receivers.leadership import DeposedError, raise_counter, read_leadership, resign, take_leadership
from tracker_store.receivers.processes import expire_process, register_process
from tracker_store.retention import cleanup
from tracker_store.schema.states import ProcessKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable

    Decide = Callable[[sa.Connection, int], object]

T1 = NOON + INTERVAL
ZERO = timedelta(0)


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    log = make_log(connection)
    assert take_leadership(connection, seen=read_leadership(connection), holder="me") == 1
    return log


def agent(log: Log) -> int:
    return register_process(log.connection, kind=ProcessKind.AGENT, name="a", host="h", pid=1, slots=4)


def completed_blocks(log: Log) -> int:
    """Complete some blocks that clean-up may delete; return the receiver's id."""
    receiver_id = log.receiver_ids[0]
    log.add_at(receiver_id, *(NOON + timedelta(seconds=n) for n in (1, 2, 3)))
    log.tracker.allocate_blocks_to_batch(T1)
    log.connection.execute(
        sa.text("UPDATE forebay.batches SET state = 'COMPLETED', completed_at = clock_timestamp()"),
    )
    return receiver_id


# -- what a leader sends, each where it has an effect ------------------------------------------------------------------


def shows_that_it_lives(_: Log) -> Decide:
    return lambda connection, term: raise_counter(connection, term=term)


def resigns(_: Log) -> Decide:
    return lambda connection, term: resign(connection, term=term)


def schedules_a_receiver(log: Log) -> Decide:
    agent_id, receiver_id = agent(log), log.receiver_ids[0]
    return lambda connection, term: schedule_receiver(
        connection, term=term, receiver_id=receiver_id, agent_id=agent_id, why=""
    )


def releases_receivers(log: Log) -> Decide:
    agent_id, receiver_id = agent(log), log.receiver_ids[0]
    schedule_receiver(log.connection, term=1, receiver_id=receiver_id, agent_id=agent_id, why="")
    return lambda connection, term: receivers.release_receivers(connection, term=term, agent_id=agent_id, why="")


def adds_a_hosts_receiver(log: Log) -> Decide:
    return lambda connection, term: receivers.add_host_receiver(
        connection, term=term, stream_id=log.stream_id, host="h"
    )


def says_why_a_receiver_waits(log: Log) -> Decide:
    return lambda connection, term: receivers.note_waiting(
        connection, term=term, waiting=[receivers.Waiting(log.receiver_ids[0], 0, "waits for an agent")]
    )


def expires_a_process(log: Log) -> Decide:
    agent_id = agent(log)
    return lambda connection, term: expire_process(connection, term=term, process_id=agent_id, heartbeat=0, why="")


def running_receiver(log: Log) -> tuple[int, int]:
    """Let a receiver run on an agent; return its id and assignment."""
    receiver_id = log.receiver_ids[0]
    schedule_receiver(log.connection, term=1, receiver_id=receiver_id, agent_id=agent(log), why="")
    [placed] = receivers.placements(log.connection)
    receivers.set_receiver_state(
        log.connection, receiver_id=receiver_id, assignment=placed.assignment, state=ReceiverState.ACTIVE
    )
    return receiver_id, placed.assignment


def begins_a_hand_over(log: Log) -> Decide:
    receiver_id, assignment = running_receiver(log)
    to = agent(log)
    return lambda connection, term: hand_overs.begin_hand_over(
        connection, term=term, receiver_id=receiver_id, assignment=assignment, agent_id=to, why=""
    )


def withdraws_a_hand_over(log: Log) -> Decide:
    begins_a_hand_over(log)(log.connection, 1)
    [offer] = hand_overs.list_hand_overs(log.connection)
    return lambda connection, term: hand_overs.withdraw_hand_over(
        connection, term=term, receiver_id=offer.receiver_id, assignment=offer.assignment
    )


def finishes_a_rebalancing(log: Log) -> Decide:
    request = request_rebalance(log.connection, listeners=False)
    return lambda connection, term: finish_rebalance_requests(connection, term=term, request_ids=[request])


def fails_a_lost_attempt(log: Log) -> Decide:
    log.add_at(log.receiver_ids[0], NOON + timedelta(seconds=1))
    log.tracker.allocate_blocks_to_batch(T1)
    run: dict[str, Any] = {"pipeline_id": log.pipeline_id, "batch_time": T1, "attempt": 1, "run_id": "run"}
    batches.claim_attempt(log.connection, **run, process_id=agent(log))
    return lambda connection, term: batches.fail_attempt(
        connection,
        **run,
        error="lost",
        max_attempts=3,
        pauses=[ZERO],
        term=term,
    )


def a_rate(log: Log) -> rates.StreamRate:
    return rates.StreamRate(log.pipeline_id, log.stream_id, T1, None, None, None, 5.0, expired=False)


def records_a_rate(log: Log) -> Decide:
    return lambda connection, term: rates.record_stream_rate(connection, term=term, decision=a_rate(log))


def expires_rates(log: Log) -> Decide:
    rates.record_stream_rate(log.connection, term=1, decision=a_rate(log))
    expired = replace(a_rate(log), expired=True)
    return lambda connection, term: rates.record_stream_rate(connection, term=term, decision=expired)


def sets_rates(log: Log) -> Decide:
    return lambda connection, term: rates.set_rate_limits(connection, term=term, rates={log.receiver_ids[0]: 5.0})


def cleans_up_blocks(log: Log) -> Decide:
    receiver_id = completed_blocks(log)
    return lambda connection, term: cleanup.clean_up_receiver(
        connection, receiver_id=receiver_id, threshold=datetime.now(UTC), max_rows=100, term=term
    )


def cleans_up_links(log: Log) -> Decide:
    claimed = claim_anew(log.connection, log.receiver_ids[0])
    open_partition(log.connection, receiver_id=claimed.receiver_id, source="orders", partition="0", start_offset=0)
    for n in (2, 3, 4):
        link = OffsetLink("orders", "0", 0, n - 2, n - 1)
        add(log.connection, replace(block(claimed, n), links=(link,)))
    log.connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :at"), {"at": NOON + timedelta(seconds=1)})
    log.tracker.allocate_blocks_to_batch(T1)
    log.connection.execute(
        sa.text("UPDATE forebay.batches SET state = 'COMPLETED', completed_at = clock_timestamp()"),
    )
    cleanup.clean_up_receiver(
        log.connection, receiver_id=claimed.receiver_id, threshold=datetime.now(UTC), max_rows=100
    )
    return lambda connection, term: cleanup.clean_up_offsets(
        connection, stream_id=log.stream_id, max_rows=100, term=term
    )


def forgets_keys(log: Log) -> Decide:
    claimed = claim_anew(log.connection, log.receiver_ids[0])
    add(log.connection, replace(block(claimed, 2), keys=("a key",)))
    return lambda connection, term: cleanup.clean_up_keys(
        connection, stream_id=log.stream_id, window=ZERO, max_rows=100, term=term
    )


def marks_segments(log: Log) -> Decide:
    receiver_id = log.receiver_ids[0]
    segment_id = open_segment(log.connection, receiver_id=receiver_id, epoch=1, path="1", source_rule="offsets")
    seal(log.connection, segment_id)
    claim_anew(log.connection, receiver_id)
    return lambda connection, term: cleanup.segments_to_delete(
        connection, receiver_id=receiver_id, restore_window=ZERO, limit=10, term=term
    )


def forgets_a_segment(log: Log) -> Decide:
    marks_segments(log)(log.connection, 1)
    [segment_id] = log.connection.execute(sa.text("SELECT id FROM forebay.log_segments")).scalars()
    return lambda connection, term: cleanup.forget_segment(connection, segment_id=segment_id, term=term)


DECISIONS: list[Callable[[Log], Decide]] = [
    shows_that_it_lives,
    resigns,
    schedules_a_receiver,
    releases_receivers,
    adds_a_hosts_receiver,
    says_why_a_receiver_waits,
    expires_a_process,
    begins_a_hand_over,
    withdraws_a_hand_over,
    finishes_a_rebalancing,
    fails_a_lost_attempt,
    records_a_rate,
    expires_rates,
    sets_rates,
    cleans_up_blocks,
    cleans_up_links,
    forgets_keys,
    marks_segments,
    forgets_a_segment,
]


def everything(connection: sa.Connection, *, leadership: bool = True) -> dict[str, list[str]]:
    """Return every row of the driver log, by table; without leadership, leave out who leads and the events of that."""
    tables = connection.execute(
        sa.text(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'forebay' "
            "AND table_type = 'BASE TABLE' ORDER BY 1"
        )
    ).scalars()
    events = "" if leadership else "WHERE t.kind <> 'leader_changed'"
    return {
        table: list(
            connection.execute(
                sa.text(f'SELECT t::text FROM forebay."{table}" t {events if table == "events" else ""} ORDER BY 1')
            ).scalars()
        )
        for table in tables
        if leadership or table != "leadership"
    }


def decide_late(connection: sa.Connection, decide: Decide) -> None:
    with suppress(DeposedError):
        decide(connection, 1)


@pytest.mark.parametrize("decision", DECISIONS)
def test_a_leader_decides_in_its_term(log: Log, decision: Callable[[Log], Decide]) -> None:
    """Check this because otherwise the other two tests could not fail."""
    decide = decision(log)
    before = everything(log.connection)
    decide(log.connection, 1)
    assert everything(log.connection) != before


@pytest.mark.parametrize("decision", DECISIONS)
def test_a_statement_after_the_term_changes_nothing(log: Log, decision: Callable[[Log], Decide]) -> None:
    decide = decision(log)
    assert take_leadership(log.connection, seen=read_leadership(log.connection), holder="other") == 2
    before = everything(log.connection)
    decide_late(log.connection, decide)
    assert everything(log.connection) == before


@pytest.mark.parametrize("decision", DECISIONS)
def test_what_waits_while_another_takes_over_changes_nothing(
    engine: sa.Engine, log: Log, decision: Callable[[Log], Decide]
) -> None:
    decide = decision(log)
    before = everything(log.connection, leadership=False)
    seen = read_leadership(log.connection)
    with connect(engine) as other, connect(engine) as late, ThreadPoolExecutor(1) as pool:
        other.execute(sa.text("BEGIN"))
        assert take_leadership(other, seen=seen, holder="other") == 2
        deciding = pool.submit(decide_late, late, decide)
        eventually(lambda: deciding.done() or waits_for_a_lock(log.connection), "the late statement's wait")
        assert not deciding.done(), "it did not ask who leads"
        other.execute(sa.text("COMMIT"))
        deciding.result(20)
    assert everything(log.connection, leadership=False) == before
    after = read_leadership(log.connection)
    assert (after.term, after.counter, after.holder) == (2, seen.counter + 1, "other")


def waits_for_a_lock(connection: sa.Connection) -> bool:
    count: int = connection.execute(
        sa.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
    ).scalar_one()
    return count > 0
