"""From a batch's boundary to its output committed: warm, cold, and in Spark Streaming.

Run as ``python -m benchmarks.batch_latency [--json] [--quick] [--batches N]``; docs/reference/benchmarks.md says what
each figure means. Everything is real: `forebay up` as its users run it, once with a batch driver and once without (each
batch then starts a process and a JVM), and pyspark's own `socketTextStream` with its write-ahead log. They run one
after the other, each with the machine to itself. All of them get the same lines at the same pace and do the same with
them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from benchmarks.report import Report, machine, time_figure
from tracker_store.embedded_postgres import EmbeddedPostgres
from tracker_store.engine import connect, create_engine
from tracker_store.errors import DriverLogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ROOT = Path(__file__).parents[1]
_INTERVAL_SECONDS = 10
_RECORDS_PER_BATCH = 100_000
_BATCHES = 30
_QUICK_BATCHES = 5
# The first batches of each are not counted: the processes are not warm yet.
_FIRST = 3
_KEYS = 1_000
_LINE_BYTES = 100
_CHUNKS_PER_SECOND = 20
_START_SECONDS = 300.0
_MEDIAN_AIM = 1.0
_P95_AIM = 2.0


@contextmanager
def _source() -> Iterator[int]:
    """Serve lines of 100 bytes at a steady pace, to one connection after the other; yield the port."""
    per_chunk = _RECORDS_PER_BATCH // _INTERVAL_SECONDS // _CHUNKS_PER_SECOND
    chunks = [
        b"".join(
            f"key{(number * 7919 + index) % _KEYS} ".encode().ljust(_LINE_BYTES - 1, b"-") + b"\n"
            for index in range(per_chunk)
        )
        for number in range(_CHUNKS_PER_SECOND)
    ]
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                _send(connection, chunks, stop)

    thread = threading.Thread(target=serve, name="source", daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        listener.close()


def _send(connection: socket.socket, chunks: list[bytes], stop: threading.Event) -> None:
    begun, sent = time.monotonic(), 0
    try:
        while not stop.is_set():
            connection.sendall(chunks[sent % len(chunks)])
            sent += 1
            # Sleep until a time on the clock: fixed pauses would add up their errors.
            time.sleep(max(0.0, begun + sent / _CHUNKS_PER_SECOND - time.monotonic()))
    except OSError:
        return


def _forebay(directory: Path, batches: int, *, drivers: int) -> list[float]:
    """Return the seconds from boundary to commit of this many batches, in `forebay up` with this many drivers."""
    with _source() as port:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY_", "DAGSTER_"))}
        environment |= {
            "BATCH_LATENCY_INTERVAL": f"{_INTERVAL_SECONDS}s",
            "BATCH_LATENCY_OUTPUT": str(directory / "output"),
            "BATCH_LATENCY_PORT": str(port),
            "FOREBAY_BATCH_DRIVERS": str(drivers),
            "FOREBAY_HOME": str(directory),
            "FOREBAY_SPARK_MASTER": "local[2]",
            "FOREBAY_TRACKER_HTTP": "127.0.0.1:0",
        }
        with (directory / "up.log").open("wb") as output:
            up = subprocess.Popen(
                [sys.executable, "-m", "forebay.cli", "up", "benchmarks.batch_latency_pipeline", "--ui-port", "0"],
                cwd=_ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            _until(lambda: b"Ctrl-C stops everything" in (directory / "up.log").read_bytes(), "forebay up has started")
            engine = create_engine(EmbeddedPostgres(directory / "postgres").url(), application_name="benchmark")
            wanted = batches + _FIRST
            _until(lambda: len(_latencies(engine)) >= wanted, "its batches", batches * 60.0 + _START_SECONDS)
            found = _latencies(engine)[_FIRST:wanted]
            engine.dispose()
        finally:
            up.send_signal(signal.SIGINT)
            up.wait(120)
    return found


def _latencies(engine: sa.Engine) -> list[float]:
    try:
        with connect(engine) as connection:
            return list(
                connection.execute(
                    sa.text(
                        "SELECT extract(epoch FROM c.committed_at - c.batch_time)::float8 "
                        "FROM forebay.output_commits c JOIN forebay.batches b USING (pipeline_id, batch_time) "
                        "WHERE b.records > 0 ORDER BY c.batch_time"
                    )
                ).scalars()
            )
    except DriverLogError:
        return []


def _spark(directory: Path, batches: int) -> list[float]:
    """Return the same for Spark Streaming: the seconds from boundary until the output is written."""
    with _source() as port:
        order = {"port": port, "directory": str(directory), "interval": _INTERVAL_SECONDS}
        with (directory / "spark.log").open("wb") as log:
            spark = subprocess.Popen(  # noqa: S603  this package
                [sys.executable, "-m", "benchmarks.batch_latency_spark", json.dumps(order)],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        found: list[float] = []
        assert spark.stdout is not None
        for line in spark.stdout:
            if line.startswith("{"):
                said = json.loads(line)
                found.append(said["written"] - said["batch_time"])
            if len(found) == batches + _FIRST:
                break
        spark.kill()
        spark.wait()
    if len(found) < batches + _FIRST:
        raise RuntimeError(f"Spark Streaming ended:\n{(directory / 'spark.log').read_text(encoding='utf-8')[-4000:]}")
    return found[_FIRST:]


def _until(predicate: Callable[[], bool], what: str, seconds: float = _START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > deadline:
            raise TimeoutError(f"this did not happen within {seconds:g} s: {what}")
        time.sleep(0.5)


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one object as the last line")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_BATCHES} batches of each")
    parser.add_argument("--batches", type=int, default=_BATCHES, help="how many batches of each are counted")
    arguments = parser.parse_args()
    batches = _QUICK_BATCHES if arguments.quick else arguments.batches
    report = Report(
        "batch_latency",
        machine(interval_seconds=_INTERVAL_SECONDS, records_per_batch=_RECORDS_PER_BATCH, batches=batches),
    )
    found: dict[str, list[float]] = {}
    measures: dict[str, Callable[[Path], list[float]]] = {
        "warm": lambda directory: _forebay(directory, batches, drivers=1),
        "Spark Streaming": lambda directory: _spark(directory, batches),
        "cold": lambda directory: _forebay(directory, max(3, batches // 5), drivers=0),
    }
    for name, measure in measures.items():
        report.section(name)
        with tempfile.TemporaryDirectory(prefix="forebay-latency-", ignore_cleanup_errors=True) as directory:
            # The embedded server runs as another user, which must be able to enter the directory.
            Path(directory).chmod(0o755)
            found[name] = measure(Path(directory))
        report.note(
            f"{name}: median {statistics.median(found[name]):.2f} s, p95 {_p95(found[name]):.2f} s, "
            f"longest {max(found[name]):.2f} s of {len(found[name])} batches"
        )
    for title, of, aim in (("median", statistics.median, _MEDIAN_AIM), ("p95", _p95, _P95_AIM)):
        ours = of(found["warm"])
        report.add(
            time_figure(f"boundary to commit, {title}", ours, aim, peer_name="the aim", unit="s", aim=1.0),
            time_figure(
                f"boundary to commit, {title}",
                ours,
                of(found["Spark Streaming"]),
                peer_name="Spark Streaming, boundary to written",
                unit="s",
            ),
            time_figure(
                f"boundary to commit, {title}", ours, of(found["cold"]), peer_name="without a driver", unit="s"
            ),
        )
    report.print(as_json=arguments.json)


if __name__ == "__main__":
    main()
