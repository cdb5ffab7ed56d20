"""Run the peer of `benchmarks.ingest`: pyspark's own `socketTextStream`, with its receiver's write-ahead log.

Each measurement starts a new process with a new JVM: it runs with Spark's usual Java settings whatever else the
benchmark starts, and its CPU time is its own. Spark flushes its log to the operating system and does not sync it on a
local file system.

There are two applications. One does nothing with a batch, so that receiving has the machine to itself; it can be
compared with a receiver alone. The other one counts each batch's records, in the JVM: the least that an application
does, because one that reads no records needs no receiver.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil

from benchmarks.own_process import answer_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.streaming import StreamingContext

_BATCH_SECONDS = 1
_LAST_BATCH_SECONDS = 60.0
_SETTINGS = {
    "spark.streaming.receiver.writeAheadLog.enable": "true",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.driver.extraJavaOptions": "-Djava.net.preferIPv4Stack=true",
}


@dataclass(frozen=True, slots=True)
class SparkIngested:
    """Hold the figures of Spark's receiver while it was measured; CPU of the JVM in seconds."""

    records_per_second: float
    cpu_per_million: float


def receive_with_spark(
    port: int, directory: Path, *, warm_up: float, seconds: float, counts: bool = False
) -> SparkIngested:
    """Receive from the port in a new JVM, with a checkpoint in the directory.

    Args:
        port: the sender's.
        directory: it is created.
        warm_up: seconds before the measurement.
        seconds: length of the measurement.
        counts: the application counts each batch's records; else it reads none.
    """
    directory.mkdir()
    order = {"port": port, "directory": str(directory), "warm_up": warm_up, "seconds": seconds, "counts": counts}
    return SparkIngested(**answer_of("benchmarks.ingest_spark", json.dumps(order)))


def _measure(
    context: SparkContext, port: int, directory: Path, *, warm_up: float, seconds: float, counts: bool
) -> SparkIngested:
    from pyspark import StorageLevel  # noqa: PLC0415  only this process has a JVM
    from pyspark.streaming import StreamingContext  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        streaming = StreamingContext(context, _BATCH_SECONDS)
    streaming.checkpoint(str(directory))
    # One copy in memory: Spark's documentation says that with the log its default of two copies is not needed.
    lines = streaming.socketTextStream("127.0.0.1", port, StorageLevel.MEMORY_AND_DISK)
    # Use no Python function, because the JVM would call back for it. An output that is only registered has a task for
    # each block, which reads nothing of it.
    stream = cast("Any", lines)._jdstream.dstream()  # noqa: SLF001
    (stream.count() if counts else stream).register()
    streaming.start()
    jvm = psutil.Process(cast("Any", context._gateway).proc.pid)  # noqa: SLF001  the only way to it
    _until(lambda: any(_batches(streaming).values()))
    time.sleep(warm_up)
    cpu_before, begin = jvm.cpu_times(), time.time()
    time.sleep(seconds)
    cpu_after, end = jvm.cpu_times(), time.time()
    _until(lambda: max(_batches(streaming)) >= end)
    batches = _batches(streaming)
    # A batch's time is the end of its interval: count the intervals that were measured completely.
    counted = [records for at, records in batches.items() if begin + _BATCH_SECONDS <= at <= end]
    rate = sum(counted) / (len(counted) * _BATCH_SECONDS)
    cpu = cpu_after.user + cpu_after.system - cpu_before.user - cpu_before.system
    return SparkIngested(rate, cpu / (rate * (end - begin)) * 1e6)


def _batches(streaming: StreamingContext) -> dict[float, int]:
    """Return the completed batches' records by batch time, from the listener that Spark's own UI reads."""
    context = cast("Any", streaming)
    listener = context._jssc.ssc().progressListener()  # noqa: SLF001
    converters = context._sc._jvm.scala.jdk.javaapi.CollectionConverters  # noqa: SLF001
    completed = converters.asJava(listener.retainedCompletedBatches())
    return {batch.batchTime().milliseconds() / 1000: batch.numRecords() for batch in completed}


def _until(predicate: Any) -> None:  # noqa: ANN401
    deadline = time.monotonic() + _LAST_BATCH_SECONDS
    while not predicate():
        if time.monotonic() > deadline:
            raise TimeoutError("Spark completes no batch")
        time.sleep(0.05)


def _main() -> None:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  only this process has a JVM

    from orchestration.spark.session.java import find_java_home  # noqa: PLC0415

    order = json.loads(sys.argv[1])
    directory = Path(order["directory"])
    os.environ["JAVA_HOME"] = str(find_java_home(directory / "java"))
    configuration = SparkConf().setMaster("local[2]").setAppName("benchmark").setAll(list(_SETTINGS.items()))
    context = SparkContext(conf=configuration)
    context.setLogLevel("ERROR")
    try:
        found = _measure(
            context,
            order["port"],
            directory / "checkpoint",
            warm_up=order["warm_up"],
            seconds=order["seconds"],
            counts=order["counts"],
        )
        print(json.dumps(dataclasses.asdict(found)), flush=True)  # noqa: T201  the answer
    finally:
        # Kill the JVM: a streaming context takes many seconds to stop, and is not needed any more.
        cast("Any", context._gateway).proc.kill()  # noqa: SLF001
    os._exit(0)


if __name__ == "__main__":
    _main()
