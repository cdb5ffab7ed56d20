"""Postgres unavailable, full, locked or replaced: receivers keep what they hold, stop reading, do not end, and resume.

Issue 4, item 7. A socket delivers nothing twice and nothing again, so if no process ends, every number that was sent is
registered once. `POSTGRES_AWAY_SECONDS` is the length of an outage: 15 by default, 60 in CI, 600 by hand
(`make outage SECONDS=600`).
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, cast

import psycopg2
import pytest

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.batches.batch_run import run_batch
from orchestration.declarations.settings import Settings
from orchestration.declarations.sink import OutputAttempt, Written, unchecked
from orchestration.tracker.tracker import Tracker
from tests.support.commands.run_program import run_program
from tests.support.driver_log.log import INTERVAL, NOON, make_log
from tests.support.machine.state_directory import state_directory
from tests.support.pages.runbook import blocks, page, page_environment, run_commands, runnable, sections
from tests.support.systems.driver_log_server import Address, DriverLogServer, MountRefusedError, fill, small_file_system
from tests.support.systems.receiving_host import receiving_host
from tracker_store.batches.batches import get_batch
from tracker_store.batches.outputs import commits_of_batch
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.errors import DriverLogError
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from orchestration.declarations.sink import Check
    from tests.support.systems.receiving_host import ReceivingHost
    from tracker_store.batches.batches import BatchRow

MAX_CONNECTIONS = 60
# What `forebay apply` of a page applies.
_MODULE = """
from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

numbers = Stream("numbers0", SocketText(host="127.0.0.1", port={port}))
pipeline = Pipeline("words", interval="10s")


@pipeline.output(inputs=[numbers], sink=ParquetSink("counts"))
def counts(numbers):
    return numbers
"""
AWAY_SECONDS = float(os.environ.get("POSTGRES_AWAY_SECONDS", "15"))

pytestmark = [pytest.mark.outage, pytest.mark.timeout(240 + 2 * AWAY_SECONDS)]


@pytest.fixture(scope="module")
def server() -> Iterator[DriverLogServer]:
    """Start one server for the tests that leave it as it was."""
    with (
        state_directory() as directory,
        DriverLogServer(directory / "postgres", max_connections=str(MAX_CONNECTIONS)) as server,
    ):
        yield server


@pytest.fixture
def host(server: DriverLogServer, home: Path) -> Iterator[ReceivingHost]:
    """Start two receivers under load."""
    with receiving_host(server.new_database(), home) as host:
        yield host


def status(host: ReceivingHost, *, within: float = 60) -> tuple[int, str]:
    """Run `forebay status` as an operator does, with time for a loaded machine; return exit code and all output."""
    environment = {**os.environ, "FOREBAY_DATABASE_URL": host.database_url, "COLUMNS": "200"}
    done = run_program([sys.executable, "-m", "forebay.cli", "status", "--within", str(within)], env=environment)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def statement_of(stem: str, words: str) -> str:
    """Return the runbook's statement that has these words."""
    [found] = [statement for statement in blocks(page(stem), "sql") if words in statement]
    return found


def run_the_page(stem: str, host: ReceivingHost) -> None:
    """Run a whole runbook in its order, in the state that it is about; the stream `lines` of the page is `numbers0`.

    Each statement of "How to see it" has rows. The commands restart that receiver, and apply a new pipeline.
    """
    (host.home / "declared.py").write_text(_MODULE.format(port=host.sources[0].port), encoding="utf-8")
    environment = page_environment(host.database_url, host.home)
    for heading, text in sections(stem).items():
        host.until("both receive", lambda: host.states() == ["ACTIVE", "ACTIVE"], seconds=60)
        for language, block in runnable(text):
            if language == "sql":
                assert host.execute(block) or heading != "How to see it", block
            else:
                run_commands(block.replace("lines/1", "numbers0/1"), environment, host.home)


