"""Know the columns of all batches of a ParquetSink: `_common_metadata` has them, and Spark's readers take them of it.

Each batch's files keep their own columns. A result is compared with those of all batches before it is written, so that
readers can take the batches as one table: columns that a batch lacks are null, and narrower ones are widened. Loads
neither Spark nor Dagster nor the driver log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestration.declarations.sink import SinkError
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.column_changes import (
    ArrowDialect,
    ColumnChanges,
    Widening,
    arrow_changes,
    policy_for,
    union_schema,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    import pyarrow.dataset as ds

    from orchestration.sinks.column_changes import ColumnPolicy

#: The file that has the columns. Spark reads it by this name, and other readers skip it.
COLUMNS = "_common_metadata"
# How many of the oldest and of the newest files are looked at if there is no such file: those of 0.1.0 have none.
_LOOKED_AT = 500
_THREADS = 16


def fitted(
    result: pa.Schema,
    known: pa.Schema | None,
    policy: ColumnPolicy | None,
    *,
    name: str,
    where: str,
    partition_by: Sequence[str] = (),
) -> tuple[pa.Schema, ColumnChanges]:
    """Return a result's columns as its files have them, and what they change. Raises SinkError.

    `known`: the columns of all batches, if there are any. A narrower column is written as they have it.
    """
    import pyarrow as pa  # noqa: PLC0415

    if known is None:
        return result, ColumnChanges()
    table = pa.schema([column for column in known if column.name != BATCH_TIME])
    change = "Change the result, or give the output another path"
    dialect = ArrowDialect(name, "", frozenset(Widening), add_as="", widen_as="", change=change)
    kept = pa.schema([column for column in result if column.name not in partition_by])
    changes = arrow_changes(kept, table, dialect, policy=policy_for(policy, is_own=True), where=where)
    own = {*changes.added, *changes.widened, *partition_by}
    return pa.schema([column if column.name in own else table.field(column.name) for column in result]), changes


def grown(known: pa.Schema | None, more: pa.Schema) -> pa.Schema:
    """Return the columns of all batches with those of another one's files.

    If a column has two types (two attempts at once added it, or the files are of 0.1.0, which compared none), the newer
    one counts, because results are compared with it.
    """
    import pyarrow as pa  # noqa: PLC0415

    if known is None:
        return more
    try:
        return union_schema([known, more], "a batch")
    except SinkError:
        names = {name.lower() for name in more.names}
        return pa.schema([*(column for column in known if column.name.lower() not in names), *more])


def of_files(files: Sequence[Any], filesystem: Any = None) -> pa.Schema | None:  # noqa: ANN401  pyarrow has no types
    """Return the columns of published files, of many only those of the oldest and the newest; None: there are none."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    import pyarrow.parquet as pq  # noqa: PLC0415

    looked_at = files if len(files) <= 2 * _LOOKED_AT else [*files[:_LOOKED_AT], *files[-_LOOKED_AT:]]
    found: pa.Schema | None = None
    with ThreadPoolExecutor(_THREADS) as threads:
        for schema in threads.map(lambda file: pq.read_schema(file, filesystem=filesystem), looked_at):
            found = grown(found, schema.remove_metadata())
    return found


def as_bytes(columns: pa.Schema) -> bytes:
    """Return the contents of the file COLUMNS."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    sink = pa.BufferOutputStream()
    pq.write_metadata(columns, sink)
    return bytes(sink.getvalue())


def of_bytes(contents: bytes) -> pa.Schema:
    """Return the columns that the file COLUMNS has."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    return pq.read_schema(pa.BufferReader(contents)).remove_metadata()


def with_columns(found: ds.Dataset, known: pa.Schema | None, base: str) -> ds.Dataset:
    """Return a dataset of files below `base` with the columns of all batches, and behind them those of the folders."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.dataset as ds  # noqa: PLC0415

    columns = of_files(found.files, found.filesystem) if known is None else known
    if columns is None:
        return found
    folders = [column for column in found.schema if column.name not in columns.names]
    options = ds.FileSystemFactoryOptions(base, ds.HivePartitioning.discover())
    # Not by ds.dataset, which asks for each file again.
    factory = ds.FileSystemDatasetFactory(found.filesystem, found.files, ds.ParquetFileFormat(), options)
    return factory.finish(pa.schema([*columns, *folders]))
