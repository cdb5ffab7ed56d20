"""Test connections when the server changes under them: which failure has which name, and what is not kept."""

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
    """Yield an engine with one connection, whose pool waits only a moment for it."""
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


def test_plans_that_may_not_scan_are_not_jit_compiled(engine: sa.Engine) -> None:
    """Check this because a server with LLVM compiled each of them: the checks of the log took five times as long."""
    with connect(engine) as connection:
        assert connection.execute(sa.text("SHOW jit")).scalar_one() == "off"


def test_a_connection_to_a_read_only_server_is_not_kept(engine: sa.Engine, one_connection: sa.Engine) -> None:
    """Check this because its session stays read-only: a pool that kept it would never see the server recover."""
    with connect(engine) as connection:
        name = connection.execute(sa.text("SELECT current_database()")).scalar_one()
        connection.execute(sa.text(f"ALTER DATABASE {name} SET default_transaction_read_only = on"))
    with pytest.raises(DriverLogUnavailableError, match="read-only transaction"):
        write(one_connection)
    with connect(engine) as connection:
        connection.execute(sa.text(f"ALTER DATABASE {name} RESET default_transaction_read_only"))
    write(one_connection)


def test_an_exhausted_pool_is_reported_as_an_unavailable_driver_log(one_connection: sa.Engine) -> None:
    with (
        connect(one_connection),
        pytest.raises(DriverLogUnavailableError, match="every connection of this process is busy"),
        connect(one_connection),
    ):
        pass


@pytest.mark.parametrize("code", ["40P01", "53100", "53300", "55P03", "57014", "58030", "25006"])
def test_temporary_failures_have_a_name(engine: sa.Engine, code: str) -> None:
    with (
        connect(engine) as connection,
        pytest.raises(DriverLogUnavailableError, match="so it is"),
        named_failures(),
    ):
        connection.execute(sa.text(f"DO $$BEGIN RAISE EXCEPTION 'so it is' USING ERRCODE = '{code}'; END$$"))


def test_a_url_may_name_several_servers(database_url: str) -> None:
    """Check as the runbook says: the first server that accepts writes is used."""
    url = sa.make_url(database_url)
    several = (
        f"postgresql://{url.username}:{url.password}@/{url.database}"
        f"?host=127.0.0.1:1&host=127.0.0.1:{url.port}&target_session_attrs=read-write"
    )
    engine = create_engine(several, application_name="tests")
    write(engine)
    engine.dispose()
