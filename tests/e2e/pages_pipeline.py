"""The pipelines whose pages are tested: one that succeeds, and one that fails at a record that names itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POISON = 500

numbers = Stream("numbers", SocketText(host="127.0.0.1", port=int(os.environ["NUMBERS_PORT"])))
numbered = Pipeline("numbered", interval="2s", catch_up="merge")
brittle = Pipeline("brittle", interval="10s", catch_up="merge", max_attempts=1)


@numbered.output(inputs=[numbers], sink=ParquetSink(os.environ["NUMBERS_OUTPUT"]))
def seen(numbers: DataFrame) -> DataFrame:
    """Each number that came in."""
    return numbers.selectExpr("CAST(value AS BIGINT) AS number")


@brittle.output(inputs=[numbers], sink=ParquetSink(os.environ["NUMBERS_OUTPUT"] + "-brittle"))
def checked(numbers: DataFrame) -> DataFrame:
    """Return the same numbers, but fail the batch at a bad number."""
    good = numbers.selectExpr("CAST(value AS BIGINT) AS number")
    return good.selectExpr(f"IF(number = {POISON}, raise_error('number {POISON} is no good'), number) AS number")
