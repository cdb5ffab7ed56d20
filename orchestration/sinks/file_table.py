"""Share the code of file-based tables (Delta, Iceberg): tasks write files, one commit names them, and is retried.

Owns the location of an attempt's files and the retries after a conflicting commit. Each format defines what a commit is
and how a table recognises an attempt.
"""

from __future__ import annotations

import re
import secrets
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestration.declarations.sink import (
    AttemptOutdatedError,
    DeliveryGuarantee,
    Sink,
    SinkError,
    Step,
    TableAddress,
    TargetCheck,
    Written,
    unchecked,
)
from orchestration.sinks.parquet_names import batch_stamp
from orchestration.sinks.parquet_staging import ParquetStaging, staged_files
from orchestration.sinks.refused_files import show
from orchestration.sinks.table_columns import arrow_schema, inner_names, refuse_table, replaced_columns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    import numpy as np
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from orchestration.declarations.sink import Check, OutputAttempt
    from orchestration.sinks.column_changes import ColumnChanges
    from orchestration.sinks.file_stores import FileStore
    from orchestration.sinks.parquet_staging import Staged, StagedFile
    from orchestration.sinks.refused_rows import OnBadRows

#: How many times a commit is tried, because other writers' commits may come first.
_TRIES = 20
# Number of a row; no column of a table has a name that begins so.
_NUMBER = "\0number"
# What a commit says of the files of an attempt: their store's place, and their folder there.
_LOCATION = re.compile(r"(.*)/([^/]+/[^/]+/attempt\d+-[0-9a-f]{8})", re.DOTALL)


