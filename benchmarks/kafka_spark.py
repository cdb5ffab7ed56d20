"""Run the peer of `benchmarks.kafka`: Structured Streaming's Kafka source, writing Parquet.

Its package is available for Spark 4.0.0, so it runs in a separate environment, which is created once in the user's
cache: pyspark by pip, the source's jars by Maven. This module is also the program that runs there (it then imports
nothing of Forebay). The first batch warms the JVM up and is not measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import IO

VERSION = "4.0.0"
CORES = 2
# The first batch is as large as the others.
_BATCHES = 4
_LIMIT_SECONDS = 300
_PACKAGE = "spark-sql-kafka-0-10_2.13"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>benchmarks</groupId><artifactId>kafka-spark</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.spark</groupId><artifactId>{_PACKAGE}</artifactId><version>{VERSION}</version></dependency>
</dependencies></project>
"""
# Prefixes of jars that pyspark already has.
_OF_SPARK = ("hadoop-", "scala-", "slf4j-", "jsr305-", "lz4-", "snappy-", "spark-tags")


@dataclass(frozen=True, slots=True)
class StructuredStreaming:
    """Hold the peer's figures from its first batch to its end; CPU of the JVM in seconds."""

    records_per_second: float
    cpu_per_million: float


def environment() -> tuple[Path, list[Path]]:
    """Return its Python and its jars; create them if they are missing."""
    from tests.support.brokers.kafka import maven_jars  # noqa: PLC0415  not in the peer's environment

    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay-tests" / "structured-streaming"
    made = folder / f"venv-{VERSION}"
    python = made / "bin" / "python"
    if not (made / "ready").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(made)],
            [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", f"pyspark=={VERSION}"],
        ):
            subprocess.run(command, check=True)  # noqa: S603  ours
        (made / "ready").touch()
    jars = maven_jars("structured-streaming", VERSION, _POM)
    return python, [jar for jar in sorted(jars.glob("*.jar")) if not jar.name.startswith(_OF_SPARK)]


def receive_with_spark(address: str, topic: str, directory: Path, records: int) -> StructuredStreaming:
    """Read all records of a topic into Parquet files, in a new JVM."""
    import psutil  # noqa: PLC0415  not in the peer's environment

    from orchestration.spark.session.java import find_java_home  # noqa: PLC0415  as above

    python, jars = environment()
    directory.mkdir()
    order = {
        "address": address,
        "topic": topic,
        "directory": str(directory),
        "records": records,
        "jars": ",".join(str(jar) for jar in jars),
    }
    env = {**os.environ, "JAVA_HOME": str(find_java_home(directory / "java")), "SPARK_LOCAL_IP": "127.0.0.1"}
    env.pop("SPARK_HOME", None)
    with (
        (directory / "log").open("w+b") as log,
        subprocess.Popen(  # noqa: S603  this module
            [str(python), __file__, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=env,
            cwd=directory,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            marks = []
            for _ in range(2):
                _line(process.stdout, directory)
                times = [child.cpu_times() for child in psutil.Process(process.pid).children(recursive=True)]
                marks.append((sum(one.user + one.system for one in times), time.monotonic()))
            answer = json.loads(_line(process.stdout, directory))
        finally:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
    (cpu_before, _), (cpu_after, _) = marks
    return StructuredStreaming(
        answer["records"] / answer["seconds"], (cpu_after - cpu_before) / answer["records"] * 1e6
    )


def _line(output: IO[str], directory: Path) -> str:
    line = output.readline()
    if not line:
        raise RuntimeError(f"Structured Streaming failed:\n{(directory / 'log').read_text()[-4000:]}")
    return line


def _main() -> None:
    """Run in the peer's environment: print a line after the first batch, one at the end, and the answer."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  this process has a JVM

    order = json.loads(sys.argv[1])
    session = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.jars", order["jars"])
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    records = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", order["address"])
        .option("subscribe", order["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", order["records"] // _BATCHES)
        .load()
    )
    query = (
        records.writeStream.format("parquet")
        .option("path", f"{order['directory']}/records")
        .option("checkpointLocation", f"{order['directory']}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    deadline = time.monotonic() + _LIMIT_SECONDS
    while query.isActive and not any(batch["numInputRows"] for batch in query.recentProgress):
        if time.monotonic() > deadline:
            raise TimeoutError("Structured Streaming completes no batch")
        time.sleep(0.01)
    print("warm", flush=True)  # noqa: T201  the parent measures from here
    query.awaitTermination(_LIMIT_SECONDS)
    print("done", flush=True)  # noqa: T201  to here
    measured = [batch for batch in query.recentProgress if batch["numInputRows"]][1:]
    answer = {
        "records": sum(batch["numInputRows"] for batch in measured),
        "seconds": sum(batch["durationMs"]["triggerExecution"] for batch in measured) / 1000,
    }
    print(json.dumps(answer), flush=True)  # noqa: T201  the answer
    sys.stdin.read()


if __name__ == "__main__":
    _main()
