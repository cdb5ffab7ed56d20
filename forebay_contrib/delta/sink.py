"""Write to a Delta table, each batch exactly once: the table's own log decides.

Spark's tasks write Parquet files below the table's directory, and one commit names them. It adds this attempt's files,
removes those of an earlier attempt at the batch, and carries the application id of (pipeline, output, batch time) with
the attempt as version (with the batch time as version, a replay would be dropped silently). If the table has a newer
attempt's commit, no commit is made, so that a late attempt changes nothing.

Needs the package `deltalake`, and no connector in the JVM.
"""

from __future__ import annotations

import json
import secrets
from contextlib import nullcontext
from datetime import UTC
from time import time
from typing import TYPE_CHECKING, Any, ClassVar

from forebay_contrib.delta.table_place import TablePlace
from orchestration.declarations.sink import Committed, SinkError, TargetCheck, TargetUnavailableError, Written
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.column_changes import ArrowDialect, arrow_changes, written_schema
from orchestration.sinks.declared_directory import check_directory, directory_place
from orchestration.sinks.file_table import FileTableSink, batch_folder
from orchestration.sinks.parquet_staging import with_batch_time
from orchestration.sinks.refused_rows import OnBadRows, checked_choice, declared_choice
from orchestration.sinks.table_columns import fields_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from orchestration.declarations.sink import OutputAttempt, Place
    from orchestration.sinks.file_stores import FileStore
    from orchestration.sinks.parquet_staging import StagedFile
    from receiver_runtime.sources.fields.secret import Secret

_CONSTRAINTS = "delta.constraints."
# In lower case, because Delta compares them in any. A replay removes files, and names that are mapped are not those of
# the files.
_REFUSED_PROPERTIES = {
    ("delta.appendonly", "true"),
    ("delta.columnmapping.mode", "name"),
    ("delta.columnmapping.mode", "id"),
}
# Features of a table's protocol that need nothing of a writer, unless a property or a column uses them.
_KNOWN_FEATURES = {"appendOnly", "invariants", "checkConstraints", "columnMapping", "generatedColumns", "timestampNtz"}
# Those that deltalake commits to: it lacks identity columns, which 6 includes; of 7 the features are compared.
_WRITER_VERSIONS = {1, 2, 3, 4, 5, 7}
# How many commits of the history are searched for one of an earlier attempt.
_HISTORY = 1000


