"""Test the queue of runs for batch drivers: which drivers get runs, which one has a run, and what is known of it."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import sqlalchemy as sa

from tests.support.polling import eventually, joined
from tracker_store.batches.run_queue import (
    CANCEL_CHANNEL,
    CRASHED,
    LEFT,
    QUEUED_CHANNEL,
    Notifications,
    WorkerState,
    claim_run,
    claimed_run,
    enqueue_run,
    finish_run,
    has_ready_driver,
    has_waiting_run,
    is_cancel_requested,
    register_batch_driver,
    remove_batch_driver,
    request_cancel,
    run_worker,
    set_batch_driver_state,
    waiting_runs,
    withdraw_run,
)
from tracker_store.connection.engine import connect
from tracker_store.receivers.processes import deregister_process, end_processes_of_pid, register_process
from tracker_store.schema.states import BatchDriverState, ProcessKind

LOCATION = "forebay"


def driver(
    connection: sa.Connection,
    state: BatchDriverState = BatchDriverState.READY,
    *,
    location: str = LOCATION,
    pid: int = 1,
) -> int:
    process_id = register_process(connection, kind=ProcessKind.BATCH_DRIVER, name="driver", host="here", pid=pid)
    register_batch_driver(connection, process_id=process_id, location=location)
    if state is not BatchDriverState.STARTING:
        set_batch_driver_state(connection, process_id=process_id, state=state)
    return process_id


def state_of(connection: sa.Connection, run_id: str) -> WorkerState | None:
    worker = run_worker(connection, run_id)
    return None if worker is None else worker.state


def test_a_run_is_handed_over_claimed_and_finished(connection: sa.Connection) -> None:
    process_id = driver(connection)
    assert not has_waiting_run(connection, location=LOCATION)
    assert enqueue_run(connection, run_id="r1", location=LOCATION)
    assert state_of(connection, "r1") is WorkerState.QUEUED
    assert has_waiting_run(connection, location=LOCATION)
    assert not has_waiting_run(connection, location="elsewhere")
    assert claim_run(connection, process_id=process_id, location=LOCATION) == "r1"
    assert not has_waiting_run(connection, location=LOCATION)
    assert state_of(connection, "r1") is WorkerState.RUNNING
    assert claim_run(connection, process_id=process_id, location=LOCATION) is None
    finish_run(connection, run_id="r1", process_id=process_id)
    assert state_of(connection, "r1") is None


def test_a_run_that_is_handed_over_again_stays_where_it_is(connection: sa.Connection) -> None:
    process_id = driver(connection)
    assert enqueue_run(connection, run_id="r1", location=LOCATION)
    assert claim_run(connection, process_id=process_id, location=LOCATION) == "r1"
    assert enqueue_run(connection, run_id="r1", location=LOCATION)
    assert state_of(connection, "r1") is WorkerState.RUNNING


@pytest.mark.parametrize(
    ("state", "takes"),
    [
        (BatchDriverState.STARTING, True),
        (BatchDriverState.READY, True),
        (BatchDriverState.DRAINING, False),
    ],
)
def test_which_states_count_as_a_driver(connection: sa.Connection, state: BatchDriverState, takes: bool) -> None:
    driver(connection, state)
    assert enqueue_run(connection, run_id="r1", location=LOCATION) is takes
    assert (state_of(connection, "r1") is not None) is takes
    assert has_ready_driver(connection, location=LOCATION) is (state is BatchDriverState.READY)


def test_a_driver_that_never_gets_ready_is_not_waited_for(connection: sa.Connection) -> None:
    driver(connection, BatchDriverState.STARTING)
    connection.execute(sa.text("UPDATE forebay.batch_drivers SET since = since - interval '2 minutes'"))
    assert not enqueue_run(connection, run_id="r1", location=LOCATION)


@pytest.mark.parametrize("reason", [CRASHED, f"{CRASHED} (was killed by SIGKILL)", LEFT])
def test_a_driver_that_died_at_work_counts_for_a_moment_because_a_successor_starts(
    connection: sa.Connection, reason: str
) -> None:
    process_id = driver(connection)
    deregister_process(connection, process_id, reason)
    assert enqueue_run(connection, run_id="r1", location=LOCATION)
    connection.execute(sa.text("UPDATE forebay.processes SET ended_at = ended_at - interval '16 seconds'"))
    assert not enqueue_run(connection, run_id="r2", location=LOCATION)


def test_a_driver_that_crashes_at_its_start_is_not_waited_for(connection: sa.Connection) -> None:
    first = driver(connection, BatchDriverState.STARTING)
    deregister_process(connection, first, CRASHED)
    driver(connection, BatchDriverState.STARTING)
    assert not enqueue_run(connection, run_id="r1", location=LOCATION), "it would wait through one crash after another"
    connection.execute(
        sa.text("UPDATE forebay.processes SET ended_at = ended_at - interval '3 minutes' WHERE id = :id"), {"id": first}
    )
    assert enqueue_run(connection, run_id="r1", location=LOCATION)


def test_a_driver_of_another_location_and_a_dead_one_do_not_count(connection: sa.Connection) -> None:
    driver(connection, location="elsewhere")
    dead = driver(connection)
    deregister_process(connection, dead)
    assert not enqueue_run(connection, run_id="r1", location=LOCATION)
    assert not has_ready_driver(connection, location=LOCATION)


def test_runs_wait_for_a_driver_where_none_is_ready(connection: sa.Connection) -> None:
    first = driver(connection)
    for run_id in ("one", "two"):
        assert enqueue_run(connection, run_id=run_id, location=LOCATION)
    assert waiting_runs(connection) == []
    set_batch_driver_state(connection, process_id=first, state=BatchDriverState.DRAINING)
    driver(connection, location="another", pid=2)
    [waiting] = waiting_runs(connection)
    assert (waiting.location, waiting.runs, waiting.starting) == (LOCATION, 2, 0)
    assert waiting.waited > timedelta(0)
    second = driver(connection, BatchDriverState.STARTING, pid=3)
    assert [row.starting for row in waiting_runs(connection)] == [1]
    set_batch_driver_state(connection, process_id=second, state=BatchDriverState.READY)
    assert waiting_runs(connection) == []


def test_the_longest_waiting_run_comes_first(connection: sa.Connection) -> None:
    process_id = driver(connection)
    for run_id in ("b", "a", "c"):
        enqueue_run(connection, run_id=run_id, location=LOCATION)
    assert [claim_run(connection, process_id=process_id, location=LOCATION) for _ in range(4)] == ["b", "a", "c", None]


def test_two_drivers_that_race_never_get_the_same_run(engine: sa.Engine) -> None:
    runs = [f"r{number}" for number in range(200)]
    with connect(engine) as connection:
        drivers = [driver(connection), driver(connection)]
        for run_id in runs:
            enqueue_run(connection, run_id=run_id, location=LOCATION)
    claimed: dict[int, list[str]] = {process_id: [] for process_id in drivers}
    barrier = threading.Barrier(len(drivers), timeout=60)

    def claim_all(process_id: int) -> None:
        with connect(engine) as mine:
            barrier.wait(60)
            first = claim_run(mine, process_id=process_id, location=LOCATION)
            assert first is not None
            claimed[process_id].append(first)
            # Otherwise one of them might get nothing because its thread is not scheduled.
            barrier.wait(60)
            while (run_id := claim_run(mine, process_id=process_id, location=LOCATION)) is not None:
                claimed[process_id].append(run_id)

    threads = [threading.Thread(target=claim_all, args=(process_id,)) for process_id in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(thread)
    assert sorted([*claimed[drivers[0]], *claimed[drivers[1]]]) == sorted(runs)
    assert all(claimed.values()), "one of them got nothing: there was no race"


def test_a_driver_declared_dead_claims_nothing(connection: sa.Connection) -> None:
    process_id = driver(connection)
    enqueue_run(connection, run_id="r1", location=LOCATION)
    deregister_process(connection, process_id)
    assert claim_run(connection, process_id=process_id, location=LOCATION) is None


def test_a_run_is_lost_with_its_driver(connection: sa.Connection) -> None:
    process_id = driver(connection, pid=4711)
    enqueue_run(connection, run_id="r1", location=LOCATION)
    claim_run(connection, process_id=process_id, location=LOCATION)
    assert end_processes_of_pid(connection, hosts=["elsewhere"], pid=4711, why="killed") == 0
    assert end_processes_of_pid(connection, hosts=["here"], pid=4711, why="killed") == 1
    worker = run_worker(connection, "r1")
    assert worker is not None
    assert (worker.state, worker.why) == (WorkerState.LOST, "killed")
    assert "pid 4711 on here" in worker.driver


def test_a_waiting_run_is_abandoned_when_no_driver_is_left(connection: sa.Connection) -> None:
    process_id = driver(connection)
    enqueue_run(connection, run_id="r1", location=LOCATION)
    deregister_process(connection, process_id)
    assert state_of(connection, "r1") is WorkerState.ABANDONED
    successor = driver(connection, BatchDriverState.STARTING)
    assert state_of(connection, "r1") is WorkerState.QUEUED
    assert claim_run(connection, process_id=successor, location=LOCATION) == "r1"


def test_a_run_is_withdrawn_only_while_it_waits(connection: sa.Connection) -> None:
    process_id = driver(connection)
    enqueue_run(connection, run_id="waits", location=LOCATION)
    assert withdraw_run(connection, "waits")
    assert not withdraw_run(connection, "waits")
    enqueue_run(connection, run_id="claimed", location=LOCATION)
    claim_run(connection, process_id=process_id, location=LOCATION)
    assert not withdraw_run(connection, "claimed")


def test_only_a_living_driver_is_asked_to_cancel(connection: sa.Connection) -> None:
    process_id = driver(connection)
    enqueue_run(connection, run_id="r1", location=LOCATION)
    assert not request_cancel(connection, "r1"), "no driver has it yet"
    claim_run(connection, process_id=process_id, location=LOCATION)
    assert not is_cancel_requested(connection, "r1")
    assert request_cancel(connection, "r1")
    assert is_cancel_requested(connection, "r1")
    deregister_process(connection, process_id)
    assert not request_cancel(connection, "r1")
    assert not is_cancel_requested(connection, "never seen")


def test_a_listener_gets_new_runs_and_cancellations(engine: sa.Engine, connection: sa.Connection) -> None:
    process_id = driver(connection)
    listening = Notifications(engine, [QUEUED_CHANNEL, CANCEL_CHANNEL])
    assert listening.wait(0) == []
    enqueue_run(connection, run_id="r1", location=LOCATION)
    assert listening.wait(10) == [LOCATION]
    claim_run(connection, process_id=process_id, location=LOCATION)
    request_cancel(connection, "r1")
    assert listening.wait(10) == ["r1"]
    listening.close()


def test_a_listener_listens_again_after_its_session_was_cut(engine: sa.Engine, connection: sa.Connection) -> None:
    driver(connection)
    listening = Notifications(engine, [QUEUED_CHANNEL])
    listening.wait(0)
    connection.execute(
        sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND state = 'idle'")
    )

    def recovered() -> bool:
        try:
            return listening.wait(0.05) == [LOCATION]
        except Exception as error:  # noqa: BLE001  what it is named is looked at below
            assert type(error).__name__ == "DriverLogUnavailableError"  # noqa: PT017
            enqueue_run(connection, run_id="r1", location=LOCATION)
            listening.wait(0)
            enqueue_run(connection, run_id="r2", location=LOCATION)
            return False

    eventually(recovered, "a notification on a new session")
    listening.close()


def test_runs_of_dead_drivers_are_deleted_after_an_hour(connection: sa.Connection) -> None:
    dead = driver(connection)
    enqueue_run(connection, run_id="r1", location=LOCATION)
    claim_run(connection, process_id=dead, location=LOCATION)
    deregister_process(connection, dead)
    driver(connection)
    assert state_of(connection, "r1") is WorkerState.LOST, "its health is still asked for"
    connection.execute(
        sa.text("UPDATE forebay.processes SET ended_at = ended_at - interval '2 hours' WHERE id = :id"), {"id": dead}
    )
    driver(connection)
    assert state_of(connection, "r1") is None


def test_an_unfinished_run_is_deleted_after_an_hour_even_if_its_driver_signed_off(
    connection: sa.Connection,
) -> None:
    dead = driver(connection)
    enqueue_run(connection, run_id="r1", location=LOCATION)
    claim_run(connection, process_id=dead, location=LOCATION)
    assert claimed_run(connection, process_id=dead) == "r1"
    deregister_process(connection, dead)
    remove_batch_driver(connection, process_id=dead)
    driver(connection)
    assert state_of(connection, "r1") is WorkerState.LOST
    connection.execute(
        sa.text("UPDATE forebay.processes SET ended_at = ended_at - interval '2 hours' WHERE id = :id"), {"id": dead}
    )
    driver(connection)
    assert state_of(connection, "r1") is None


def test_a_run_of_a_forgotten_driver_is_lost_and_deleted_with_the_next_driver(connection: sa.Connection) -> None:
    """Check this because clean-up forgets ended processes: a run must not seem to run forever because of that."""
    forgotten = driver(connection)
    enqueue_run(connection, run_id="r1", location=LOCATION)
    claim_run(connection, process_id=forgotten, location=LOCATION)
    connection.execute(sa.text("DELETE FROM forebay.processes WHERE id = :id"), {"id": forgotten})
    assert state_of(connection, "r1") is WorkerState.LOST
    driver(connection)
    assert state_of(connection, "r1") is None
    assert connection.execute(sa.text("SELECT count(*) FROM forebay.batch_drivers")).scalar_one() == 1


def test_a_driver_that_ends_leaves_no_row(connection: sa.Connection) -> None:
    process_id = driver(connection)
    remove_batch_driver(connection, process_id=process_id)
    assert not has_ready_driver(connection, location=LOCATION)


def test_an_enqueue_is_before_or_after_a_driver_stops_taking_runs(engine: sa.Engine) -> None:
    """Check this because the driver looks a last time after it reports DRAINING.

    A run that counted on it is in the queue by then.
    """
    with connect(engine) as connection:
        process_id = driver(connection)
    with engine.connect().execution_options(isolation_level="READ COMMITTED") as held:
        # Stands for `enqueue_run` in the middle of its statement.
        held.execute(sa.text("SELECT FROM forebay.batch_drivers WHERE process_id = :id FOR SHARE"), {"id": process_id})
        said = threading.Event()

        def say() -> None:
            with connect(engine) as other:
                set_batch_driver_state(other, process_id=process_id, state=BatchDriverState.DRAINING)
            said.set()

        thread = threading.Thread(target=say)
        thread.start()
        with connect(engine) as looking:
            eventually(
                lambda: looking.execute(
                    sa.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
                ).scalar_one(),
                "the driver's word waits for the lock",
            )
        assert not said.is_set()
        held.rollback()
    thread.join(30)
    assert said.is_set()
    with connect(engine) as connection:
        assert not enqueue_run(connection, run_id="r1", location=LOCATION)
