"""Hosts, each with an agent and a receiver of one stream; they share one driver log and one block store.

The hosts are network namespaces, or only names on one machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
import pytest
import sqlalchemy as sa
import structlog

from forebay.sources import CustomSource
from orchestration.spark.reading.block_reader import ForebayReader
from receiver_runtime.block_store.stores.stores import open_block_store
from tests.namespaces.acking import AckedSource
from tests.support.systems.driver_log_server import DriverLogServer
from tracker_store.batches.pipelines import apply_pipeline, apply_stream, get_pipeline
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker, batch_times
from tracker_store.connection.engine import connect, create_engine

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from tests.namespaces.network import Network

STREAM = "numbers"
PIPELINE = "numbered"
POLL_SECONDS = 0.1
_INTERVAL = timedelta(seconds=1)
_ROOT = Path(__file__).parents[2]

Found = TypeVar("Found")

_log = structlog.get_logger(__name__)


class BridgedPostgres(DriverLogServer):
    """An embedded server that the hosts on a bridge can also reach."""

    def __init__(self, data_directory: Path, network: Network) -> None:
        super().__init__(data_directory, listen_addresses=f"127.0.0.1,{network.address}")
        self._network = network

    def start(self, timeout: float = 60.0) -> None:
        self.server.initialise()
        with (self.server.data_directory / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {self._network.subnet} scram-sha-256\n")
        super().start(timeout)

    def url_on_hosts(self, url: str) -> str:
        """Return the same database's URL as the hosts reach it."""
        return url.replace("@127.0.0.1:", f"@{self._network.address}:")


