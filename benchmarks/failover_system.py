"""Measure how long a whole `forebay up` makes no batch after a `kill -9` of one or two of its processes.

Each round waits until batches come regularly, kills, and measures the time until a batch is committed that
has records received after the kill. It runs the system as users do: `forebay up` with a 2 s interval, an embedded
server, and a source that sends 1,000 numbered lines/s. It must never help the system to recover after a kill.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from itertools import combinations
from typing import TYPE_CHECKING

import psutil
import sqlalchemy as sa

from tests.support.systems.numbered_source import NumberedSource
from tests.support.systems.running_system import running_system
from tracker_store.connection.engine import connect
from tracker_store.connection.outage import SURVIVED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.systems.running_system import RunningSystem

INTERVAL_SECONDS = 2.0
DEADLINE_SECONDS = 240.0
_POLL_SECONDS = 0.02
# The system is at rest when this many batches in a row were committed within this time of their boundary.
_STEADY_BATCHES = 4
_STEADY_SECONDS = 4.0
# How long at most to wait for that: a machine with other load may never be quick enough.
_REST_SECONDS = 120.0
# How long the agent needs until its spare processes are loaded again.
_SETTLE_SECONDS = 8.0

# The words of each command line by which its process is found.
PROCESSES = {
    "driver": ("forebay.cli batch-driver",),
    "daemon": ("dagster._daemon",),
    "code-server": ("dagster", "api", "grpc"),
    "agent": ("forebay.cli agent",),
    "tracker": ("forebay.cli tracker",),
}
# Any two of these are killed at once. The agent is not among them: all that runs below it exits with it.
PAIRS = tuple(combinations(("receiver", "driver", "daemon", "code-server", "tracker", "postgres"), 2))
# These are killed while a batch runs in the driver, so that the batch loses its attempt: the worst moment.
_KILLED_IN_A_BATCH = frozenset({"driver", "agent"})

_COMMITTED = sa.text(
    "SELECT c.batch_time, extract(epoch FROM c.committed_at)::float8 AS at FROM forebay.output_commits c "
    "JOIN forebay.batch_allocations a ON a.pipeline_id = c.pipeline_id AND a.batch_time = c.batch_time "
    "JOIN forebay.blocks b ON b.receiver_id = a.receiver_id AND b.sequence <@ a.sequences "
    # Leaves out blocks that a successor salvaged: they were received before the kill.
    "JOIN forebay.log_segments g ON g.id = b.segment_id AND g.epoch = b.epoch "
    "WHERE c.batch_time > to_timestamp(:killed_at) AND b.added_at > to_timestamp(:killed_at) "
    "ORDER BY c.committed_at LIMIT 1"
)
_RUNNING = sa.text(
    "SELECT p.pid FROM forebay.batch_attempts a JOIN forebay.processes p ON p.id = a.process_id "
    "WHERE a.state = 'RUNNING' AND p.ended_at IS NULL LIMIT 1"
)
_LATEST = sa.text(
    "SELECT extract(epoch FROM c.committed_at - c.batch_time)::float8 FROM forebay.output_commits c "
    "WHERE c.batch_time > clock_timestamp() - interval '30 s' ORDER BY c.batch_time DESC LIMIT :batches"
)


class SystemFailover:
    """Rounds on one running system, which recovers after each."""

    def __init__(self, system: RunningSystem, drivers: int) -> None:
        self._system = system
        self._drivers = drivers
        self._random = random.Random(0)  # noqa: S311  spreads the kills over an interval
        system.source.send()

    def steady_latency(self) -> float:
        """Wait until batches come regularly; return the mean seconds from boundary to commit."""
        deadline = time.monotonic() + _REST_SECONDS
        latencies: list[float] = []
        while time.monotonic() < deadline:
            with contextlib.suppress(*SURVIVED), connect(self._system.engine) as connection:
                latencies = list(connection.execute(_LATEST, {"batches": _STEADY_BATCHES}).scalars())
            if len(latencies) == _STEADY_BATCHES and max(latencies) <= _STEADY_SECONDS and self._is_complete():
                break
            time.sleep(INTERVAL_SECONDS / 4)
        else:
            self._system.until("every process runs and batches are committed", lambda: self._is_complete() or None)
        time.sleep(_SETTLE_SECONDS + self._random.random() * INTERVAL_SECONDS)
        return sum(latencies) / max(1, len(latencies))

    def kill(self, *names: str) -> float:
        """Kill the processes of these names at once; return the seconds until a batch has records received since."""
        processes = {name: self._process(name) for name in names}
        if _KILLED_IN_A_BATCH & processes.keys():
            running = self._running_batch()
            if "driver" in processes:
                processes["driver"] = running
        killed_at, began = time.time(), time.monotonic()
        for process in processes.values():
            process.send_signal(signal.SIGKILL)
        gone = "the killed processes are gone"
        self._system.until(gone, lambda: not any(map(_lives, processes.values())), 30.0)
        while time.monotonic() - began < DEADLINE_SECONDS:
            with contextlib.suppress(*SURVIVED), connect(self._system.engine) as connection:
                row = connection.execute(_COMMITTED, {"killed_at": killed_at}).one_or_none()
                if row is not None:
                    return float(row.at) - killed_at
            time.sleep(_POLL_SECONDS)
        raise TimeoutError(f"{' and '.join(names)} killed, and no batch came within {DEADLINE_SECONDS:.0f} s")

    def _process(self, name: str) -> psutil.Process:
        if name == "receiver":
            return self._system.receiver_process()
        if name == "postgres":
            # The server is no child of `forebay up`.
            return psutil.Process(int((self._system.home / "postgres" / "postmaster.pid").read_text().split()[0]))
        return self._system.until(f"{name} runs", lambda: self._system.process(*PROCESSES[name]))

    def _is_complete(self) -> bool:
        with contextlib.suppress(*SURVIVED), connect(self._system.engine) as connection:
            is_ready = connection.execute(
                sa.text(
                    "SELECT count(*) = :drivers FROM forebay.batch_drivers d JOIN forebay.processes p "
                    "ON p.id = d.process_id WHERE d.state = 'READY' AND p.ended_at IS NULL"
                ),
                {"drivers": self._drivers},
            ).scalar_one()
            return bool(is_ready) and all(self._system.process(*words) for words in PROCESSES.values())
        return False

    def _running_batch(self) -> psutil.Process:
        """Wait until a batch runs; return the driver that it runs in."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        with connect(self._system.engine) as connection:
            while time.monotonic() < deadline:
                pid = connection.execute(_RUNNING).scalar()
                if pid is not None:
                    return psutil.Process(pid)
                time.sleep(_POLL_SECONDS / 4)
        raise TimeoutError(f"no batch ran within {DEADLINE_SECONDS:.0f} s")


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def system_failover(home: Path, drivers: int = 1) -> Iterator[SystemFailover]:
    """Start the system in `home`, with its source and this many batch drivers; stop it at the end."""
    # Build the class archive, which each system has a few minutes after its first start. In another process, because
    # this one must not hold a JVM.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FOREBAY_")}
    with subprocess.Popen(
        [sys.executable, "-m", "orchestration.spark.session.class_archive"],
        env={**environment, "FOREBAY_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as archive:
        archive.wait()
    more = {"FOREBAY_TRACKER_HTTP": "127.0.0.1:0", "FOREBAY_BATCH_DRIVERS": str(drivers)}
    with NumberedSource() as source, running_system(home, source, **more) as system:
        yield SystemFailover(system, drivers)
