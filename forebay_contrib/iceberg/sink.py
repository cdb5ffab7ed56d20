"""Write to an Iceberg table, each batch exactly once: the table's snapshots decide.

Spark's tasks write Parquet files where the table's catalog puts them, and one transaction of one snapshot removes the
rows that the batch replaces (of an earlier attempt at it; in mode="merge" of its keys too), adds this attempt's files,
and the columns that are new in them. The snapshot carries the application id of (pipeline, output, batch time) and the
attempt. The catalog accepts only one commit after a snapshot: a writer that comes second reads the table again, and
changes nothing if it has a newer attempt's commit.

Needs the package `pyiceberg`, and no connector in the JVM.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from forebay_contrib.iceberg.catalogs import DeclaredCatalog, load_pyiceberg
from forebay_contrib.iceberg.column_types import change, changes_of, kept_by
from forebay_contrib.iceberg.commits import (
    ATTEMPT,
    MADE_BY,
    RUN,
    add_snapshot,
    has_forgotten,
    has_newer_batch,
    newest_commit,
    remember_newest,
    without_retries,
    written_by,
)
from forebay_contrib.iceberg.data_files import DataFiles, arrow_schema_of, iceberg_schema
from forebay_contrib.iceberg.demands import check_key_types, check_new, other_partitions, unwritten
from forebay_contrib.iceberg.expiry import shorten
from forebay_contrib.iceberg.files import place_of, store_of
from forebay_contrib.iceberg.partitions import Partition, PartitionedRows, spec_of
from forebay_contrib.iceberg.replacement import (
    Batch,
    Replacement,
    append,
    merge,
    replace_all,
    replace_batch,
)
from forebay_contrib.iceberg.upkeep import look_after
from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import HOURLY, Committed, Place, SinkError
from orchestration.sinks.column_changes import ColumnChanges, checked_policy, declared_policy
from orchestration.sinks.file_table import FileTableSink, batch_folder
from orchestration.sinks.parquet_staging import staged_files, with_batch_time
from orchestration.sinks.refused_rows import OnBadRows, RefusedRowsError, checked_choice, declared_choice
from orchestration.sinks.table_columns import Mode, can_replace, check_key, checked_mode, declared_mode, fields_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from forebay_contrib.iceberg.catalogs import Properties
    from orchestration.declarations.sink import Figures, OutputAttempt, Upkeep, Written
    from orchestration.sinks.column_changes import ColumnPolicy
    from orchestration.sinks.file_stores import FileStore
    from orchestration.sinks.parquet_staging import ParquetStaging, Staged, StagedFile


class IcebergSink(FileTableSink):
    """Keep an output in an Iceberg table, with the column `_batch_time`. Exactly once."""

    format: ClassVar[str] = "Iceberg"
    upkeep_every = HOURLY
    # Iceberg's smallest integer has 32 bits.
    widens: ClassVar[bool] = True

    def __init__(
        self,
        table: str,
        *,
        catalog: Properties,
        name: str = "forebay",
        mode: Mode = "append",
        key: Sequence[str] | str | None = None,
        columns: ColumnPolicy | None = None,
        partition_by: Sequence[str] | str = (),
        on_bad_rows: OnBadRows = "fail",
    ) -> None:
        """Declare the table.

        Args:
            table: `NAMESPACE.TABLE`; the table and its namespace are created at the first batch if they are missing.
            catalog: pyiceberg's properties of your catalog (REST, SQL, Glue, Hive) and of its tables' store, such as
                `{"type": "rest", "uri": "https://…", "credential": EnvVar("CATALOG_LOGIN")}`; secret values as
                `EnvVar("NAME")`, `"env:NAME"` or `Secret("file:/PATH")`.
            name: the catalog's name, which a SQL catalog has in its own tables.
            mode: "append" keeps each batch's rows; "overwrite" only those of the newest batch; "merge" one row per
                `key`, from the newest batch that had it.
            key: the columns that identify a row, for "merge".
            columns: what happens if a result has columns that the table lacks, or wider ones: "add" changes the table
                with the first rows that have them, "refuse" fails the batch; by default "add" if this sink made the
                table.
            partition_by: how a table that the sink makes is partitioned: `["day(at)", "bucket(16, id)"]`.
            on_bad_rows: what happens to rows that the table can't hold (a text that is not UTF-8, a null in the key or
                in a required column): "fail" fails the batch, and names them; "dead_letter" commits the others, and
                shows the refused rows as lines of JSON in `data/_refused_rows/`.

        Raises:
            DeclarationError: the table has no namespace, a secret is given as plain text, or there is no such choice.
        """
        if not all(table.split(".")) or "." not in table:
            message = f"IcebergSink: table {table!r} has no namespace: write NAMESPACE.TABLE"
            raise DeclarationError(message)
        self.table = table
        self.mode, self.key = checked_mode(mode, key, f"IcebergSink {table!r}")
        self.columns = checked_policy(columns, "IcebergSink")
        texts = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        try:
            self.partition_by = tuple(map(Partition.of, texts))
        except ValueError as error:
            message = f"IcebergSink {table!r}: partition_by: {error}"
            raise DeclarationError(message) from None
        self.on_bad_rows = checked_choice(on_bad_rows, "IcebergSink")
        self._catalog = DeclaredCatalog.of(name, catalog)

    @property
    def target(self) -> str:
        """Return the table's name in its catalog."""
        return self.table

    def declaration(self) -> dict[str, Any]:
        """Return the declaration that `forebay apply` writes, with secrets as references."""
        return {
            "kind": "iceberg",
            "table": self.table,
            "catalog": self._catalog.name,
            "properties": self._catalog.declaration(),
            **declared_mode(self.mode, self.key),
            **declared_policy(self.columns),
            **({"partition_by": [one.shown for one in self.partition_by]} if self.partition_by else {}),
            **declared_choice(self.on_bad_rows),
        }

    @classmethod
    def place(cls, declaration: Mapping[str, Any]) -> Place:
        """Return the table in its catalog: a SQL catalog has its own name in its tables."""
        properties, name = declaration["properties"], declaration["catalog"]
        catalog = [str(properties.get(key, "")) for key in ("type", "uri", "warehouse")]
        if catalog[0] in ("", "sql") or not catalog[1]:
            catalog.append(name)
        table = declaration["table"]
        return Place(("iceberg", table, *catalog), f"Iceberg table {table} of catalog {name}")

    def committed(self, attempt: OutputAttempt) -> Committed | None:
        """Return the newest attempt at this batch in the table's snapshots, if the driver log knows its run."""
        with self._connect(attempt.name) as catalog:
            found = newest_commit(self._catalog.table(catalog, self.table, attempt.name), attempt)
        if found is None or not attempt.knows(int(found[ATTEMPT]), found[RUN]):
            return None
        return Committed(int(found[ATTEMPT]), written_by(found))

    def replaces(self, columns: Sequence[str]) -> bool:
        """Return whether the sink merges by a key that has these columns."""
        return can_replace(self.mode, self.key, columns)

    def upkeep(self, turn: Upkeep) -> Figures:
        """Merge the table's small files, expire snapshots, and delete what none needs any more."""
        with self._connect(turn.name) as catalog:
            table = self._catalog.table(catalog, self.table, turn.name)
            return {} if table is None or [*unwritten(table, self.key)] else look_after(table, turn)

    def load(self) -> None:
        """Import pyiceberg."""
        load_pyiceberg()

    def _connect(self, where: str) -> AbstractContextManager[Any]:
        return self._catalog.opened(where)

    def _prepare(self, connection: Catalog, schema: pa.Schema, attempt: OutputAttempt) -> FileStore:
        from pyiceberg.exceptions import TableAlreadyExistsError  # noqa: PLC0415

        table = self._catalog.table(connection, self.table, attempt.name)
        if table is None:
            check_new(self.table, attempt.name)
            self._catalog.check_place(attempt.name)
            columns = iceberg_schema(with_batch_time(schema))
            spec = spec_of(self.partition_by, columns)
            connection.create_namespace_if_not_exists(self.table.rpartition(".")[0])
            made_by = {MADE_BY: f"{attempt.pipeline}.{attempt.output}"}
            try:
                table = connection.create_table(self.table, columns, partition_spec=spec, properties=made_by)
            except TableAlreadyExistsError:
                table = connection.load_table(self.table)
        self._checked(table, schema, attempt.name)
        return store_of(table, place_of(table), attempt.name)

    def _store(self, connection: Catalog, place: str, where: str) -> FileStore:
        return store_of(self._catalog.table(connection, self.table, where), place, where)

    def _stage(
        self, connection: Catalog, staging: ParquetStaging, result: DataFrame, schema: pa.Schema, attempt: OutputAttempt
    ) -> Staged:
        table = connection.load_table(self.table)
        # Files have the ids of the table's columns, also of those that the commit adds: by its name, a column that is
        # renamed later would be lost.
        changes = changes_of(table, schema, self.columns, attempt.name)
        columns = change(table.transaction(), changes, schema)
        of_files = arrow_schema_of(columns, with_batch_time(schema).names, self.key).serialize().to_pybytes()
        parting = PartitionedRows.of(table.spec(), columns, attempt.batch_time)
        try:
            return staged_files(result, replace(staging, schema=of_files, parting=parting), self.key)
        except RefusedRowsError as error:
            raise RefusedRowsError(f"{attempt.name}: {error}") from None

    def _check_table(self, connection: Catalog, schema: pa.Schema | None, where: str) -> ColumnChanges | None:
        table = self._catalog.table(connection, self.table, where)
        if table is None:
            check_new(self.table, where)
            self._catalog.check_place(where)
            return None
        changes = self._checked(table, schema, where)
        store_of(table, place_of(table), where)
        return changes

    def _columns(self, schema: StructType, where: str) -> pa.Schema:
        """Return the columns of the table's files. Raises SinkError for those that the format does not keep."""
        columns = super()._columns(schema, where)
        seen: set[str] = set()
        for path, _ in fields_in(columns):
            if path in seen:
                raise SinkError(
                    f"{where}: the name of its column {path!r} is to Iceberg also that of a field within another "
                    "column: rename one by .alias(...)"
                )
            seen.add(path)
        check_key(columns.names, self.key, where)
        check_key_types(schema, self.key, where)
        if self.partition_by:
            self.load()
            try:
                spec_of(self.partition_by, iceberg_schema(with_batch_time(columns)))
            except ValueError as error:
                raise SinkError(f"{where}: {error}") from None
        return columns

    def _checked(self, table: Table, schema: pa.Schema | None, where: str) -> ColumnChanges:
        """Return how the columns change. Raises SinkError if the sink does not write the table, or they don't fit."""
        self._refuse_table([*unwritten(table, self.key)], where)
        if self.partition_by and (there := other_partitions(table, self.partition_by)) is not None:
            raise SinkError(
                f"{where}: the Iceberg table {self.table} is partitioned by {there}, and partition_by says "
                f"{', '.join(one.shown for one in self.partition_by)}: leave partition_by out, which is for a table "
                "that the sink makes, or change the table's partition spec"
            )
        return ColumnChanges() if schema is None else changes_of(table, schema, self.columns, where)

    def _try_commit(
        self,
        connection: Catalog,
        store: FileStore,
        files: Sequence[StagedFile],
        schema: pa.Schema,
        attempt: OutputAttempt,
        written: Written,
        windows: pa.Table | None,
    ) -> bool:
        from pyiceberg.exceptions import CommitFailedException, ValidationException  # noqa: PLC0415

        table = connection.load_table(self.table)
        found = newest_commit(table, attempt)
        if found is not None and int(found[ATTEMPT]) >= attempt.attempt:
            raise self.outdated(attempt, int(found[ATTEMPT]))
        forgotten = has_forgotten(table, attempt) and found is None
        changes = self._checked(table, schema, attempt.name)
        place = store_of(table, place_of(table), attempt.name).place
        if place != store.place:
            raise SinkError(
                f"{attempt.name}: the Iceberg table {self.table} lies at {place} now, and not at {store.place}, where "
                "the tasks wrote: the next attempt writes it there"
            )
        transaction = without_retries(table)
        columns = change(transaction, changes, schema)
        parting = PartitionedRows.of(table.spec(), columns, None)
        data_files = DataFiles(table, columns, parting, store)
        folder = f"{batch_folder(attempt)}/attempt{attempt.attempt}-replaced"
        batch = Batch(files, folder, attempt.batch_time, attempt.newest_overridden, windows)
        replacement = Replacement()
        if self.mode == "merge":
            replacement = merge(table, data_files, batch, self.key, kept_by(changes, table, self.columns))
        elif self.mode == "append":
            # Snapshots expire, so a later attempt looks for the batch's rows even if it finds no earlier commit.
            is_first = found is None and attempt.attempt == 1 and not forgotten
            replacement = (append if is_first else replace_batch)(table, data_files, batch)
        # Else the table shows a later batch (this is a replay of an older one): record it, and keep the table.
        elif not has_newer_batch(table, attempt):
            replacement = replace_all(table, data_files, batch)
            remember_newest(transaction, attempt)
        try:
            self._commit_to(table, transaction, replacement, attempt, written)
        except (CommitFailedException, ValidationException):
            data_files.forget(replacement.added, files)
            return False
        return True

    def _commit_to(
        self,
        table: Table,
        transaction: Transaction,
        replacement: Replacement,
        attempt: OutputAttempt,
        written: Written,
    ) -> None:
        add_snapshot(transaction, replacement, attempt, written)
        shorten(transaction, table)
        transaction.commit_transaction()
