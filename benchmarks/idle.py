"""Measure what `forebay up` costs while nothing arrives: processes, memory and CPU time by the role of the process.

Run as ``python -m benchmarks.idle [--json] [--quick]``; docs/reference/benchmarks.md says what each figure means. It is
`forebay up` as its users run it, in a new home, with one stream whose source is connected and sends nothing.

Memory is the proportional set size (PSS): a page that several processes share counts in each by its share. So the sum
is what the machine gets back when all of them end. CPU time includes processes that began or ended in between, such as
connections to Postgres. Linux only.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.forebay_process import start_forebay_up
from benchmarks.report import Report, machine, time_figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MEMORY_AIM_MIB = 1.4 * 1024
_CPU_AIM_PERCENT = 7.0
_START_SECONDS = 600.0
_END_SECONDS = 120.0
_POLL_SECONDS = 0.5
# The role of a process: the first whose word is in its command line. A guard's has the words of its command too.
_ROLES = (
    ("guards", "services/guard.py"),
    ("Spark's JVM", "org.apache.spark.deploy.SparkSubmit"),
    ("Spark's Python workers", "pyspark.daemon"),
    ("batch driver", "forebay.cli batch-driver"),
    ("forebay up", "forebay.cli up"),
    ("agent", "forebay.cli agent"),
    ("tracker", "forebay.cli tracker"),
    ("receiver process, and its spare", "forebay.cli receiver"),
    ("Dagster's code server", "dagster api grpc"),
    ("Dagster's daemon", "dagster._daemon"),
    ("Dagster's webserver", "dagster_webserver"),
    ("Postgres", "postgres"),
)
_OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Sizes:
    """When the measurement begins, in seconds, and how long it takes."""

    # After the start of `forebay up`; after its batch driver was ready, if that is later, as on a busy machine.
    after_start: float
    after_ready: float
    seconds: float


_FULL = Sizes(after_start=75.0, after_ready=60.0, seconds=60.0)
_QUICK = Sizes(after_start=20.0, after_ready=5.0, seconds=10.0)


@dataclass(frozen=True, slots=True)
class Look:
    """A process at one time. CPU in seconds: its own, and that of its children that have ended and were waited for."""

    role: str
    parent: int
    own: float
    ended_children: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What the processes of one role cost. memory: bytes of PSS; cpu: seconds during the measurement."""

    processes: int
    memory: int
    cpu: float


def role_of(command_line: str) -> str:
    """Return the role of a process."""
    return next((role for role, word in _ROLES if word in command_line), _OTHERS)


def proportional_memory(pid: int) -> int:
    """Return the bytes of PSS of a process; 0 if it has ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")), 0)


def cpu_between(before: Mapping[int, Look], after: Mapping[int, Look]) -> dict[str, float]:
    """Return the CPU seconds of each role between two looks at all processes, by pid.

    A process that ended in between is in its parent's `ended_children`, with what it had used before the first look.
    A parent that does not wait for its children has nothing of them there.
    """
    known: defaultdict[int, float] = defaultdict(float)
    for pid, look in before.items():
        if pid not in after:
            known[look.parent] += look.own + look.ended_children
    seconds: defaultdict[str, float] = defaultdict(float)
    for pid, look in after.items():
        earlier = before.get(pid, Look(look.role, look.parent, 0.0, 0.0))
        ended = look.ended_children - earlier.ended_children - known[pid]
        seconds[look.role] += look.own - earlier.own + max(0.0, ended)
    return dict(seconds)


def _look(up: psutil.Process) -> dict[int, Look]:
    found: dict[int, Look] = {}
    for process in [up, *up.children(recursive=True)]:
        try:
            times = process.cpu_times()
            found[process.pid] = Look(
                role_of(" ".join(process.cmdline())),
                process.ppid(),
                times.user + times.system,
                times.children_user + times.children_system,
            )
        except psutil.NoSuchProcess:
            continue
    return found


@contextmanager
def _silent_source() -> Iterator[int]:
    """Listen on a port whose connections are opened by the kernel and never get a byte; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@contextmanager
def _forebay_up(directory: Path, port: int) -> Iterator[psutil.Process]:
    settings = {
        "FOREBAY_HOME": str(directory / "home"),
        "IDLE_OUTPUT": str(directory / "output"),
        "IDLE_PORT": str(port),
    }
    up = start_forebay_up("benchmarks.idle_pipeline", directory / "up.log", settings)
    try:
        yield psutil.Process(up.pid)
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(_END_SECONDS)


def _await_batch_driver(directory: Path, up: psutil.Process) -> None:
    """Wait until the agent has logged that its batch driver is ready: from then on nothing more is started."""
    log = directory / "home" / "logs" / "agent.log"
    deadline = time.monotonic() + _START_SECONDS
    while not (log.is_file() and b"batch driver is ready" in log.read_bytes()):
        if up.status() == psutil.STATUS_ZOMBIE or time.monotonic() > deadline:
            raise RuntimeError((directory / "up.log").read_text(encoding="utf-8", errors="replace"))
        time.sleep(_POLL_SECONDS)


def measure(directory: Path, sizes: Sizes) -> dict[str, Cost]:
    """Run `forebay up` in the directory, and return what the processes of each role cost."""
    with _silent_source() as port, _forebay_up(directory, port) as up:
        began = time.monotonic()
        _await_batch_driver(directory, up)
        time.sleep(max(sizes.after_ready, began + sizes.after_start - time.monotonic()))
        before = _look(up)
        time.sleep(sizes.seconds)
        after = _look(up)
        # Afterwards, because it takes CPU time of the kernel while the process's memory is locked.
        memory: Counter[str] = Counter()
        for pid, look in after.items():
            memory[look.role] += proportional_memory(pid)
    cpu = cpu_between(before, after)
    processes = Counter(look.role for look in after.values())
    return {role: Cost(processes[role], memory[role], cpu[role]) for role in processes}


def _report(report: Report, costs: Mapping[str, Cost], sizes: Sizes) -> None:
    for role, cost in sorted(costs.items(), key=lambda of: -of[1].memory):
        what = role if cost.processes == 1 else f"{role} ({cost.processes})"
        percent = 100 * cost.cpu / sizes.seconds
        report.add(
            time_figure(f"{what}: memory", cost.memory / 2**20, None, peer_name="", unit="MiB PSS"),
            time_figure(f"{what}: CPU", percent, None, peer_name="", unit="% of a core"),
        )
    memory = sum(cost.memory for cost in costs.values()) / 2**20
    cpu = 100 * sum(cost.cpu for cost in costs.values()) / sizes.seconds
    number = sum(cost.processes for cost in costs.values())
    report.add(
        time_figure(
            f"all {number} processes: memory", memory, _MEMORY_AIM_MIB, peer_name="the aim", unit="MiB PSS", aim=1.0
        ),
        time_figure(
            f"all {number} processes: CPU", cpu, _CPU_AIM_PERCENT, peer_name="the aim", unit="% of a core", aim=1.0
        ),
    )


def main() -> int:
    """Measure, and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="early and short: to see that it works")
    arguments = parser.parse_args()
    sizes = _QUICK if arguments.quick else _FULL
    report = Report("idle", machine())
    report.section(f"forebay up, from {sizes.after_start:g} s after its start, for {sizes.seconds:g} s")
    with tempfile.TemporaryDirectory(prefix="forebay-benchmark-") as directory:
        costs = measure(Path(directory), sizes)
    _report(report, costs, sizes)
    report.print(as_json=arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
