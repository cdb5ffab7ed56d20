"""Write one Parquet file per Spark task attempt, for sinks whose commit names files.

Runs in Spark's Python workers, so it loads neither Spark nor Dagster nor the driver log. No commit names the file of a
task attempt that lost or was run again, because Spark does not pass it on, so it is never read.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.directories import sync
from orchestration.sinks.refused_rows import check_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    import pyarrow as pa

#: The columns of a task's answer: its file's full path, the size in bytes, and the number of rows.
ANSWER = "path string, size bigint, rows bigint"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """Describe a file of a valid task attempt, to be named by the commit."""

    path: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class ParquetStaging:
    """Write the files of the tasks of one attempt at an output; `schema` is the result's, serialized by Arrow.

    `batch_time` is that of the column `_batch_time`; None: the files don't have it.
    """

    directory: str
    schema: bytes
    batch_time: datetime | None

    def task(self) -> Any:  # noqa: ANN401  a function on iterators, as Spark takes it
        """Return the function that each task runs."""

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return self.stage(batches)

        return stage

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a task's rows to a synced file, and yield the answer; nothing if there are no rows.

        Raises RefusedRowsError.
        """
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        schema = pa.ipc.read_schema(pa.BufferReader(self.schema))
        file = f"{self.directory}/part-{secrets.token_hex(8)}.parquet"
        stream, writer, rows = None, None, 0
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                check_text(batch)
                if writer is None:
                    stream = self.create(file)
                    of_files = schema if self.batch_time is None else with_batch_time(schema)
                    writer = pq.ParquetWriter(stream, of_files, compression="zstd")
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
        """Open a stream to write the new file `file`."""
        import pyarrow as pa  # noqa: PLC0415

        Path(file).parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(file, "wb")

    def keep(self, file: str, stream: Any) -> int:  # noqa: ANN401
        """Finish `stream`, so that `file` is durable on return; return its size in bytes."""
        stream.close()
        for made in (Path(file), Path(file).parent):
            sync(made)
        return Path(file).stat().st_size

    def _with_time(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415

        table = pa.Table.from_batches([batch]).cast(schema)
        if self.batch_time is None:
            return table
        time = pa.array([self.batch_time] * table.num_rows, pa.timestamp("us", "UTC"))
        return table.append_column(pa.field(BATCH_TIME, time.type), time)


def staged_files(
    result: Any,  # noqa: ANN401
    directory: Path,
    schema: pa.Schema,
    batch_time: datetime | None,
) -> list[StagedFile]:
    """Run the result's tasks, writing to `directory`; return the files of the valid task attempts."""
    staging = ParquetStaging(str(directory), schema.serialize().to_pybytes(), batch_time)
    files = staged_by(result, staging)
    if files:
        sync(directory.parent)
    return files


def empty_file(directory: Path, schema: pa.Schema) -> StagedFile:
    """Write a file of these columns without a row; it is synced on return."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    file = directory / f"part-{secrets.token_hex(8)}.parquet"
    pq.write_table(schema.empty_table(), file, compression="zstd")
    sync(file)
    sync(directory)
    return StagedFile(str(file), file.stat().st_size, 0)


def staged_by(result: Any, staging: ParquetStaging) -> list[StagedFile]:  # noqa: ANN401
    """Run the result's tasks with `staging`; return the files of the valid task attempts."""
    answers = result.mapInArrow(staging.task(), ANSWER).collect()
    return [StagedFile(row["path"], row["size"], row["rows"]) for row in answers]


def with_batch_time(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the files: `schema` with the batch time."""
    import pyarrow as pa  # noqa: PLC0415

    return schema.append(pa.field(BATCH_TIME, pa.timestamp("us", "UTC")))
