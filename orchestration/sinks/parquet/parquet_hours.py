"""Merge the batches of a ParquetSink's hour into one directory, `batch_time=YYYYMMDDTHH`, and change it later.

The column `_batch_time` holds a row's batch, so that a later replay of a batch replaces only its own rows. A new
version of an hour is written beside the old one, and replaces it atomically: readers see each row once. Only one
process at a time may change an hour. (On an object store: `parquet_object_hours`.) Loads neither Spark nor Dagster nor
the driver log.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from orchestration.declarations.sink import SinkError, Step
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.column_changes import union_schema
from orchestration.sinks.directories import hidden_beside, recover, replace, sweep, sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime
    from pathlib import Path

    import pyarrow as pa

_BATCH = "batch_time="


def batches_of(hour: Path) -> list[Path]:
    """Return the directories of an hour that readers see."""
    return sorted(entry for entry in hour.glob(f"{_BATCH}*") if entry.is_dir()) if hour.is_dir() else []


def compacted_directory(hour: Path, name: str) -> Path:
    """Return the directory of a compacted hour's rows; `name` is YYYYMMDDTHH."""
    return hour / f"{_BATCH}{name}"


def rewrite_hour(
    hour: Path,
    name: str,
    *,
    check: Callable[[], None],
    reached: Callable[[Step], None],
    replaced: datetime | None = None,
    by: Sequence[Path] = (),
) -> int:
    """Rewrite an hour as one directory, with the files `by` in place of the rows of the batch `replaced`.

    Returns its number of rows. Raises SinkError, without any change, if the files' columns don't fit together.
    """
    recover(hour)
    sweep(hour)
    files = [file for directory in batches_of(hour) for file in _parquet(directory)]
    staged = hidden_beside(hour)
    target = compacted_directory(staged, name)
    target.mkdir(parents=True)
    try:
        part = target / f"part-{staged.name.rpartition('.')[2]}.parquet"
        rows = write_as_one(part, files, by, replaced, where=hour)
        for made in (part, target, staged):
            sync(made)
        reached(Step.STAGED)
        replace(staged, hour, check)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    reached(Step.COMMITTED)
    return rows


def _parquet(directory: Path) -> list[Path]:
    return sorted(file for file in directory.glob("*.parquet") if file.name[0] not in "_.")


def write_as_one(
    sink: object,
    files: Sequence[Path | str],
    by: Sequence[Path | str],
    replaced: datetime | None,
    *,
    where: object,
    filesystem: object = None,
) -> int:
    """Write the rows of `files` to `sink`, those of `by` in place of the batch `replaced`; return the number of rows.

    Writes one record batch after the other, so that an hour need not fit in memory. `where` names the hour in messages;
    `filesystem` is pyarrow's, for files that are not on this machine. Raises SinkError if the files' columns don't fit
    together.
    """
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    schema = _schema([*files, *by], where, filesystem)
    rows = 0
    try:
        with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            for of_these, without in ((files, replaced), (by, None)):
                for table in _tables(of_these, without, filesystem):
                    writer.write_table(_fitted(table, schema))
                    rows += table.num_rows
    except pa.ArrowException as error:
        raise SinkError(f"the files of {where} can't be written as one: {error}") from error
    return rows


def _schema(files: Iterable[Path | str], where: object, filesystem: object) -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    schemas = []
    for file in files:
        schema = pq.read_schema(file, filesystem=filesystem).remove_metadata()
        if BATCH_TIME not in schema.names:
            raise SinkError(
                f"{file} has no column {BATCH_TIME}, so that its hour can't be one directory: its sink had "
                "compact=False when it was written; replay its batch with compact=True, or leave the hour as it is"
            )
        schemas.append(schema)
    try:
        return union_schema(schemas, "a batch")
    except (SinkError, pa.ArrowException) as error:
        raise SinkError(f"the files of {where} have columns that don't fit together: {error}") from error


def _tables(files: Iterable[Path | str], without: datetime | None, filesystem: object) -> Iterable[pa.Table]:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    for file in files:
        with pq.ParquetFile(file, filesystem=filesystem) as parquet:
            for batch in parquet.iter_batches():
                table = pa.Table.from_batches([batch])
                if without is not None:
                    time = pa.scalar(without, pa.timestamp("us", "UTC"))
                    table = table.filter(pc.not_equal(table[BATCH_TIME], time))
                yield table


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415

    return pa.table(
        [
            table[field.name].cast(field.type)
            if field.name in table.column_names
            else pa.nulls(table.num_rows, field.type)
            for field in schema
        ],
        schema=schema,
    )
