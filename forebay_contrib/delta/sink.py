"""Write to a Delta table, each batch exactly once: the table's own log decides.

Spark's tasks write Parquet files below the table's directory, and one commit names them. It adds this attempt's files,
removes those of an earlier attempt at the batch, and carries the application id of (pipeline, output, batch time) with
the attempt as version (with the batch time as version, a replay would be dropped silently). If the table has a newer
attempt's commit, no commit is made, so that a late attempt changes nothing.

Needs the package `deltalake`, and no connector in the JVM.
"""

from __future__ import annotations

import secrets
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from forebay_contrib.delta.commits import Commit, committed_in, is_newest
from forebay_contrib.delta.partitions import DeltaPartitions, unsupported
from forebay_contrib.delta.retention import has_forgotten
from forebay_contrib.delta.table_place import TablePlace
from forebay_contrib.delta.tables import columns_of, description, is_own, not_written, without_feature
from forebay_contrib.delta.upkeep import look_after
from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import HOURLY, Committed, SinkError, TargetCheck, TargetUnavailableError
from orchestration.sinks.column_changes import (
    ArrowDialect,
    ColumnChanges,
    ColumnPolicy,
    arrow_changes,
    changed_schema,
    checked_policy,
    cleared,
    declared_policy,
    policy_for,
    written_schema,
)
from orchestration.sinks.declared_directory import check_directory, directory_place
from orchestration.sinks.file_table import FileTableSink
from orchestration.sinks.parquet_staging import staged_files, with_batch_time
from orchestration.sinks.refused_rows import OnBadRows, checked_choice, declared_choice
from orchestration.sinks.table_columns import Mode, can_replace, check_key, checked_mode, declared_mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from orchestration.declarations.sink import Figures, OutputAttempt, Place, Upkeep, Written
    from orchestration.sinks.file_stores import FileStore
    from orchestration.sinks.parquet_staging import ParquetStaging, Staged, StagedFile
    from receiver_runtime.sources.fields.secret import Secret


@dataclass(frozen=True, slots=True)
class _Found:
    """Hold the table as it was when a write or a check began; None: there is none."""

    table: Any


