"""Test versions of a stream's columns: what is registered, what is refused, and how two concurrent ones are decided."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import Log, make_log
from tracker_store.blocks.stream_schemas import register_schema, schemas_of_stream
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import SchemaConflictError
from tracker_store.receivers.receivers import placements, set_preferred_location

if TYPE_CHECKING:
    from collections.abc import Sequence


TICKS = [("symbol", "string"), ("price", "int64")]


def register(connection: sa.Connection, receiver_id: int, columns: Sequence[tuple[str, str]]) -> int:
    return register_schema(connection, receiver_id=receiver_id, fingerprint=str(columns), columns=columns)


def test_each_new_set_of_columns_is_a_version_and_a_known_one_changes_nothing(connection: sa.Connection) -> None:
    log = make_log(connection, receivers=2)
    first, second = log.receiver_ids
    assert register(connection, first, TICKS) == 1
    assert register(connection, second, TICKS) == 1
    # A new column first, then one that is left out.
    assert register(connection, first, [*TICKS, ("size", "int32")]) == 2
    assert register(connection, first, [("symbol", "string")]) == 3
    assert register(connection, second, [*TICKS, ("size", "int32")]) == 2
    found = schemas_of_stream(connection, log.stream_id)
    assert [(schema.version, list(schema.columns)) for schema in found] == [
        (1, TICKS),
        (2, [*TICKS, ("size", "int32")]),
        (3, [("symbol", "string")]),
    ]


def test_a_changed_type_is_refused_with_a_message_that_names_column_and_types(engine: sa.Engine) -> None:
    with connect(engine) as connection:
        log = make_log(connection)
        [receiver] = log.receiver_ids
        register(connection, receiver, TICKS)
        register(connection, receiver, [("symbol", "string")])
        with pytest.raises(SchemaConflictError) as refused:
            register(connection, receiver, [("symbol", "string"), ("price", "double")])
        assert str(refused.value) == (
            'column "price" is double, the stream has "price" as int64 since version 1. '
            "Give the column another name, or declare another stream: a column keeps its type while the stream lives."
        )
        with pytest.raises(SchemaConflictError, match='column "Symbol" is string, the stream has "symbol"'):
            register(connection, receiver, [("Symbol", "string")])
        assert len(schemas_of_stream(connection, log.stream_id)) == 2


def test_another_stream_may_have_the_same_column_with_another_type(connection: sa.Connection, log: Log) -> None:
    register(connection, log.receiver_ids[0], TICKS)
    make_log(connection, pipeline="others", stream="others")
    [other] = [row.receiver_id for row in placements(connection) if row.stream_name == "others"]
    assert register(connection, other, [("price", "double")]) == 1


def test_the_second_of_two_concurrent_schemas_is_compared_with_the_first(engine: sa.Engine) -> None:
    with connect(engine) as connection:
        log = make_log(connection, receivers=2)
    first, second = log.receiver_ids
    refused: list[BaseException] = []

    def come_second() -> None:
        with connect(engine) as connection:
            try:
                register(connection, second, [("price", "double")])
            except SchemaConflictError as error:
                refused.append(error)

    with engine.connect().execution_options(isolation_level="READ COMMITTED") as held:
        with held.begin():
            register(held, first, TICKS)
            thread = threading.Thread(target=come_second)
            thread.start()
            with connect(engine) as watching:
                waits = sa.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
                deadline = time.monotonic() + 20
                while not watching.execute(waits).scalar_one():
                    assert time.monotonic() < deadline, "the second did not wait for the first"
                    time.sleep(0.01)
        thread.join(20)
    assert len(refused) == 1
    with connect(engine) as connection:
        assert [list(schema.columns) for schema in schemas_of_stream(connection, log.stream_id)] == [TICKS]


def test_r01_the_host_that_a_receiver_asks_for_is_in_its_row(connection: sa.Connection, log: Log) -> None:
    [receiver] = log.receiver_ids
    asked = sa.text("SELECT preferred_location, xmin FROM forebay.receivers WHERE id = :id")
    assert connection.execute(asked, {"id": receiver}).one()[0] is None
    set_preferred_location(connection, receiver_id=receiver, host="near-the-feed")
    host, written = connection.execute(asked, {"id": receiver}).one()
    assert host == "near-the-feed"
    # Reported at each start, written once.
    set_preferred_location(connection, receiver_id=receiver, host="near-the-feed")
    assert connection.execute(asked, {"id": receiver}).one() == (host, written)
    set_preferred_location(connection, receiver_id=receiver, host=None)
    assert connection.execute(asked, {"id": receiver}).one()[0] is None


def test_the_receiver_role_registers_by_the_function_and_may_not_write_the_table(connection: sa.Connection) -> None:
    [receiver] = make_log(connection).receiver_ids
    connection.exec_driver_sql("SET ROLE forebay_receiver")
    assert register(connection, receiver, TICKS) == 1
    set_preferred_location(connection, receiver_id=receiver, host="here")
    for statement in (
        "INSERT INTO forebay.stream_schemas (stream_id, version, fingerprint, columns) VALUES (1, 2, 'x', '[]')",
        "UPDATE forebay.stream_schemas SET columns = '[]'",
        "DELETE FROM forebay.stream_schemas",
    ):
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied for table stream_schemas"):
            connection.exec_driver_sql(statement)
    connection.exec_driver_sql("RESET ROLE")
