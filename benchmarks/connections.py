"""Measure what open connections cost an HTTP receiver, beside a bare uvicorn application that holds as many.

Run as ``python -m benchmarks.connections [--json] [--quick]``; docs/reference/benchmarks.md says what each figure
means. Everything is real: one receiver process as the agent starts it, synced segments, the durable embedded server,
and four senders in processes and with loopback addresses of their own. All of it shares this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.http_processes import running_bare, running_receiver
from benchmarks.report import Report, machine, time_figure
from benchmarks.server import Server, running_server
from receiver_runtime.block_store.local import LocalBlockStore
from receiver_runtime.sources.http import Http

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psutil

_SENDERS = 4
_RATE = 400.0  # requests per second in all, with however many connections
_OTHER_DESCRIPTORS = 512  # of the process that has the most connections, besides those
_SETTLE_SECONDS = 3.0  # from the last answer until the idle CPU is measured
_PEER = "bare uvicorn, stores nothing"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of open connections, the smallest first, and how long to send and to be idle with each."""

    connections: tuple[int, ...]
    send_seconds: float
    idle_seconds: float


_FULL = Sizes((100, 1000, 10_000), send_seconds=25.0, idle_seconds=10.0)
_QUICK = Sizes((100, 1000), send_seconds=4.0, idle_seconds=2.0)


@dataclass(frozen=True, slots=True)
class Held:
    """A process with open connections. Memory in bytes, times in seconds."""

    connections: int
    open_seconds: float
    resident: int
    descriptors: int
    answers: list[float]
    idle_cpu: float
    busy_cpu: float


class Senders:
    """The sender processes, which have the same share of connections and requests each."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def open(self, connections: int) -> float:
        """Have this many connections open in all; return the seconds that this took."""
        return max(float(seconds) for seconds in self._tell(f"open {connections // len(self._processes)}"))

    def send(self, rate: float, seconds: float) -> list[float]:
        """Send at this rate in all; return the seconds to each answer."""
        return [one for some in self._tell(f"send {rate / len(self._processes)} {seconds}") for one in some]

    def end(self) -> tuple[list[int], int]:
        """Close all; return the acknowledged records, and how many connections were closed by the other side."""
        ends = self._tell("end")
        return [record for records, _ in ends for record in records], sum(lost for _, lost in ends)

    def _tell(self, line: str) -> list[Any]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            answers.append(json.loads(process.stdout.readline()))
        return answers


@contextlib.contextmanager
def _senders(port: int) -> Iterator[Senders]:
    processes = [
        subprocess.Popen(  # noqa: S603  our own command
            # A source address of its own has ports of its own, and counts as a peer of its own.
            [sys.executable, "-m", "benchmarks.connections_sender", str(port), str(number), f"127.0.0.{2 + number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(_SENDERS)
    ]
    try:
        yield Senders(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _cpu(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def _hold(process: psutil.Process, senders: Senders, connections: int, sizes: Sizes) -> Held:
    """Open connections, send on each of them at least once if the rate allows, and measure the process."""
    open_seconds = senders.open(connections)
    before = _cpu(process)
    answers = senders.send(_RATE, sizes.send_seconds)
    busy = (_cpu(process) - before) / sizes.send_seconds
    time.sleep(_SETTLE_SECONDS)
    before = _cpu(process)
    time.sleep(sizes.idle_seconds)
    idle = (_cpu(process) - before) / sizes.idle_seconds
    return Held(connections, open_seconds, process.memory_info().rss, process.num_fds(), answers, idle, busy)


def _hold_all(port: int, process: psutil.Process, sizes: Sizes) -> tuple[list[Held], list[int], int]:
    """Return what was held with each number of connections, the acknowledged records, and the connections lost."""
    with _senders(port) as senders:
        held = [_hold(process, senders, connections, sizes) for connections in sizes.connections]
        return (held, *senders.end())


def _stored(server: Server, directory: Path) -> Counter[int]:
    """Return how often each record is in a registered block."""
    store = LocalBlockStore(directory / "blocks")
    rows = server.execute(
        'SELECT g.path, b."offset", b.length, b.crc32c FROM forebay.blocks b '
        "JOIN forebay.log_segments g ON g.id = b.segment_id"
    )
    stored: Counter[int] = Counter()
    for path, offset, length, crc32c in rows:
        for batch in store.read_batches(str(path), int(str(offset)), int(str(length)), int(str(crc32c))):
            stored.update(int(body) for body in batch.column("body").to_pylist())
    return stored


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def _report(report: Report, ours: Sequence[Held], bare: Sequence[Held]) -> None:
    for mine, other in zip(ours, bare, strict=True):
        what = f"{mine.connections:,} connections"
        for name, of, unit in (
            ("answer, median", lambda held: statistics.median(held.answers) * 1e3, "ms"),
            ("answer, p95", lambda held: _p95(held.answers) * 1e3, "ms"),
            ("CPU, idle", lambda held: max(held.idle_cpu * 100, 0.01), "% of a core"),
            (f"CPU, {_RATE:g} requests/s", lambda held: held.busy_cpu * 100, "% of a core"),
            ("resident memory", lambda held: held.resident / 2**20, "MiB"),
            ("descriptors", lambda held: held.descriptors, ""),
            ("opening those that were missing", lambda held: held.open_seconds, "s"),
        ):
            report.add(time_figure(f"{what}: {name}", of(mine), of(other), peer_name=_PEER, unit=unit))
    first, last = ours[0], ours[-1]
    report.add(
        time_figure(
            "memory per connection",
            _per_connection(first, last),
            _per_connection(bare[0], bare[-1]),
            peer_name=_PEER,
            unit="KiB",
        ),
        time_figure(
            f"median answer, {last.connections:,} connections",
            statistics.median(last.answers) * 1e3,
            statistics.median(first.answers) * 1e3,
            peer_name=f"itself, {first.connections} connections",
            unit="ms",
            aim=0.8,
        ),
    )


def _per_connection(first: Held, last: Held) -> float:
    return max(last.resident - first.resident, 1) / (last.connections - first.connections) / 1024


def main() -> int:
    """Measure, and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connections", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="1,000 connections and short: to see that it works")
    arguments = parser.parse_args()
    sizes = _QUICK if arguments.quick else _FULL
    most = max(sizes.connections)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < most + _OTHER_DESCRIPTORS:
        parser.error(f"{most:,} connections take more descriptors than {hard:,}, which is `ulimit -Hn`: raise it")
    source = Http(listen="127.0.0.1:0", max_connections=most + _SENDERS, max_connections_per_peer=most)
    with tempfile.TemporaryDirectory(prefix="forebay-benchmark-") as folder:
        directory = Path(folder)
        with running_server(directory) as server:
            report = Report("connections", machine(postgres=server.version()))
            report.section(_PEER)
            with running_bare() as (port, process):
                bare, _, _ = _hold_all(port, process, sizes)
            report.section("an HTTP receiver")
            with running_receiver(server, directory, source) as (port, process):
                ours, acknowledged, lost = _hold_all(port, process, sizes)
            _report(report, ours, bare)
            stored = _stored(server, directory)
            wrong = [record for record in acknowledged if stored[record] != 1]
            report.note(
                f"{len(acknowledged):,} records were acknowledged; {len(wrong)} of them are not stored exactly once; "
                f"the receiver closed {lost} connections"
            )
            report.print(as_json=arguments.json)
    return int(bool(wrong or lost))


if __name__ == "__main__":
    sys.exit(main())
