"""Count lines by their key, in Spark, to Parquet: the pipeline of `benchmarks.batch_latency`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

lines = Stream("lines", SocketText(host="127.0.0.1", port=int(os.environ["BATCH_LATENCY_PORT"])))
pipeline = Pipeline("latency", interval=os.environ["BATCH_LATENCY_INTERVAL"])


@pipeline.output(inputs=[lines], sink=ParquetSink(os.environ["BATCH_LATENCY_OUTPUT"]))
def counts(lines: DataFrame) -> DataFrame:
    """Count the lines of each key."""
    return lines.selectExpr("substring_index(value, ' ', 1) AS key").groupBy("key").count()
