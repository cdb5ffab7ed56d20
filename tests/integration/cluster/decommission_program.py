"""Run one batch of words whose tasks wait, once they have begun, until the file MARKS/go is there.

Arguments: output, batch time; MARKS is `OUTPUT-marks`. A task marks that it runs by a file MARKS/task-PID-PARTITION.
Prints the number of rows of each output.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.batches.batch_run import run_batch
from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame


def declare(output: Path | str) -> Pipeline:
    """Declare a pipeline that counts the words of lines, in two stages: the tasks of the second one wait."""
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval="1h")
    marks = f"{output}-marks"

    @pipeline.output(inputs=[lines], sink=ParquetSink(output))
    def words(lines: DataFrame) -> DataFrame:
        # The files of the first shuffle are on both executors when the tasks of the second stage wait.
        split = lines.selectExpr("explode(split(value, ' ')) AS word").repartition(4)
        return split.mapInArrow(waiting(marks), split.schema).groupBy("word").count()

    return pipeline


def waiting(marks: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a task that marks its beginning and waits for MARKS/go."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os  # noqa: PLC0415  in the worker

        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        assert context is not None
        Path(f"{marks}/task-{os.getpid()}-{context.partitionId()}").touch()
        give_up = time.monotonic() + 120
        while not Path(f"{marks}/go").exists():
            assert time.monotonic() < give_up, "nobody let the tasks go on"
            time.sleep(0.05)
        yield from batches

    return run


if __name__ == "__main__":
    Path(f"{sys.argv[1]}-marks").mkdir(exist_ok=True)
    settings = Settings()
    results = run_batch(
        declare(sys.argv[1]),
        batch_time=datetime.fromisoformat(sys.argv[2]),
        attempt=1,
        run_id="run",
        settings=settings,
        session=lambda: spark_session(settings, application="words"),
    )
    sys.stdout.write(json.dumps([result.rows for result in results]) + "\n")
