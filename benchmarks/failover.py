"""Measure how long a system needs to recover after a `kill -9` of each of its processes.

Run as ``python -m benchmarks.failover [--json] [--quick] [--rounds N] [--only FIGURE,FIGURE]``;
docs/reference/benchmarks.md says what each figure means. Everything is real, and shares this machine. Receiver, host
and leader are killed in a system of two hosts' agents and two trackers, with sockets, synced segments in a directory
that both hosts share, and the durable embedded server. Driver, daemon, code server, agent and tracker are killed in a
`forebay up` (failover_system).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil

from benchmarks.failover_system import PAIRS, system_failover
from benchmarks.report import Report, machine, time_figure
from benchmarks.server import Server, running_server
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from tests.support.systems.steady_source import SteadySource
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

_ROUNDS = 5
_QUICK_ROUNDS = 1
_LINES_PER_SECOND = 1000
_BLOCK_INTERVAL = "200ms"
_HOSTS = ("one", "two")
# How long a new spare process needs to load.
_SETTLE_SECONDS = 6.0
_DEADLINE_SECONDS = 90.0
_POLL_SECONDS = 0.005

_LEASE_SECONDS = 10.0
# The lease of a process that is killed this long after its last heartbeat expires within about a second of the kill.
_STOPPED_SECONDS = _LEASE_SECONDS - 0.05


@dataclass(frozen=True, slots=True)
class _Measured:
    """Describe a figure: its name in the report, and the seconds that its median should not exceed."""

    name: str
    aim: float


# Among two hosts, and in a whole `forebay up`.
_HOST_FIGURES = {
    "receiver": _Measured("receiver killed, to the next block", 1.0),
    "expiring": _Measured("receiver killed as its lease expires, to the next block", 1.0),
    "host": _Measured("host killed, to the next block elsewhere", _LEASE_SECONDS + 2.0),
    "leader": _Measured("leading tracker killed, to the next decision", 5.0),
}
_SYSTEM_FIGURES = {
    "driver": _Measured("batch driver killed, to the next batch", 15.0),
    "daemon": _Measured("Dagster's daemon killed, to the next batch", 15.0),
    "code-server": _Measured("Dagster's code server killed, to the next batch", 15.0),
    "agent": _Measured("agent killed, to the next batch", 20.0),
    "tracker": _Measured("tracker killed, to the next batch", 5.0),
    "two": _Measured("two of six killed at once, to the next batch", 15.0),
}
FIGURES = {**_HOST_FIGURES, **_SYSTEM_FIGURES}


@dataclass(slots=True)
class Times:
    """Seconds from each kill to the event that its figure waits for, by figure and round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    # The longest pause between two blocks of an undisturbed receiver while there was no leader, for each round.
    gap: list[float] = field(default_factory=list)

    def add(self, report: Report, figure: str, seconds: float, detail: str = "") -> None:
        """Record one round's time, and show it."""
        self.seconds.setdefault(figure, []).append(seconds)
        report.console.print(f"  {figure}: {seconds:.2f} s{detail}")


