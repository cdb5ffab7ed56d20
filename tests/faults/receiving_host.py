"""An agent as its users run it, with its tracker and receivers, on a driver log that the test takes away.

No Dagster and no Spark: this is the half of the system that must not lose a record while Postgres is away.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
import pytest
import sqlalchemy as sa
import structlog

from receiver_runtime.block_store.stores import open_block_store
from receiver_runtime.sources.socket_text import SocketText
from tests.faults.steady_source import SteadySource
from tracker_store.engine import connect, create_engine
from tracker_store.outage import SURVIVED
from tracker_store.pipelines import apply_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_log = structlog.get_logger(__name__)

Found = TypeVar("Found")

POLL_SECONDS = 0.1
#: Small, so that what is held is full, and the source is held up, within seconds.
SETTINGS = {"block_interval": "100ms", "block_queue_size": 3, "max_block_bytes": "64KiB"}
#: What a receiver may grow by while nothing can be registered: what it holds is 9 blocks of 64 KiB; the rest is Python.
MOST_GROWTH_BYTES = 48 * 2**20
#: Issue 4: resumed so soon after the server is back.
RESUME_SECONDS = 10.0


class ReceivingHost:
    """The agent's processes, their sources, and what stands in the driver log."""

    def __init__(self, database_url: str, home: Path, sources: Sequence[SteadySource], agent: psutil.Process) -> None:
        self.home = home
        self.database_url = database_url
        self.sources = sources
        self.engine = create_engine(database_url, application_name="fault tests")
        self._agent = agent
        self._first: dict[int, psutil.Process] = {}

    # -- processes ---------------------------------------------------------------------------------------------------

    def remember_processes(self) -> None:
        """From now on, none of them may end."""
        self._first = {process.pid: process for process in self._processes()}
        assert len(self._first) == 2 + len(self.sources), f"not agent, tracker and receivers: {self._first}"

    def check_nobody_ended(self) -> None:
        """Every process that was remembered runs, and there is no other."""
        now = set(self._processes())
        first = set(self._first.values())
        assert now == first, f"ended: {first - now}; new: {now - first}\n{self.report()}"

    def memory(self) -> dict[int, int]:
        """Each process's resident bytes."""
        return {pid: process.memory_info().rss for pid, process in self._first.items()}

    def _processes(self) -> list[psutil.Process]:
        return [self._agent, *self._agent.children(recursive=True)]

    # -- the driver log ----------------------------------------------------------------------------------------------

    def execute(self, statement: str, **values: object) -> list[Any]:
        """One statement; its rows."""
        with connect(self.engine) as connection:
            result = connection.execute(sa.text(statement), values)
            return list(result) if result.returns_rows else []

    def registered(self) -> list[int]:
        """Records in registered blocks, by receiver."""
        rows = self.execute("SELECT records FROM forebay.receiver_status ORDER BY receiver_id")
        return [int(row.records) for row in rows]

    def reasons(self) -> list[str]:
        """Why each receiver is in its state."""
        return [row.reason for row in self.execute("SELECT reason FROM forebay.receiver_status ORDER BY receiver_id")]

    def states(self) -> list[str]:
        """What each receiver is."""
        return [row.state for row in self.execute("SELECT state FROM forebay.receiver_status ORDER BY receiver_id")]

    def says(self, what: str) -> bool:
        """Whether every receiver's reason holds this."""
        return all(what in reason for reason in self.reasons())

    def events(self, *kinds: str) -> list[tuple[str, str]]:
        """(message, detail) of the events of these kinds."""
        rows = self.execute(
            "SELECT message, detail FROM forebay.receiver_events WHERE kind = ANY (CAST(:k AS text[])) ORDER BY id",
            k=list(kinds),
        )
        return [(row.message, row.detail) for row in rows]

    def until_said(self, what: str) -> None:
        """Until a receiver's report of an error holds this: reports are written beside, at a pace of their own."""
        self.until(f"the report of {what}", lambda: any(what in detail for _, detail in self.events("ERROR")))

    def heartbeats(self) -> dict[str, int]:
        """The counters of everybody that lives, the leader's too."""
        rows = self.execute(
            "SELECT kind || ' ' || name AS name, heartbeat AS counter FROM forebay.processes WHERE ended_at IS NULL "
            "UNION ALL SELECT 'leader', counter FROM forebay.leadership"
        )
        return {row.name: row.counter for row in rows}

    def until(self, what: str, look: Callable[[], Found | None], seconds: float = 30.0) -> Found:
        """Poll until `look` finds something; a driver log that is away counts as not yet."""
        deadline = time.monotonic() + seconds
        failure = ""
        while time.monotonic() < deadline:
            try:
                if found := look():
                    return found
            except SURVIVED as error:
                failure = str(error)
            time.sleep(POLL_SECONDS)
        return pytest.fail(f"not within {seconds:g} s: {what} {failure}\n{self.report()}")

    # -- what a test does --------------------------------------------------------------------------------------------

    def receive(self, records: int = 2000, seconds: float = 30.0) -> None:
        """Let the sources send until each receiver has registered so many more."""
        goals = [done + records for done in self.registered()]
        for source in self.sources:
            source.send()
        self.until(
            f"{records} more records registered",
            lambda: all(done >= goal for done, goal in zip(self.registered(), goals, strict=True)),
            seconds,
        )

    def until_reading_has_stopped(self, seconds: float = 30.0) -> None:
        """Until every source is held up: its receiver holds what it may hold, and reads no more."""
        self.until("every source is held up", lambda: all(source.held_up_for > 1.0 for source in self.sources), seconds)

    def stay_away(self, seconds: float) -> None:
        """Let so much time pass under load: nobody ends, memory stays bounded, reading has stopped at the end."""
        before = self.memory()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.check_nobody_ended()
            for pid, resident in self.memory().items():
                grown = resident - before[pid]
                assert grown < MOST_GROWTH_BYTES, f"process {pid} grew by {grown} bytes"
            time.sleep(0.5)
        # Somebody that stood still may have to read on for a moment.
        self.until_reading_has_stopped()

    def resume(self) -> None:
        """Until every counter moves and every receiver registers new records; the server is back as this is called."""
        begin = time.monotonic()
        registered, counters = self.until("the driver log answers", lambda: (self.registered(), self.heartbeats()))
        assert len(counters) == 2 + len(self.sources)

        def resumed() -> bool:
            now = self.heartbeats()
            return all(now.get(name, 0) > counter for name, counter in counters.items()) and all(
                new > old for new, old in zip(self.registered(), registered, strict=True)
            )

        self.until("all have resumed", resumed)
        took = time.monotonic() - begin
        _log.info("all have resumed", seconds=round(took, 1))
        assert took < RESUME_SECONDS, f"resumed after {took:.1f} s only"

    def check_every_number_is_there_once(self) -> None:
        """The calm: everything sent is registered, each number once, in the order in which it was sent."""
        sent = [source.pause() for source in self.sources]
        self.until("everything sent is registered", lambda: self.registered() == sent)
        assert [source.connections for source in self.sources] == [1] * len(sent), "a receiver connected anew"
        self.check_numbers(sent)
        assert self.events("LEASE_EXPIRED", "FENCED", "FAILED", "EXITED", "RESTARTED") == []
        self.check_nobody_ended()

    def check_numbers(self, sent: Sequence[int]) -> None:
        """Of each source every number up to the one that it sent last is there once, in order."""
        store = open_block_store(str(self.home / "blocks"))
        for ordinal, last in enumerate(sent):
            numbers: list[int] = []
            rows = self.execute(
                'SELECT g.path, b."offset", b.length, b.crc32c FROM forebay.blocks b '
                "JOIN forebay.log_segments g ON g.id = b.segment_id JOIN forebay.receivers r ON r.id = b.receiver_id "
                "JOIN forebay.streams s ON s.id = r.stream_id WHERE s.name = :name ORDER BY b.sequence",
                name=f"numbers{ordinal}",
            )
            for path, offset, length, crc32c in rows:
                for batch in store.read_batches(path, offset, length, crc32c):
                    numbers.extend(int(value.partition(" ")[0]) for value in batch["value"].to_pylist())
            assert numbers == list(range(1, last + 1))

    def report(self) -> str:
        """The state of things, for a failure."""
        lines = [f"sent {s.sent}, held up for {s.held_up_for:.1f} s, {s.connections} connections" for s in self.sources]
        try:
            for table in ("receiver_status", "processes", "receiver_events", "leadership"):
                lines += [str(row) for row in self.execute(f"SELECT * FROM forebay.{table}")]
        except SURVIVED as error:
            lines.append(str(error))
        for log in [self.home / "agent.log", *sorted((self.home / "logs").glob("*.log"))]:
            lines += [f"--- {log.name}", *log.read_text(encoding="utf-8").splitlines()[-30:]]
        return "\n".join(lines)


