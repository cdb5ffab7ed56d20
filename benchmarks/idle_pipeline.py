"""The pipeline of `benchmarks.idle`: one stream, whose source sends nothing, every 10 s to Parquet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

lines = Stream("lines", SocketText(host="127.0.0.1", port=int(os.environ["IDLE_PORT"])))
pipeline = Pipeline("idle", interval="10s")


@pipeline.output(inputs=[lines], sink=ParquetSink(os.environ["IDLE_OUTPUT"]))
def counts(lines: DataFrame) -> DataFrame:
    """Count the lines by their text."""
    return lines.groupBy("value").count()
