"""Measure many small receivers in few processes: each gets one record per 200 ms, and each record is a durable block.

Run as ``python -m benchmarks.small_blocks [--json] [--quick]``; docs/reference/benchmarks.md says what each figure
means. Everything is real: receiver processes as the agent starts them, sockets, synced segments, the durable embedded
server, and a sender in a separate process. All of it shares this machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

from benchmarks.report import Report, machine, rate_figure, time_figure
from benchmarks.server import Server, running_server
from benchmarks.writers import write_grouped
from receiver_runtime.block_store.local import LocalBlockStore
from receiver_runtime.sources.socket_text import SocketText
from tracker_store.engine import connect
from tracker_store.pipelines import apply_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_INTERVAL_SECONDS = 0.2
_LATEST_SECONDS = 1.0
_START_SECONDS = 180.0
_SETTLE_SECONDS = 10.0
_WARM_UP_SECONDS = 3.0
_DISK_FRAME = b"\0" * 600


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many receivers in how many processes, for how long."""

    receivers: int
    processes: int
    seconds: float
    limit_seconds: float


# One process per core: more processes would have to share cores, and wake each other.
_PROCESSES = min(8, os.cpu_count() or 1)
_FULL = Sizes(receivers=1000, processes=_PROCESSES, seconds=30, limit_seconds=5)
_QUICK = Sizes(receivers=200, processes=2, seconds=8, limit_seconds=2)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result: records sent and registered, latencies of each block's first record in seconds, and resources."""

    sent: int
    registered: int
    blocks_per_second: float
    latencies: np.ndarray
    receiver_cpu: float
    server_cpu: float
    sender_cpu: float
    threads: int
    resident_mib: float
    start_seconds: float


