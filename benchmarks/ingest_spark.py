"""The peer of `benchmarks.ingest`: pyspark's own `socketTextStream`, with its receiver's write-ahead log.

Its JVM is a child of a process of its own, which is told what to measure by lines of JSON: so it runs with Spark's
usual Java settings whatever else the benchmark starts, and its CPU time is its own. The application does nothing with
a batch, so that receiving has the machine to itself. Spark flushes its log to the operating system and does not sync
it on a local file system.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import SparkContext

_BATCH_SECONDS = 1
_LAST_BATCH_SECONDS = 20.0
_SETTINGS = {
    "spark.streaming.receiver.writeAheadLog.enable": "true",
    "spark.streaming.stopGracefullyOnShutdown": "false",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.driver.extraJavaOptions": "-Djava.net.preferIPv4Stack=true",
}


@dataclass(frozen=True, slots=True)
class SparkIngested:
    """What Spark's receiver did while it was measured; CPU of the JVM, in seconds."""

    records_per_second: float
    cpu_per_million: float


class SparkReceiver:
    """The process, warm from one measurement to the next."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def measure(self, port: int, directory: Path, *, warm_up: float, seconds: float) -> SparkIngested:
        """Receive from the port with a checkpoint below the directory."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"port": port, "directory": str(directory), "warm_up": warm_up, "seconds": seconds}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"Spark's receiver failed:\n{self._log.read_text()[-4000:]}")
        return SparkIngested(**json.loads(answer))


@contextlib.contextmanager
def spark_receiver(directory: Path) -> Iterator[SparkReceiver]:
    """A process with a SparkContext."""
    log_path = directory / "spark.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603  this module
            [sys.executable, "-m", "benchmarks.ingest_spark", str(directory)],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield SparkReceiver(process, log_path)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def _measure(context: SparkContext, port: int, directory: Path, warm_up: float, seconds: float) -> SparkIngested:
    from pyspark import StorageLevel  # noqa: PLC0415  only this process has a JVM
    from pyspark.streaming import StreamingContext, StreamingListener  # noqa: PLC0415

    batches: dict[float, int] = {}

    class Listener(StreamingListener):
        def onBatchCompleted(self, batchCompleted: Any) -> None:  # noqa: ANN401, N802, N803  Spark's names
            info = batchCompleted.batchInfo()
            batches[info.batchTime().milliseconds() / 1000] = info.numRecords()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        streaming = StreamingContext(context, _BATCH_SECONDS)
    streaming.checkpoint(str(directory))
    # One copy in memory: with the log there is no need for Spark's default of two, and its documentation says so.
    lines = streaming.socketTextStream("127.0.0.1", port, StorageLevel.MEMORY_AND_DISK)
    lines.foreachRDD(_nothing)
    streaming.addStreamingListener(Listener())
    streaming.start()
    try:
        jvm = psutil.Process(cast("Any", context._gateway).proc.pid)  # noqa: SLF001  the only way to it
        _until(lambda: any(batches.values()))
        time.sleep(warm_up)
        cpu_before, begin = jvm.cpu_times(), time.time()
        time.sleep(seconds)
        cpu_after, end = jvm.cpu_times(), time.time()
        _until(lambda: max(batches) >= end)
    finally:
        streaming.stop(stopSparkContext=False, stopGraceFully=False)
    # A batch's time is its end: the whole intervals that were measured.
    counted = [records for at, records in batches.items() if begin + _BATCH_SECONDS <= at <= end]
    rate = sum(counted) / (len(counted) * _BATCH_SECONDS)
    cpu = cpu_after.user + cpu_after.system - cpu_before.user - cpu_before.system
    return SparkIngested(rate, cpu / (rate * (end - begin)) * 1e6)


def _nothing(rdd: object) -> None:
    """What the application does with a batch."""


def _until(predicate: Any) -> None:  # noqa: ANN401
    deadline = time.monotonic() + _LAST_BATCH_SECONDS
    while not predicate():
        if time.monotonic() > deadline:
            raise TimeoutError("Spark completes no batch")
        time.sleep(0.05)


def _main() -> None:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  only this process has a JVM

    from orchestration.java import find_java_home  # noqa: PLC0415

    os.environ["JAVA_HOME"] = str(find_java_home(Path(sys.argv[1]) / "java"))

    configuration = SparkConf().setMaster("local[2]").setAppName("benchmark").setAll(list(_SETTINGS.items()))
    context = SparkContext(conf=configuration)
    context.setLogLevel("ERROR")
    for line in sys.stdin:
        order = json.loads(line)
        found = _measure(context, order["port"], Path(order["directory"]), order["warm_up"], order["seconds"])
        answer = {"records_per_second": found.records_per_second, "cpu_per_million": found.cpu_per_million}
        print(json.dumps(answer), flush=True)  # noqa: T201  the answer
    context.stop()


if __name__ == "__main__":
    _main()
