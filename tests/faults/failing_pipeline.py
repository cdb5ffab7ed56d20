"""The numbered pipeline, each batch of which fails while a file `fails` exists in the home."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FAILS = Path(os.environ["NUMBERS_OUTPUT"]).parent / "fails"

numbers = Stream("numbers", SocketText(host="127.0.0.1", port=int(os.environ["NUMBERS_PORT"])))
pipeline = Pipeline("numbered", interval="2s", catch_up="merge", max_attempts=10_000)


@pipeline.output(inputs=[numbers], sink=ParquetSink(os.environ["NUMBERS_OUTPUT"]))
def seen(numbers: DataFrame) -> DataFrame:
    """Return each number that came in, unless it fails."""
    if FAILS.exists():
        raise RuntimeError("told to fail")
    return numbers.selectExpr("CAST(value AS BIGINT) AS number")
