"""Create the user's table in the target, and insert and replace the rows of batches.

This module owns what each mode does to the table. It must never decide whether an attempt is valid: the commits do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestration.declarations.sink import OutputAttempt, SinkError, TargetUnavailableError
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.postgres.postgres_catalog import MADE, MADE_BY_MERGE, columns_of_table, fit_of
from orchestration.sinks.postgres.postgres_columns import Column, Fit, columns_of
from orchestration.sinks.postgres.postgres_insertion import Insertion
from orchestration.sinks.postgres.postgres_row_errors import RowErrors
from orchestration.sinks.postgres.postgres_statements import LOCK_TIMEOUT, Piece, Statements, names_of, quoted
from orchestration.sinks.refused_rows import MOST_REFUSED
from orchestration.sinks.table_columns import check_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

    from orchestration.sinks.column_changes import ColumnPolicy
    from orchestration.sinks.refused_rows import RefusedRows
    from orchestration.sinks.table_columns import Mode

_ALTER_SECONDS = 5  # how long a batch waits for the table's lock, and new readers with it


@dataclass(frozen=True, slots=True)
class Windows:
    """Hold the identities of the windows that an attempt replaces: columns, staging tables with numbers of rows."""

    columns: tuple[str, ...]
    tables: dict[str, int]

    def pieces(self) -> list[Piece]:
        """Return every staging table as a whole."""
        return [Piece(table) for table in self.tables]


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Hold the rows of an attempt: their columns, the staging tables of its valid tasks with their numbers of rows.

    `refused` takes those that the table refuses. `windows`: those that the attempt replaces. `cleared`: columns of the
    table that a merged row loses.
    """

    columns: list[Column]
    tables: dict[str, int]
    attempt: OutputAttempt
    refused: RefusedRows
    windows: Windows
    cleared: tuple[str, ...] = ()

    def pieces(self) -> list[Piece]:
        """Return every staging table as a whole."""
        return [Piece(table) for table in self.tables]