@pytest.mark.parametrize("end", [DriverLogServer.stop_fast, DriverLogServer.kill], ids=["stopped", "killed"])
def test_the_server_goes_down_and_comes_back(
    server: DriverLogServer,
    host: ReceivingHost,
    end: Callable[[DriverLogServer], None],
) -> None:
    end(server)
    try:
        code, said = status(host)
        assert code == 1
        assert "can't be reached" in said
        assert "Connection refused" in said
        host.stay_away(AWAY_SECONDS)
    finally:
        server.ensure_running()
    host.resume()
    host.check_every_number_is_there_once()

    # Receivers write reports separately, at their own pace.
    def waited() -> bool:
        said = [message for message, _ in host.events("ERROR") if "the driver log" in message]
        return len(said) >= len(host.sources)

    host.until("every receiver has said that it waited", waited)
    host.until("the reason is another", lambda: all("driver log" not in reason for reason in host.reasons()))


def test_the_server_is_stopped_and_goes_on(server: DriverLogServer, host: ReceivingHost) -> None:
    with server.stopped():
        code, said = status(host, within=5)
        assert code == 1
        assert "driver log can't be reached" in said
        host.stay_away(3.0)
    host.resume()
    host.check_every_number_is_there_once()


def test_every_connection_is_taken(server: DriverLogServer, host: ReceivingHost) -> None:
    with ExitStack() as crowd:
        administrator = crowd.enter_context(server.connection()).cursor()

        def crowd_in() -> None:
            while True:
                crowd.enter_context(server.connection())

        def crowded() -> bool:
            administrator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'forebay%'"
            )
            with pytest.raises(psycopg2.OperationalError, match="too many clients"):
                crowd_in()
            # A process that is about to connect has no application name yet, but takes a connection slot.
            administrator.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'a person'")
            [there] = administrator.fetchone() or (0,)
            return bool(there == MAX_CONNECTIONS)

        host.engine.dispose()
        host.until("no other process is connected", crowded)
        code, said = status(host)
        assert code == 1
        assert "too many clients already" in said
        host.until_reading_has_stopped()
        host.stay_away(3.0)
    host.resume()
    host.check_every_number_is_there_once()
    host.until_said("too many clients")


def test_a_session_holds_a_lock(server: DriverLogServer, host: ReceivingHost) -> None:
    database = host.database_url.rpartition("/")[2]
    with server.connection(database) as person, person.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT FROM forebay.receivers FOR UPDATE")
        # Adding a block does not need the receiver's row.
        host.receive()

    with server.connection(database) as person, person.cursor() as cursor:
        began = monotonic()
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE forebay.blocks")

        def named() -> bool:
            reasons = host.execute("SELECT reason FROM forebay.receivers")
            return all("lock timeout" in row.reason for row in reasons)

        host.until("every receiver says what it waits for", named)
        blockers = statement_of("postgres-away", "pg_blocking_pids")
        host.until(
            "the runbook's statement names the session",
            lambda: {row.who_blocks for row in host.execute(blockers)} == {"a person"},
        )
        # Longer than a process may go without a heartbeat: waiting must not count as death.
        host.stay_away(max(0.0, 14.0 - (monotonic() - began)))
    host.resume()
    host.check_every_number_is_there_once()


def test_the_server_refuses_for_a_while(server: DriverLogServer, host: ReceivingHost) -> None:
    """Refuse with a statement timeout, a deadlock, a full disk, a failing disk, and a server made read-only."""
    for code in ("57014", "40P01", "53100", "58030", "25006"):
        host.execute(
            "CREATE FUNCTION forebay.refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$BEGIN RAISE EXCEPTION 'no, and that is code {code}' USING ERRCODE = '{code}'; END$$"
        )
        host.execute("CREATE TRIGGER refuse BEFORE INSERT ON forebay.blocks EXECUTE FUNCTION forebay.refuse()")
        said = f"that is code {code}"
        host.until("every receiver says why", partial(host.says, said))
        assert said in status(host)[1]
        host.check_no_process_ended()
        host.execute("DROP FUNCTION forebay.refuse() CASCADE")
        host.resume()
        host.until("the reason is the old one", partial(host.says, "connected to"))
    host.check_every_number_is_there_once()


