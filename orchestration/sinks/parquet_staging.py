"""Write one Parquet file per Spark task attempt, for sinks whose commit names files.

Runs in Spark's Python workers, so it loads neither Spark nor Dagster nor the driver log. No commit names the file of a
task attempt that lost or was run again, because Spark does not pass it on, so it is never read.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.parquet_partitions import check_number, values_of
from orchestration.sinks.refused_files import stage
from orchestration.sinks.refused_rows import (
    KEEP_WAY_OUT,
    TEXT_WAY_OUT,
    RefusedRow,
    RefusedRows,
    readable_row,
    row_as_json,
    shown,
    take_good_text,
)
from orchestration.sinks.task_rows import answers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    import pyarrow as pa

    from orchestration.sinks.file_stores import FileStore
    from orchestration.sinks.parquet_partitions import Parting

#: The columns of a task's answer: its file's key (null: none) and part, the size in bytes, the number of rows, that of
#: refused ones, and these as lines of JSON.
ANSWER = "path string, part string, size bigint, rows bigint, refused bigint, refused_rows binary"
# As a PostgresSink says it.
_REPEATED = "several rows of the batch have this key, and one can be kept: group by the key, or drop all but one"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """Describe a file of a valid task attempt, to be named by the commit."""

    path: str  # its key in the store
    size: int
    rows: int
    part: str = ""  # the name that `Parting` gives to its rows


@dataclass(frozen=True, slots=True)
class Staged:
    """Hold what the valid task attempts wrote, and the number of rows that they refused."""

    files: list[StagedFile]
    refused: int

    @property
    def rows(self) -> int:
        """Return the number of rows in the files."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class ParquetStaging:
    """Write the files of the tasks of one attempt at an output; `schema` is the result's, serialized by Arrow.

    They lie in `folder` of the store, in the folders of `parting`. `batch_time` is that of the column `_batch_time`;
    None: the files don't have it. `keeps_refused`: rows that can't be stored are answered, and don't fail the task; a
    null in a column that must not be null is such a row.
    """

    store: FileStore
    folder: str
    schema: bytes
    batch_time: datetime | None
    keeps_refused: bool = False
    parting: Parting | None = None

    def task(self) -> Any:  # noqa: ANN401  a function on iterators, as Spark takes it
        """Return the function that each task runs."""

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return self.stage(batches)

        return stage

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a task's rows to durable files, one per folder, and yield the answer; nothing if there are no rows.

        Raises RefusedRowsError.
        """
        import pyarrow as pa  # noqa: PLC0415

        schema = pa.ipc.read_schema(pa.BufferReader(self.schema))
        plain = pa.schema([field for field in schema if field.name != BATCH_TIME])
        of_files = self._of_files(schema)
        refused = RefusedRows(keeps=self.keeps_refused, way_out=TEXT_WAY_OUT + KEEP_WAY_OUT)
        files: dict[str, _OpenFile] = {}
        try:
            for good in self._good(batches, refused):
                for part, rows in self._parted(_without_nulls(good, plain, refused).cast(plain), refused):
                    if part not in files:
                        check_number(len(files) + 1)
                        files[part] = self._open(part, of_files)
                    files[part].write(self._with_time(rows))
        finally:
            for file in files.values():
                file.close()
        if not files and not refused.rows:
            return
        stored = [file.kept(self.store, part) for part, file in files.items()]
        # A task that stored nothing answers by one row without a file.
        paths: list[str | None] = [file.path for file in stored] or [None]
        none = [0] * (len(paths) - 1)
        yield pa.record_batch(
            {
                "path": pa.array(paths, pa.string()),
                "part": pa.array([file.part for file in stored] or [""], pa.string()),
                "size": pa.array([file.size for file in stored] or [0], pa.int64()),
                "rows": pa.array([file.rows for file in stored] or [0], pa.int64()),
                "refused": pa.array([len(refused.rows), *none], pa.int64()),
                "refused_rows": pa.array([refused.lines(), *(b"" for _ in none)], pa.binary()),
            }
        )

    def _of_files(self, schema: pa.Schema) -> pa.Schema:
        import pyarrow as pa  # noqa: PLC0415

        whole = schema if self.batch_time is None else with_batch_time(schema)
        left_out = () if self.parting is None else self.parting.columns
        return pa.schema([field for field in whole if field.name not in left_out], whole.metadata)

    def _parted(self, rows: pa.Table, refused: RefusedRows) -> Iterable[tuple[str, pa.Table]]:
        return [("", rows)] if self.parting is None else self.parting.parted(rows, refused)

    def _open(self, part: str, schema: pa.Schema) -> _OpenFile:
        folder = part if self.parting is None else self.parting.folder(part)
        path = "/".join(filter(None, (self.folder, folder, f"part-{secrets.token_hex(8)}.parquet")))
        return _OpenFile(path, schema, self.store.create(path))

    def _good(self, batches: Iterable[pa.RecordBatch], refused: RefusedRows) -> Iterator[pa.Table]:
        import pyarrow as pa  # noqa: PLC0415

        for batch in batches:
            if not batch.num_rows:
                continue
            parts = list(take_good_text(batch, refused))
            refused.end()
            if parts:
                # In one piece: each that is written is a row group.
                yield pa.Table.from_batches(parts)

    def _with_time(self, rows: pa.Table) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415

        if self.batch_time is None:
            return rows
        time = pa.repeat(pa.scalar(self.batch_time, pa.timestamp("us", "UTC")), rows.num_rows)
        return rows.append_column(pa.field(BATCH_TIME, time.type), time)


@dataclass(slots=True)
class _OpenFile:
    """Write one file."""

    path: str
    schema: pa.Schema
    stream: Any
    rows: int = 0
    _writer: Any = None

    def write(self, rows: pa.Table) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415

        if self._writer is None:
            self._writer = pq.ParquetWriter(self.stream, self.schema, compression="zstd")
        self._writer.write_table(rows)
        self.rows += rows.num_rows

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def kept(self, store: FileStore, part: str) -> StagedFile:
        """Make the file durable, and describe it."""
        return StagedFile(self.path, store.keep(self.path, self.stream), self.rows, part)


def staged_files(result: Any, staging: ParquetStaging, key: Sequence[str] = ()) -> Staged:  # noqa: ANN401
    """Run the result's tasks with `staging`; return what the valid task attempts wrote and refused, all durable.

    `key`: columns, none of them nested; rows that share their values with others are refused. Raises RefusedRowsError.
    """
    answers = answers_of(result, staging.task(), ANSWER)
    files = [
        StagedFile(row["path"], row["size"], row["rows"], row["part"]) for row in answers if row["path"] is not None
    ]
    refused = RefusedRows(keeps=staging.keeps_refused, way_out=KEEP_WAY_OUT)
    if key:
        files = _one_row_per_key(files, staging, list(key), refused)
    # Spark gives a bytearray.
    lines = b"".join(bytes(row["refused_rows"]) for row in answers) + refused.lines()
    stage(staging.store, staging.folder, lines)
    return Staged(files, sum(row["refused"] for row in answers) + len(refused.rows))


def _one_row_per_key(
    files: Sequence[StagedFile], staging: ParquetStaging, key: list[str], refused: RefusedRows
) -> list[StagedFile]:
    """Return the files without rows whose key another row has too, in this file or another one; refuse these rows."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    if not files:
        return []
    keys = []
    for number, file in enumerate(files):
        # A column of the key that the files lack is the same in a whole part.
        with staging.store.open(file.path) as source:
            found = pq.ParquetFile(source)
            there = found.read([name for name in key if name in found.schema_arrow.names])
        for name in [name for name in key if name not in there.column_names]:
            value = values_of(file.part).get(name, "")
            there = there.append_column(name, pa.array([value] * file.rows, pa.string()))
        rows = there.select(key).append_column("the file", pa.array([number] * file.rows, pa.int32()))
        keys.append(rows.rename_columns([*map(str, range(len(key))), "file"]))
    whole = pa.concat_tables(keys)
    names = [*map(str, range(len(key)))]
    counts = whole.group_by(names).aggregate([([], "count_all")])
    several = counts.filter(pc.greater(counts["count_all"], 1)).drop_columns(["count_all"])
    if not several.num_rows:
        return list(files)
    kept = []
    for number, file in enumerate(files):
        numbered = keys[number].append_column("row", pa.array(range(file.rows), pa.int64()))
        repeated = numbered.join(several, names, join_type="left semi")["row"].to_pylist()
        kept.append(_rewritten(file, staging, key, sorted(repeated), refused) if repeated else file)
    refused.end()
    return [file for file in kept if file.rows]


