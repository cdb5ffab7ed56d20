"""Test what a heartbeat answers, and that it costs little: it runs in each process, each second, for ever."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.support.driver_log.filled_receivers import fill
from tests.support.driver_log.log import claim_anew, make_log
from tests.support.postgres.statement_cost import NestedStatement, visited_rows
from tracker_store.connection.engine import connect
from tracker_store.receivers.processes import ProcessExpiredError, deregister_process, heartbeat, register_process
from tracker_store.reports.streaming_statistics import receiver_counters
from tracker_store.schema.states import DesiredState, ProcessKind


def registered(connection: sa.Connection) -> int:
    return register_process(connection, kind=ProcessKind.RECEIVER, name="lines", host="h", pid=1)


def test_a_heartbeat_is_one_row_however_many_receivers_share_the_process(
    engine: sa.Engine, connection: sa.Connection
) -> None:
    log = make_log(connection, receivers=40)
    process = registered(connection)
    heartbeat(connection, process_id=process, receiver_ids=log.receiver_ids)
    rows: list[int] = []

    def note(_connection: object, cursor: sa.engine.interfaces.DBAPICursor, *_: object) -> None:
        rows.append(cursor.rowcount)

    cursor = connection.connection.info["forebay_cursor"]
    sa.event.listen(engine, "after_cursor_execute", note)
    responses = heartbeat(connection, process_id=process, receiver_ids=log.receiver_ids)
    sa.event.remove(engine, "after_cursor_execute", note)
    assert (len(responses), rows, cursor.rowcount) == (40, [], 1)


def test_a_heartbeat_answers_what_each_receiver_must_do(connection: sa.Connection) -> None:
    log = make_log(connection, receivers=3)
    for receiver in log.receiver_ids[:2]:
        claim_anew(connection, receiver)
    connection.execute(
        sa.text("""
            UPDATE forebay.receivers SET rate_limit = 12.5, desired_state = 'paused', assignment = 7 WHERE id = :id
        """),
        {"id": log.receiver_ids[1]},
    )
    process = registered(connection)
    now = heartbeat(connection, process_id=process, receiver_ids=[*log.receiver_ids, 99])
    assert sorted(
        (each.receiver_id, each.rate_limit, each.desired_state.value, each.assignment, each.newest_sequence)
        for each in now
    ) == [
        (log.receiver_ids[0], None, "running", 0, 1),
        (log.receiver_ids[1], 12.5, "paused", 7, 1),
        (log.receiver_ids[2], None, "running", 0, 0),
    ]
    assert {each.receiver_id: each.desired_state for each in now}[log.receiver_ids[1]] is DesiredState.PAUSED
    assert heartbeat(connection, process_id=process) == []
    counter = connection.execute(sa.text("SELECT heartbeat FROM forebay.processes WHERE id = :id"), {"id": process})
    assert counter.scalar_one() == 2


def test_the_first_heartbeat_of_each_session_and_each_tenth_look_for_lost_commits(
    engine: sa.Engine, connection: sa.Connection
) -> None:
    log = make_log(connection)
    process = registered(connection)

    def beat(connection: sa.Connection, process_id: int = process) -> bool:
        [response] = heartbeat(connection, process_id=process_id, receiver_ids=log.receiver_ids)
        assert (response.newest_sequence is None) == (response.server is None)
        return response.newest_sequence is not None

    assert [beat(connection) for _ in range(21)] == [n % 10 == 0 for n in range(21)]
    assert beat(connection, registered(connection)), "another process knows nothing of this one's answers"
    connection.connection.invalidate()
    connection.close()
    with connect(engine) as another:
        assert [beat(another) for _ in range(2)] == [True, False]


def test_a_process_that_was_declared_dead_learns_it_from_any_heartbeat(connection: sa.Connection) -> None:
    process = registered(connection)
    heartbeat(connection, process_id=process)
    deregister_process(connection, process)
    with pytest.raises(ProcessExpiredError):
        heartbeat(connection, process_id=process)


def test_queues_stay_as_they_were_where_a_heartbeat_names_none(connection: sa.Connection) -> None:
    log = make_log(connection, receivers=2)
    process = registered(connection)
    first, second = log.receiver_ids
    stored = []
    for queued in ({first: 3}, None, {first: 0, second: 4, 99: 1}, {}):
        heartbeat(connection, process_id=process, receiver_ids=log.receiver_ids, queued=queued)
        stored.append(
            connection.execute(sa.text("SELECT queued FROM forebay.processes WHERE id = :id"), {"id": process}).scalar()
        )
    assert stored == [{str(first): 3}, {str(first): 3}, {str(first): 0, str(second): 4}, {}]


def test_what_clients_have_fetched_stands_beside_the_queues(connection: sa.Connection) -> None:
    log = make_log(connection, receivers=2)
    process = registered(connection)
    connection.execute(sa.text("UPDATE forebay.receivers SET process_id = :process"), {"process": process})
    heartbeat(
        connection,
        process_id=process,
        receiver_ids=log.receiver_ids,
        queued=dict.fromkeys(log.receiver_ids, 3),
        fetched={log.receiver_ids[0]: 70, 99: 1},
    )
    seen = connection.exec_driver_sql(
        "SELECT queued_blocks, fetched_records FROM forebay.receiver_status ORDER BY ordinal"
    )
    assert [tuple(row) for row in seen] == [(3, 70), (3, None)]
    assert [row.fetched for row in receiver_counters(connection)] == [70, None]


def test_a_heartbeat_does_not_wait_for_the_disk_and_what_comes_after_it_does(connection: sa.Connection) -> None:
    process = registered(connection)
    connection.exec_driver_sql("BEGIN")
    heartbeat(connection, process_id=process)
    assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "off"
    connection.exec_driver_sql("COMMIT")
    heartbeat(connection, process_id=process)
    assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"


def test_a_heartbeat_reads_its_receivers_and_a_block_of_each_only_where_it_asks(connection: sa.Connection) -> None:
    visited: dict[str, list[int]] = {"false": [], "true": []}
    for receivers in (40, 400):
        log = make_log(connection, receivers=receivers)
        fill(connection, blocks=20)
        connection.exec_driver_sql("VACUUM ANALYZE")
        ids = ",".join(map(str, log.receiver_ids[:20]))
        for whole, found in visited.items():
            statement = NestedStatement(
                connection,
                "heartbeat",
                begins="SELECT array_agg(r.id)",
                variables={"receiver_ids": ("bigint[]", f"'{{{ids}}}'"), "whole": ("boolean", whole)},
            )
            found.append(visited_rows(statement.nodes()))
    assert max(visited["false"]) <= 45, visited
    assert max(visited["true"]) <= 90, visited