def test_a_failover_to_a_standby_that_has_everything(home: Path) -> None:
    """Lead the address to the standby while it is still read-only: no process may accept it as it is.

    Each receiver keeps what it has read until the standby is promoted, and registers it. Then its claim ends, because
    the process can't know what a standby has: its successor looks through the files. Lines that were in flight on the
    connection go with it.
    """
    with ExitStack() as stack:
        primary = stack.enter_context(DriverLogServer(home / "primary" / "postgres"))
        url = primary.new_database()
        standby = primary.make_standby(home / "standby" / "postgres")
        stack.callback(standby.stop)
        address = stack.enter_context(Address(primary.server.port))
        host = stack.enter_context(receiving_host(address.of(url), home / "host"))
        # In this order, so that a refused process has reached the standby, not the remains of the primary.
        address.target = standby.server.port
        primary.kill()
        host.until("the standby answers", host.registered)
        host.until_reading_has_stopped()
        host.check_no_process_ended()
        registered = [len(numbers) for numbers in host.numbers()]
        standby.promote()
        host.until("each receiver is claimed again", lambda: len(host.events("STARTED")) == 4, seconds=60)
        host.until("both receive", lambda: host.states() == ["ACTIVE", "ACTIVE"], seconds=60)
        host.receive(1000, seconds=60)
        sent = [source.pause() for source in host.sources]
        host.until(
            "everything sent is registered",
            lambda: [numbers[-1] for numbers in host.numbers()] == sent,
            seconds=60,
        )
        host.check_only_lines_in_flight_are_lost(sent, registered)
        assert host.events("FENCED", "FAILED", "LEASE_EXPIRED") == []
        host.until_said("read-only")
        host.until_said("system identifier/timeline")


def test_a_failover_to_a_standby_that_lacks_the_last_commits(home: Path) -> None:
    """Check that blocks the standby lacks, and for one receiver its claim and segment too, come back from the files.

    The sources are quiet meanwhile: a socket's lines in flight are lost with their connection.
    """
    with ExitStack() as stack:
        primary = stack.enter_context(DriverLogServer(home / "primary" / "postgres"))
        url = primary.new_database()
        standby = primary.make_standby(home / "standby" / "postgres", synchronous=False)
        stack.callback(standby.stop)
        address = stack.enter_context(Address(primary.server.port))
        host = stack.enter_context(receiving_host(address.of(url), home / "host"))
        standby.stop_following()
        host.receive(1000)
        sent = [source.pause() for source in host.sources]
        host.until("everything sent is registered", lambda: host.registered() == sent, seconds=60)
        [(killed,)] = host.execute(
            "SELECT min(pid) FROM forebay.processes WHERE kind = 'receiver' AND ended_at IS NULL"
        )
        os.kill(killed, signal.SIGKILL)
        host.until("its successor has claimed", lambda: len(host.events("STARTED")) == 3, seconds=60)
        host.receive(1000, seconds=60)
        sent = [source.pause() for source in host.sources]
        host.until("everything sent is registered", lambda: host.registered() == sent, seconds=60)
        primary.kill()
        standby.promote()
        address.target = standby.server.port
        host.until("everything that was lost is registered again", lambda: host.registered() == sent, seconds=120)
        host.until("both receive", lambda: host.states() == ["ACTIVE", "ACTIVE"], seconds=60)
        host.receive(1000, seconds=60)
        sent = [source.pause() for source in host.sources]
        host.until("everything sent is registered", lambda: host.registered() == sent, seconds=60)
        host.check_numbers(sent)
        lost = [detail for message, detail in host.events("ERROR") if message.startswith("the driver log lacks blocks")]
        assert [detail for detail in lost if "are registered again" in detail]
        run_the_page("postgres-failover", host)
        assert ("restarted by an operator", "") in host.events("RESTARTED")
        assert host.execute("SELECT name FROM forebay.pipelines") == [("words",)]