class _Processes:
    """Hosts and trackers by name; `start_host` and `start_tracker` start one again after a kill."""

    def __init__(self, environment: Mapping[str, str], home: Path) -> None:
        self._environment = environment
        self._home = home
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._trackers = 0

    def start_host(self, name: str) -> None:
        """Start an agent that runs receivers and no tracker."""
        self._start(name, "agent", "--host", name, "--slots", "4", "--roles", "receivers", "--parent-pipe")

    def start_tracker(self) -> None:
        """Start a tracker that no agent restarts."""
        self._trackers += 1
        self._start(f"tracker-{self._trackers}", "tracker")

    def kill(self, pid: int) -> float:
        """Send SIGKILL to one of these processes and all its descendants; return the time of the kill."""
        [name] = [name for name, process in self._running.items() if process.pid == pid]
        process = self._running.pop(name)
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        at = time.perf_counter()
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)
        process.wait()
        self._close(process)
        return at

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._close(process)

    def _start(self, name: str, *arguments: str) -> None:
        environment = {**self._environment, "FOREBAY_HOME": str(self._home / name)}
        with (self._home / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(  # noqa: S603  our own command
                [sys.executable, "-m", "forebay.cli", *arguments],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @staticmethod
    def _close(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.close()


class _Failover:
    """Run the rounds, on one system that recovers after each."""

    def __init__(self, server: Server, processes: _Processes) -> None:
        self._connection = server.connect()
        self._processes = processes
        steady, moved = self._rows("SELECT id FROM forebay.receivers ORDER BY id")
        # One receiver receives all the time; the other one is made unplaced while there is no leader.
        self._steady, self._moved = int(str(steady[0])), int(str(moved[0]))

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()

    def kill_receiver(self, *, expiring: bool = False) -> float:
        """Kill the receiving process; return the seconds until its successor has registered a block that it received.

        `expiring`: stop the process before the kill for so long that its lease expires soon after the kill.
        """
        epoch = self._epoch()
        [(pid,)] = self._rows(
            "SELECT p.pid FROM forebay.receivers r JOIN forebay.processes p ON p.id = r.process_id WHERE r.id = %s",
            self._steady,
        )
        if expiring:
            self._until("a heartbeat", self._heartbeat_moves(int(str(pid))))
            os.kill(int(str(pid)), signal.SIGSTOP)
            time.sleep(_STOPPED_SECONDS)
        at = time.perf_counter()
        os.kill(int(str(pid)), signal.SIGKILL)
        return self._until("a block of a new process", lambda: self._received_since(epoch)) - at

    def kill_host(self) -> float:
        """Kill an agent and all its children at once; return the seconds until a block received on the other host."""
        epoch = self._epoch()
        [(pid, name)] = self._rows(
            "SELECT p.pid, p.name FROM forebay.receivers r JOIN forebay.processes p ON p.id = r.agent_id "
            "WHERE r.id = %s",
            self._steady,
        )
        at = self._processes.kill(int(str(pid)))
        took = self._until("a block of another host", lambda: self._received_since(epoch)) - at
        self._processes.start_host(str(name))
        return took

    def kill_leader(self) -> tuple[float, float]:
        """Kill the leading tracker; return the seconds until the next one places a receiver, and the longest pause."""
        [(term, holder)] = self._rows("SELECT term, holder FROM forebay.leadership")
        [(began,)] = self._rows("SELECT clock_timestamp()")
        at = self._processes.kill(int(str(holder).rpartition(":")[2]))
        self._rows(
            "UPDATE forebay.receivers SET state = 'INACTIVE', assignment = assignment + 1, agent_id = NULL, "
            "process_id = NULL WHERE id = %s RETURNING id",
            self._moved,
        )
        decided = self._until(
            "a receiver placed by a new leader",
            lambda: self._rows(
                "SELECT FROM forebay.receivers r, forebay.leadership l WHERE r.id = %s AND r.agent_id IS NOT NULL "
                "AND l.term > %s",
                self._moved,
                term,
            ),
        )
        [(gap,)] = self._rows(
            "SELECT max(extract(epoch FROM g.pause))::float FROM ("
            "  SELECT added_at - lag(added_at) OVER (ORDER BY sequence) AS pause FROM forebay.blocks "
            "  WHERE receiver_id = %s AND added_at > CAST(%s AS timestamptz) - interval '1 s') AS g",
            self._steady,
            began,
        )
        self._processes.start_tracker()
        return decided - at, float(str(gap))

    def until_steady(self) -> None:
        """Wait until every host has an agent and both receivers have registered blocks of their present processes."""
        self._until(
            "two agents and two receivers",
            lambda: self._rows(
                "SELECT FROM forebay.receivers r JOIN forebay.processes p ON p.id = r.process_id "
                "WHERE r.state = 'ACTIVE' AND p.ended_at IS NULL HAVING count(*) = 2 AND "
                "(SELECT count(*) FROM forebay.processes a WHERE a.kind = 'agent' AND a.ended_at IS NULL) = %s",
                len(_HOSTS),
            ),
        )
        epoch = self._epoch()
        self._until("blocks that keep coming", lambda: self._received_since(epoch - 1))
        time.sleep(_SETTLE_SECONDS)

    def _epoch(self) -> int:
        rows = self._rows(
            "SELECT epoch FROM forebay.blocks WHERE receiver_id = %s ORDER BY sequence DESC LIMIT 1", self._steady
        )
        return int(str(rows[0][0])) if rows else 0

    def _heartbeat_moves(self, pid: int) -> Callable[[], bool]:
        """Return a look that is true once the counter of the live process with this pid has moved."""

        def counter() -> object:
            return self._rows("SELECT heartbeat FROM forebay.processes WHERE pid = %s AND ended_at IS NULL", pid)

        seen = counter()
        return lambda: counter() != seen

    def _received_since(self, epoch: int) -> object:
        """Look for a block that a process of a newer epoch received itself; salvaged blocks don't count."""
        return self._rows(
            "SELECT FROM forebay.blocks b JOIN forebay.log_segments g ON g.id = b.segment_id AND g.epoch = b.epoch "
            "WHERE b.receiver_id = %s AND b.epoch > %s ORDER BY b.sequence DESC LIMIT 1",
            self._steady,
            epoch,
        )

    def _rows(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            rows: list[tuple[object, ...]] = cursor.fetchall()
            return rows

    def _until(self, what: str, look: Callable[[], object]) -> float:
        deadline = time.perf_counter() + _DEADLINE_SECONDS
        while not look():
            if time.perf_counter() > deadline:
                raise RuntimeError(f"not within {_DEADLINE_SECONDS:.0f} s: {what}")
            time.sleep(_POLL_SECONDS)
        return time.perf_counter()


def _declare(server: Server, *sources: SteadySource) -> None:
    with connect(server.engine) as connection:
        for number, source in enumerate(sources):
            apply_stream(
                connection,
                name=f"numbers{number}",
                declaration={
                    "source": SocketText(host="127.0.0.1", port=source.port).model_dump(mode="json"),
                    "settings": {"block_interval": _BLOCK_INTERVAL},
                },
                receivers=1,
            )


def _environment(server: Server, home: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    return environment | {
        "FOREBAY_DATABASE_URL": server.url,
        "FOREBAY_BLOCK_STORE": str(home / "blocks"),
        "FOREBAY_HEARTBEAT_LIMIT_SECONDS": str(_LEASE_SECONDS),
        "FOREBAY_TRACKER_HTTP": "off",
    }


def run_among_hosts(
    report: Report, times: Times, server: Server, home: Path, *, rounds: int, figures: Sequence[str]
) -> None:
    """Measure each figure once per round, among two hosts, on a system that has come to rest before each kill."""
    with SteadySource(lines_per_second=_LINES_PER_SECOND) as source, SteadySource(lines_per_second=10) as other:
        _declare(server, source, other)
        source.send()
        other.send()
        with _Processes(_environment(server, home), home) as processes:
            for host in _HOSTS:
                processes.start_host(host)
            processes.start_tracker()
            processes.start_tracker()
            with contextlib.closing(_Failover(server, processes)) as failover:
                for _ in range(rounds):
                    for figure in figures:
                        failover.until_steady()
                        if figure == "leader":
                            decided, gap = failover.kill_leader()
                            times.gap.append(gap)
                            times.add(report, figure, decided, f", the longest pause between two blocks {gap:.2f} s")
                        elif figure == "host":
                            times.add(report, figure, failover.kill_host())
                        else:
                            times.add(report, figure, failover.kill_receiver(expiring=figure == "expiring"))
                failover.until_steady()


def run_in_system(
    report: Report, times: Times, home: Path, *, rounds: int, figures: Sequence[str], drivers: int
) -> None:
    """Measure each figure once per round, in one `forebay up` that has come to rest before each kill."""
    with system_failover(home, drivers) as failover:
        for _ in range(rounds):
            for figure in figures:
                for killed in PAIRS if figure == "two" else [(figure,)]:
                    latency = failover.steady_latency()
                    detail = f" ({' and '.join(killed)}; undisturbed: {latency:.2f} s after its boundary)"
                    times.add(report, figure, failover.kill(*killed), detail)


def add_figures(report: Report, times: Times, figures: Sequence[str]) -> None:
    """Add the figures of all rounds to the report."""
    for figure in figures:
        measured, seconds = FIGURES[figure], times.seconds[figure]
        report.add(
            time_figure(
                f"{measured.name}, median",
                statistics.median(seconds),
                measured.aim,
                peer_name="aim",
                unit="s",
                aim=1.0,
            ),
            time_figure(f"{measured.name}, longest", max(seconds), None, peer_name="", unit="s"),
        )
    if times.gap:
        report.add(
            time_figure("longest pause between blocks without a leader", max(times.gap), None, peer_name="", unit="s")
        )
    report.note(f"blocks are cut every {_BLOCK_INTERVAL}; a process is dead after {_LEASE_SECONDS:.0f} s of silence")
    report.note("load average at the end: " + ", ".join(f"{load:.1f}" for load in psutil.getloadavg()))


def _figures(value: str) -> list[str]:
    wanted = [name.strip() for name in value.split(",")]
    if unknown := [name for name in wanted if name not in FIGURES]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: give some of {', '.join(FIGURES)}")
    return [name for name in FIGURES if name in wanted]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_ROUNDS} of each: to see that it works")
    parser.add_argument("--rounds", type=int, default=None, help=f"how many kills of each kind (default {_ROUNDS})")
    parser.add_argument(
        "--only", type=_figures, default=list(FIGURES), help=f"some of the figures: {','.join(FIGURES)}"
    )
    parser.add_argument("--drivers", type=int, default=1, help="batch drivers of the `forebay up` (default 1)")
    parser.add_argument("--directory", type=Path, help="where blocks and server go (default: the temporary folder)")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (_QUICK_ROUNDS if arguments.quick else _ROUNDS)
    among_hosts = [figure for figure in arguments.only if figure in _HOST_FIGURES]
    in_system = [figure for figure in arguments.only if figure in _SYSTEM_FIGURES]
    report = Report("failover", machine(drivers=arguments.drivers))
    times = Times()
    if among_hosts:
        report.section(f"{rounds} rounds among two hosts: {', '.join(among_hosts)}")
        with _directory(arguments.directory) as home, running_server(home) as server:
            run_among_hosts(report, times, server, home, rounds=rounds, figures=among_hosts)
    if in_system:
        report.section(f"{rounds} rounds in a `forebay up`: {', '.join(in_system)}")
        with _directory(arguments.directory) as home:
            run_in_system(report, times, home, rounds=rounds, figures=in_system, drivers=arguments.drivers)
    add_figures(report, times, arguments.only)
    report.print(as_json=arguments.json)


@contextlib.contextmanager
def _directory(parent: Path | None) -> Iterator[Path]:
    """Create a temporary directory that is traversable (o+x): the embedded server runs as another user."""
    with tempfile.TemporaryDirectory(prefix="forebay-benchmark-", dir=parent, ignore_cleanup_errors=True) as name:
        home = Path(name)
        home.chmod(0o711)
        yield home


if __name__ == "__main__":
    main()
