"""Describe Parquet files to an Iceberg table, and write files again without some of their rows.

pyiceberg's `add_files` infers partitions from a column's least and greatest value, which says nothing of a bucket, and
its reader gives empty lists for null ones. So this module reads Parquet itself, and takes a file's statistics from what
pyiceberg's own writer takes them from. All names of pyiceberg that are not documented stand here; `check_version`
refuses a pyiceberg in which they may be others. Must never decide which rows a table keeps.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestration.declarations.sink import SinkError, TargetUnavailableError
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.refused_rows import RefusedRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table, Transaction

    from forebay_contrib.iceberg.partitions import PartitionedRows
    from orchestration.sinks.file_stores import FileStore
    from orchestration.sinks.parquet_staging import StagedFile

_VERSION = "0.12."
# Number of a row in its file; no column of a table has a name that begins so.
_NUMBER = "\0number"


def check_version(version: str) -> None:
    """Raise TargetUnavailableError for a pyiceberg whose undocumented names may be others."""
    if not version.startswith(_VERSION):
        raise TargetUnavailableError(
            f"IcebergSink writes by pyiceberg {_VERSION}x, and {version} is installed: pip install 'forebay[iceberg]'"
        )


def iceberg_schema(columns: pa.Schema) -> Schema:
    """Return the columns of a new table for a result's."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids  # noqa: PLC0415
    from pyiceberg.schema import assign_fresh_schema_ids  # noqa: PLC0415

    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(columns))


def arrow_schema_of(schema: Schema, columns: Sequence[str], key: Sequence[str]) -> pa.Schema:
    """Return these columns of a table, with their ids; tasks refuse nulls in those of the key too."""
    import pyarrow as pa  # noqa: PLC0415
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

    there = schema_to_pyarrow(schema)
    fields = [there.field(name) for name in columns]
    return pa.schema(
        [
            # Tasks add the batch time themselves.
            field.with_nullable(field.name == BATCH_TIME or (field.nullable and field.name not in key))
            for field in fields
        ]
    )


def columns_by_id(columns: pa.Schema, table: Table) -> dict[int, str]:
    """Return the names of a file's columns by the ids that they have in the table."""
    return {field.field_id: field.name for field in _schema_of_file(columns, table).fields}


def are_renamed_within(columns: pa.Schema, table: Table) -> bool:
    """Return whether fields within a file's columns have other names than in the table, or their names other ids."""
    from pyiceberg.schema import index_by_id  # noqa: PLC0415

    now = {field.field_id: field for field in table.schema().fields}
    for field in _schema_of_file(columns, table).fields:
        if field.field_id in now:
            old, new = (
                {number: inner.name for number, inner in index_by_id(one.field_type).items()}
                for one in (field, now[field.field_id])
            )
            both = old.keys() & new.keys()
            again = {old[number] for number in old.keys() - both} & {new[number] for number in new.keys() - both}
            if again or any(old[number] != new[number] for number in both):
                return True
    return False


def unless_changed(transaction: Transaction, table: Table) -> None:
    """Have a transaction without a snapshot fail if another commit of rows comes first."""
    from pyiceberg.table.refs import MAIN_BRANCH  # noqa: PLC0415
    from pyiceberg.table.update import AssertRefSnapshotId  # noqa: PLC0415

    current = table.metadata.current_snapshot_id
    transaction._apply((), (AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=current),))  # noqa: SLF001


def opened(stream: Any) -> Any:  # noqa: ANN401  a file of pyarrow's, and a ParquetFile
    """Open a Parquet file, to read it as it is."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    return pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")


def rows_of(stream: Any, columns: list[str] | None = None) -> pa.Table:  # noqa: ANN401
    """Read a Parquet file; `columns`: these alone."""
    return opened(stream).read(columns=columns)


def write_parquet(stream: Any, pieces: Iterable[pa.Table], columns: pa.Schema) -> None:  # noqa: ANN401
    """Write a Parquet file, each piece a row group, with the ids of the columns as the schema has them."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    with pq.ParquetWriter(stream, columns, compression="zstd") as writer:
        for piece in pieces:
            writer.write_table(piece)


def deleted_rows(table: Table, task: FileScanTask) -> list[int]:
    """Return the numbers of a file's rows that delete files of the table (also deletion vectors) have deleted."""
    from pyiceberg.io.pyarrow import _read_all_delete_files  # noqa: PLC0415

    if not task.delete_files:
        return []
    found = _read_all_delete_files(table.io, [task]).get(task.file.file_path, [])
    return [number for positions in found for number in positions.to_pylist()]


def name_of(file: DataFile) -> str:
    """Return the location of a file."""
    return str(file.file_path)


