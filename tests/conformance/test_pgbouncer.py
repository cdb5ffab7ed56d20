"""Forebay behind Debian's pgbouncer, in session and in transaction mode. ``make brokers``."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.main import app
from forebay.testing.postgres import PostgresProcess
from forebay.testing.receiver_processes import eventually
from orchestration.tracker.tracker import Tracker
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig
from tests.support.driver_log.log import block, claim_anew, give_segments
from tests.support.machine.state_directory import state_directory
from tests.support.polling import joined
from tests.support.postgres.pgbouncer import Pgbouncer
from tests.support.postgres.server import TcpPostgres
from tracker_store.batches.pipelines import apply_stream
from tracker_store.batches.run_queue import Notifications
from tracker_store.blocks.blocks import AddOutcome, add_blocks
from tracker_store.connection.engine import connect, create_engine, named_failures, with_statement_timeout
from tracker_store.connection.errors import DriverLogError, DriverLogUnavailableError
from tracker_store.connection.pooler import DIRECT_URL_VARIABLE
from tracker_store.install import migrate
from tracker_store.receivers.receivers import placements
from tracker_store.reports.checks import check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracker_store.server.embedded_postgres import EmbeddedPostgres

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(300, func_only=True)]

RECEIVERS = 8
ROUNDS = 25


@pytest.fixture(scope="module")
def tcp_server() -> Iterator[EmbeddedPostgres]:
    with state_directory() as directory:
        server = TcpPostgres(directory / "postgres")
        with PostgresProcess(server, server.listening):
            yield server


@pytest.fixture
def direct(tcp_server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """Make a database whose defaults are the opposite of what Forebay needs; return its URL by TCP."""
    name = f"pooled_{abs(hash(request.node.name))}"
    administrator = sa.create_engine(tcp_server.url("postgres"), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with administrator.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        for setting in ("synchronous_commit = off", "timezone = 'Asia/Tokyo'", "jit = on", "statement_timeout = 0"):
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET {setting}")
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    url = tcp_server.url(name)
    migrate.upgrade(url)
    yield url
    with administrator.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["session", "transaction"])
def pooler(direct: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pgbouncer]:
    """Start a pooler. In session mode each client keeps a session, so it needs many."""
    monkeypatch.setenv(DIRECT_URL_VARIABLE, direct)
    with Pgbouncer(direct, request.param, size=2 if request.param == "transaction" else 100) as made:
        yield made


def test_each_statement_has_its_settings(pooler: Pgbouncer) -> None:
    engine = create_engine(pooler.url, application_name="tests")
    other = create_engine(pooler.url, application_name="others", statement_timeout="200ms")
    with connect(engine) as connection, connect(other) as busy:
        for _ in range(10):
            shown = {
                name: connection.execute(sa.text(f"SHOW {name}")).scalar_one()
                for name in ("statement_timeout", "lock_timeout", "synchronous_commit", "TimeZone", "jit")
            }
            assert shown == {
                "statement_timeout": "30s",
                "lock_timeout": "10s",
                "synchronous_commit": "on",
                "TimeZone": "UTC",
                "jit": "off",
            }
            assert connection.execute(sa.text("SHOW transaction_isolation")).scalar_one() == "read committed"
            with pytest.raises(DriverLogUnavailableError, match="statement timeout"), named_failures():
                busy.execute(sa.text("SELECT pg_sleep(60)"))
        with with_statement_timeout(connection, "2h"):
            assert connection.execute(sa.text("SHOW statement_timeout")).scalar_one() == "2h"
        assert connection.execute(sa.text("SHOW statement_timeout")).scalar_one() == "30s"
    engine.dispose()
    other.dispose()


def test_prepared_statements_of_clients_that_share_a_session_do_not_collide(pooler: Pgbouncer, direct: str) -> None:
    log = create_engine(direct, application_name="tests")
    with connect(log) as connection:
        apply_stream(connection, name="lines", declaration={}, receivers=RECEIVERS)
        claims = [claim_anew(connection, placement.receiver_id) for placement in placements(connection)]
        give_segments(connection, *(claimed.receiver_id for claimed in claims))

    def receive(number: int) -> set[AddOutcome]:
        engine = create_engine(pooler.url, application_name=f"receiver {number}", pool_size=1)
        outcomes: set[AddOutcome] = set()
        claimed = claims[number]
        with connect(engine) as connection:
            sequence = claimed.sequence
            for _ in range(ROUNDS):
                # One block, and several: two prepared statements.
                for count in (1, 3):
                    blocks = [block(claimed, sequence + n) for n in range(1, count + 1)]
                    with named_failures():
                        outcomes |= {result.outcome for result in add_blocks(connection, blocks)}
                    sequence += count
        engine.dispose()
        return outcomes

    with ThreadPoolExecutor(RECEIVERS) as pool:
        assert set().union(*pool.map(receive, range(RECEIVERS))) == {AddOutcome.ADDED}
    with connect(log) as connection:
        added = connection.execute(sa.text("SELECT count(*) FROM forebay.blocks WHERE segment_id IS NOT NULL"))
        assert added.scalar_one() == RECEIVERS * ROUNDS * 4
    log.dispose()


@pytest.mark.core
def test_a_receiver_process_registers_what_it_reads(pooler: Pgbouncer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as source:
        rig = ReceiverRig.on_socket(pooler.url, tmp_path, source.getsockname()[1])
        try:
            rig.start()
            source.settimeout(120)
            connection, _ = source.accept()
            with connection:
                connection.sendall(b"".join(b"%d\n" % n for n in range(500)))
                eventually(lambda: rig.has_records(500), "the records")
            assert rig.values() == [str(n) for n in range(500)]
        finally:
            rig.close()


def test_a_tracker_leads_and_its_listeners_are_told(pooler: Pgbouncer) -> None:
    engine = create_engine(pooler.url, application_name="forebay tracker")
    stop = threading.Event()
    tracker = Tracker(engine, heartbeat_limit_seconds=10)
    thread = threading.Thread(target=tracker.run, args=(stop,))
    thread.start()
    try:
        eventually(lambda: tracker.term is not None, "the lead")
        notifications = Notifications(engine, ["forebay_test"])
        assert notifications.wait(0) == []
        with connect(engine) as connection:
            connection.execute(sa.text("SELECT pg_notify('forebay_test', 'told')"))
        assert notifications.wait(30) == ["told"]
        notifications.close()
    finally:
        stop.set()
        joined(thread)
        engine.dispose()


def test_commands_work_through_it(pooler: Pgbouncer, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", pooler.url)
    monkeypatch.setenv("FOREBAY_HOME", str(home))
    for command in (
        ["db", "upgrade"],
        ["db", "check"],
        ["status", "--json"],
        ["pipelines"],
        ["receivers"],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, (command, result.output)


def test_the_schema_is_compared_through_it(pooler: Pgbouncer) -> None:
    engine = create_engine(pooler.url, application_name="tests")
    with connect(engine) as connection:
        assert [result.offenders for result in check_schema(connection) if not result.passed] == []
    engine.dispose()


@pytest.mark.parametrize("settings", [{}, {"ignore_startup_parameters": "options"}], ids=["refuses", "ignores"])
def test_a_pooler_that_the_url_does_not_name_is_refused(direct: str, settings: dict[str, object]) -> None:
    """Check this because where `options` is ignored, all time-outs were 0, and nothing said so."""
    with Pgbouncer(direct, "session", settings) as pooler:
        engine = create_engine(pooler.plain_url, application_name="tests")
        with pytest.raises(DriverLogError, match=r"\?pool_mode=session, or \?pool_mode=transaction"), connect(engine):
            pass
        engine.dispose()