class DeltaSink(FileTableSink):
    """Keep an output in a Delta table, with the column `_batch_time`. Exactly once."""

    format: ClassVar[str] = "Delta"
    upkeep_every = HOURLY
    # Those that the protocol forbids without column mapping, and control characters.
    refused: ClassVar[str] = " ,;{}()=" + "".join(map(chr, range(32)))

    def __init__(
        self,
        path: str | Path,
        *,
        storage_options: Mapping[str, str | Secret] | None = None,
        mode: Mode = "append",
        key: Sequence[str] | str | None = None,
        columns: ColumnPolicy | None = None,
        partition_by: Sequence[str] | str = (),
        on_bad_rows: OnBadRows = "fail",
    ) -> None:
        """Declare the table.

        Args:
            path: the table's directory, shared by Spark's workers, relative to the working directory; or
                `"s3://BUCKET/PREFIX"`, `"gs://…"` or `"abfss://…"`.
            storage_options: deltalake's options of the object store, such as `{"aws_region": "eu-west-1"}`, with
                secrets as `EnvVar("NAME")`, `"env:NAME"` or `"file:/PATH"`.
            mode: "append" keeps each batch's rows; "overwrite" only those of the newest batch; "merge" one row per
                `key`, from the newest batch that had it.
            key: the columns that identify a row, for "merge".
            columns: what happens to a column that the table lacks: "add" adds it, nullable; "refuse" fails the batch.
                None: "add" for a table that a sink made, and "refuse" for another's.
            partition_by: the partition columns of a new table: text, booleans, whole numbers and dates.
            on_bad_rows: what happens to rows that the table can't hold, as those with a text that is not UTF-8: "fail"
                fails the batch, and names them; "dead_letter" commits the others, and shows the refused rows as lines
                of JSON in `_refused_rows/`.

        Raises:
            DeclarationError: `path` is another URL, or empty, or has what a shell replaces, or a code such as `%41`; an
                option holds a secret, or makes commits unsafe; or there is no such choice.
        """
        self._place = TablePlace.declared(path, storage_options)
        self._commits_safely = False
        self.mode, self.key = checked_mode(mode, key, "DeltaSink")
        self.columns = checked_policy(columns, "DeltaSink")
        self.partition_by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        names = {*self.partition_by}
        if not all(isinstance(name, str) for name in names) or len(names) != len(self.partition_by):
            message = f"DeltaSink: partition_by={list(self.partition_by)!r}: give names of columns, and none twice"
            raise DeclarationError(message)
        self.on_bad_rows = checked_choice(on_bad_rows, "DeltaSink")

    @property
    def target(self) -> str:
        """Return the table's directory or URL."""
        return self._place.target

    def declaration(self) -> dict[str, Any]:
        """Return the declaration that `forebay apply` writes."""
        options = self._place.declared_options
        return {
            "kind": "delta",
            "path": self.target,
            **({"storage_options": options} if options else {}),
            **declared_mode(self.mode, self.key),
            **declared_policy(self.columns),
            **({"partition_by": list(self.partition_by)} if self.partition_by else {}),
            **declared_choice(self.on_bad_rows),
        }

    @classmethod
    def place(cls, declaration: Mapping[str, Any]) -> Place:
        """Return the table's directory or URL."""
        return directory_place(declaration["path"])

    def load(self) -> None:
        """Import deltalake."""
        self._deltalake()

    def check_target(self, schema: StructType | None = None) -> TargetCheck:
        """Check that one could write there, and the table if there is one."""
        if self._place.directory is not None:
            directory = check_directory(self._place.directory)
            return super().check_target(schema) if directory.health == "ok" else directory
        try:
            self.load()
            self._place.check_commits("the result")
        except SinkError as error:
            return TargetCheck("failed", str(error), "Correct the sink's declaration, or what it names.")
        return super().check_target(schema)

    def committed(self, attempt: OutputAttempt) -> Committed | None:
        """Return the newest attempt at this batch in the table, if the driver log knows its run."""
        return committed_in(self._table(attempt.name), attempt)

    def replaces(self, columns: Sequence[str]) -> bool:
        """Return whether the sink merges by a key that has these columns."""
        return can_replace(self.mode, self.key, columns)

    def upkeep(self, turn: Upkeep) -> Figures:
        """Merge the table's small files, and delete what nothing needs any more."""
        from deltalake.exceptions import DeltaError  # noqa: PLC0415

        table = self._table(turn.name)
        if table is None or not_written(table):
            return {}
        try:
            return look_after(table, turn, is_own=is_own(table))
        except (DeltaError, OSError) as error:
            # The cause would be printed, with what the store's answer repeats.
            raise SinkError(f"{turn.name}: the Delta table {self.target}: {self._place.said(error)}") from None

    def _columns(self, schema: StructType, where: str) -> pa.Schema:
        """Return the columns of the table's files. Raises SinkError for those that the format does not keep."""
        import pyarrow as pa  # noqa: PLC0415

        columns = super()._columns(schema, where)
        for name in without_feature(columns):
            raise SinkError(
                f"{where}: its column {name!r} has a timestamp_ntz within a map, and deltalake would make a table that "
                "no reader opens: cast it to timestamp or string, or give an array of structs by map_entries(map)"
            )
        check_key(columns.names, self.key, where)
        for name in self.key:
            type_ = columns.field(name).type
            if pa.types.is_nested(type_) or pa.types.is_floating(type_):
                raise SinkError(
                    f"{where}: its column {name!r} of key is a {type_}, whose values are equal or not by the reader: "
                    "cast it to a decimal or a text, or take other columns"
                )
        for name in self.partition_by:
            if name not in columns.names:
                raise SinkError(f"{where} has no column {name!r} of partition_by: it has {', '.join(columns.names)}")
        if wrong := unsupported(self.partition_by, columns):
            raise SinkError(
                f"{where}: partition_by has {', '.join(wrong)}, whose values readers take in several ways: cast it, or "
                "take another column"
            )
        return columns

    def _connect(self, where: str) -> AbstractContextManager[_Found]:
        return nullcontext(_Found(self._table(where)))

    def _prepare(self, connection: _Found, schema: pa.Schema, attempt: OutputAttempt) -> FileStore:
        self._check_table(connection, schema, attempt.name)
        if not self._commits_safely:
            self._place.check_commits(attempt.name)
            self._commits_safely = True
        return self._store(connection, self.target, attempt.name)

    def _store(self, connection: _Found, place: str, where: str) -> FileStore:
        del connection
        return self._place.store(place, where)

    def _check_table(self, connection: _Found, schema: pa.Schema | None, where: str) -> ColumnChanges | None:
        table = connection.table
        if table is None:
            return None
        self._refuse_table(not_written(table), where)
        there = tuple(table.metadata().partition_columns)
        if self.partition_by and self.partition_by != there:
            raise SinkError(
                f"{where}: the Delta table {self.target} is partitioned by {', '.join(there) or 'no column'}, and "
                f"partition_by={list(self.partition_by)!r} is for new tables: leave it out, or give the output a table "
                "of its own"
            )
        return ColumnChanges() if schema is None else self._changes(table, with_batch_time(schema), where)

    def _changes(self, table: Any, result: pa.Schema, where: str) -> ColumnChanges:  # noqa: ANN401
        """Return the columns that the table lacks. Raises SinkError if the result's don't fit."""
        dialect = ArrowDialect(self.target, f"delta.`{self.target}`")
        return arrow_changes(result, columns_of(table), dialect, policy=self._policy(table), where=where)

    def _policy(self, table: Any) -> ColumnPolicy:  # noqa: ANN401
        return policy_for(self.columns, is_own=is_own(table))

    def _schema_of_files(self, connection: _Found, schema: pa.Schema) -> pa.Schema:
        import pyarrow as pa  # noqa: PLC0415

        table = connection.table
        if table is not None:
            whole = with_batch_time(schema)
            changes = self._changes(table, whole, self.target)
            schema = written_schema(schema, changed_schema(whole, columns_of(table), changes))
        # A null in the key is a row that is refused.
        return pa.schema([field.with_nullable(field.nullable and field.name not in self.key) for field in schema])

    def _stage(
        self,
        connection: _Found,
        staging: ParquetStaging,
        result: DataFrame,
        schema: pa.Schema,
        attempt: OutputAttempt,
    ) -> Staged:
        del schema, attempt
        table = connection.table
        columns = self.partition_by if table is None else tuple(table.metadata().partition_columns)
        return staged_files(result, replace(staging, parting=DeltaPartitions(columns)), self.key)

    def _try_commit(
        self,
        connection: _Found,
        store: FileStore,
        files: Sequence[StagedFile],
        schema: pa.Schema,
        attempt: OutputAttempt,
        written: Written,
        windows: pa.Table | None,
    ) -> bool:
        from deltalake.exceptions import DeltaError  # noqa: PLC0415

        table = self._table(attempt.name)
        self._check_same(connection.table, table, attempt.name)
        version = None if table is None else table.version()
        newest = self.mode == "overwrite" and (table is None or is_newest(table, attempt))
        commit = Commit(store, files, attempt, written, secrets.token_hex(8), newest, windows)
        whole = with_batch_time(schema)
        try:
            if table is None:
                self._create(commit, whole)
                return True
            return self._commit_to(table, commit, whole)
        except (DeltaError, OSError) as error:
            now = self._table(attempt.name)
            if version != (None if now is None else now.version()):
                # A put whose answer was lost may have been stored: then it conflicts with itself when it is repeated.
                return commit.is_in(now, version)
            # No other commit came first, so that this one would fail again.
            is_unreachable = isinstance(error, OSError) and self._place.directory is None
            kind = TargetUnavailableError if is_unreachable else SinkError
            raise kind(f"{attempt.name}: the Delta table {self.target}: {self._place.said(error)}") from None

    def _check_same(self, before: Any, now: Any, where: str) -> None:  # noqa: ANN401  DeltaTables
        """Raise SinkError if the files of the tasks, and how they are parted, are not for the table as it is now."""
        parted = self.partition_by if before is None else tuple(before.metadata().partition_columns)
        is_same = before is None or (now is not None and now.metadata().id == before.metadata().id)
        if now is not None:
            self._refuse_table(not_written(now), where)
            is_same = is_same and tuple(now.metadata().partition_columns) == parted
        if not is_same:
            raise SinkError(
                f"{where}: the Delta table {self.target} is another one than when the tasks wrote its files, or is "
                "gone: the next attempt writes them again"
            )

    def _create(self, commit: Commit, schema: pa.Schema) -> None:
        import pyarrow as pa  # noqa: PLC0415

        if self._place.directory is not None:
            self._place.directory.mkdir(parents=True, exist_ok=True)
        options = self._place.resolved(commit.attempt.name)
        nullable = pa.schema([field.with_nullable(True) for field in schema])  # noqa: FBT003  it takes no keywords
        commit.create(self.target, nullable, self.partition_by, description(commit.attempt), options)

    def _commit_to(self, table: Any, commit: Commit, result: pa.Schema) -> bool:  # noqa: ANN401  a DeltaTable
        """Return whether it is committed, and not to be tried again."""
        version = table.transaction_version(commit.attempt.application_id)
        if version is not None and version >= commit.attempt.attempt:
            raise self.outdated(commit.attempt, version)
        is_first = version is None and not has_forgotten(table, commit.attempt)
        changes = self._changes(table, result, commit.attempt.name)
        match self.mode:
            case "append":
                commit.append(table, result, changes, is_first=is_first)
            case "overwrite":
                commit.overwrite(table, result, changes)
            case "merge":
                return commit.merge(table, result, changes, self.key, cleared(changes, self._policy(table)))
        return True

    def _table(self, where: str) -> Any:  # noqa: ANN401
        """Return the current table, or None."""
        self._deltalake()
        return self._place.table(where)

    def _deltalake(self) -> Any:  # noqa: ANN401
        try:
            import deltalake  # noqa: PLC0415  declaring a sink needs no deltalake
        except ImportError:
            raise TargetUnavailableError(
                "DeltaSink needs the package deltalake: install it where batches run, by pip install 'forebay[delta]'"
            ) from None
        return deltalake