class TargetTable:
    """Execute statements on the table. Each cursor is in a transaction of the caller's."""

    def __init__(self, statements: Statements, *, mode: Mode, key: Sequence[str]) -> None:
        self._statements = statements
        self._mode = mode
        self._key = key

    def fit(self, cursor: Any, columns: Sequence[Column], policy: ColumnPolicy | None, where: str) -> Fit:  # noqa: ANN401
        """Return how a result fits the table as it is now. Raises SinkError."""
        return fit_of(cursor, self._statements.schema, self._statements.table, columns, policy, where)

    def alter(self, cursor: Any, fit: Fit, attempt: OutputAttempt) -> None:  # noqa: ANN401
        """Add and widen columns, in this transaction, so that no reader sees them without their first rows.

        Raises TargetUnavailableError if others hold the table. Locks: ACCESS EXCLUSIVE on the table; while it is waited
        for, later readers wait too, so that the wait is short.
        """
        from psycopg2 import errors  # noqa: PLC0415

        cursor.execute(f"SET LOCAL lock_timeout = '{_ALTER_SECONDS}s'")
        try:
            for statement in fit.statements:
                cursor.execute(statement)
        except errors.LockNotAvailable as error:
            raise TargetUnavailableError(
                f"{attempt.name} {fit.changes.shown()} in the table {self._statements.target}, which other sessions "
                f"have held for more than {_ALTER_SECONDS} s: the batch is tried again; a long query or an open "
                "transaction on the table must end first"
            ) from error
        cursor.execute(LOCK_TIMEOUT)

    def make(self, cursor: Any, columns: Sequence[Column]) -> None:  # noqa: ANN401
        """Create the table if it is missing, in this transaction, so that no reader sees it empty.

        The caller holds the table's advisory lock.
        """
        from psycopg2 import sql  # noqa: PLC0415

        if columns_of_table(cursor, self._statements.schema, self._statements.table):
            return
        definitions = [sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type)) for column in columns]
        definitions.append(sql.SQL("{} timestamp with time zone NOT NULL").format(sql.Identifier(BATCH_TIME)))
        if self._key:
            definitions.append(sql.SQL("PRIMARY KEY ({})").format(names_of(self._key)))
        cursor.execute(
            self._statements.sql("CREATE TABLE {table} ({definitions})", definitions=sql.SQL(", ").join(definitions))
        )
        comment = self._statements.sql("COMMENT ON COLUMN {table}.{batch_time} IS {made}", made=sql.Literal(MADE))
        cursor.execute(comment)
        if self._key:
            cursor.execute(
                "SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(%s) AND contype = 'p'",
                (quoted(self._statements.schema, self._statements.table),),
            )
            [(name,)] = cursor.fetchall()
            comment = "COMMENT ON CONSTRAINT {name} ON {table} IS {comment}"
            parts = {"name": sql.Identifier(name), "comment": sql.Literal(MADE_BY_MERGE)}
            cursor.execute(self._statements.sql(comment, **parts))
        if self._mode != "overwrite":
            cursor.execute(self._statements.sql("CREATE INDEX ON {table} ({batch_time})"))

    def check_staged(self, cursor: Any, staged: StagedRows) -> None:  # noqa: ANN401
        """Raise SinkError if any rows of the valid tasks are missing."""
        count = "SELECT (SELECT count(*) FROM ({rows}) AS staged) + (SELECT count(*) FROM ({windows}) AS windows)"
        of_rows = self._source([column.name for column in staged.columns], staged.pieces())
        of_windows = self._source(staged.windows.columns, staged.windows.pieces())
        cursor.execute(self._statements.sql(count, rows=of_rows, windows=of_windows))
        found, rows = cursor.fetchone()[0], sum((*staged.tables.values(), *staged.windows.tables.values()))
        if found != rows:
            raise SinkError(
                f"{staged.attempt.name}: {found} of {rows} staged rows are there (did the target's server crash, or "
                "fail over?): nothing was committed, the next attempt stages them again"
            )

    def _source(self, columns: Sequence[str], pieces: Sequence[Piece]) -> Any:  # noqa: ANN401
        """Return staged rows as a subquery, with the types and the collations of the table's columns."""
        from psycopg2 import sql  # noqa: PLC0415

        names = names_of(columns)
        schema = self._statements.schema
        return sql.SQL(" UNION ALL ").join(
            [
                self._statements.sql("SELECT {names} FROM {table} WHERE false", names=names),
                *(
                    sql.SQL("SELECT {} FROM {} WHERE {}").format(
                        names, sql.Identifier(schema, piece.table), piece.where()
                    )
                    for piece in pieces
                ),
            ]
        )

    def replace_batch(self, cursor: Any, staged: StagedRows) -> int:  # noqa: ANN401
        """Replace the rows of an earlier attempt at the batch, and of windows, by these; return how many were taken."""
        from psycopg2 import sql  # noqa: PLC0415

        kept = sql.SQL("")
        if self._key:
            source = self._source(self._key, staged.pieces())
            kept = sql.SQL(" AND NOT EXISTS (SELECT 1 FROM ({}) AS staged WHERE {})").format(
                source, sql.SQL(" AND ").join(_equal("staged", "t", self._key))
            )
        times = {"time": staged.attempt.batch_time, "newest": staged.attempt.newest_overridden}
        deletes = [
            self._statements.sql("DELETE FROM {table} AS t WHERE t.{batch_time} = %(time)s{kept}", times, kept=kept),
            *(
                self._statements.sql(
                    "DELETE FROM {table} AS t WHERE t.{batch_time} <= %(newest)s AND {of_window}{kept}",
                    times,
                    of_window=of_window,
                    kept=kept,
                )
                for of_window in self._of_windows(cursor, staged.windows)
            ),
        ]
        for delete in deletes:
            cursor.execute(delete)
        before = len(staged.refused.rows)
        stored = self.insert(cursor, staged)
        if self._key and len(staged.refused.rows) > before:
            # A refused row was still staged above, and does not take the place of an earlier one.
            for delete in deletes:
                cursor.execute(delete)
        return stored

    def _of_windows(self, cursor: Any, windows: Windows) -> list[Any]:  # noqa: ANN401
        """Return conditions that a row of the table is of one of the windows, for each choice of nulls in these.

        A null equals a null. Postgres joins by `IS NOT DISTINCT FROM` in no other way than row by row.
        """
        from psycopg2 import sql  # noqa: PLC0415

        if not windows.tables:
            return []
        for table in windows.tables:
            # No other session has seen the table, and without statistics Postgres takes a few rows for many.
            cursor.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(self._statements.schema, table)))
        source = self._source(windows.columns, windows.pieces())
        nulls = sql.SQL(", ").join(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in windows.columns)
        cursor.execute(sql.SQL("SELECT DISTINCT {} FROM ({}) AS windows").format(nulls, source))
        choices = cursor.fetchall()
        there = columns_of_table(cursor, self._statements.schema, self._statements.table)
        never_null = {column.name for column in there if column.required}
        found = []
        for choice in choices:
            given = [name for name, is_null in zip(windows.columns, choice, strict=True) if not is_null]
            missing = [name for name in windows.columns if name not in given]
            if never_null.isdisjoint(missing):
                same = sql.SQL("EXISTS (SELECT 1 FROM ({}) AS windows WHERE {})").format(
                    source, sql.SQL(" AND ").join([*_nulls("windows", missing), *_equal("windows", "t", given)])
                )
                found.append(sql.SQL(" AND ").join([*_nulls("t", missing), same]))
        return found

    def replace_all(self, cursor: Any, staged: StagedRows) -> int:  # noqa: ANN401
        """Replace all rows of the table by these rows; return how many the table took."""
        cursor.execute(self._statements.sql("DELETE FROM {table}"))
        return self.insert(cursor, staged)

    def insert(self, cursor: Any, staged: StagedRows) -> int:  # noqa: ANN401
        """Insert these rows; return how many the table took."""
        from psycopg2 import sql  # noqa: PLC0415

        columns, pieces = staged.columns, staged.pieces()
        names = [column.name for column in columns]
        conflict = sql.SQL("")
        if self._key:
            # A replay of an older batch does not change rows of a newer one, except if it runs that again too.
            conflict = self._statements.sql(
                " ON CONFLICT ({key}) DO UPDATE SET {changed} WHERE t.{batch_time} <= %(newest)s",
                {"newest": staged.attempt.newest_overridden},
                key=names_of(self._key),
                # The key too: equal ones may differ, as 1.0 and 1.00, or in a collation that ignores case.
                changed=sql.SQL(", ").join(
                    [
                        *(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in [*names, BATCH_TIME]),
                        *(sql.SQL("{} = NULL").format(sql.Identifier(name)) for name in staged.cleared),
                    ]
                ),
            )

        def statement(some: Sequence[Piece]) -> Any:  # noqa: ANN401
            return self._statements.sql(
                "INSERT INTO {table} AS t ({names}, {batch_time}) "
                "SELECT {names}, %(time)s FROM ({source}) AS staged{conflict}",
                {"time": staged.attempt.batch_time},
                names=names_of(names),
                source=self._source(names, some),
                conflict=conflict,
            )

        def repeated() -> list[Piece]:
            return self._repeated(cursor, pieces) if self._key and pieces else []

        row_errors = RowErrors(cursor, self._statements, columns, staged.refused)
        return Insertion(cursor, self._statements, statement, row_errors, key=self._key, repeated=repeated).run(pieces)

    def _repeated(self, cursor: Any, pieces: Sequence[Piece]) -> list[Piece]:  # noqa: ANN401
        """Return staged rows of which another one has the key, as the table compares keys."""
        from psycopg2 import sql  # noqa: PLC0415

        # The keys are found once for all pieces, which are one for each task.
        statement = self._statements.sql(
            "WITH twice AS MATERIALIZED (SELECT {key} FROM ({source}) AS staged GROUP BY {key} HAVING count(*) > 1) "
            "{rows} ORDER BY 1, 2 LIMIT {most}",
            source=self._source(self._key, pieces),
            key=names_of(self._key),
            rows=sql.SQL(" UNION ALL ").join(
                sql.SQL("SELECT {}, s.ctid FROM {} AS s WHERE EXISTS (SELECT FROM twice AS staged WHERE {})").format(
                    sql.Literal(number),
                    sql.Identifier(self._statements.schema, piece.table),
                    sql.SQL(" AND ").join(_equal("staged", "s", self._key)),
                )
                for number, piece in enumerate(pieces)
            ),
            most=sql.Literal(MOST_REFUSED),
        )
        cursor.execute(statement)
        return [Piece.of_place(pieces[number].table, place) for number, place in cursor.fetchall()]

    def check_stored(self, cursor: Any, rows: int, stored: int, attempt: OutputAttempt) -> None:  # noqa: ANN401
        """Raise SinkError if the table has not all of the batch's rows, as which a replay would replace them.

        `stored`: how many the statements that inserted them said that they did.
        """
        count = "SELECT count(*) FROM {table} WHERE {batch_time} = %(time)s"
        cursor.execute(self._statements.sql(count, {"time": attempt.batch_time}))
        found = cursor.fetchone()[0]
        # More are rows that a trigger adds with the batch's time: the DELETE of a replay takes these too. As many, of
        # which some were said to be left out, are rows that a trigger has inserted itself.
        if found < rows or (found > rows and stored < rows):
            raise SinkError(
                f"{attempt.name}: {self._statements.target} took {min(found, stored)} of {rows} rows, so nothing was "
                f"committed: one of its triggers leaves rows out, or changes their {BATCH_TIME}. Filter them in the "
                "output's function, or change the trigger"
            )

    def checked_columns(self, schema: StructType, where: str) -> list[Column]:
        """Return the columns of a result. Raises SinkError if the key is not among them."""
        columns = columns_of(schema, where)
        check_key({column.name for column in columns}, self._key, where)
        return columns


def _equal(one: str, other: str, columns: Sequence[str]) -> list[Any]:
    """Return the conditions that rows of two tables have the same values in these columns."""
    from psycopg2 import sql  # noqa: PLC0415

    form = sql.SQL("{0}.{2} = {1}.{2}")
    return [form.format(sql.Identifier(one), sql.Identifier(other), sql.Identifier(column)) for column in columns]


def _nulls(table: str, columns: Sequence[str]) -> list[Any]:
    """Return the conditions that a row of a table has nulls in these columns."""
    from psycopg2 import sql  # noqa: PLC0415

    return [sql.SQL("{}.{} IS NULL").format(sql.Identifier(table), sql.Identifier(column)) for column in columns]
