"""An agent as its users run it, with its tracker and receivers, on a driver log that the test makes unavailable.

No Dagster and no Spark: this half of the system must not lose a record while Postgres is unavailable.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
import pytest
import sqlalchemy as sa
import structlog

from receiver_runtime.block_store.stores.stores import open_block_store
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from tests.support.systems.steady_source import SteadySource
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.outage import SURVIVED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_log = structlog.get_logger(__name__)

Found = TypeVar("Found")

POLL_SECONDS = 0.1
#: Small limits, so that a receiver holds as much as it may, and its source is held up, within seconds.
SETTINGS = {"block_interval": "100ms", "block_queue_size": 3, "max_block_bytes": "64KiB"}
#: Bytes by which a receiver may grow while nothing can be registered: it holds 9 blocks of 64 KiB; the rest is Python.
MOST_GROWTH_BYTES = 48 * 2**20
#: Seconds within which everything must resume once the server is back.
RESUME_SECONDS = 10.0


class ReceivingHost:
    """The agent's processes, their sources, and the contents of the driver log."""

    def __init__(self, database_url: str, home: Path, sources: Sequence[SteadySource], agent: psutil.Process) -> None:
        self.home = home
        self.database_url = database_url
        self.sources = sources
        self.engine = create_engine(database_url, application_name="fault tests")
        self._agent = agent
        self._first: dict[int, psutil.Process] = {}

    # -- processes ---------------------------------------------------------------------------------------------------

    def remember_processes(self) -> None:
        """Remember the processes; from now on none of them may end."""
        self._first = {process.pid: process for process in self._processes()}
        assert len(self._first) == 2 + len(self.sources), f"not agent, tracker and receivers: {self._first}"

    def check_no_process_ended(self) -> None:
        """Check that every remembered process runs, and that there is no other."""
        now = set(self._processes())
        first = set(self._first.values())
        assert now == first, f"ended: {first - now}; new: {now - first}\n{self.report()}"

    def memory(self) -> dict[int, int]:
        """Return each process's resident memory in bytes."""
        return {pid: process.memory_info().rss for pid, process in self._first.items()}

    def _processes(self) -> list[psutil.Process]:
        return [self._agent, *self._agent.children(recursive=True)]

    # -- the driver log ----------------------------------------------------------------------------------------------

    def execute(self, statement: str, **values: object) -> list[Any]:
        """Run one statement; return its rows."""
        with connect(self.engine) as connection:
            result = connection.execute(sa.text(statement), values)
            return list(result) if result.returns_rows else []

    def registered(self) -> list[int]:
        """Return the number of records in registered blocks, by receiver."""
        rows = self.execute("SELECT records FROM forebay.receiver_status ORDER BY receiver_id")
        return [int(row.records) for row in rows]

    def reasons(self) -> list[str]:
        """Return the reason for each receiver's state."""
        return [row.reason for row in self.execute("SELECT reason FROM forebay.receiver_status ORDER BY receiver_id")]

    def states(self) -> list[str]:
        """Return each receiver's state."""
        return [row.state for row in self.execute("SELECT state FROM forebay.receiver_status ORDER BY receiver_id")]

    def says(self, what: str) -> bool:
        """Return whether every receiver's reason contains this text."""
        return all(what in reason for reason in self.reasons())

    def events(self, *kinds: str) -> list[tuple[str, str]]:
        """Return (message, detail) of the events of these kinds."""
        rows = self.execute(
            "SELECT message, detail FROM forebay.receiver_events WHERE kind = ANY (CAST(:k AS text[])) ORDER BY id",
            k=list(kinds),
        )
        return [(row.message, row.detail) for row in rows]

    def until_said(self, what: str) -> None:
        """Wait until a receiver's error report contains this text: reports are written separately, at their pace."""
        self.until(f"the report of {what}", lambda: any(what in detail for _, detail in self.events("ERROR")))

    def heartbeats(self) -> dict[str, int]:
        """Return the heartbeat counters of all live processes, and the leader's."""
        rows = self.execute(
            "SELECT kind || ' ' || name AS name, heartbeat AS counter FROM forebay.processes WHERE ended_at IS NULL "
            "UNION ALL SELECT 'leader', counter FROM forebay.leadership"
        )
        return {row.name: row.counter for row in rows}

    def until(self, what: str, look: Callable[[], Found | None], seconds: float = 30.0) -> Found:
        """Poll until `look` finds something; an unavailable driver log counts as nothing found."""
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
        """Let the sources send until each receiver has registered `records` more."""
        goals = [done + records for done in self.registered()]
        for source in self.sources:
            source.send()
        self.until(
            f"{records} more records registered",
            lambda: all(done >= goal for done, goal in zip(self.registered(), goals, strict=True)),
            seconds,
        )

    def until_reading_has_stopped(self, seconds: float = 30.0) -> None:
        """Wait until every source is held up: its receiver holds as much as it may, and reads no more."""
        self.until("every source is held up", lambda: all(source.held_up_for > 1.0 for source in self.sources), seconds)

    def stay_away(self, seconds: float) -> None:
        """Let `seconds` pass under load: no process ends, memory stays bounded, and reading has stopped by the end."""
        before = self.memory()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.check_no_process_ended()
            for pid, resident in self.memory().items():
                grown = resident - before[pid]
                assert grown < MOST_GROWTH_BYTES, f"process {pid} grew by {grown} bytes"
            time.sleep(0.5)
        # A process that stood still may have to read on for a moment.
        self.until_reading_has_stopped()

    def resume(self) -> None:
        """Check that every counter moves and every receiver registers new records; the server must be back already."""
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
        """Pause the sources; check that everything sent is registered, each number once, in the order of sending."""
        sent = [source.pause() for source in self.sources]
        self.until("everything sent is registered", lambda: self.registered() == sent)
        assert [source.connections for source in self.sources] == [1] * len(sent), "a receiver connected again"
        self.check_numbers(sent)
        assert self.events("LEASE_EXPIRED", "FENCED", "FAILED", "EXITED", "RESTARTED") == []
        self.check_no_process_ended()

    def check_numbers(self, sent: Sequence[int]) -> None:
        """Check that of each source every number up to the last one sent is there once, in order."""
        for numbers, last in zip(self.numbers(), sent, strict=True):
            assert numbers == list(range(1, last + 1))

    def check_only_lines_in_flight_are_lost(self, sent: Sequence[int], registered: Sequence[int]) -> None:
        """Check that each source's numbers are there once, in order, except one run: of the connection that was cut.

        What a receiver had `registered` before is there in any case.
        """
        for numbers, last, before in zip(self.numbers(), sent, registered, strict=True):
            cut = [n for n, (one, next_) in enumerate(pairwise(numbers), start=1) if next_ != one + 1]
            assert len(cut) <= 1, [numbers[n - 1 : n + 1] for n in cut]
            assert (numbers[0], numbers[-1]) == (1, last)
            assert all(first > before for first in (numbers[n - 1] + 1 for n in cut))

    def numbers(self) -> list[list[int]]:
        """Return the numbers in each receiver's registered blocks, in the blocks' order."""
        store = open_block_store(str(self.home / "blocks"))
        found: list[list[int]] = []
        for ordinal in range(len(self.sources)):
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
            found.append(numbers)
        return found

    def report(self) -> str:
        """Describe the state of the system, for a failure message."""
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
    """Start an agent with a tracker and receivers, each with a stream and source of its own, that receive."""
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
                agent.wait(60)
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
