"""Test that sensors keep their sessions from tick to tick, and get new ones when those are gone."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from orchestration.dagster_defs.shared.sensor_connections import SensorConnections
from tests.support.polling import eventually
from tracker_store.connection.errors import DriverLogUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.testing.postgres import TestServer


@pytest.fixture
def other_database_url(postgres_server: TestServer) -> Iterator[str]:
    with postgres_server.database() as url:
        yield url


def tick(connections: SensorConnections, url: str) -> tuple[int, str]:
    """Return the session's process and its database, as a sensor's tick gets them."""
    with connections.connect(url) as connection:
        row = connection.execute(sa.text("SELECT pg_backend_pid(), current_database()")).one()
    return row[0], row[1]


def sessions(connection: sa.Connection) -> int:
    statement = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE application_name = 'forebay sensors' AND datname = current_database()"
    )
    return int(connection.execute(sa.text(statement)).scalar_one())


def test_the_next_tick_uses_the_session_of_the_last_one(database_url: str) -> None:
    connections = SensorConnections()
    assert tick(connections, database_url) == tick(connections, database_url)


def test_a_session_that_the_server_ended_is_replaced(database_url: str, connection: sa.Connection) -> None:
    connections = SensorConnections()
    first, _ = tick(connections, database_url)
    connection.execute(sa.text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": first})
    second, _ = tick(connections, database_url)
    assert second != first


def test_another_address_gets_sessions_of_its_own(database_url: str, other_database_url: str) -> None:
    connections = SensorConnections()
    assert tick(connections, database_url)[1] != tick(connections, other_database_url)[1]


def test_sensors_at_the_same_time_have_a_session_each_and_two_are_kept(
    database_url: str, connection: sa.Connection
) -> None:
    connections = SensorConnections()
    with ExitStack() as ticks:
        for _ in range(6):
            ticks.enter_context(connections.connect(database_url))
        assert sessions(connection) == 6
    eventually(lambda: sessions(connection) == 2, "the end of four sessions")


def test_an_address_without_a_server_is_an_error_of_the_driver_log() -> None:
    with pytest.raises(DriverLogUnavailableError), SensorConnections().connect("postgresql://nobody@127.0.0.1:1/none"):
        pass