@contextmanager
def receiving_host(database_url: str, home: Path, *, receivers: int = 2) -> Iterator[ReceivingHost]:
    """An agent with a tracker and so many receivers, each of a stream and source of its own, receiving."""
    with _sources(receivers) as sources:
        engine = create_engine(database_url, application_name="fault tests")
        with connect(engine) as connection:
            for ordinal, source in enumerate(sources):
                declared = SocketText(host="127.0.0.1", port=source.port).model_dump(mode="json")
                apply_stream(
                    connection,
                    name=f"numbers{ordinal}",
                    declaration={"source": declared, "settings": SETTINGS},
                    receivers=1,
                )
        engine.dispose()
        home.mkdir(parents=True, exist_ok=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")}
        environment |= {"FOREBAY_HOME": str(home), "FOREBAY_DATABASE_URL": database_url}
        with (home / "agent.log").open("wb") as log:
            agent = subprocess.Popen(
                [sys.executable, "-m", "forebay.cli", "agent", "--host", "here", "--no-spare", "--parent-pipe"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        tree = psutil.Process(agent.pid)
        host = ReceivingHost(database_url, home, sources, tree)
        try:
            host.receive(1000, seconds=120.0)
            host.remember_processes()
            yield host
        finally:
            family = [tree, *tree.children(recursive=True)] if agent.poll() is None else []
            agent.send_signal(signal.SIGTERM)
            try:
                agent.wait(90)
            finally:
                for process in psutil.wait_procs(family, timeout=5)[1]:
                    process.kill()
                agent.wait()
                assert agent.stdin is not None
                agent.stdin.close()
                host.engine.dispose()


@contextmanager
def _sources(count: int) -> Iterator[list[SteadySource]]:
    if count == 0:
        yield []
        return
    with SteadySource() as source, _sources(count - 1) as others:
        yield [source, *others]
