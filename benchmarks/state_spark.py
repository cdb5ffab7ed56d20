"""Count keys in Structured Streaming with the RocksDB state store: `benchmarks.state`'s peer.

It runs in a separate process with its own JVM: `python -m benchmarks.state_spark ORDER` reads the path of a file for
each batch from standard input, and prints a line for each batch, with the milliseconds of each of its steps.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

#: The columns of the files.
COLUMNS = "user STRING"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "6g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-Djava.net.preferIPv4Stack=true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A batch writes what has changed, and not files of the whole store: the faster one of the two.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def _main() -> None:
    from pyspark.sql import SparkSession  # noqa: PLC0415  only this process has a JVM

    from orchestration.spark.session.java import find_java_home  # noqa: PLC0415

    order = json.loads(sys.argv[1])
    directory = Path(order["directory"])
    os.environ["JAVA_HOME"] = str(find_java_home(directory / "java"))
    builder = SparkSession.builder.master("local[2]").appName("benchmark")
    for key, value in {**_SETTINGS, "spark.sql.shuffle.partitions": str(order["partitions"])}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    given = directory / "given"
    given.mkdir()
    counts = session.readStream.schema(COLUMNS).parquet(str(given)).groupBy("user").count()
    # Only the keys that have changed.
    query = (
        counts.writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )
    for line in sys.stdin:
        path = Path(line.strip())
        path.rename(given / path.name)
        query.processAllAvailable()
        progress = next(each for each in reversed(query.recentProgress) if each["numInputRows"])
        [operator] = progress["stateOperators"]
        said = {"steps": progress["durationMs"], "keys": operator["numRowsTotal"], "batch": progress["batchId"]}
        print(json.dumps(said), flush=True)  # noqa: T201  the answer
    os._exit(0)


if __name__ == "__main__":
    _main()
