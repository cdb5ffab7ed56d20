"""Test connections when the server changes under them: which failure has which name, and what is not kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tracker_store.batches.run_queue import Notifications
from tracker_store.blocks.block_stores import one_attaches
from tracker_store.connection.engine import connect, create_engine, named_failures, with_statement_timeout
from tracker_store.connection.errors import TRANSIENT, DriverLogError, DriverLogUnavailableError, OtherReleaseError
from tracker_store.connection.pooler import DIRECT_URL_VARIABLE
from tracker_store.install import migrate

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


def test_a_refusal_says_what_the_server_said_and_not_where(engine: sa.Engine) -> None:
    """Check this because the SQL that a function ran is longer than the cause, which a shortened reason then lacked."""
    raised_by = "RAISE EXCEPTION 'no space' USING ERRCODE = '53100', DETAIL = 'on disk 1', HINT = 'check it.'"
    with (
        connect(engine) as connection,
        pytest.raises(DriverLogUnavailableError) as raised,
        named_failures(),
    ):
        connection.execute(sa.text(f"DO $$BEGIN {raised_by}; END$$"))
    assert raised.value.detail == "no space DETAIL: on disk 1 HINT: check it."


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT forebay.add_one_block('of another release'::text)",
        "SELECT of_another_release FROM forebay.leadership",
        "SELECT 1 FROM forebay.of_another_release",
    ],
)
def test_what_another_release_has_changed_is_waited_for(engine: sa.Engine, statement: str) -> None:
    """Check this because a receiver that takes it for a refusal fails for good within a second."""
    with (
        connect(engine) as connection,
        pytest.raises(OtherReleaseError, match=r"does not exist. .*`forebay db upgrade`") as raised,
        named_failures(),
    ):
        connection.execute(sa.text(statement))
    assert isinstance(raised.value, TRANSIENT)


def test_a_url_may_name_several_servers(database_url: str) -> None:
    """Check as the runbook says: the first server that accepts writes is used."""
    url = sa.make_url(database_url)
    several = (
        f"postgresql://{url.username}:{url.password}@/{url.database}"
        f"?host=127.0.0.1:1&host={url.query['host']}:{url.query['port']}&target_session_attrs=read-write"
    )
    engine = create_engine(several, application_name="tests")
    write(engine)
    engine.dispose()


def test_options_of_the_url_hold_beside_forebays_own(database_url: str) -> None:
    url = sa.make_url(database_url).update_query_dict({"options": "-c geqo=off -c statement_timeout=1h"})
    engine = create_engine(url.render_as_string(hide_password=False), application_name="tests")
    with engine.connect() as connection:
        found = connection.execute(
            sa.text("SELECT current_setting('geqo'), current_setting('statement_timeout')")
        ).one()
    engine.dispose()
    assert found == ("off", "30s")


# What a server may say, and what Forebay's sessions have then.
COMMITS = {"off": "on", "local": "on", "remote_write": "on", "on": "on", "remote_apply": "remote_apply"}


@pytest.mark.parametrize("given", COMMITS)
def test_no_setting_of_the_server_weakens_a_commit(engine: sa.Engine, database_url: str, given: str) -> None:
    """Check this because 20 blocks were answered `added`, a backend was killed, and none of them was left."""
    with connect(engine) as connection:
        name = connection.execute(sa.text("SELECT current_database()")).scalar_one()
        connection.execute(sa.text(f"ALTER DATABASE {name} SET synchronous_commit = {given}"))
    for mode in ("", "&pool_mode=session", "&pool_mode=transaction"):
        made = create_engine(f"{database_url}{mode}", application_name="tests", pool_size=1)
        with connect(made) as connection:
            assert connection.execute(sa.text("SHOW synchronous_commit")).scalar_one() == COMMITS[given], mode
        made.dispose()


@pytest.mark.parametrize("mode", ["", "&pool_mode=session", "&pool_mode=transaction"])
def test_time_outs_hold_and_can_be_raised_for_a_while(database_url: str, mode: str) -> None:
    engine = create_engine(f"{database_url}{mode}", application_name="tests", pool_size=1, search_path="public")

    def shown(connection: sa.Connection) -> list[str]:
        names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "TimeZone", "search_path")
        return [connection.execute(sa.text(f"SHOW {name}")).scalar_one() for name in names]

    with connect(engine) as connection:
        assert shown(connection) == ["30s", "10s", "10s", "UTC", "public"]
        with with_statement_timeout(connection, "2h"):
            assert shown(connection)[:2] == ["2h", "10s"]
        assert shown(connection)[0] == "30s"
        with with_statement_timeout(connection, "1ms"), pytest.raises(DriverLogUnavailableError), named_failures():
            connection.execute(sa.text("SELECT pg_sleep(60)"))
    engine.dispose()


def test_a_pool_mode_that_is_none_is_refused(database_url: str) -> None:
    with pytest.raises(
        DriverLogError, match=r"'statement' is no mode.*\?pool_mode=session, or \?pool_mode=transaction"
    ):
        create_engine(f"{database_url}&pool_mode=statement", application_name="tests")


def test_what_needs_a_session_takes_the_direct_url_behind_a_pooler_of_transactions(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run on Postgres itself: what a pooler would break is not done on the shared connection."""
    monkeypatch.delenv(DIRECT_URL_VARIABLE, raising=False)
    pooled = f"{database_url}&pool_mode=transaction"
    with pytest.raises(DriverLogError, match=f"a migration needs a session.*{DIRECT_URL_VARIABLE}"):
        migrate.upgrade(pooled)
    engine = create_engine(pooled, application_name="tests", pool_size=1)
    with connect(engine) as connection:
        with pytest.raises(DriverLogError, match="without a pooler"), one_attaches(connection):
            pass
        with pytest.raises(DriverLogError, match="without a pooler"):
            Notifications(engine, ["forebay_any"]).wait(0)
        monkeypatch.setenv(DIRECT_URL_VARIABLE, database_url)
        migrate.upgrade(pooled)
        with one_attaches(connection):
            held = "SELECT application_name FROM pg_stat_activity JOIN pg_locks USING (pid) WHERE locktype = 'advisory'"
            assert connection.execute(sa.text(held)).scalars().all() == ["the lock on attaching a block store"]
        notifications = Notifications(engine, ["forebay_any"])
        assert notifications.wait(0) == []
        connection.execute(sa.text("SELECT pg_notify('forebay_any', 'here')"))
        assert notifications.wait(10) == ["here"]
        notifications.close()
    engine.dispose()
