"""Measure 1,000 quiet receivers in eight processes of one host, as its agent groups them, beside a process for each.

Run as ``python -m benchmarks.many_receivers [--json] [--quick]``; docs/reference/benchmarks.md says what each figure
means. Everything is real: a tracker that places the receivers, the agent that starts their processes, a connection and
a segment file for each receiver, and the durable embedded server. All of it shares this machine.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.report import Report, machine, time_figure
from benchmarks.server import Server, running_server
from receiver_runtime.sources.socket_text import SocketText
from tracker_store.engine import connect
from tracker_store.pipelines import apply_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

_START_SECONDS = 600.0
_STOP_SECONDS = 180.0
_RECORD_SECONDS = 60.0
_POLL_SECONDS = 0.2
_SETTLE_SECONDS = 5.0
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many receivers in how many processes, beside how many that have a process each."""

    receivers: int
    processes: int
    alone: int
    idle_seconds: float

    @property
    def per_process(self) -> int:
        """Return how many receivers share a process."""
        return math.ceil(self.receivers / self.processes)


_FULL = Sizes(receivers=1000, processes=8, alone=8, idle_seconds=30.0)
_QUICK = Sizes(receivers=48, processes=4, alone=2, idle_seconds=4.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What some receivers cost on a host. Memory in bytes, CPU in seconds per second; lists are by receiver process."""

    placed_seconds: float
    start_seconds: float
    start_cpu: float
    resident: list[int]
    proportional: list[int]
    threads: list[int]
    descriptors: list[int]
    connections: dict[str, int]
    idle_cpu: dict[str, float]
    stopped_seconds: float
    agent_seconds: float
    ended_in_order: int


class _Source:
    """Listen for the receivers' connections, on a thread; quiet, except for one line to each on request."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.port = int(self._listener.getsockname()[1])
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, name="source", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        # Until the listener is shut down.
        with suppress(OSError):
            while True:
                self._connections.append(self._listener.accept()[0])

    def send_a_line_each(self) -> None:
        """Send one line on each connection."""
        for connection in self._connections:
            connection.send(b"a record\n")

    def close(self) -> None:
        """Close all."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for one in (self._listener, *self._connections):
            one.close()


def _start_agent(server: Server, home: Path, *, slots: int, per_process: int) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment |= {
        "FOREBAY_HOME": str(home),
        "FOREBAY_DATABASE_URL": server.url,
        "FOREBAY_TRACKER_HTTP": "127.0.0.1:0",
    }
    arguments = ["--host", "one", "--slots", str(slots), "--receivers-per-process", str(per_process), "--no-spare"]
    with (home / "agent.log").open("wb") as log:
        return subprocess.Popen(  # noqa: S603  our own command
            [sys.executable, "-m", "forebay.cli", "agent", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _count(server: Server, condition: str) -> int:
    return int(str(server.execute(f"SELECT count(*) FROM forebay.receivers WHERE {condition}")[0][0]))  # noqa: S608  ours


def _until(server: Server, condition: str, wanted: int, agent: subprocess.Popen[bytes]) -> float:
    """Wait until `wanted` receivers meet a condition; return the seconds. Raises TimeoutError."""
    began = time.monotonic()
    while (count := _count(server, condition)) < wanted:
        if time.monotonic() - began > _START_SECONDS or agent.poll() is not None:
            raise TimeoutError(f"{count} of {wanted} receivers are {condition}: see agent.log")
        time.sleep(_POLL_SECONDS)
    return time.monotonic() - began


def _receiver_processes(agent: psutil.Process) -> list[psutil.Process]:
    return [child for child in agent.children() if "receiver" in child.cmdline()]


def _cpu(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _cpu_by_role(agent: psutil.Process, postmaster: psutil.Process) -> dict[str, float]:
    receivers = _receiver_processes(agent)
    return {
        "receivers": _cpu(receivers),
        "agent": _cpu([agent]),
        "tracker": _cpu([child for child in agent.children() if "tracker" in child.cmdline()]),
        # The second part counts processes that have ended.
        "Postgres": _cpu([postmaster, *postmaster.children()]) + float(sum(postmaster.cpu_times()[2:4])),
    }


def _one_record_each(server: Server, source: _Source, receivers: int) -> None:
    """Send each receiver a record, and so let it open a segment. Raises TimeoutError."""
    source.send_a_line_each()
    deadline = time.monotonic() + _RECORD_SECONDS
    while int(str(server.execute("SELECT coalesce(sum(records), 0)::bigint FROM forebay.blocks")[0][0])) < receivers:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all of {receivers} receivers have a block after {_RECORD_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)


def run(server: Server, home: Path, *, receivers: int, per_process: int, idle_seconds: float) -> Outcome:
    """Start an agent with these receivers, measure, and stop it. It is the only agent of the server."""
    postmaster = psutil.Process(int((home.parent / "postgres" / "postmaster.pid").read_text().split()[0]))
    with closing(_Source()) as source:
        with connect(server.engine) as connection:
            declared = SocketText(host="127.0.0.1", port=source.port)
            # The idle time is without new segments.
            declaration = {"source": declared.model_dump(mode="json"), "settings": {"segment_interval": "1h"}}
            apply_stream(connection, name="small", declaration=declaration, receivers=receivers)
        started = _start_agent(server, home, slots=receivers, per_process=per_process)
        agent = psutil.Process(started.pid)
        try:
            placed_seconds = _until(server, "assignment > 0", receivers, started)
            connected_seconds = _until(server, "state = 'ACTIVE' AND reason LIKE 'connected%'", receivers, started)
            start_cpu = sum(_cpu_by_role(agent, postmaster).values())
            _one_record_each(server, source, receivers)
            time.sleep(_SETTLE_SECONDS)
            before = _cpu_by_role(agent, postmaster)
            time.sleep(idle_seconds)
            after = _cpu_by_role(agent, postmaster)
            processes = _receiver_processes(agent)
            resources = {
                "resident": [process.memory_info().rss for process in processes],
                "proportional": [process.memory_full_info().pss for process in processes],
                "threads": [process.num_threads() for process in processes],
                "descriptors": [process.num_fds() for process in processes],
            }
            connections = _connections(server)
        finally:
            began = time.monotonic()
            started.terminate()
            stopped_seconds = began
            try:
                if started.poll() is None:
                    _wait_for_receivers(agent)
                stopped_seconds = time.monotonic() - began
                started.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()
            agent_seconds = time.monotonic() - began
    [(ended,)] = server.execute(
        "SELECT count(DISTINCT receiver_id) FROM forebay.receiver_events WHERE kind = 'STOPPED'"
    )
    return Outcome(
        placed_seconds=placed_seconds,
        start_seconds=placed_seconds + connected_seconds,
        start_cpu=start_cpu,
        **resources,
        connections=connections,
        idle_cpu={role: (after[role] - before[role]) / idle_seconds for role in after},
        stopped_seconds=stopped_seconds,
        agent_seconds=agent_seconds,
        ended_in_order=int(str(ended)),
    )


def _wait_for_receivers(agent: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        psutil.wait_procs(_receiver_processes(agent), timeout=_STOP_SECONDS)


def _connections(server: Server) -> dict[str, int]:
    """Return the connections to Postgres by the kind of process that holds them."""
    rows = server.execute(
        "SELECT regexp_replace(application_name, 'receiver [0-9].*', 'receivers'), count(*)::integer "
        "FROM pg_stat_activity WHERE application_name LIKE 'forebay%' GROUP BY 1 ORDER BY 1"
    )
    return {str(name): int(str(count)) for name, count in rows}


def _report(report: Report, sizes: Sizes, ours: Outcome, alone: Outcome) -> None:
    peer_name = f"{sizes.alone} receivers, a process each"

    report.add(
        time_figure("until all are placed", ours.placed_seconds, None, peer_name="", unit="s"),
        time_figure("until all are connected", ours.start_seconds, None, peer_name="", unit="s"),
        time_figure("stop: until all have stopped", ours.stopped_seconds, None, peer_name="", unit="s"),
        time_figure("stop: until the agent has ended", ours.agent_seconds, None, peer_name="", unit="s"),
    )
    for name, unit, mine, other in (
        (
            "CPU to start, per receiver",
            "CPU ms",
            ours.start_cpu / sizes.receivers * 1e3,
            alone.start_cpu / sizes.alone * 1e3,
        ),
        (
            "memory per receiver, resident",
            "MiB",
            sum(ours.resident) / sizes.receivers / _MIB,
            sum(alone.resident) / sizes.alone / _MIB,
        ),
        (
            "memory per receiver, proportional",
            "MiB",
            sum(ours.proportional) / sizes.receivers / _MIB,
            sum(alone.proportional) / sizes.alone / _MIB,
        ),
        (
            "CPU at idle, all, per receiver",
            "CPU ms/s",
            sum(ours.idle_cpu.values()) / sizes.receivers * 1e3,
            sum(alone.idle_cpu.values()) / sizes.alone * 1e3,
        ),
        ("threads per receiver", "", sum(ours.threads) / sizes.receivers, sum(alone.threads) / sizes.alone),
        ("descriptors per receiver", "", sum(ours.descriptors) / sizes.receivers, sum(alone.descriptors) / sizes.alone),
    ):
        report.add(time_figure(name, mine, other, peer_name=peer_name, unit=unit))
    for role, cpu in ours.idle_cpu.items():
        report.add(time_figure(f"CPU at idle, {role}", 100 * cpu, None, peer_name="", unit="% of a core"))
    report.note(
        f"the largest process: {max(ours.resident) / _MIB:.0f} MiB, {max(ours.threads)} threads, "
        f"{max(ours.descriptors)} descriptors; {len(ours.resident)} processes"
    )
    for what, outcome in ((f"{sizes.receivers} receivers", ours), (peer_name, alone)):
        held = ", ".join(f"{name}: {count}" for name, count in outcome.connections.items())
        report.note(f"{what}: {sum(outcome.connections.values())} connections to Postgres ({held})")
        report.note(f"{what}: {outcome.ended_in_order} of them ended in order")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_receivers", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="48 receivers in 4 processes: to see that it works")
    parser.add_argument("--directory", type=Path, help="where everything goes, and stays (default: a temporary folder)")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The sender has a connection for each receiver.
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sizes = _QUICK if arguments.quick else _FULL
    with (
        tempfile.TemporaryDirectory(prefix="forebay-benchmark-")
        if arguments.directory is None
        else nullcontext(arguments.directory)
    ) as name:
        report = Report("many_receivers", machine(receivers=sizes.receivers, processes=sizes.processes))
        outcomes = []
        for part, receivers, per_process in (("alone", sizes.alone, 1), ("ours", sizes.receivers, sizes.per_process)):
            report.section(f"{receivers} receivers, {per_process} in a process")
            directory = Path(name) / part
            (directory / "home").mkdir(parents=True)
            for folder in (Path(name), directory):
                # The embedded server runs as another user, which must be able to enter.
                folder.chmod(0o711)
            with running_server(directory) as server:
                outcomes.append(
                    run(
                        server,
                        directory / "home",
                        receivers=receivers,
                        per_process=per_process,
                        idle_seconds=sizes.idle_seconds,
                    )
                )
        alone, ours = outcomes
        _report(report, sizes, ours, alone)
    report.print(as_json=arguments.json)


if __name__ == "__main__":
    main()
