"""The pipeline of the test of encryption: it shuffles every line, and what comes out has none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

lines = Stream("lines", SocketText(host="127.0.0.1", port=int(os.environ["NUMBERS_PORT"])), compression="none")
pipeline = Pipeline("private", interval="2s", catch_up="merge", max_attempts=5)


@pipeline.output(inputs=[lines], sink=ParquetSink(os.environ["NUMBERS_OUTPUT"]))
def counted(lines: DataFrame) -> DataFrame:
    """Return how many lines there are, and how many different ones."""
    return lines.groupBy("value").count().selectExpr("count").groupBy().sum("count").toDF("lines")
