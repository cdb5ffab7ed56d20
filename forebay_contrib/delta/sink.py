"""Write to a Delta table, each batch exactly once: the table's own log decides.

Spark's tasks write Parquet files below the table's directory, and one commit names them. It adds this attempt's files,
removes those of an earlier attempt at the batch, and carries the application id of (pipeline, output, batch time) with
the attempt as version (with the batch time as version, a replay would be dropped silently). If the table has a newer
attempt's commit, no commit is made, so that a late attempt changes nothing.

Needs the package `deltalake`, and no connector in the JVM.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import nullcontext
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from forebay_contrib.delta.upkeep import has_forgotten, look_after
from orchestration.declarations.pipeline import DeclarationError
from orchestration.declarations.sink import HOURLY, Committed, SinkError, TargetUnavailableError, Written
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.declared_directory import check_directory, declared_directory, directory_place
from orchestration.sinks.file_table import FileTableSink, batch_folder
from orchestration.sinks.parquet_staging import with_batch_time
from orchestration.sinks.refused_rows import OnBadRows, checked_choice, declared_choice
from orchestration.sinks.table_columns import check_fit, fields_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from orchestration.declarations.sink import Figures, OutputAttempt, Place, TargetCheck, Upkeep
    from orchestration.sinks.parquet_staging import StagedFile

_ESCAPED = re.compile("%[0-9A-Fa-f]{2}")
_MADE_BY = ", written by Forebay"
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
    upkeep_every = HOURLY
    # Those that the protocol forbids without column mapping, and control characters.
    refused: ClassVar[str] = " ,;{}()=" + "".join(map(chr, range(32)))

    def __init__(self, path: str | Path, *, on_bad_rows: OnBadRows = "fail") -> None:
        """Declare the table.

        Args:
            path: the table's directory, shared by Spark's workers; relative to the working directory.
            on_bad_rows: what happens to rows with a text that is not UTF-8: "fail" fails the batch, and names them;
                "dead_letter" commits the others, and shows the refused rows as lines of JSON in `_refused_rows/`.

        Raises:
            DeclarationError: `path` is a URL, or empty, or has what a shell replaces, or a code such as `%41`; or there
                is no such choice.
        """
        self.path = declared_directory(
            path, "DeltaSink", otherwise=", which Spark's workers share, and no object store"
        )
        if escape := _ESCAPED.search(str(self.path)):
            message = (
                f"DeltaSink: path {str(self.path)!r} has {escape[0]!r}, which Delta's readers take for a character's "
                "code: name the directory otherwise"
            )
            raise DeclarationError(message)
        self.on_bad_rows = checked_choice(on_bad_rows, "DeltaSink")

    @property
    def target(self) -> str:
        """Return the table's directory."""
        return str(self.path)

    def declaration(self) -> dict[str, Any]:
        """Return the declaration that `forebay apply` writes."""
        return {"kind": "delta", "path": str(self.path), **declared_choice(self.on_bad_rows)}

    @classmethod
    def place(cls, declaration: Mapping[str, Any]) -> Place:
        """Return the table's directory."""
        return directory_place(declaration["path"])

    def load(self) -> None:
        """Import deltalake."""
        self._deltalake()

    def check_target(self, schema: StructType | None = None) -> TargetCheck:
        """Check the table's directory, and the table if there is one."""
        directory = check_directory(self.path)
        return super().check_target(schema) if directory.health == "ok" else directory

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

    def upkeep(self, turn: Upkeep) -> Figures:
        """Merge the table's small files, and delete what nothing needs any more."""
        table = self._table(turn.name)
        return {} if table is None else look_after(table, turn, is_own=_is_own(table))

    def _connect(self, where: str) -> AbstractContextManager[Any]:
        del where
        return nullcontext(self._deltalake())

    def _prepare(self, connection: Any, schema: pa.Schema, attempt: OutputAttempt) -> Path:  # noqa: ANN401
        self._check_table(connection, schema, attempt.name)
        return self.path

    def _check_table(self, connection: Any, schema: pa.Schema | None, where: str) -> bool:  # noqa: ANN401
        import pyarrow as pa  # noqa: PLC0415

        del connection
        table = self._table(where)
        if table is None:
            return False
        self._check_kind(table, where)
        if schema is not None:
            there = pa.schema(table.schema().to_arrow())
            check_fit(with_batch_time(schema), there, name=str(self.path), where=where)
        return True

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
        files: Sequence[StagedFile],
        schema: pa.Schema,
        attempt: OutputAttempt,
        written: Written,
    ) -> bool:
        from deltalake.exceptions import DeltaError  # noqa: PLC0415

        del connection
        table = self._table(attempt.name)
        version = None if table is None else table.version()
        try:
            if table is None:
                self._create(files, schema, attempt, written)
            else:
                self._commit_to(table, files, schema, attempt, written)
        except DeltaError as error:
            now = self._table(attempt.name)
            if version != (None if now is None else now.version()):
                return False
            # No other commit came first, so that this one would fail again.
            raise SinkError(f"{attempt.name}: the Delta table {self.path}: {error}") from error
        return True

    def _create(self, files: Sequence[StagedFile], schema: pa.Schema, attempt: OutputAttempt, written: Written) -> None:
        from deltalake import Schema  # noqa: PLC0415
        from deltalake.transaction import create_table_with_add_actions  # noqa: PLC0415

        self.path.mkdir(parents=True, exist_ok=True)
        create_table_with_add_actions(
            str(self.path),
            Schema.from_arrow(with_batch_time(schema)),
            self._additions(files, attempt),
            mode="error",
            description=f"{attempt.pipeline}.{attempt.output}{_MADE_BY}",
            commit_properties=_properties(attempt, written),
        )

    def _commit_to(
        self,
        table: Any,  # noqa: ANN401  a DeltaTable
        files: Sequence[StagedFile],
        schema: pa.Schema,
        attempt: OutputAttempt,
        written: Written,
    ) -> None:
        from deltalake import write_deltalake  # noqa: PLC0415

        version = table.transaction_version(attempt.application_id)
        if version is not None and version >= attempt.attempt:
            raise self.outdated(attempt, version)
        forgotten = version is None and has_forgotten(table, attempt)
        # A replay replaces the batch's rows also if the output had another name when they were written.
        earlier = _files_with(table, attempt) if version is not None or attempt.attempt > 1 or forgotten else []
        own = [name for name in earlier if name.startswith(f"{batch_folder(attempt)}/")]
        if len(own) == len(earlier):
            table.create_write_transaction(
                [*self._additions(files, attempt), *_removals(own)],
                mode="append",
                schema=table.schema(),
                commit_properties=_properties(attempt, written),
            )
        else:
            # OPTIMIZE has moved rows of the batch to files with other rows: rewrite those files without them.
            import pyarrow as pa  # noqa: PLC0415
            import pyarrow.parquet as pq  # noqa: PLC0415

            whole = with_batch_time(schema)
            rows = [pq.read_table(file.path, schema=whole) for file in files]
            write_deltalake(
                table,
                pa.concat_tables([whole.empty_table(), *rows]),
                mode="overwrite",
                predicate=f"{BATCH_TIME} = '{attempt.batch_time.astimezone(UTC).isoformat()}'",
                commit_properties=_properties(attempt, written),
            )

    def _additions(self, files: Sequence[StagedFile], attempt: OutputAttempt) -> list[Any]:
        from deltalake.transaction import AddAction  # noqa: PLC0415

        time = attempt.batch_time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return [
            AddAction(
                Path(file.path).relative_to(self.path).as_posix(),
                file.size,
                {},
                round(Path(file.path).stat().st_mtime * 1000),
                data_change=True,
                stats=json.dumps(
                    {"numRecords": file.rows, "minValues": {BATCH_TIME: time}, "maxValues": {BATCH_TIME: time}}
                ),
            )
            for file in files
        ]

    def _table(self, where: str) -> Any:  # noqa: ANN401
        """Return the current table, or None. Raises SinkError if deltalake can't read its log, or what that demands."""
        deltalake = self._deltalake()
        if not deltalake.DeltaTable.is_deltatable(str(self.path)):
            if next(self.path.glob("date=*"), None) is not None:
                raise SinkError(
                    f"{where}: {self.path} has folders of Parquet files, as ParquetSink makes them, and readers would "
                    "see them beside the table's: give the output a directory of its own"
                )
            return None
        try:
            return deltalake.DeltaTable(str(self.path))
        except deltalake.exceptions.DeltaError as error:
            said = str(error).partition("\n")[0]
            raise SinkError(
                f"{where}: the Delta table {self.path} can't be opened: {said}: give the output a table of its own"
            ) from None

    def _deltalake(self) -> Any:  # noqa: ANN401
        try:
            import deltalake  # noqa: PLC0415  declaring a sink needs no deltalake
        except ImportError:
            raise TargetUnavailableError(
                "DeltaSink needs the package deltalake: install it where batches run, by pip install 'forebay[delta]'"
            ) from None
        return deltalake


