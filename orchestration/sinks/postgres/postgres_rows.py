"""Create the user's table in the target, and insert and replace the rows of batches.

This module owns what each mode does to the table. It must never decide whether an attempt is valid: the commits do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from orchestration.declarations.sink import OutputAttempt, SinkError
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.postgres.postgres_columns import Column, TableColumn
from orchestration.sinks.postgres.postgres_statements import Statements, names_of, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

Mode = Literal["append", "overwrite", "merge"]
#: Comment on the primary key of a table that the sink made.
MADE_BY_MERGE = "made by Forebay for mode='merge'"


def columns_of_table(cursor: Any, schema: str, table: str) -> list[TableColumn]:  # noqa: ANN401  psycopg2 has no types
    """Return the table's columns; none if the table does not exist. Locks: none."""
    cursor.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), "
        "CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod) "
        "ELSE format_type(a.atttypid, a.atttypmod) END, t.typcategory::text, "
        "a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '', a.attidentity = 'a' OR a.attgenerated <> '' "
        "FROM pg_attribute a "
        "JOIN pg_type t ON t.oid = a.atttypid "
        "WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        (quoted(schema, table),),
    )
    return [TableColumn(*row) for row in cursor.fetchall()]


class TargetTable:
    """Execute statements on the table. Each cursor is in a transaction of the caller's."""

    def __init__(self, statements: Statements, *, mode: Mode, key: Sequence[str]) -> None:
        self._statements = statements
        self._mode = mode
        self._key = key

    def make(self, cursor: Any, columns: list[Column]) -> None:  # noqa: ANN401
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

    def counted(
        self,
        cursor: Any,  # noqa: ANN401
        columns: list[Column],
        staged: dict[str, int],
        rows: int,
        attempt: OutputAttempt,
    ) -> Any:  # noqa: ANN401
        """Return the rows of the valid tasks as a subquery. Raises SinkError if any are missing."""
        from psycopg2 import sql  # noqa: PLC0415

        names = names_of([column.name for column in columns])
        if not staged:
            empty = sql.SQL(", ").join(
                sql.SQL("NULL::{} AS {}").format(sql.SQL(column.type), sql.Identifier(column.name))
                for column in columns
            )
            return sql.SQL("SELECT {} WHERE false").format(empty)
        source = sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT {} FROM {}").format(names, sql.Identifier(self._statements.schema, table))
            for table in sorted(staged)
        )
        cursor.execute(sql.SQL("SELECT count(*) FROM ({}) AS staged").format(source))
        found = cursor.fetchone()[0]
        if found != rows:
            raise SinkError(
                f"{attempt.name}: {found} of {rows} staged rows are there (did the target's server crash, or fail "
                "over?): nothing was committed, the next attempt stages them again"
            )
        return source

    def replace_batch(self, cursor: Any, columns: list[Column], source: Any, attempt: OutputAttempt) -> None:  # noqa: ANN401
        """Replace the rows of an earlier attempt at the batch by these rows."""
        from psycopg2 import sql  # noqa: PLC0415

        kept, conflict = sql.SQL(""), sql.SQL("")
        if self._key:
            same = sql.SQL(" AND ").join(
                sql.SQL("staged.{0} = t.{0}").format(sql.Identifier(column)) for column in self._key
            )
            kept = sql.SQL(" AND NOT EXISTS (SELECT 1 FROM ({}) AS staged WHERE {})").format(source, same)
            changed = sql.SQL(", ").join(
                sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name))
                # The key too: equal ones may differ, as 1.0 and 1.00, or in a collation that ignores case.
                for name in [*(column.name for column in columns), BATCH_TIME]
            )
            # A replay of an older batch does not change rows of a newer one.
            conflict = self._statements.sql(
                " ON CONFLICT ({key}) DO UPDATE SET {changed} WHERE t.{batch_time} <= excluded.{batch_time}",
                key=names_of(self._key),
                changed=changed,
            )
        cursor.execute(
            self._statements.sql(
                "DELETE FROM {table} AS t WHERE t.{batch_time} = %(time)s{kept}",
                {"time": attempt.batch_time},
                kept=kept,
            )
        )
        self.insert(cursor, columns, source, attempt, conflict)

    def insert(
        self,
        cursor: Any,  # noqa: ANN401
        columns: list[Column],
        source: Any,  # noqa: ANN401
        attempt: OutputAttempt,
        conflict: Any,  # noqa: ANN401
    ) -> None:
        from psycopg2 import errors, sql  # noqa: PLC0415

        names = names_of([column.name for column in columns])
        statement = self._statements.sql(
            "INSERT INTO {table} AS t ({names}, {batch_time}) "
            "SELECT {names}, %(time)s FROM ({source}) AS staged{conflict}",
            {"time": attempt.batch_time},
            names=names,
            source=source,
            conflict=conflict or sql.SQL(""),
        )
        try:
            cursor.execute(statement)
        except errors.CardinalityViolation:
            raise SinkError(
                f"{attempt.name} has several rows of one key ({', '.join(self._key)}), of which one can be kept: "
                "group by the key, or drop all but one"
            ) from None
        except errors.UniqueViolation as error:
            way_out = (
                "if it is of mode='merge', which the output had before, go back to that, or: "
                f"ALTER TABLE {self._statements.target} DROP CONSTRAINT {error.diag.constraint_name}"
                if self._mode == "append"
                else "group by its columns, or drop it"
            )
            raise SinkError(
                f"{attempt.name}: two rows of {self._statements.target} have what its constraint "
                f"{error.diag.constraint_name} forbids ({error.diag.message_detail}): {way_out}"
            ) from None
        except errors.InvalidColumnReference:
            raise SinkError(
                f"{attempt.name}: the table {self._statements.target} has no unique constraint on its key "
                f"({', '.join(self._key)}), which merging needs: ALTER TABLE {self._statements.target} ADD PRIMARY KEY "
                f"({', '.join(self._key)})"
            ) from None

    def check_stored(self, cursor: Any, rows: int, attempt: OutputAttempt) -> None:  # noqa: ANN401
        """Raise SinkError if the table did not take each row that was inserted: a trigger may leave rows out."""
        if cursor.rowcount != rows:
            raise SinkError(
                f"{attempt.name}: {self._statements.target} took {cursor.rowcount} of {rows} rows, so nothing was "
                "committed: one of its triggers leaves rows out. Filter them in the output's function, or change the "
                "trigger"
            )

    def check_key(self, columns: list[Column], where: str) -> None:
        missing = [column for column in self._key if column not in {found.name for found in columns}]
        if missing:
            raise SinkError(
                f"{where} has no column {', '.join(missing)}, which its sink has as key: add it, or name others"
            )
