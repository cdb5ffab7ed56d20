"""A pipeline that outputs its numbered input and holds every batch while a file exists.

A test copies this file into its own folder, so its changes there affect no other test's code.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from forebay import Batch, ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

HOME = Path(os.environ["NUMBERS_OUTPUT"]).parent
VERSION = "one"
POLL_SECONDS = 0.02

numbers = Stream("numbers", SocketText(host="127.0.0.1", port=int(os.environ["NUMBERS_PORT"])))
pipeline = Pipeline("numbered", interval="2s", catch_up="merge", max_attempts=5)


@pipeline.output(inputs=[numbers], sink=ParquetSink(os.environ["NUMBERS_OUTPUT"]))
def seen(numbers: DataFrame, batch: Batch) -> DataFrame:
    """Return each number; wait in Python while file `hold-python` exists, in a Spark job while `hold-spark` does."""
    session = numbers.sparkSession
    print(f"version {VERSION} of {batch.time.isoformat()}")  # noqa: T201  a user's function prints
    print(f"dirty {session.conf.get('spark.forebay.test', 'no')}", file=sys.stderr)  # noqa: T201
    session.conf.set("spark.forebay.test", "yes")
    if (HOME / "hold-python").exists() or (HOME / "hold-spark").exists():
        print("held", flush=True)  # noqa: T201
    while (HOME / "hold-python").exists():
        time.sleep(POLL_SECONDS)
    result = numbers.selectExpr("CAST(value AS BIGINT) AS number")
    hold = str(HOME / "hold-spark")

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while os.path.exists(hold):  # noqa: PTH110  in Spark's worker, which has nothing from this module
            time.sleep(0.02)
        yield from batches

    return result.mapInArrow(wait, "number bigint") if Path(hold).exists() else result
