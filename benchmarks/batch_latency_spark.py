"""Run the same batches in pyspark's own Spark Streaming, with its write-ahead log: `benchmarks.batch_latency`'s peer.

It runs in a separate process with its own JVM: `python -m benchmarks.batch_latency_spark ORDER` prints a line for each
batch, with its batch time and the time at which its output was written.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark import RDD

_SETTINGS = {
    "spark.streaming.receiver.writeAheadLog.enable": "true",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-Djava.net.preferIPv4Stack=true",
}


def _main() -> None:
    from pyspark import StorageLevel  # noqa: PLC0415  only this process has a JVM
    from pyspark.sql import SparkSession  # noqa: PLC0415
    from pyspark.streaming import StreamingContext  # noqa: PLC0415

    from orchestration.spark.session.java import find_java_home  # noqa: PLC0415

    order = json.loads(sys.argv[1])
    directory = Path(order["directory"])
    os.environ["JAVA_HOME"] = str(find_java_home(directory / "java"))
    builder = SparkSession.builder.master("local[2]").appName("benchmark")
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        streaming = StreamingContext(session.sparkContext, order["interval"])
    streaming.checkpoint(str(directory / "checkpoint"))
    # One copy in memory: Spark's documentation says that with the log its default of two copies is not needed.
    lines = streaming.socketTextStream("127.0.0.1", order["port"], StorageLevel.MEMORY_AND_DISK)

    output = str(directory / "output")

    def write(batch_time: datetime, batch: RDD[str]) -> None:
        at = batch_time.timestamp()
        # Get the session here: everything that the function refers to goes into the checkpoint, and a session can't.
        spark = SparkSession.builder.getOrCreate()
        frame = spark.createDataFrame(batch.map(lambda line: (line,)), "value string")
        counts = frame.selectExpr("substring_index(value, ' ', 1) AS key").groupBy("key").count()
        counts.write.mode("overwrite").parquet(f"{output}/batch_time={at:.0f}")
        print(json.dumps({"batch_time": at, "written": time.time()}), flush=True)  # noqa: T201  the answer

    lines.foreachRDD(write)
    streaming.start()
    # Run until the parent closes the pipe.
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    _main()
