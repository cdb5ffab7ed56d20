"""Drive the original through py4j: Spark's own ReceivedBlockTracker, with its write-ahead log in a local folder.

Repeated calls are a loop of method handles inside the JVM, built at run time, so no figure includes py4j's call or
Python's lock. The log's files are flushed and not synced, as Spark does on a local file system.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark import SparkContext

# py4j sends a number of this size as a long, which is what the tracker casts to.
_RECORDS = 2**40


class SparkTracker:
    """One ReceivedBlockTracker of `streams` streams, on a checkpoint directory."""

    def __init__(self, context: SparkContext, directory: Path, *, streams: int, batching: bool, recover: bool) -> None:
        self._gateway = cast("Any", context._gateway)  # noqa: SLF001  the only way to the JVM
        self._jvm = cast("Any", context._jvm)  # noqa: SLF001
        self._streams = streams
        configuration = self._jvm.org.apache.spark.SparkConf(False)  # noqa: FBT003
        configuration.set("spark.streaming.driver.writeAheadLog.allowBatching", str(batching).lower())
        ids = self._jvm.java.util.ArrayList()
        for stream in range(streams):
            ids.add(stream)
        self.tracker: Any = self._jvm.org.apache.spark.streaming.scheduler.ReceivedBlockTracker(
            configuration,
            cast("Any", context._jsc).hadoopConfiguration(),  # noqa: SLF001
            self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(ids).toSeq(),
            self._jvm.org.apache.spark.util.SystemClock(),
            recover,
            self._some(str(directory)),
        )

    def stop(self) -> None:
        """Close its log."""
        self.tracker.stop()

    def add(self, blocks: int, *, threads: int) -> float:
        """Add blocks from this many threads at once; return the additions per second."""
        loops = [self._loop(thread % self._streams, blocks // threads) for thread in range(threads)]
        no_arguments = self._gateway.new_array(self._jvm.java.lang.Object, 0)
        runners = [threading.Thread(target=loop.invokeWithArguments, args=(no_arguments,)) for loop in loops]
        began = time.perf_counter()
        for runner in runners:
            runner.start()
        for runner in runners:
            runner.join()
        return blocks // threads * threads / (time.perf_counter() - began)

    def allocate(self, batch_ms: int) -> float:
        """Allocate all waiting blocks to a batch; return the time in ms."""
        batch_time = self._jvm.org.apache.spark.streaming.Time(batch_ms)
        began = time.perf_counter()
        self.tracker.allocateBlocksToBatch(batch_time)
        return (time.perf_counter() - began) * 1000

    def has_unallocated(self) -> bool:
        """Return whether blocks wait."""
        return bool(self.tracker.hasUnallocatedReceivedBlocks())

    def _some(self, value: object) -> Any:  # noqa: ANN401  py4j's objects have no types
        return getattr(self._jvm.scala.Option, "apply")(value)  # noqa: B009  `apply` is a name of py4j's too

    def _block(self, stream: int) -> Any:  # noqa: ANN401
        jvm = self._jvm
        handle = jvm.org.apache.spark.streaming.util.FileBasedWriteAheadLogSegment("receivedData/0/log-0-60000", 0, 100)
        stored = jvm.org.apache.spark.streaming.receiver.WriteAheadLogBasedStoreResult(
            jvm.org.apache.spark.storage.StreamBlockId(stream, _RECORDS), self._some(_RECORDS), handle
        )
        return jvm.org.apache.spark.streaming.scheduler.ReceivedBlockInfo(
            stream, self._some(_RECORDS), jvm.scala.Option.empty(), stored
        )

    def _loop(self, stream: int, times: int) -> Any:  # noqa: ANN401
        """Return a method handle that adds a block of a stream this many times."""
        invoke = self._jvm.java.lang.invoke
        handles = invoke.MethodHandles
        lang = self._jvm.java.lang
        method = next(m for m in self.tracker.getClass().getMethods() if m.getName() == "addBlock")
        bound = self._gateway.new_array(lang.Object, 2)
        bound[0], bound[1] = self.tracker, self._block(stream)
        add = handles.insertArguments(handles.publicLookup().unreflect(method), 0, bound)
        counter = self._gateway.new_array(lang.Class, 1)
        counter[0] = lang.Integer.TYPE
        body = handles.dropArguments(add, 0, counter).asType(invoke.MethodType.methodType(lang.Void.TYPE, counter))
        return handles.countedLoop(handles.constant(lang.Integer.TYPE, times), None, body)


@contextmanager
def spark_context(directory: Path) -> Iterator[SparkContext]:
    """Start a local SparkContext on the Java that Forebay finds; its JVM has memory for what the tracker holds."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  the rest of the benchmark runs without a JVM

    from orchestration.spark.session.java import find_java_home  # noqa: PLC0415

    os.environ["JAVA_HOME"] = str(find_java_home(directory / "java"))
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.driver.extraJavaOptions": "-Djava.net.preferIPv4Stack=true",
    }
    configuration = SparkConf().setMaster("local[2]").setAppName("benchmark").setAll(list(settings.items()))
    context = SparkContext(conf=configuration)
    context.setLogLevel("ERROR")
    try:
        yield context
    finally:
        context.stop()