class FileTableSink(Sink):
    """Keep an output in a file-based table, see the module. Subclasses implement the format."""

    guarantee: ClassVar[DeliveryGuarantee] = DeliveryGuarantee.EXACTLY_ONCE
    commits: ClassVar[bool] = True
    #: The format's name in messages.
    format: ClassVar[str]
    #: Characters that a column's name can't have in the format, or that it does not give back as they are.
    refused: ClassVar[str] = ""
    #: What happens to rows with a text that is not UTF-8.
    on_bad_rows: OnBadRows = "fail"
    #: Whether the format lacks small integers, so that they are stored as 32-bit integers.
    widens: ClassVar[bool] = False

    @property
    @abstractmethod
    def target(self) -> str:
        """Return the table's name as its owner gave it."""

    def address(self) -> TableAddress:
        """Return the table's directory or URL, or its name in a catalog."""
        if self.target.startswith("/"):
            return TableAddress(uri=Path(self.target).as_uri())
        return TableAddress(uri=self.target) if "://" in self.target else TableAddress(name=self.target)

    @abstractmethod
    def _connect(self, where: str) -> AbstractContextManager[Any]:
        """Open a connection of the format's own for one write, which is closed when the context ends.

        Raises SinkError, which begins with `where`, if a package is missing or the table is unavailable.
        """

    @abstractmethod
    def _check_table(self, connection: Any, schema: pa.Schema | None, where: str) -> ColumnChanges | None:  # noqa: ANN401
        """Return how the table's columns change for a result's; None: there is no table.

        Raises SinkError if the sink does not write the table, or the columns don't fit.
        """

    @abstractmethod
    def _prepare(self, connection: Any, schema: pa.Schema, attempt: OutputAttempt) -> FileStore:  # noqa: ANN401
        """Return the store of the table's files. Raises SinkError if the columns don't fit the table's."""

    @abstractmethod
    def _store(self, connection: Any, place: str, where: str) -> FileStore:  # noqa: ANN401
        """Return the store of the table's files at `place`, where an earlier commit says that they are."""

    def _schema_of_files(self, connection: Any, schema: pa.Schema) -> pa.Schema:  # noqa: ANN401
        """Return the result's columns as the table's files have them: a column of the table may be wider."""
        del connection
        return schema

    def _stage(
        self,
        connection: Any,  # noqa: ANN401
        staging: ParquetStaging,
        result: DataFrame,
        schema: pa.Schema,
        attempt: OutputAttempt,
    ) -> Staged:
        """Let the tasks write files, and return what the commit is to add."""
        del connection, schema, attempt
        return staged_files(result, staging)

    @abstractmethod
    def _try_commit(
        self,
        connection: Any,  # noqa: ANN401
        store: FileStore,
        files: Sequence[StagedFile],
        schema: pa.Schema,
        attempt: OutputAttempt,
        written: Written,
        windows: pa.Table | None,
    ) -> bool:
        """Commit files of `store` to the current table, with what `written` says.

        Return False if another commit came first. `schema`: the columns of the files. `windows`: the identities of
        those whose rows are replaced, each once, for a sink that `replaces` them. Raises AttemptOutdatedError.
        """

    @property
    def publishes(self) -> bool:  # type: ignore[override]  # depends on the declaration
        """Return whether refused rows are shown after the commit."""
        return self.on_bad_rows == "dead_letter"

    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        """Let the tasks write files, and commit them to the table."""
        import pyarrow as pa  # noqa: PLC0415

        with self._connect(attempt.name) as connection:
            schema = self._columns(result.schema, attempt.name)
            of_windows = replaced_columns(self, result.schema, attempt)
            store = self._prepare(connection, schema, attempt)
            self.reached(Step.PREPARED)
            own = f"{batch_folder(attempt)}/attempt{attempt.attempt}-{secrets.token_hex(4)}"
            of_files = self._schema_of_files(connection, schema)
            keeps = self.on_bad_rows == "dead_letter"
            staging = ParquetStaging(store, own, of_files.serialize().to_pybytes(), attempt.batch_time, keeps)
            staged = self._stage(connection, staging, result, schema, attempt)
            # Publishing finds the refused rows where the commit says.
            location = f"{store.place}/{own}" if self.publishes else self.target
            result_of = Written(location, staged.rows, staged.refused)
            windows = _windows(attempt, pa.schema([schema.field(name) for name in of_windows]))
            self.reached(Step.STAGED)
            self._commit(connection, store, staged.files, of_files, attempt, result_of, windows)
        self.reached(Step.COMMITTED)
        if not self.publishes:
            # What an earlier attempt refused under another declaration.
            show(store, own, attempt.batch_time, unchecked)
        return result_of

    def publish(self, location: str, *, batch_time: datetime, check: Check = unchecked) -> None:
        """Show the rows that the committed attempt refused."""
        # The commit may be from before the declaration changed: it says whether rows were put aside.
        if found := _LOCATION.fullmatch(location):
            where = f"publishing {location}"
            with self._connect(where) as connection:
                show(self._store(connection, found[1], where), found[2], batch_time, check)

    def check_columns(self, schema: StructType, where: str) -> None:
        """Check the names and types of columns that the format does not keep."""
        self._columns(schema, where)

    def check_target(self, schema: StructType | None = None) -> TargetCheck:
        """Open the table, if there is one, and compare the columns."""
        where = "the result"
        try:
            columns = None if schema is None else self._columns(schema, where)
            with self._connect(where) as connection:
                changes = self._check_table(connection, columns, where)
        except SinkError as error:
            return TargetCheck("failed", str(error), "Change the result, or give the output a table of its own.")
        if changes is None:
            return TargetCheck("ok", f"{self.target} is made at the first batch")
        then = f"; its next batch {changes.shown()}" if changes else ""
        return TargetCheck("ok", f"{self.target} can be written{then}")

    def _columns(self, schema: StructType, where: str) -> pa.Schema:
        """Return the columns of the table's files. Raises SinkError for those that the format does not keep."""
        columns = arrow_schema(schema, where, widens=self.widens)
        for column, names in [*((name, [name]) for name in columns.names), *inner_names(schema)]:
            for name in names:
                if found := sorted(set(name) & set(self.refused)):
                    why = f"has {', '.join(map(repr, found))}, which {self.format} does not keep"
                    of = f"its column {name!r}" if name == column else f"{name!r} in its column {column!r}"
                    raise SinkError(f"{where}: the name of {of} {why}: rename it by .alias(...)")
        return columns

    def _refuse_table(self, unknown: Sequence[str], where: str) -> None:
        refuse_table(unknown, table=f"{self.format} table {self.target}", sink=f"{self.format}Sink", where=where)

    def _commit(
        self,
        connection: Any,  # noqa: ANN401
        store: FileStore,
        files: Sequence[StagedFile],
        schema: pa.Schema,
        attempt: OutputAttempt,
        written: Written,
        windows: pa.Table | None,
    ) -> None:
        for _ in range(_TRIES):
            if self._try_commit(connection, store, files, schema, attempt, written, windows):
                return
        raise SinkError(
            f"{attempt.name}: {_TRIES} commits to the {self.format} table {self.target} conflicted with other commits: "
            "run the table's other writers at another time"
        )

    def outdated(self, attempt: OutputAttempt, newer: int) -> AttemptOutdatedError:
        """Return the error for a table that already has this attempt at the batch, or a newer one."""
        return AttemptOutdatedError(
            f"{attempt.name}: the {self.format} table {self.target} has attempt {newer} at the batch of "
            f"{attempt.batch_time.isoformat()}: attempt {attempt.attempt} changed nothing"
        )


def batch_folder(attempt: OutputAttempt) -> str:
    """Return the folder, below the table's directory, of all attempts at a batch of an output."""
    return f"{attempt.pipeline}.{attempt.output}/{attempt.pipeline_id}-{batch_stamp(attempt.batch_time)}"


def _windows(attempt: OutputAttempt, columns: pa.Schema) -> pa.Table | None:
    """Return the identities of the windows that an attempt replaces, each once; None: it replaces none.

    The commit compares them in this process with the table's rows, as it does the keys of the result.
    """
    if attempt.replaced is None:
        return None
    return attempt.replaced.toArrow().cast(columns).group_by(columns.names).aggregate([])


def is_of(rows: pa.Table, others: pa.Table) -> np.ndarray:
    """Return whether each row has the values of one of the other rows, in the columns of these; a null equals a null.

    The columns have the same types in both.
    """
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    # A join finds no null equal to another. So it is of numbers: a null has one if it is among the others.
    values = {name: pc.unique(others[name]) for name in others.column_names}
    here, there = (
        pa.table({name: pc.index_in(table[name], value_set=found) for name, found in values.items()})
        for table in (rows, others)
    )
    numbered = here.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
    found = np.zeros(rows.num_rows, dtype=bool)
    found[numbered.join(there, [*values], join_type="left semi")[_NUMBER].to_numpy()] = True
    return found
