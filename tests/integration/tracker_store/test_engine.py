"""Connections when the server changes under them: what is named how, and what is not held on to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tracker_store.engine import connect, create_engine, named_failures
from tracker_store.errors import DriverLogUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def one_connection(database_url: str) -> Iterator[sa.Engine]:
    """An engine that has one connection, and asks for it in vain for a moment only."""
    made = create_engine(database_url, application_name="tests", pool_size=1)
    pool = made.pool
    assert isinstance(pool, sa.QueuePool)
    pool._max_overflow = 0
    pool._timeout = 0.05
    yield made
    made.dispose()


def write(engine: sa.Engine) -> None:
    with connect(engine) as connection, named_failures():
        connection.execute(sa.text("UPDATE forebay.leadership SET counter = counter + 1"))


def test_plans_that_may_not_scan_are_not_compiled(engine: sa.Engine) -> None:
    """A server with LLVM did so for each of them: the checks of the log took five times as long."""
    with connect(engine) as connection:
        assert connection.execute(sa.text("SHOW jit")).scalar_one() == "off"


def test_a_connection_to_a_server_that_only_reads_is_not_kept(engine: sa.Engine, one_connection: sa.Engine) -> None:
    """Its session stays so for ever: whoever kept it in a pool would never see the server recover."""
    with connect(engine) as connection:
        name = connection.execute(sa.text("SELECT current_database()")).scalar_one()
        connection.execute(sa.text(f"ALTER DATABASE {name} SET default_transaction_read_only = on"))
    with pytest.raises(DriverLogUnavailableError, match="read-only transaction"):
        write(one_connection)
    with connect(engine) as connection:
        connection.execute(sa.text(f"ALTER DATABASE {name} RESET default_transaction_read_only"))
    write(one_connection)


def test_a_pool_that_is_used_up_is_a_driver_log_that_can_not_work_now(one_connection: sa.Engine) -> None:
    with (
        connect(one_connection),
        pytest.raises(DriverLogUnavailableError, match="every connection of this process is busy"),
        connect(one_connection),
    ):
        pass


@pytest.mark.parametrize("code", ["40P01", "53100", "53300", "55P03", "57014", "58030", "25006"])
def test_what_waiting_heals_has_a_name(engine: sa.Engine, code: str) -> None:
    with (
        connect(engine) as connection,
        pytest.raises(DriverLogUnavailableError, match="so it is"),
        named_failures(),
    ):
        connection.execute(sa.text(f"DO $$BEGIN RAISE EXCEPTION 'so it is' USING ERRCODE = '{code}'; END$$"))


def test_a_url_may_name_several_servers(database_url: str) -> None:
    """As the runbook says: the first one that takes writes is used."""
    url = sa.make_url(database_url)
    several = (
        f"postgresql://{url.username}:{url.password}@/{url.database}"
        f"?host=127.0.0.1:1&host=127.0.0.1:{url.port}&target_session_attrs=read-write"
    )
    engine = create_engine(several, application_name="tests")
    write(engine)
    engine.dispose()
