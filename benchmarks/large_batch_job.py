"""The two jobs of `benchmarks.large_batch`, each in its own process: a batch's run, and bare Spark on Parquet files.

Both compute and write the same: per million of numbers, their count, sum and exclusive or. Each prints how long it
took, without Spark's start, as JSON. Arguments: the job; for a batch its time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.batch_run import run_batch
from orchestration.settings import Settings
from orchestration.spark.session import WarmSession, spark_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

NAME = "large"
# Numbers of one row of the output.
BUCKET = 1_000_000


def summed(lines: DataFrame) -> DataFrame:
    """Return the count, the sum and the exclusive or of the numbers that the lines begin with, per million."""
    from pyspark.sql.functions import expr  # noqa: PLC0415  the benchmark itself loads no Spark

    numbers = lines.selectExpr("CAST(substring_index(value, ' ', 1) AS BIGINT) AS number")
    return (
        numbers.selectExpr(f"number DIV {BUCKET} AS bucket", "number")
        .groupBy("bucket")
        .agg(expr("count(*) AS records"), expr("sum(number) AS total"), expr("bit_xor(number) AS mixed"))
    )


def declare(output: Path | str, receivers: int) -> Pipeline:
    """Declare the pipeline whose batch is run."""
    lines = Stream(NAME, SocketText(host="127.0.0.1", port=9999), receivers=receivers)
    pipeline = Pipeline(NAME, interval="1h")

    @pipeline.output(name=NAME, inputs=[lines], sink=ParquetSink(output))
    def numbers(lines: DataFrame) -> DataFrame:
        return summed(lines)

    return pipeline


def _main() -> None:
    settings = Settings()
    # As in a batch driver: Spark is there when the batch begins.
    warm = WarmSession(settings, application=NAME)
    warm.session.sparkContext.setLogLevel("ERROR")
    warm.session.range(0, 1000, 1, 2).selectExpr("sum(id)").collect()
    began = time.perf_counter()
    if sys.argv[1] == NAME:
        run_batch(
            declare(os.environ["LARGE_BATCH_OUTPUT"], int(os.environ["LARGE_BATCH_RECEIVERS"])),
            batch_time=datetime.fromisoformat(sys.argv[2]),
            attempt=1,
            run_id="run",
            settings=settings,
            session=lambda: spark_session(settings, application=NAME),
        )
    else:
        lines = warm.session.read.parquet(os.environ["LARGE_BATCH_PARQUET"])
        summed(lines).write.parquet(os.environ["LARGE_BATCH_BARE_OUTPUT"])
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds}), flush=True)  # noqa: T201  the answer
    warm.session.stop()


if __name__ == "__main__":
    _main()