class Hosts:
    """The agents, their processes, and the contents of the driver log."""

    def __init__(
        self,
        home: Path,
        database_url: str,
        block_store: str,
        source: AckedSource,
        in_host: Callable[[str, Sequence[str]], Sequence[str]],
    ) -> None:
        self.home = home
        self.database_url = database_url
        self.block_store = block_store
        self.source = source
        self.engine = create_engine(database_url, application_name="fault tests")
        self._in_host = in_host
        self._agents: dict[str, psutil.Popen] = {}

    def start_agent(self, host: str, url: str, **settings: str) -> None:
        """Run `forebay agent --host HOST` in that host, with a home of its own."""
        home = self.home / host
        home.mkdir(exist_ok=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")}
        environment |= {
            "FOREBAY_HOME": str(home),
            "FOREBAY_DATABASE_URL": url,
            "FOREBAY_BLOCK_STORE": self.block_store,
            **settings,
        }
        with (home / "agent.log").open("ab") as log:
            self._agents[host] = psutil.Popen(
                self._in_host(host, [sys.executable, "-m", "forebay.cli", "agent", "--host", host, "--parent-pipe"]),
                cwd=_ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop_agent(self, host: str) -> None:
        """Stop one agent as its service manager does; return when it has ended."""
        self._agents[host].stdin.close()
        self._agents[host].wait(60)

    def stop_agents(self) -> None:
        """Stop the agents as their service manager does; kill every process that does not end."""
        families = [process for host in self._agents for process in self.family(host)]
        for agent in self._agents.values():
            agent.stdin.close()
        for process in psutil.wait_procs(families, timeout=40)[1]:
            process.kill()
        for agent in self._agents.values():
            agent.wait(60)

    # -- processes ---------------------------------------------------------------------------------------------------

    def family(self, host: str) -> list[psutil.Process]:
        """Return a host's agent and all its children; an empty list once the agent has ended."""
        agent = self._agents[host]
        return [] if agent.poll() is not None else [agent, *agent.children(recursive=True)]

    def receiver_process(self, receiver_id: int) -> psutil.Process:
        """Return the process in which a receiver runs."""
        [row] = self.execute(
            "SELECT p.pid FROM forebay.receivers r JOIN forebay.processes p ON p.id = r.process_id WHERE r.id = :id",
            id=receiver_id,
        )
        return psutil.Process(row.pid)

    def log_of(self, host: str) -> str:
        """Return the log of a host's agent."""
        return (self.home / host / "agent.log").read_text(encoding="utf-8")

    def leader(self) -> tuple[str, int]:
        """Return the host of the leading tracker, and its term."""
        [row] = self.execute("SELECT term, holder FROM forebay.leadership")
        pid = int(row.holder.rpartition(":")[2])
        host = next(host for host in self._agents if pid in {process.pid for process in self.family(host)})
        return host, int(row.term)

    # -- the driver log ----------------------------------------------------------------------------------------------

    def execute(self, statement: str, **values: object) -> list[Any]:
        """Run one statement; return its rows."""
        with connect(self.engine) as connection:
            result = connection.execute(sa.text(statement), values)
            return list(result) if result.returns_rows else []

    def receivers(self) -> dict[int, tuple[str, str | None, int, int]]:
        """Return (state, host, epoch, registered records) of each receiver."""
        rows = self.execute(
            "SELECT r.id, r.state, p.host, head.epoch, head.total_records FROM forebay.receivers r "
            "LEFT JOIN forebay.processes p ON p.id = r.agent_id LEFT JOIN LATERAL ("
            "  SELECT b.epoch, b.total_records FROM forebay.blocks b WHERE b.receiver_id = r.id "
            "  ORDER BY b.sequence DESC LIMIT 1) head ON true ORDER BY r.id"
        )
        return {row.id: (row.state, row.host, row.epoch or 0, int(row.total_records or 0)) for row in rows}

    def agents(self) -> set[str]:
        """Return the hosts that have an agent."""
        return {row.host for row in self.execute("SELECT host FROM forebay.processes WHERE kind = 'agent'")}

    def spread(self) -> list[int]:
        """Return the number of receivers that run on each host, in the order of the hosts' names."""
        running = [host for state, host, _, _ in self.receivers().values() if state == "ACTIVE"]
        return [running.count(host) for host in sorted(self._agents)]

    def moves(self) -> list[tuple[str, float]]:
        """Return each planned move, with the seconds between the last block before it and the first after it."""
        rows = self.execute(
            "SELECT v.message, extract(epoch FROM "
            "  (SELECT min(b.added_at) FROM forebay.blocks b "
            "   WHERE b.receiver_id = v.receiver_id AND b.segment_id IS NOT NULL AND b.sequence > m.sequence) - "
            "  (SELECT max(b.added_at) FROM forebay.blocks b "
            "   WHERE b.receiver_id = v.receiver_id AND b.segment_id IS NOT NULL AND b.sequence < m.sequence)"
            ")::float8 AS seconds FROM forebay.receiver_events v JOIN LATERAL ("
            "  SELECT b.sequence FROM forebay.blocks b WHERE b.receiver_id = v.receiver_id AND b.segment_id IS NULL "
            "  AND b.added_at > v.at ORDER BY b.sequence LIMIT 1) m ON true "
            "WHERE v.kind = 'SCHEDULED' AND v.message LIKE 'moved from %' ORDER BY v.id"
        )
        return [(row.message, row.seconds) for row in rows]

    def on(self, host: str) -> list[int]:
        """Return the receivers that are placed on a host."""
        return [receiver_id for receiver_id, row in self.receivers().items() if row[1] == host]

    def events(self, kind: str, receiver_id: int) -> list[tuple[int, str]]:
        """Return (epoch, message and detail) of a receiver's events of a kind."""
        rows = self.execute(
            "SELECT epoch, message || ': ' || detail AS said FROM forebay.receiver_events "
            "WHERE kind = :kind AND receiver_id = :receiver ORDER BY id",
            kind=kind,
            receiver=receiver_id,
        )
        return [(row.epoch, row.said) for row in rows]

    def until(self, what: str, look: Callable[[], Found | None], seconds: float = 30.0) -> Found:
        """Poll until `look` finds something."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := look():
                return found
            time.sleep(POLL_SECONDS)
        return pytest.fail(f"not within {seconds:g} s: {what}\n{self.report()}")

    def flow(self, receiver_ids: Sequence[int], records: int = 200, seconds: float = 30.0) -> None:
        """Wait until each of these receivers is ACTIVE and has registered `records` more."""
        self.source.send()
        goals = {receiver_id: row[3] + records for receiver_id, row in self.receivers().items()}

        def flowed() -> bool:
            now = self.receivers()
            return all(now[one][0] == "ACTIVE" and now[one][3] >= goals[one] for one in receiver_ids)

        self.until(f"{records} more records of {list(receiver_ids)}", flowed, seconds)

    def numbers(self) -> list[int]:
        """Return every registered number, read through the rows of the driver log."""
        store = open_block_store(self.block_store)
        rows = self.execute(
            'SELECT g.path, b."offset", b.length, b.crc32c FROM forebay.blocks b '
            "JOIN forebay.log_segments g ON g.id = b.segment_id ORDER BY b.receiver_id, b.sequence"
        )
        batches = (batch for row in rows for batch in store.read_batches(*row))
        return [number for batch in batches for number in batch["number"].to_pylist()]

    def check_every_acknowledged_number_came_out_once(self) -> None:
        """Check this as a batch reads it; check that no other number came out twice either."""
        self.source.pause()
        self.until("nothing is on its way but what was given up", self.source.is_at_rest)
        with connect(self.engine) as connection:
            pipeline = get_pipeline(connection, PIPELINE).pipeline_id
            newest = self.execute("SELECT max(added_at) AS at FROM forebay.blocks")[0].at

            def due() -> datetime | None:
                times = batch_times(connection, pipeline)
                return times.newest if times.newest > newest else None

            batch_time = self.until("a boundary behind the newest block", due)
            ReceivedBlockTracker(connection, pipeline).allocate_blocks_to_batch(batch_time)
        reader = ForebayReader(
            {
                "pipeline": PIPELINE,
                "batch_time": batch_time.isoformat(),
                "stream": STREAM,
                "database_url": self.database_url,
                "block_store": self.block_store,
            }
        )
        batches = (batch for partition in reader.partitions() for batch in reader.read(partition))
        came_out = sorted(number for batch in batches for number in batch["number"].to_pylist())
        assert came_out == sorted(self.numbers()), "the data source reads something else than what is registered"
        assert len(set(came_out)) == len(came_out), "something came out twice"
        assert self.source.acknowledged
        assert self.source.acknowledged - set(came_out) == set(), "an acknowledged number is lost"
        _log.info(
            "every acknowledged number is there once",
            acknowledged=len(self.source.acknowledged),
            sent=self.source.sent,
        )

    def report(self) -> str:
        """Describe the state of the system, for a failure message."""
        lines = []
        for table in ("receiver_status", "processes", "receiver_events", "leadership"):
            lines += [str(row) for row in self.execute(f"SELECT * FROM forebay.{table}")]
        for log in [path for host in self._agents for path in sorted((self.home / host).rglob("*.log"))]:
            lines += [f"--- {log}", *log.read_text(encoding="utf-8").splitlines()[-30:]]
        return "\n".join(lines)


def _here(_host: str, command: Sequence[str]) -> Sequence[str]:
    return command


@contextmanager
def running_hosts(
    hosts: Sequence[str],
    *,
    home: Path,
    database_url: str,
    block_store: str,
    listeners: Sequence[socket.socket],
    url_on_hosts: str | None = None,
    in_host: Callable[[str, Sequence[str]], Sequence[str]] = _here,
    receivers: int | None = None,
    seconds_apart: float | None = None,
    **settings: str,
) -> Iterator[Hosts]:
    """Start the hosts, each with a receiver; the pipeline only states who reads.

    `listeners` are the source's, all at one port; `in_host` turns a command into one that runs in a host. `receivers`:
    how many there are in all. With `seconds_apart` the stream is declared first, and the agents start one after the
    other.
    """
    with ExitStack() as stack:
        source = stack.enter_context(AckedSource(listeners))
        rig = Hosts(home, database_url, block_store, source, in_host)
        stack.callback(rig.engine.dispose)
        declared = CustomSource(
            receiver="tests.namespaces.acking:AckingReceiver", options={"port": listeners[0].getsockname()[1]}
        )
        stack.callback(rig.stop_agents)

        def declare() -> None:
            with connect(rig.engine) as connection:
                stream_id = apply_stream(
                    connection,
                    name=STREAM,
                    declaration={"source": declared.model_dump(mode="json"), "settings": {}},
                    receivers=receivers or len(hosts),
                )
                apply_pipeline(connection, name=PIPELINE, declaration={}, stream_ids=[stream_id], interval=_INTERVAL)

        if seconds_apart is not None:
            declare()
        for host in hosts:
            rig.start_agent(host, url_on_hosts or database_url, **settings)
            time.sleep(seconds_apart or 0.0)
        # Otherwise an agent gets receivers before the others are there.
        rig.until("every agent is there", lambda: rig.agents() == set(hosts), 60.0)
        if seconds_apart is None:
            declare()
        rig.flow(list(rig.receivers()), seconds=90.0)
        yield rig
