"""What a Spark task does for a sink whose commit names files: one Parquet file per task attempt.

Runs in Spark's Python workers, so it loads neither Spark nor Dagster nor the driver log. A file that Spark does not
pass on, of a task that lost or was run again, is named by no commit, and nobody reads it.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestration.spark.sinks.batch_column import BATCH_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    import pyarrow as pa

    from orchestration.spark.sinks.sink import OutputAttempt

#: What a task answers with: its file, by its whole path, its size in bytes and the rows in it.
ANSWER = "path string, size bigint, rows bigint"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that counts, if the commit names it."""

    path: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class ParquetStaging:
    """Where the tasks of one attempt at an output put their files; `schema` is the result's, in Arrow's own bytes."""

    directory: str
    schema: bytes
    batch_time: datetime

    def task(self) -> Any:  # noqa: ANN401  a function on iterators, as Spark takes it
        """The function that each task runs."""

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return self.stage(batches)

        return stage

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a task's rows, and answer with the file; nothing for no rows. The file is synced."""
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        schema = pa.ipc.read_schema(pa.BufferReader(self.schema))
        file = f"{self.directory}/part-{secrets.token_hex(8)}.parquet"
        stream, writer, rows = None, None, 0
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if writer is None:
                    stream = self.create(file)
                    writer = pq.ParquetWriter(stream, with_batch_time(schema), compression="zstd")
                writer.write_table(self._with_time(batch, schema))
                rows += batch.num_rows
        finally:
            if writer is not None:
                writer.close()
        if stream is None:
            return
        size = self.keep(file, stream)
        yield pa.record_batch(
            {
                "path": pa.array([file]),
                "size": pa.array([size], pa.int64()),
                "rows": pa.array([rows], pa.int64()),
            }
        )

    def create(self, file: str) -> Any:  # noqa: ANN401  a stream of pyarrow's
        """Where a task writes `file`, which nobody has."""
        import pyarrow as pa  # noqa: PLC0415

        Path(file).parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(file, "wb")

    def keep(self, file: str, stream: Any) -> int:  # noqa: ANN401
        """Have what was written to `stream` in `file`, durable on return; its size in bytes."""
        stream.close()
        for made in (Path(file), Path(file).parent):
            _sync(made)
        return Path(file).stat().st_size

    def _with_time(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415

        table = pa.Table.from_batches([batch]).cast(schema)
        time = pa.array([self.batch_time] * table.num_rows, pa.timestamp("us", "UTC"))
        return table.append_column(pa.field(BATCH_TIME, time.type), time)


def staged_files(result: Any, directory: Path, schema: pa.Schema, attempt: OutputAttempt) -> list[StagedFile]:  # noqa: ANN401
    """Run the result's tasks; the files of those that count."""
    staging = ParquetStaging(str(directory), schema.serialize().to_pybytes(), attempt.batch_time)
    files = staged_by(result, staging)
    if files:
        _sync(directory.parent)
    return files


def staged_by(result: Any, staging: ParquetStaging) -> list[StagedFile]:  # noqa: ANN401
    """Run the result's tasks; the files of those that count."""
    answers = result.mapInArrow(staging.task(), ANSWER).collect()
    return [StagedFile(row["path"], row["size"], row["rows"]) for row in answers]


def with_batch_time(schema: pa.Schema) -> pa.Schema:
    """The schema of what is written."""
    import pyarrow as pa  # noqa: PLC0415

    return schema.append(pa.field(BATCH_TIME, pa.timestamp("us", "UTC")))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
