"""Run one batch of a pipeline in this process, on FOREBAY_SPARK_MASTER, and print the number of rows of each output."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.batches.batch_run import run_batch
from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import WarmSession, spark_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame


def declare(output: Path | str) -> Pipeline:
    """Declare a pipeline that counts the words of lines."""
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval="1h")

    @pipeline.output(inputs=[lines], sink=ParquetSink(output))
    def words(lines: DataFrame) -> DataFrame:
        return lines.selectExpr("explode(split(value, ' ')) AS word").groupBy("word").count()

    return pipeline


if __name__ == "__main__":
    settings = Settings()
    # The session of a batch driver, which runs one batch after another.
    warm = WarmSession(settings, application="words")
    warm.begin("run")
    results = run_batch(
        declare(sys.argv[1]),
        batch_time=datetime.fromisoformat(sys.argv[2]),
        attempt=1,
        run_id="run",
        settings=settings,
        session=lambda: spark_session(settings, application="words"),
    )
    warm.reset()
    warm.cancel("run")
    sys.stdout.write(json.dumps([result.rows for result in results]) + "\n")
