"""Count the words of a socket's lines, every 10 seconds: `forebay up examples/word_count.py`."""  # noqa: INP001  a folder of examples is no package

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
pipeline = Pipeline("word_count", interval="10s")


@pipeline.output(inputs=[lines], sink=ParquetSink("data/word_counts"))
def word_counts(lines: DataFrame) -> DataFrame:
    """Count how often each word occurs in the batch."""
    words = lines.selectExpr("explode(split(value, ' ')) AS word")
    return words.groupBy("word").count()
