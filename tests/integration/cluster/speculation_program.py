"""Run one batch with an output of each kind, where tasks are raced by others or die after they have written.

In each output's last stage, the first attempt at the first task waits until a second attempt has written the same rows;
then both end. The second task fails once, after its rows are written. A file `MARKS/OUTPUT/PARTITION-ATTEMPT` marks
what an attempt has written. Prints the number of rows of each output.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay import DeltaSink, EnvVar, IcebergSink, ParquetSink, Pipeline, PostgresSink, Stream
from forebay.sources import SocketText
from orchestration.batches.batch_run import run_batch
from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

    Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

OUTPUTS = ("parquet", "compacted", "postgres", "delta", "iceberg")


def declare(directory: Path) -> Pipeline:
    """Declare the words of each line as an output of each kind below `directory`, and in the Postgres at TARGET_URL."""
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval="1h")
    catalog: dict[str, Any] = {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/iceberg",
    }
    sinks = {
        "parquet": ParquetSink(directory / "parquet"),
        "compacted": ParquetSink(directory / "compacted", compact=True),
        "postgres": PostgresSink(EnvVar("TARGET_URL"), "words"),
        "delta": DeltaSink(directory / "delta"),
        "iceberg": IcebergSink("shop.words", catalog=catalog),
    }

    def add(name: str) -> None:
        @pipeline.output(name=name, inputs=[lines], sink=sinks[name])
        def words(lines: DataFrame) -> Any:  # noqa: ANN401  a frame, or what looks like one
            frame = lines.selectExpr("explode(split(value, ' ')) AS word").repartition(4)
            marks = directory / "marks" / name
            marks.mkdir(parents=True)
            if name == "parquet":
                # Spark itself writes here: the code after the last row runs before its files are committed.
                return frame.mapInArrow(unsteady(passed_on, str(marks)), frame.schema)
            return Unsteady(frame, str(marks))

    for name in OUTPUTS:
        add(name)
    return pipeline


def passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass the batches on unchanged."""
    yield from batches


def unsteady(task: Task, marks: str) -> Task:
    """Wrap `task` to be raced or die after it has written."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415  in the worker

        yield from task(batches)
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        Path(f"{marks}/{partition}-{attempt}").touch()
        if (partition, attempt) == (1, 0):
            raise OSError("died when its rows were written")
        if (partition, attempt) == (0, 0):
            give_up = time.monotonic() + 60
            while not list(Path(marks).glob("0-[1-9]")):
                assert time.monotonic() < give_up, "no other attempt raced it"
                time.sleep(0.05)

    return run


class Unsteady:
    """A frame whose sink's tasks are raced, or die, after they have written."""

    def __init__(self, frame: DataFrame, marks: str) -> None:
        self._frame = frame
        self._marks = marks

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._frame, name)

    def mapInArrow(self, task: Task, schema: str) -> DataFrame:  # noqa: N802  Spark's name
        """Run the sink's task, then this class's part."""
        return self._frame.mapInArrow(unsteady(task, self._marks), schema)


if __name__ == "__main__":
    settings = Settings()
    results = run_batch(
        declare(Path(sys.argv[1])),
        batch_time=datetime.fromisoformat(sys.argv[2]),
        attempt=1,
        run_id="run",
        settings=settings,
        session=lambda: spark_session(settings, application="words"),
    )
    sys.stdout.write(json.dumps([result.rows for result in results]) + "\n")