def _is_own(table: Any) -> bool:  # noqa: ANN401
    return str(table.metadata().description).endswith(_MADE_BY)


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
        time = attempt.batch_time.replace(microsecond=attempt.batch_time.microsecond // 1000 * 1000)
        if least is None or most is None or (least <= attempt.batch_time and time <= most):
            found.append(action["path"])
    return found


def _removals(paths: Sequence[str]) -> list[Any]:
    from deltalake.transaction import RemoveAction  # noqa: PLC0415

    return [RemoveAction(path, True, round(time.time() * 1000)) for path in paths]  # noqa: FBT003  it takes no keywords


def _properties(attempt: OutputAttempt, written: Written) -> Any:  # noqa: ANN401
    from deltalake import CommitProperties, Transaction  # noqa: PLC0415

    return CommitProperties(
        # The time lets it expire, as the table's properties say.
        app_transactions=[Transaction(attempt.application_id, attempt.attempt, round(time.time() * 1000))],
        max_commit_retries=0,
        custom_metadata={
            "forebay_application": attempt.application_id,
            "forebay_attempt": str(attempt.attempt),
            "forebay_run": attempt.run_id,
            "forebay_rows": str(written.rows),
            "forebay_refused": str(written.refused),
            "forebay_location": written.location,
        },
    )