def disk_rate(directory: Path, *, files: int, threads: int, seconds: float) -> float:
    """Return the synced writes per second of some threads that append a small block's bytes to their files in turn."""
    descriptors = [os.open(directory / f"disk-{n}", os.O_WRONLY | os.O_CREAT | os.O_APPEND) for n in range(files)]
    counts = [0] * threads
    end = time.monotonic() + seconds

    def write(thread: int) -> None:
        mine = descriptors[thread::threads]
        while time.monotonic() < end:
            descriptor = mine[counts[thread] % len(mine)]
            os.write(descriptor, _DISK_FRAME)
            os.fdatasync(descriptor)
            counts[thread] += 1

    workers = [threading.Thread(target=write, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for descriptor in descriptors:
        os.close(descriptor)
    return sum(counts) / seconds


@contextmanager
def _sender(connections: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    process = subprocess.Popen(  # noqa: S603  our own command
        [sys.executable, "-m", "benchmarks.small_blocks_sender", str(connections), str(_INTERVAL_SECONDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


@contextmanager
def _receiver_processes(
    server: Server, receiver_ids: Sequence[int], count: int, home: Path
) -> Iterator[list[psutil.Process]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment |= {"FOREBAY_HOME": str(home), "FOREBAY_DATABASE_URL": server.url}
    started = []
    for n in range(count):
        pairs = [word for receiver_id in receiver_ids[n::count] for word in ("--receiver", f"{receiver_id}:1")]
        with (home / f"receivers-{n}.log").open("wb") as log:
            started.append(
                subprocess.Popen(  # noqa: S603  our own command
                    [sys.executable, "-m", "forebay.cli", "receiver", *pairs],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                )
            )
    try:
        yield [psutil.Process(process.pid) for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _declare(server: Server, port: int, receivers: int) -> list[int]:
    with connect(server.engine) as connection:
        apply_stream(
            connection,
            name="small",
            declaration={
                "source": SocketText(host="127.0.0.1", port=port).model_dump(mode="json"),
                "settings": {"block_interval": "200ms"},
            },
            receivers=receivers,
        )
    # Place the receivers as the tracker does, because no tracker runs here.
    server.execute("UPDATE forebay.receivers SET assignment = 1, state = 'SCHEDULED'")
    return [int(str(row[0])) for row in server.execute("SELECT id FROM forebay.receivers ORDER BY id")]


def _until(server: Server, statement: str, value: int, seconds: float) -> int:
    """Poll until the answer is `value` or more, for at most `seconds`; return the last answer."""
    deadline = time.monotonic() + seconds
    while True:
        answer = int(str(server.execute(statement)[0][0]))
        if answer >= value or time.monotonic() >= deadline:
            return answer
        time.sleep(0.5)


def _cpu(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _server_cpu(home: Path) -> float:
    postmaster = psutil.Process(int((home / "postgres" / "postmaster.pid").read_text().split()[0]))
    # The second part counts processes that have ended.
    return _cpu([postmaster, *postmaster.children()]) + float(sum(postmaster.cpu_times()[2:4]))


def receive(server: Server, sizes: Sizes, home: Path) -> Outcome:
    """Send every receiver a record each 200 ms for the configured time, and measure what they register."""
    records = "SELECT coalesce(sum(records), 0)::bigint FROM forebay.blocks"
    with _sender(sizes.receivers) as (sender, port):
        assert sender.stdin is not None
        assert sender.stdout is not None
        receiver_ids = _declare(server, port, sizes.receivers)
        began = time.monotonic()
        with _receiver_processes(server, receiver_ids, sizes.processes, home) as processes:
            connected = _until(
                server,
                "SELECT count(*) FROM forebay.receivers WHERE state = 'ACTIVE' AND reason LIKE 'connected%'",
                sizes.receivers,
                _START_SECONDS,
            )
            if connected < sizes.receivers:
                raise RuntimeError(f"{connected} of {sizes.receivers} receivers connected in {_START_SECONDS:.0f} s")
            start_seconds = time.monotonic() - began
            sender.stdin.write(b"g")
            sender.stdin.flush()
            time.sleep(_WARM_UP_SECONDS)
            from_time = time.time_ns()
            before = (_cpu(processes), _server_cpu(home), _cpu([psutil.Process(sender.pid)]))
            time.sleep(sizes.seconds)
            to_time = time.time_ns()
            after = (_cpu(processes), _server_cpu(home), _cpu([psutil.Process(sender.pid)]))
            threads = max(process.num_threads() for process in processes)
            resident = max(process.memory_info().rss for process in processes) / 2**20
            sender.stdin.write(b"e")
            sender.stdin.flush()
            sent = int(sender.stdout.readline())
            registered = _until(server, records, sent, _SETTLE_SECONDS)
    latencies, blocks = _latencies(server, home, from_time, to_time)
    return Outcome(
        sent=sent,
        registered=registered,
        blocks_per_second=blocks / ((to_time - from_time) / 1e9),
        latencies=latencies,
        receiver_cpu=after[0] - before[0],
        server_cpu=after[1] - before[1],
        sender_cpu=after[2] - before[2],
        threads=threads,
        resident_mib=resident,
        start_seconds=start_seconds,
    )


def _latencies(server: Server, home: Path, from_time: int, to_time: int) -> tuple[np.ndarray, int]:
    """Return the seconds from sending a block's first record to its row, and the number of blocks, in this span.

    Server and sender share this machine's clock.
    """
    store = LocalBlockStore(home / "blocks")
    rows = server.execute(
        'SELECT g.path, b."offset", b.length, b.crc32c, (extract(epoch FROM b.added_at) * 1e9)::bigint '
        "FROM forebay.blocks b JOIN forebay.log_segments g ON g.id = b.segment_id ORDER BY g.path, b.sequence"
    )
    seconds = []
    blocks = 0
    for path, offset, length, crc32c, added in rows:
        blocks += from_time <= int(str(added)) < to_time
        batches = store.read_batches(str(path), int(str(offset)), int(str(length)), int(str(crc32c)))
        first = int(next(batches).column(0)[0].as_py())
        if from_time <= first < to_time:
            seconds.append((int(str(added)) - first) / 1e9)
    return np.array(seconds), blocks


def measure(report: Report, server: Server, sizes: Sizes, directory: Path) -> None:
    """Measure the limits first, then the receivers."""
    report.section("Limits: this disk's synced writes, and add_block alone")
    files = sizes.receivers // sizes.processes
    alone = disk_rate(directory, files=1, threads=1, seconds=sizes.limit_seconds)
    together = disk_rate(directory, files=files, threads=files, seconds=sizes.limit_seconds)
    report.note(
        f"synced writes of {len(_DISK_FRAME)} bytes: {alone:,.0f}/s by one thread, {together:,.0f}/s by {files}"
    )
    goal = sizes.receivers / _INTERVAL_SECONDS
    report.section(f"{sizes.receivers} receivers in {sizes.processes} processes, {goal:,.0f} records/s")
    outcome = receive(server, sizes, directory)
    # The writers claim receivers that are not placed.
    server.execute("UPDATE forebay.receivers SET assignment = 0")
    grouped = write_grouped(
        server,
        [int(str(row[0])) for row in server.execute(f"SELECT id FROM forebay.receivers ORDER BY id LIMIT {files}")],  # noqa: S608  a number
        1,
        sizes.limit_seconds,
    )
    rate = max(outcome.blocks_per_second, 1e-9)
    p50, p99, latest = (float(np.percentile(outcome.latencies, q)) for q in (50, 99, 100))
    cpu = outcome.receiver_cpu + outcome.server_cpu
    report.add(
        rate_figure("blocks registered", [rate], [goal], peer_name="one per record sent", unit="blocks/s", aim=0.98),
        rate_figure(
            "blocks registered, beside the disk",
            [rate],
            [together],
            peer_name=f"synced writes, {files} threads",
            unit="blocks/s",
        ),
        rate_figure(
            "blocks registered, beside add_block",
            [rate],
            [grouped],
            peer_name=f"1 x {files} receivers a call",
            unit="blocks/s",
        ),
        time_figure("first record to registered, median", p50, None, peer_name="", unit="s"),
        time_figure("first record to registered, p99", p99, None, peer_name="", unit="s"),
        time_figure("first record to registered, latest", latest, _LATEST_SECONDS, peer_name="aim", unit="s", aim=1.0),
        time_figure(
            "CPU of receivers, per second", outcome.receiver_cpu / sizes.seconds, None, peer_name="", unit="CPU s"
        ),
        time_figure(
            "CPU of Postgres, per second", outcome.server_cpu / sizes.seconds, None, peer_name="", unit="CPU s"
        ),
        time_figure(
            "CPU of both, per 1,000 blocks", cpu / sizes.seconds / rate * 1000, None, peer_name="", unit="CPU s"
        ),
        time_figure("start of all receivers", outcome.start_seconds, None, peer_name="", unit="s"),
    )
    report.note(f"{outcome.registered:,} of {outcome.sent:,} records sent are registered")
    report.note(
        f"{outcome.threads} threads and {outcome.resident_mib:.0f} MiB in the largest process; the sender took "
        f"{outcome.sender_cpu / sizes.seconds:.2f} CPU s per second"
    )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_blocks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="200 receivers for 8 s: to see that it works")
    parser.add_argument("--directory", type=Path, help="where blocks and server go (default: the temporary folder)")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="forebay-benchmark-", dir=arguments.directory) as name,
        running_server(Path(name)) as server,
    ):
        report = Report("small_blocks", machine(postgres=server.version()))
        measure(report, server, _QUICK if arguments.quick else _FULL, Path(name))
    report.print(as_json=arguments.json)


if __name__ == "__main__":
    main()