@dataclass(frozen=True, slots=True)
class DataFiles:
    """Describe and write the files of a table, whose schema and spec are those that the commit leaves."""

    table: Table
    schema: Schema
    parting: PartitionedRows
    store: FileStore

    def staged(self, file: StagedFile) -> list[DataFile]:
        """Describe a file that a task wrote, all of whose rows are in one partition.

        If the table has got another spec since, the rows are written again by that. Raises SinkError if its columns
        have changed so that the file does not fit.
        """
        with self.store.open(file.path) as stream:
            parquet = opened(stream)
            self._check_ids(parquet.schema_arrow)
            if not self.parting.has_parted(file.part):
                return [*self.rewritten(parquet.read(), file.path.rpartition("/")[0])]
            partition: tuple[Any, ...] = ()
            if self.parting.sources:
                needed = [name for name in self.parting.top_columns if name in parquet.schema_arrow.names]
                partition = self.parting.partition(_first_row(parquet, needed))
            found = self._described(f"{self.store.place}/{file.path}", file.size, parquet.metadata, partition)
        nulls = found.null_value_counts or {}
        for field in self.schema.fields:
            if field.required and nulls.get(field.field_id):
                raise self._changed(f"{field.name}, which has nulls in it, is required")
        return [found]

    def forget(self, added: Sequence[DataFile], staged: Sequence[StagedFile]) -> None:
        """Delete what was written for a commit that failed, but not what the tasks wrote."""
        kept = {file.path for file in staged}
        for file in added:
            key = str(file.file_path).removeprefix(f"{self.store.place}/")
            if key not in kept:
                self.store.remove(key)

    def rewritten(self, rows: pa.Table, folder: str) -> Iterator[DataFile]:
        """Write rows of a file of the table to new ones, by the partitions that they now have."""
        import numpy as np  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415

        names, needed = columns_by_id(rows.schema, self.table), {*self.parting.top_columns}
        named = {
            field.name: rows[names[field.field_id]]
            for field in self.schema.fields
            if field.name in needed and field.field_id in names
        }
        numbered = pa.table({**named, _NUMBER: np.arange(rows.num_rows)})
        for _, part in self.parting.parted(numbered, RefusedRows()):
            taken = rows.take(part[_NUMBER])
            yield self.written([taken], taken.schema, folder, self.parting.partition(part.slice(0, 1)))

    def written(
        self, pieces: Iterable[pa.Table], columns: pa.Schema, folder: str, partition: tuple[Any, ...]
    ) -> DataFile:
        """Write rows of one partition to a new file."""
        key = f"{folder}/part-{secrets.token_hex(8)}.parquet"
        stream = self.store.create(key)
        write_parquet(stream, pieces, columns)
        size = self.store.keep(key, stream)
        with self.store.open(key) as written:
            return self._described(f"{self.store.place}/{key}", size, opened(written).metadata, partition)

    def _check_ids(self, columns: pa.Schema) -> None:
        """Raise SinkError if the table's columns have other ids than when the file was begun."""
        names = {field.field_id: field.name for field in self.schema.fields}
        for number, name in columns_by_id(columns, self.table).items():
            if names.get(number) != name and (number not in names or name in names.values()):
                raise self._changed(f"{name} is another one")

    def _changed(self, what: str) -> SinkError:
        return SinkError(
            f"the columns of the table {'.'.join(self.table.name())} have changed since this attempt began, and {what} "
            "now: the next attempt writes it"
        )

    def _described(self, path: str, size: int, footer: Any, partition: tuple[Any, ...]) -> DataFile:  # noqa: ANN401
        from pyiceberg.io.pyarrow import (  # noqa: PLC0415
            MetricModeTypes,
            MetricsMode,
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat  # noqa: PLC0415
        from pyiceberg.typedef import Record  # noqa: PLC0415

        # Files that are written again may be older than the table's present columns.
        schema = _schema_of_file(footer.schema.to_arrow_schema(), self.table)
        columns = compute_statistics_plan(schema, self.table.metadata.properties)
        ids = parquet_path_to_id_mapping(schema)
        for number in map(ids.__getitem__, _far_times(footer)):
            if columns[number].mode.type is not MetricModeTypes.NONE:
                columns[number] = replace(columns[number], mode=MetricsMode(MetricModeTypes.COUNTS))
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer, stats_columns=columns, parquet_column_mapping=ids
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(*partition),
            file_size_in_bytes=size,
            # Rows are in the order in which they came, whatever the table's sort order asks for.
            sort_order_id=None,
            spec_id=self.table.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def _far_times(footer: Any) -> set[str]:  # noqa: ANN401  a Parquet file's
    """Return the columns with dates and times that Python lacks, for which pyiceberg makes no bounds."""
    found = set()
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            column = footer.row_group(group).column(number)
            if column.is_stats_set and footer.schema.column(number).logical_type.type in {"DATE", "TIMESTAMP"}:
                try:
                    _ = column.statistics.min, column.statistics.max
                except (OverflowError, ValueError):
                    found.add(column.path_in_schema)
    return found


def _schema_of_file(schema: pa.Schema, table: Table) -> Schema:
    from pyiceberg.io.pyarrow import pyarrow_to_schema  # noqa: PLC0415

    return pyarrow_to_schema(schema, table.name_mapping(), format_version=table.format_version)


def _first_row(parquet: Any, columns: list[str]) -> pa.Table:  # noqa: ANN401
    import pyarrow as pa  # noqa: PLC0415

    # Without columns, Arrow's table would have no rows.
    if not columns:
        return pa.table({_NUMBER: [0]})
    return pa.Table.from_batches([next(parquet.iter_batches(batch_size=1, columns=columns))])