def test_the_disk_of_the_server_is_full(home: Path) -> None:
    """Check that a full disk first refuses blocks, and that the server goes down once it can write no more WAL."""
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(small_file_system(home / "disk", "200m"))
        except MountRefusedError as error:
            pytest.skip(str(error))
        server = stack.enter_context(DriverLogServer(disk / "postgres", max_wal_size="64MB"))
        host = stack.enter_context(receiving_host(server.new_database(), home / "host"))
        ballast = disk / "ballast"
        with server.connection() as person, person.cursor() as cursor:
            # Start a new WAL file, whose space is allocated: with a nearly full one the server would go down too early.
            cursor.execute("SELECT pg_switch_wal()")
        fill(ballast)
        host.until("every receiver says why", partial(host.says, "No space left on device"))
        code, said = status(host)
        assert code == 0
        assert "No space left on device" in said
        host.until_reading_has_stopped()
        try:
            with server.connection() as person, person.cursor() as cursor:
                for _ in range(20):
                    cursor.execute("SELECT pg_switch_wal(), pg_logical_emit_message(false, 'test', 'a byte to write')")
        except psycopg2.Error:
            went_down = True
        else:
            went_down = False
        assert went_down
        code, said = status(host)
        assert code == 1
        assert "driver log can't be reached" in said
        host.stay_away(3.0)
        ballast.unlink()
        server.ensure_running()
        host.resume()
        host.check_every_number_is_there_once()


class NoSpark:
    """A Spark session that accepts every call and does nothing."""

    def __getattr__(self, _: str) -> NoSpark:
        return self

    def __call__(self, *_: object, **__: object) -> NoSpark:
        return self


class SinkAtTheEnd(ParquetSink):
    """Call `before_commit` when the first attempt is written, and record what is published."""

    def __init__(self, before_commit: Callable[[], None]) -> None:
        super().__init__("/nowhere")
        self._before_commit = before_commit
        self.published: list[str] = []

    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        if attempt.attempt == 1:
            self._before_commit()
        return Written(f"attempt {attempt.attempt}", 10)

    def publish(self, location: str, *, batch_time: datetime, check: Check = unchecked) -> None:
        self.published.append(location)


def test_a_batch_whose_commit_meets_a_dead_server_comes_out_once(server: DriverLogServer, home: Path) -> None:
    url = server.new_database()
    settings = Settings(home=home, database_url=url)
    sink = SinkAtTheEnd(server.kill)
    pipeline = Pipeline("words", interval="10s")
    lines = Stream("lines", SocketText(host="127.0.0.1", port=1))
    pipeline.output(inputs=[lines], sink=sink, name="counts")(lambda lines: lines)
    engine = create_engine(url, application_name="fault tests")
    with connect(engine) as connection:
        log = make_log(connection)
        log.add_at(log.receiver_ids[0], NOON + timedelta(seconds=1))
        # A run reads the stream's columns from the declaration.
        declaration = {"source": lines.source.model_dump(mode="json"), "settings": {}}
        apply_stream(connection, name="lines", declaration=declaration, receivers=1)
        time = NOON + INTERVAL
        log.tracker.allocate_blocks_to_batch(time)

    def run(attempt: int) -> None:
        run_batch(
            pipeline,
            batch_time=time,
            attempt=attempt,
            run_id=f"run{attempt}",
            settings=settings,
            session=lambda: cast("SparkSession", NoSpark()),
        )

    def batch() -> BatchRow:
        with connect(engine) as connection:
            found = get_batch(connection, log.pipeline_id, time)
        assert found is not None
        return found

    try:
        with pytest.raises(DriverLogError, match=r"refused|terminat|closed"):
            run(1)
    finally:
        server.ensure_running()
    assert sink.published == []
    assert batch().state is BatchState.RUNNING

    # The process has ended without a report, and the tracker sees that its heartbeat stands still.
    tracker = Tracker(engine, heartbeat_limit_seconds=1.5)
    deadline = monotonic() + 20
    while batch().state is not BatchState.FAILED:
        assert monotonic() < deadline, batch()
        with connect(engine) as connection:
            tracker.tick(connection)
        sleep(0.1)
    assert "run1" in batch().reason
    run(2)
    assert (batch().state, batch().attempt) == (BatchState.COMPLETED, 2)
    assert sink.published == ["attempt 2"]
    with connect(engine) as connection:
        assert [commit.attempt for commit in commits_of_batch(connection, log.pipeline_id, time)] == [2]
    engine.dispose()
