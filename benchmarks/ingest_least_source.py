"""Do the least that a Python data source of Spark can do: the floor of `benchmarks.ingest`'s reading back.

It reads the same rows from uncompressed Arrow files, which lie in the page cache, without any check, and hands the
batches on as they are. What remains is Spark's own part: planning in a Python worker, tasks, and turning columns into
rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FORMAT = "least"
_FILES = "files"


def write_arrow(batches: Iterable[pa.RecordBatch], directory: Path, rows_per_file: int) -> list[Path]:
    """Write batches to uncompressed Arrow files of about this many rows; return the files."""
    directory.mkdir()
    paths: list[Path] = []
    writer: pa.RecordBatchStreamWriter | None = None
    rows = 0
    for batch in batches:
        if writer is None or rows >= rows_per_file:
            if writer is not None:
                writer.close()
            paths.append(directory / f"{len(paths)}.arrow")
            writer, rows = pa.ipc.new_stream(str(paths[-1]), batch.schema), 0
        writer.write_batch(batch)
        rows += batch.num_rows
    if writer is not None:
        writer.close()
    return paths


def read_least(session: SparkSession, files: Sequence[Path]) -> DataFrame:
    """Return the rows of such files, which have one column of text: a task for each file."""
    session.dataSource.register(LeastSource)
    return session.read.format(_FORMAT).option(_FILES, "\n".join(map(str, files))).load()


class LeastSource(DataSource):
    """Read Arrow files."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return _FORMAT

    def schema(self) -> str:
        """Return the columns as DDL."""
        return "value STRING"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        del schema
        return LeastReader(self.options[_FILES].split("\n"))


class LeastReader(DataSourceReader):
    """Yield the batches of a file in each task."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each file."""
        return [InputPartition(path) for path in self._files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one file; they share the file's pages."""
        with pa.memory_map(partition.value) as file, pa.ipc.open_stream(file) as reader:
            yield from reader