def _rewritten(
    file: StagedFile, staging: ParquetStaging, key: list[str], repeated: list[int], refused: RefusedRows
) -> StagedFile:
    """Return a file with the rows of another one but the repeated ones, which are refused."""
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    with staging.store.open(file.path) as source:
        table = pq.ParquetFile(source).read()
    for at in repeated:
        row = readable_row(table.slice(at, 1).combine_chunks().to_batches()[0])
        row.pop(BATCH_TIME, None)
        row |= values_of(file.part)
        said = ", ".join(f"{name}={shown(row[name])}" for name in key if name in row)
        refused.add(RefusedRow(row_as_json(row), f"the key ({said}): {_REPEATED}"))
    rows = table.take(pa.array(np.setdiff1d(np.arange(table.num_rows), repeated)))
    if not rows.num_rows:
        return StagedFile(file.path, file.size, 0, file.part)
    again = staging._open(file.part, table.schema)  # noqa: SLF001  of this module
    again.write(rows)
    again.close()
    return again.kept(staging.store, file.part)


def _without_nulls(rows: pa.Table, schema: pa.Schema, refused: RefusedRows) -> pa.Table:
    """Return the rows without a null in a column that must not be null, and add the others to `refused`."""
    import pyarrow.compute as pc  # noqa: PLC0415

    required = [field.name for field in schema if not field.nullable and rows[field.name].null_count]
    for name in required:
        is_null = pc.is_null(rows[name])
        for row in rows.filter(is_null).to_batches():
            for at in range(row.num_rows):
                one = readable_row(row.slice(at, 1))
                refused.add(RefusedRow(row_as_json(one), f"column {name} is null, and must have a value"))
        rows = rows.filter(pc.invert(is_null))
    refused.end()
    return rows


def empty_file(store: FileStore, folder: str, schema: pa.Schema) -> StagedFile:
    """Write a durable file of these columns without a row."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    key = f"{folder}/part-{secrets.token_hex(8)}.parquet"
    stream = store.create(key)
    pq.write_table(schema.empty_table(), stream, compression="zstd")
    return StagedFile(key, store.keep(key, stream), 0)


def with_batch_time(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the files: `schema` with the batch time, if it has not got it."""
    import pyarrow as pa  # noqa: PLC0415

    return schema if BATCH_TIME in schema.names else schema.append(pa.field(BATCH_TIME, pa.timestamp("us", "UTC")))