class DeltaSink(FileTableSink):
    """Keep an output in a Delta table, with the column `_batch_time`. Exactly once."""

    format: ClassVar[str] = "Delta"
    # Those that the protocol forbids without column mapping, and control characters.
    refused: ClassVar[str] = " ,;{}()=" + "".join(map(chr, range(32)))

    def __init__(
        self,
        path: str | Path,
        *,
        storage_options: Mapping[str, str | Secret] | None = None,
        on_bad_rows: OnBadRows = "fail",
    ) -> None:
        """Declare the table.

        Args:
            path: the table's directory, shared by Spark's workers, relative to the working directory; or
                `"s3://BUCKET/PREFIX"`, `"gs://…"` or `"abfss://…"`.
            storage_options: deltalake's options of the object store, such as `{"aws_region": "eu-west-1"}`, with
                secrets as `EnvVar("NAME")`, `"env:NAME"` or `"file:/PATH"`.
            on_bad_rows: what happens to rows with a text that is not UTF-8: "fail" fails the batch, and names them;
                "dead_letter" commits the others, and shows the refused rows as lines of JSON in `_refused_rows/`.

        Raises:
            DeclarationError: `path` is another URL, or empty, or has what a shell replaces, or a code such as `%41`; an
                option holds a secret, or makes commits unsafe; or there is no such choice.
        """
        self._place = TablePlace.declared(path, storage_options)
        self._commits_safely = False
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
        table = self._table(attempt.name)
        version = None if table is None else table.transaction_version(attempt.application_id)
        if table is None or version is None:
            return None
        for commit in table.history(_HISTORY):
            if commit.get("forebay_application") == attempt.application_id:
                if int(commit["forebay_attempt"]) != version or not attempt.knows(version, commit["forebay_run"]):
                    return None
                location, refused = commit["forebay_location"], int(commit["forebay_refused"])
                return Committed(version, Written(location, int(commit["forebay_rows"]), refused))
        return None

    def _connect(self, where: str) -> AbstractContextManager[Any]:
        del where
        return nullcontext(self._deltalake())

    def _prepare(self, connection: Any, schema: pa.Schema, attempt: OutputAttempt) -> FileStore:  # noqa: ANN401
        self._check_table(connection, schema, attempt.name)
        if not self._commits_safely:
            self._place.check_commits(attempt.name)
            self._commits_safely = True
        return self._store(connection, self.target, attempt.name)

    def _store(self, connection: Any, place: str, where: str) -> FileStore:  # noqa: ANN401
        del connection
        return self._place.store(place, where)

    def _check_table(self, connection: Any, schema: pa.Schema | None, where: str) -> bool:  # noqa: ANN401
        import pyarrow as pa  # noqa: PLC0415

        del connection
        table = self._table(where)
        if table is None:
            return False
        self._check_kind(table, where)
        if schema is not None:
            there = pa.schema(table.schema().to_arrow())
            arrow_changes(with_batch_time(schema), there, self._dialect(), policy="refuse", where=where)
        return True

    def _schema_of_files(self, connection: Any, schema: pa.Schema) -> pa.Schema:  # noqa: ANN401
        import pyarrow as pa  # noqa: PLC0415

        del connection
        table = self._table(self.target)
        return schema if table is None else written_schema(schema, pa.schema(table.schema().to_arrow()))

    def _dialect(self) -> ArrowDialect:
        return ArrowDialect(self.target, f"delta.`{self.target}`")

    def _check_kind(self, table: Any, where: str) -> None:  # noqa: ANN401
        """Raise SinkError if the table has what this sink does not write rightly, by its name."""
        import pyarrow as pa  # noqa: PLC0415

        metadata, protocol = table.metadata(), table.protocol()
        unknown = []
        if protocol.min_writer_version not in _WRITER_VERSIONS:
            unknown.append(f"writer version {protocol.min_writer_version} of Delta's protocol")
        if metadata.partition_columns:
            unknown.append(f"partition columns ({', '.join(metadata.partition_columns)})")
        unknown += [
            f"the property {key}" for key in sorted(metadata.configuration) if key.lower().startswith(_CONSTRAINTS)
        ]
        unknown += [
            f"the property {key}={value}"
            for key, value in sorted(metadata.configuration.items())
            if (key.lower(), value.lower()) in _REFUSED_PROPERTIES
        ]
        for path, field in fields_in(pa.schema(table.schema().to_arrow())):
            unknown += [f"{key} of column {path}" for key in _declared(field)]
            if not field.nullable:
                unknown.append(f"column {path}, which must not be null")
        unknown += [f"the feature {name}" for name in sorted({*(protocol.writer_features or ())} - _KNOWN_FEATURES)]
        self._refuse_table(unknown, where)

    def _try_commit(
        self,
        connection: Any,  # noqa: ANN401
        store: FileStore,
        files: Sequence[StagedFile],
        schema: pa.Schema,
        attempt: OutputAttempt,
        written: Written,
    ) -> bool:
        from deltalake.exceptions import DeltaError  # noqa: PLC0415

        del connection
        table, token = self._table(attempt.name), secrets.token_hex(8)
        version = None if table is None else table.version()
        try:
            if table is None:
                self._create(files, schema, attempt, _properties(attempt, written, token))
            else:
                self._commit_to(table, store, files, attempt, _properties(attempt, written, token))
        except (DeltaError, OSError) as error:
            now = self._table(attempt.name)
            if version != (None if now is None else now.version()):
                # A put whose answer was lost may have been stored: then it conflicts with itself when it is repeated.
                newer = [] if now is None else now.history(now.version() - (-1 if version is None else version))
                return any(commit.get("forebay_commit") == token for commit in newer)
            # No other commit came first, so that this one would fail again.
            raise SinkError(f"{attempt.name}: the Delta table {self.target}: {self._place.said(error)}") from None
        return True

    def _create(self, files: Sequence[StagedFile], schema: pa.Schema, attempt: OutputAttempt, properties: Any) -> None:  # noqa: ANN401
        from deltalake import Schema  # noqa: PLC0415
        from deltalake.transaction import create_table_with_add_actions  # noqa: PLC0415

        if self._place.directory is not None:
            self._place.directory.mkdir(parents=True, exist_ok=True)
        create_table_with_add_actions(
            self.target,
            Schema.from_arrow(with_batch_time(schema)),
            _additions(files, attempt),
            mode="error",
            description=f"{attempt.pipeline}.{attempt.output}, written by Forebay",
            storage_options=self._place.resolved(attempt.name),
            commit_properties=properties,
        )

    def _commit_to(
        self,
        table: Any,  # noqa: ANN401  a DeltaTable
        store: FileStore,
        files: Sequence[StagedFile],
        attempt: OutputAttempt,
        properties: Any,  # noqa: ANN401
    ) -> None:
        from deltalake import write_deltalake  # noqa: PLC0415

        version = table.transaction_version(attempt.application_id)
        if version is not None and version >= attempt.attempt:
            raise self.outdated(attempt, version)
        # A replay replaces the batch's rows also if the output had another name when they were written.
        earlier = _files_with(table, attempt) if version is not None or attempt.attempt > 1 else []
        own = [name for name in earlier if name.startswith(f"{batch_folder(attempt)}/")]
        if len(own) == len(earlier):
            table.create_write_transaction(
                [*_additions(files, attempt), *_removals(own)],
                mode="append",
                schema=table.schema(),
                commit_properties=properties,
            )
        else:
            # OPTIMIZE has moved rows of the batch to files with other rows: rewrite those files without them.
            import pyarrow as pa  # noqa: PLC0415
            import pyarrow.parquet as pq  # noqa: PLC0415

            whole = pa.schema(table.schema().to_arrow())
            rows = [pq.read_table(store.open(file.path), schema=whole) for file in files]
            write_deltalake(
                table,
                pa.concat_tables([whole.empty_table(), *rows]),
                mode="overwrite",
                predicate=f"{BATCH_TIME} = '{attempt.batch_time.astimezone(UTC).isoformat()}'",
                commit_properties=properties,
            )

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


