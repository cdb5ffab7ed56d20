"""A pipeline with two outputs of its numbered input, the first of which fails while the file `fail` exists."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from forebay import Batch, ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUTPUT = os.environ["NUMBERS_OUTPUT"]
HOME = Path(OUTPUT).parent

numbers = Stream("numbers", SocketText(host="127.0.0.1", port=int(os.environ["NUMBERS_PORT"])))
pipeline = Pipeline("numbered", interval="2s", catch_up="merge", max_attempts=2)


@pipeline.output(inputs=[numbers], sink=ParquetSink(f"{OUTPUT}-checked"))
def checked(numbers: DataFrame) -> DataFrame:
    """Return each number, or fail."""
    if (HOME / "fail").exists():
        raise ValueError("the file is there")
    return numbers.selectExpr("CAST(value AS BIGINT) AS number")


@pipeline.output(inputs=[numbers], sink=ParquetSink(OUTPUT))
def seen(numbers: DataFrame, batch: Batch) -> DataFrame:
    """Return each number; note the batch and its attempt."""
    with (HOME / "calls").open("a", encoding="utf-8") as calls:
        calls.write(f"{batch.time.isoformat()} {batch.attempt}\n")
    return numbers.selectExpr("CAST(value AS BIGINT) AS number")
