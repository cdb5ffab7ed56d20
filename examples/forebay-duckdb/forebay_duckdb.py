"""Write to a table in a DuckDB file, each batch exactly once: a table of commits beside it decides.

One transaction replaces the rows of an earlier attempt at the batch, found by `_batch_time`, and records the attempt in
`forebay_commits`. An attempt that is not newer than the recorded one changes nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import duckdb
import pyarrow as pa

from forebay.sink import (
    BATCH_TIME,
    ArrowDialect,
    AttemptOutdatedError,
    Committed,
    DeliveryGuarantee,
    OutputAttempt,
    Place,
    Sink,
    SinkError,
    Step,
    TargetCheck,
    Written,
    arrow_changes,
    arrow_schema,
    check_directory,
    check_text,
    declared_directory,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_COMMITS = (
    "CREATE TABLE IF NOT EXISTS forebay_commits (target text, application text, attempt bigint, run_id text, "
    "row_count bigint, PRIMARY KEY (target, application))"
)


class DuckDBSink(Sink):
    """Keep an output in a table of a DuckDB file, with the column `_batch_time`. Exactly once."""

    guarantee: ClassVar[DeliveryGuarantee] = DeliveryGuarantee.EXACTLY_ONCE
    commits: ClassVar[bool] = True

    def __init__(self, path: str | Path, table: str) -> None:
        """Declare the file, which is created if it is missing, and the table. Raises DeclarationError."""
        self.path = declared_directory(path, "DuckDBSink")
        self.table = table

    def declaration(self) -> dict[str, Any]:
        """Return the declaration that `forebay apply` writes."""
        return {"kind": "duckdb", "path": str(self.path), "table": self.table}

    @classmethod
    def place(cls, declaration: Mapping[str, Any]) -> Place:
        """Return the table in its file."""
        path, table = declaration["path"], declaration["table"]
        return Place(("duckdb", path, table.lower()), f"table {table} of {path}")

    def check_columns(self, schema: StructType, where: str) -> None:
        """Check for names and types that a table can't have, and for names that DuckDB would change."""
        columns = arrow_schema(schema, where)
        with duckdb.connect() as memory:
            memory.register("result", columns.empty_table())
            kept = [column[0] for column in memory.execute("FROM result").description]
        if changed := [name for name, now in zip(columns.names, kept, strict=True) if name != now]:
            raise SinkError(f"{where}: DuckDB does not keep the column names {changed}: use .alias(...)")

    def check_target(self, schema: StructType | None = None) -> TargetCheck:  # noqa: ARG002  not compared
        """Check the file's directory."""
        return check_directory(self.path.parent)

    def committed(self, attempt: OutputAttempt) -> Committed | None:
        """Return the recorded attempt at this batch, if the driver log knows its run."""
        if not self.path.exists():
            return None
        with self._connection(attempt) as connection:
            found = self._recorded(connection, attempt)
        if found is None or not attempt.knows(found[0], found[1]):
            return None
        return Committed(found[0], Written(self.table, found[2]))

    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        """Collect the rows, and replace the batch by them in one transaction."""
        self.check_columns(result.schema, attempt.name)
        schema = arrow_schema(result.schema, attempt.name)
        self.reached(Step.PREPARED)
        rows = result.toArrow().cast(schema)
        for batch in rows.to_batches():
            check_text(batch)
        times = pa.array([attempt.batch_time] * rows.num_rows, pa.timestamp("us", "UTC"))
        rows = rows.append_column(BATCH_TIME, times)
        self.reached(Step.STAGED)
        with self._connection(attempt) as connection:
            connection.register("result", rows)
            connection.begin()
            found = self._recorded(connection, attempt)
            if found is not None and found[0] >= attempt.attempt:
                raise AttemptOutdatedError(f"{attempt.name}: {self.path} has attempt {found[0]}: this changed nothing")
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self._quoted} AS FROM result LIMIT 0")
            there = connection.sql(f"FROM {self._quoted} LIMIT 0").to_arrow_table().schema
            dialect = ArrowDialect(self.table, self._quoted, add_as="ALTER TABLE {table} ADD {column} {type}")
            arrow_changes(rows.schema, there, dialect, policy="refuse", where=attempt.name)
            earlier = f"DELETE FROM {self._quoted} WHERE {BATCH_TIME} = ?"  # noqa: S608  quoted
            connection.execute(earlier, [attempt.batch_time])
            connection.execute(f"INSERT INTO {self._quoted} BY NAME FROM result")
            connection.execute(
                "INSERT OR REPLACE INTO forebay_commits VALUES (?, ?, ?, ?, ?)",
                [self.table, attempt.application_id, attempt.attempt, attempt.run_id, rows.num_rows],
            )
            self.reached(Step.IN_TRANSACTION)
            connection.commit()
        self.reached(Step.COMMITTED)
        return Written(self.table, rows.num_rows)

    @property
    def _quoted(self) -> str:
        return '"' + self.table.replace('"', '""') + '"'

    @contextmanager
    def _connection(self, attempt: OutputAttempt) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open the file for one task: no other process can open it meanwhile. What is not committed is undone."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            connection = duckdb.connect(str(self.path))
        except duckdb.IOException as error:
            raise SinkError(f"{attempt.name}: {self.path} can't be opened: {error}") from error
        with connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute(_COMMITS)
            yield connection

    def _recorded(self, connection: duckdb.DuckDBPyConnection, attempt: OutputAttempt) -> tuple[int, str, int] | None:
        found: tuple[int, str, int] | None = connection.execute(
            "SELECT attempt, run_id, row_count FROM forebay_commits WHERE target = ? AND application = ?",
            [self.table, attempt.application_id],
        ).fetchone()
        return found
