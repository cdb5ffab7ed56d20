"""The pipeline under fault: numbered lines in, the same numbers out, every 2 seconds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

numbers = Stream(
    "numbers",
    SocketText(host="127.0.0.1", port=int(os.environ["NUMBERS_PORT"])),
    block_interval=os.environ.get("NUMBERS_BLOCK_INTERVAL", "200ms"),
)
# "merge": a run is cold and takes longer than the interval, and the batches missed must not queue up run by run.
pipeline = Pipeline("numbered", interval="2s", catch_up="merge", max_attempts=5)


@pipeline.output(inputs=[numbers], sink=ParquetSink(os.environ["NUMBERS_OUTPUT"]))
def seen(numbers: DataFrame) -> DataFrame:
    """Return each number that came in."""
    return numbers.selectExpr("CAST(value AS BIGINT) AS number")
