"""Test the log of events: one per change of a state, in one order, and a reader with a cursor misses none (M08)."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError

from tests.support.driver_log.log import INTERVAL, NOON, Log, claim_anew, make_log, wait_until_told
from tests.support.driver_log.placing import schedule_receiver
from tests.support.polling import eventually, joined
from tracker_store.batches import batches, pipeline_states
from tracker_store.batches.outputs import commit_output
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import DriverLogError
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.receivers.processes import expire_process, live_processes, register_process
from tracker_store.receivers.receivers import get_receiver, report_event, restart_receiver, set_receiver_state
from tracker_store.reports.listener_events import (
    START,
    EventKind,
    EventPosition,
    ListenerEvent,
    events_after,
    find_position,
    newest_events,
    newest_position,
)
from tracker_store.retention.cleanup import clean_up_receiver
from tracker_store.retention.history import clean_up_events
from tracker_store.schema.states import AttemptFailure, ProcessKind, ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SECOND = timedelta(seconds=1)


def told(connection: sa.Connection, after: EventPosition = START) -> Sequence[ListenerEvent]:
    """Return every event after a position, once none can be missing."""
    wait_until_told(connection)
    return events_after(connection, after, limit=10_000)


def since(connection: sa.Connection, act: Callable[[], object]) -> Sequence[ListenerEvent]:
    """Return the events of what `act` does."""
    wait_until_told(connection)
    before = newest_position(connection)
    act()
    return told(connection, before)


def kinds(events: Sequence[ListenerEvent]) -> list[str]:
    return [event.kind for event in events]


def allocated(log: Log) -> dict[str, Any]:
    """Allocate a batch with records; return its key."""
    log.add_at(log.receiver_ids[0], NOON + SECOND)
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    return {"pipeline_id": log.pipeline_id, "batch_time": NOON + INTERVAL}


def fail(log: Log, of_batch: dict[str, Any], attempt: int, failure: AttemptFailure, *, most: int = 3) -> None:
    batches.fail_attempt(
        log.connection,
        **of_batch,
        attempt=attempt,
        run_id=f"run-{attempt}",
        error=f"it broke {attempt} times",
        failure=failure,
        max_attempts=most,
        pauses=[timedelta(0)],
    )


# -- what is told ------------------------------------------------------------------------------------------------------


def test_m08_each_change_of_a_batch_is_one_event_in_order(connection: sa.Connection, log: Log) -> None:
    wait_until_told(connection)
    before = newest_position(connection)
    at = allocated(log)
    batches.claim_attempt(connection, **at, attempt=1, run_id="run-1", process_id=1)
    fail(log, at, 1, AttemptFailure.FAILED)
    batches.claim_attempt(connection, **at, attempt=2, run_id="run-2", process_id=1)
    fail(log, at, 2, AttemptFailure.BLOCKED)
    batches.claim_attempt(connection, **at, attempt=3, run_id="run-3", process_id=1)
    commit_output(connection, **at, attempt=3, output="counts", location="/out/3", rows=7)
    batches.complete_batch(connection, **at, attempt=3, outputs=["counts"])
    # Again, as after a lost answer: nothing changes, and nothing is told.
    batches.complete_batch(connection, **at, attempt=3, outputs=["counts"])
    events = told(connection, before)
    assert [(event.kind, event.attempt) for event in events] == [
        ("batch_allocated", 0),
        ("batch_started", 1),
        ("batch_failed", 1),
        ("batch_started", 2),
        ("batch_blocked", 2),
        ("batch_started", 3),
        ("output_committed", 3),
        ("batch_completed", 3),
    ]
    assert {(event.pipeline, event.batch_time) for event in events} == {("words", NOON + INTERVAL)}
    assert {event.records for event in events if event.output is None} == {10}
    [failed] = [event for event in events if event.kind == "batch_failed"]
    assert failed.message == "it broke 1 times"
    [committed] = [event for event in events if event.output is not None]
    assert (committed.output, committed.records, committed.message) == ("counts", 7, "/out/3")


def test_m08_a_quarantined_batch_its_halt_its_replay_and_its_discard(connection: sa.Connection, log: Log) -> None:
    connection.execute(sa.text('UPDATE forebay.pipelines SET declaration = \'{"settings": {"on_failure": "halt"}}\''))
    at = allocated(log)
    batches.claim_attempt(connection, **at, attempt=1, run_id="run-1", process_id=1)
    events = since(connection, lambda: fail(log, at, 1, AttemptFailure.FAILED, most=1))
    assert sorted(kinds(events)) == ["batch_quarantined", "pipeline_halted"]
    assert {event.batch_time for event in events} == {NOON + INTERVAL}

    def replay(run: str) -> None:
        number = batches.claim_replay(connection, **at, run_id=run, process_id=1, reach=timedelta(0))
        fail(log, at, number, AttemptFailure.FAILED)

    assert kinds(since(connection, lambda: replay("replay"))) == ["replay_started", "replay_failed"]
    discarded = since(connection, lambda: batches.discard_batch(connection, **at))
    assert sorted(kinds(discarded)) == ["batch_discarded", "pipeline_continued"]


def test_a_batch_without_records_is_told_once(connection: sa.Connection, log: Log) -> None:
    [event] = since(connection, lambda: log.tracker.allocate_blocks_to_batch(NOON + INTERVAL))
    assert (event.kind, event.records, event.attempt, event.message) == ("batch_completed", 0, 0, "no records")


def test_m08_each_change_of_a_receiver_is_one_event(connection: sa.Connection, log: Log) -> None:
    [receiver] = log.receiver_ids
    agent = register_process(connection, kind=ProcessKind.AGENT, name="h", host="h", pid=1, slots=4)
    processes = [
        register_process(connection, kind=ProcessKind.RECEIVER, name="lines/1", host="h", pid=pid) for pid in (2, 3)
    ]
    term = take_leadership(connection, seen=read_leadership(connection), holder="me")
    assert term is not None

    def assignment() -> int:
        found: int = connection.execute(sa.text("SELECT assignment FROM forebay.receivers")).scalar_one()
        return found

    def to(state: ReceiverState, process: int | None = None, reason: str = "") -> None:
        assert set_receiver_state(
            connection,
            receiver_id=receiver,
            assignment=assignment(),
            state=state,
            reason=reason,
            process_id=process,
        )

    def place() -> None:
        schedule_receiver(connection, term=term, receiver_id=receiver, agent_id=agent, why="placed on h")

    def live() -> None:
        place()
        to(ReceiverState.ACTIVE, processes[0], "starting on tcp://h:9999")
        # The reason changes and the state does not.
        to(ReceiverState.ACTIVE, processes[0], "")
        report_event(connection, receiver_id=receiver, epoch=1, kind=ReceiverEventKind.STARTED, message="claimed on h")
        report_event(connection, receiver_id=receiver, epoch=1, kind=ReceiverEventKind.CONNECTED, message="to h:9999")
        to(ReceiverState.PAUSED, processes[0])
        to(ReceiverState.ACTIVE, processes[0])
        report_event(connection, receiver_id=receiver, epoch=1, kind=ReceiverEventKind.RESTARTED, message="no route")
        report_event(connection, receiver_id=receiver, epoch=0, kind=ReceiverEventKind.EXITED, message="killed")
        # Another process holds it, under the same assignment.
        to(ReceiverState.ACTIVE, processes[1])
        report_event(connection, receiver_id=receiver, epoch=2, kind=ReceiverEventKind.ERROR, message="odd")
        to(ReceiverState.FAILED, reason="no such host")
        restart_receiver(connection, receiver_id=receiver, why="restarted by an operator")

    events = since(connection, live)
    assert kinds(events) == [
        "receiver_scheduled",
        "receiver_started",
        "receiver_connected",
        "receiver_paused",
        "receiver_resumed",
        "receiver_restarted",
        "receiver_exited",
        "receiver_started",
        "receiver_error",
        "receiver_failed",
        "receiver_stopped",
        "receiver_restarted",
    ]
    assert {(event.stream, event.ordinal, event.receiver_id) for event in events} == {("lines", 1, receiver)}
    assert [event.message for event in events if event.kind == "receiver_failed"] == ["no such host"]
    place()
    [of_agent] = [process for process in live_processes(connection) if process.process_id == agent]

    def expire() -> None:
        expire_process(connection, term=term, process_id=agent, heartbeat=of_agent.heartbeat, why="h is silent")

    assert kinds(since(connection, expire)) == ["receiver_stopped", "receiver_lease_expired"]


def test_m08_the_lead_clean_up_and_stops_of_pipelines_are_told(connection: sa.Connection, log: Log) -> None:
    assert kinds(told(connection)) == ["pipeline_started"]
    [event] = since(connection, lambda: take_leadership(connection, seen=read_leadership(connection), holder="h:1"))
    assert (event.kind, event.term, event.message) == ("leader_changed", 1, "h:1")
    at = allocated(log)
    batches.claim_attempt(connection, **at, attempt=1, run_id="run-1", process_id=1)
    commit_output(connection, **at, attempt=1, output="counts", location="", rows=None)
    batches.complete_batch(connection, **at, attempt=1, outputs=["counts"])
    log.add_at(log.receiver_ids[0], NOON + 2 * INTERVAL)
    [event] = since(
        connection,
        lambda: clean_up_receiver(
            connection, receiver_id=log.receiver_ids[0], threshold=NOON + 2 * INTERVAL, max_rows=100
        ),
    )
    assert (event.kind, event.receiver_id, event.records) == ("blocks_cleaned_up", log.receiver_ids[0], 10)
    assert event.message == "sequences 1 to 2; 0 records had been read by no pipeline"
    stopped = since(connection, lambda: pipeline_states.stop_pipelines(connection, name="words"))
    assert kinds(stopped) == ["pipeline_stopping"]
    assert kinds(since(connection, lambda: pipeline_states.start_pipelines(connection, names=["words"]))) == [
        "pipeline_started"
    ]


def test_every_report_of_a_receiver_has_a_kind_or_is_a_change_of_its_state(connection: sa.Connection, log: Log) -> None:
    [receiver] = log.receiver_ids

    def report() -> None:
        for kind in ReceiverEventKind:
            report_event(connection, receiver_id=receiver, epoch=1, kind=kind, message="m")

    reports = kinds(since(connection, report))
    assert [EventKind(kind) for kind in reports]
    untold = [kind for kind in ReceiverEventKind if f"receiver_{kind.lower()}" not in reports]
    assert untold == ["SCHEDULED", "STARTED", "PAUSED", "RESUMED", "STOPPED", "FAILED"]
    assert all(EventKind(f"receiver_{kind.lower()}") for kind in untold)


def test_a_change_that_is_undone_has_no_event(connection: sa.Connection, log: Log, engine: sa.Engine) -> None:
    with uncommitted(engine) as writer:
        change(writer, log.receiver_ids[0], "FAILED")
        writer.rollback()
    assert "receiver_failed" not in kinds(told(connection))


def test_a_receivers_role_changes_states_with_their_events_and_can_write_no_other(
    connection: sa.Connection, engine: sa.Engine
) -> None:
    [receiver_id] = make_log(connection).receiver_ids
    agent = register_process(connection, kind=ProcessKind.AGENT, name="h", host="h", pid=1, slots=1)
    schedule_receiver(connection, term=0, receiver_id=receiver_id, agent_id=agent, why="placed on h")
    assignment = get_receiver(connection, receiver_id).assignment
    with connect(engine) as receiver:
        receiver.exec_driver_sql("SET ROLE forebay_receiver")
        try:
            assert set_receiver_state(
                receiver, receiver_id=receiver_id, assignment=assignment, state=ReceiverState.FAILED, reason="a test"
            )
            for statement in (
                "INSERT INTO forebay.events (kind, message) VALUES ('batch_completed', '')",
                f"UPDATE forebay.receivers SET state = 'ACTIVE' WHERE id = {receiver_id}",
            ):
                with pytest.raises(ProgrammingError, match="permission denied for table"):
                    receiver.exec_driver_sql(statement)
        finally:
            receiver.exec_driver_sql("RESET ROLE")
    assert kinds(told(connection))[-1] == "receiver_failed"


# -- a cursor that misses nothing --------------------------------------------------------------------------------------


@contextmanager
def uncommitted(engine: sa.Engine) -> Iterator[Any]:
    """Yield a psycopg2 connection whose changes are committed by the caller; its transaction has begun to write."""
    raw = engine.raw_connection()
    try:
        driver = raw.driver_connection
        assert driver is not None
        driver.autocommit = False
        with driver.cursor() as cursor:
            # On a busy machine, the other writers take their time.
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            cursor.execute("SELECT pg_current_xact_id()")
        yield driver
    finally:
        raw.invalidate()


def change(writer: Any, receiver_id: int, state: str) -> None:  # noqa: ANN401  psycopg2 has no types
    with writer.cursor() as cursor:
        cursor.execute("UPDATE forebay.receivers SET state = %s WHERE id = %s", (state, receiver_id))


def test_writers_that_commit_out_of_order_are_read_in_order_and_none_is_missed(
    connection: sa.Connection, engine: sa.Engine
) -> None:
    log = make_log(connection, receivers=3)
    one, two, three = log.receiver_ids
    before = told(connection)[-1].position
    with uncommitted(engine) as first, uncommitted(engine) as second, uncommitted(engine) as third:
        # The last to begin writes first, and commits first.
        change(third, three, "FAILED")
        third.commit()
        assert events_after(connection, before, limit=10) == []
        change(second, two, "FAILED")
        second.commit()
        assert events_after(connection, before, limit=10) == []
        assert newest_position(connection) == before
        change(first, one, "FAILED")
        first.commit()
    events = told(connection, before)
    assert [event.receiver_id for event in events] == [one, two, three]
    # A reader that continues after each of them sees exactly the rest.
    for number, event in enumerate(events):
        assert events_after(connection, event.position, limit=10) == events[number + 1 :]


def test_a_writer_that_gives_up_holds_nothing_back(connection: sa.Connection, engine: sa.Engine) -> None:
    log = make_log(connection, receivers=2)
    before = told(connection)[-1].position
    with uncommitted(engine) as first, uncommitted(engine) as second:
        change(first, log.receiver_ids[0], "FAILED")
        change(second, log.receiver_ids[1], "FAILED")
        second.commit()
        assert events_after(connection, before, limit=10) == []
        first.rollback()
    assert [event.receiver_id for event in told(connection, before)] == [log.receiver_ids[1]]


def test_a_follower_of_many_writers_sees_each_event_once_in_one_order(
    connection: sa.Connection, engine: sa.Engine
) -> None:
    writers, changes = 6, 40
    log = make_log(connection, receivers=writers)
    before = told(connection)[-1].position
    failures: list[BaseException] = []

    def write(receiver_id: int) -> None:
        choice = random.Random(receiver_id)
        try:
            for number in range(changes):
                with uncommitted(engine) as writer:
                    change(writer, receiver_id, "ACTIVE" if number % 2 else "PAUSED")
                    with writer.cursor() as cursor:
                        # Transactions overlap, and end in another order than they began.
                        cursor.execute("SELECT pg_sleep(%s)", (choice.random() * 0.01,))
                    (writer.rollback if choice.random() < 0.2 else writer.commit)()
        except BaseException as error:  # noqa: BLE001  shown below
            failures.append(error)

    threads = [threading.Thread(target=write, args=(receiver_id,)) for receiver_id in log.receiver_ids]
    for thread in threads:
        thread.start()
    seen: list[ListenerEvent] = []
    at = before
    while any(thread.is_alive() for thread in threads):
        page = events_after(connection, at, limit=7)
        seen += page
        at = page[-1].position if page else at
    for thread in threads:
        joined(thread)
    assert failures == []
    seen += told(connection, at)
    written = connection.execute(
        sa.text("SELECT transaction_id || '-' || id FROM forebay.events WHERE (transaction_id, id) > (:t, :i)"),
        {"t": before.transaction_id, "i": before.id},
    ).scalars()
    assert sorted(event.event_id for event in seen) == sorted(written)
    places = [(event.position.transaction_id, event.position.id) for event in seen]
    assert places == sorted(places)
    assert len(seen) > changes
    for receiver_id in log.receiver_ids:
        of_receiver = [event.at for event in seen if event.receiver_id == receiver_id]
        assert of_receiver == sorted(of_receiver)


def test_reading_on_costs_what_is_new(connection: sa.Connection) -> None:
    make_log(connection)
    connection.execute(
        sa.text(
            "INSERT INTO forebay.events (transaction_id, kind, message) "
            "SELECT 3, 'receiver_error', '' FROM generate_series(1, 20000)"
        )
    )
    connection.execute(sa.text("ANALYZE forebay.events"))
    wait_until_told(connection)
    at = newest_position(connection)
    connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
    statement = sa.text("SELECT seq_scan, idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'events'")
    before = connection.execute(statement).one()
    assert events_after(connection, at, limit=1000) == []
    assert [event.kind for event in newest_events(connection, limit=1)] == ["pipeline_started"]
    connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
    after = connection.execute(statement).one()
    assert after.seq_scan == before.seq_scan
    assert after.idx_tup_fetch - before.idx_tup_fetch < 10


def test_an_id_that_is_not_there_is_refused(connection: sa.Connection) -> None:
    make_log(connection)
    [event] = told(connection)
    assert find_position(connection, event.event_id) == event.position
    for wrong in ("", "7", "7-7-7", "seven-7", f"{event.event_id}0", "9" * 40 + "-1"):
        with pytest.raises(DriverLogError, match="--after start"):
            find_position(connection, wrong)


# -- clean-up and restores ---------------------------------------------------------------------------------------------


def clean_up(connection: sa.Connection, keep: timedelta = timedelta(days=14)) -> None:
    eventually(lambda: not clean_up_events(connection, keep=keep, max_rows=3).more, "everything old is deleted")


def test_old_events_are_deleted_and_a_listener_behind_them_goes_on_with_the_rest(connection: sa.Connection) -> None:
    log = make_log(connection)
    for _ in range(10):
        report_event(connection, receiver_id=log.receiver_ids[0], epoch=1, kind=ReceiverEventKind.ERROR, message="old")
    old = told(connection)
    connection.execute(sa.text("UPDATE forebay.events SET at = at - interval '15 days'"))
    behind = replace(old[2].position, at=old[2].at - timedelta(days=15))
    report_event(connection, receiver_id=log.receiver_ids[0], epoch=1, kind=ReceiverEventKind.ERROR, message="new")
    clean_up(connection)
    assert [event.message for event in told(connection)] == ["new"]
    assert [event.message for event in told(connection, behind)] == ["new"]


def test_an_old_report_that_is_kept_as_the_newest_of_its_kind_is_no_event_any_more(connection: sa.Connection) -> None:
    def reports() -> list[str]:
        return list(connection.execute(sa.text("SELECT message FROM forebay.receiver_events ORDER BY id")).scalars())

    [receiver] = make_log(connection).receiver_ids
    kinds = (ReceiverEventKind.STARTED, ReceiverEventKind.ERROR, ReceiverEventKind.EXITED)
    for kind in kinds:
        report_event(connection, receiver_id=receiver, epoch=1, kind=kind, message=f"old {kind}")
    connection.execute(sa.text("UPDATE forebay.events SET at = at - interval '15 days'"))
    clean_up(connection)
    assert told(connection) == []
    assert reports() == [f"old {kind}" for kind in kinds]
    assert not clean_up_events(connection, keep=timedelta(days=14), max_rows=1).more, "they are not read again"
    report_event(connection, receiver_id=receiver, epoch=1, kind=ReceiverEventKind.ERROR, message="new")
    clean_up(connection)
    assert [event.message for event in told(connection)] == ["new"]
    assert reports() == [f"old {ReceiverEventKind.STARTED}", f"old {ReceiverEventKind.EXITED}", "new"]


def test_after_a_restore_to_an_earlier_time_a_listener_gets_what_happens_then_once(connection: sa.Connection) -> None:
    log = make_log(connection)
    """Check the case where transaction ids, and events' ids, begin again below the listener's position."""
    [receiver] = log.receiver_ids
    report_event(connection, receiver_id=receiver, epoch=1, kind=ReceiverEventKind.ERROR, message="kept")
    kept = told(connection)[-1]
    # The listener has seen a later event, which the backup does not have.
    lost = EventPosition(
        kept.position.transaction_id + 1_000_000, kept.position.id + 5, kept.at + timedelta(microseconds=1)
    )
    assert events_after(connection, lost, limit=10) == []
    report_event(connection, receiver_id=receiver, epoch=1, kind=ReceiverEventKind.ERROR, message="after the restore")
    events = told(connection, lost)
    assert [event.message for event in events] == ["after the restore"]
    assert told(connection, events[-1].position) == []


def test_a_log_from_another_server_is_read_to_its_end_and_on(connection: sa.Connection, log: Log) -> None:
    """Check a dump that is restored where transaction ids are lower than those of its events."""
    [receiver] = log.receiver_ids
    for message in ("1", "2", "3", "4", "5"):
        report_event(connection, receiver_id=receiver, epoch=1, kind=ReceiverEventKind.ERROR, message=message)
    wait_until_told(connection)
    connection.execute(sa.text("UPDATE forebay.events SET transaction_id = transaction_id + 1000000000"))
    assert events_after(connection, START, limit=10) == []
    old = [
        EventPosition(row.transaction_id, row.id, row.at)
        for row in connection.execute(sa.text("SELECT * FROM forebay.events ORDER BY transaction_id, id"))
    ]
    report_event(connection, receiver_id=receiver, epoch=1, kind=ReceiverEventKind.ERROR, message="6")
    clean_up(connection)
    wait_until_told(connection)
    behind, up_to_date = old[2], old[-1]
    assert [event.message for event in told(connection, up_to_date)] == ["6"]
    assert sorted(event.message for event in told(connection, behind)) == ["3", "4", "5", "6"]
    # The old ones are in their order, and every further event comes after all of them.
    report_event(connection, receiver_id=receiver, epoch=1, kind=ReceiverEventKind.ERROR, message="7")
    messages = [event.message for event in told(connection) if event.message]
    assert [message for message in messages if message < "6"] == ["1", "2", "3", "4", "5"]
    assert messages[-1] == "7"


def test_the_claim_of_a_receiver_alone_is_no_event(connection: sa.Connection, log: Log) -> None:
    assert since(connection, lambda: claim_anew(connection, log.receiver_ids[0])) == []