def _declared(field: pa.Field) -> list[str]:
    """Return what a table declares of a field, except its comment, which asks nothing of a writer."""
    return sorted(key.decode() for key in field.metadata or {} if key != b"comment")


def _files_with(table: Any, attempt: OutputAttempt) -> list[str]:  # noqa: ANN401
    """Return the table's files that contain, or according to their statistics may contain, rows of the batch."""
    import pyarrow as pa  # noqa: PLC0415

    found = []
    for action in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        least, most = action.get(f"min.{BATCH_TIME}"), action.get(f"max.{BATCH_TIME}")
        # Statistics are rounded down to milliseconds.
        floor = attempt.batch_time.replace(microsecond=attempt.batch_time.microsecond // 1000 * 1000)
        if least is None or most is None or (least <= attempt.batch_time and floor <= most):
            found.append(action["path"])
    return found


def _additions(files: Sequence[StagedFile], attempt: OutputAttempt) -> list[Any]:
    from deltalake.transaction import AddAction  # noqa: PLC0415

    stamp = attempt.batch_time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return [
        AddAction(
            file.path,
            file.size,
            {},
            round(time() * 1000),
            data_change=True,
            stats=json.dumps(
                {"numRecords": file.rows, "minValues": {BATCH_TIME: stamp}, "maxValues": {BATCH_TIME: stamp}}
            ),
        )
        for file in files
    ]


def _removals(paths: Sequence[str]) -> list[Any]:
    from deltalake.transaction import RemoveAction  # noqa: PLC0415

    return [RemoveAction(path, True, round(time() * 1000)) for path in paths]  # noqa: FBT003  it takes no keywords


def _properties(attempt: OutputAttempt, written: Written, token: str) -> Any:  # noqa: ANN401
    """Return what a commit carries; `token` is that of this try."""
    from deltalake import CommitProperties, Transaction  # noqa: PLC0415

    return CommitProperties(
        app_transactions=[Transaction(attempt.application_id, attempt.attempt)],
        max_commit_retries=0,
        custom_metadata={
            "forebay_application": attempt.application_id,
            "forebay_attempt": str(attempt.attempt),
            "forebay_run": attempt.run_id,
            "forebay_rows": str(written.rows),
            "forebay_refused": str(written.refused),
            "forebay_location": written.location,
            "forebay_commit": token,
        },
    )
