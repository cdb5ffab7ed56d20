"""Insert staged rows into the target's table, find by halves those that it refuses, and say what is wrong with each.

What a table demands of a row (constraints, indexes, partitions, triggers) only Postgres knows, so a row is judged by
inserting it. This module owns which errors are a row's. It must never change the table otherwise, or commit.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestration.sinks.postgres.postgres_statements import quoted
from orchestration.sinks.refused_rows import MOST_REFUSED, RefusedRow, cut, row_as_json, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestration.sinks.postgres.postgres_columns import Column
    from orchestration.sinks.postgres.postgres_statements import Statements
    from orchestration.sinks.refused_rows import RefusedRows

#: Comment on the primary key of a table that the sink made.
MADE_BY_MERGE = "made by Forebay for mode='merge'"
# Classes of SQLSTATE that say nothing about a row: connections, transactions, rights, names, locks, resources, faults
# of the server; and a sequence that has come to its end. Any other is a row's: a value, a constraint, a limit, an
# exception of a trigger, whatever its code.
_OF_NO_ROW = re.compile("0[0-3]|0[8ABFLPZ]|2[4568BDF]|3[4BDF]|4[02]|5[3578]|72|F0|HV|XX|2200H")
_NOT_NULL, _CHECK = "23502", "23514"  # their details repeat the row
# How a column's value is shown, as refused rows of a task have it; `to_json` for any other type.
_SHOWN = {
    "bytea": "encode({0}, 'hex')",
    # As it was written: a reader of JSON would round numbers, and take the last of equal names.
    "json": "{0}::text",
    "numeric": "{0}::text",
    "timestamp with time zone": "to_char({0} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.USZ BC')",
    "timestamp without time zone": "to_char({0}, 'YYYY-MM-DD HH24:MI:SS.US BC')",
}

# The table, and its partitions at any depth.
_TREE = "SELECT to_regclass(%(table)s)::oid UNION SELECT relid::oid FROM pg_partition_tree(to_regclass(%(table)s))"
_DEFERRED = """
SELECT DISTINCT n.nspname::text, o.conname::text FROM pg_constraint o JOIN pg_namespace n ON n.oid = o.connamespace
WHERE o.condeferred AND o.contype IN ('f', 'p', 'u', 'x') AND o.conrelid IN ({tree}) AND o.confrelid NOT IN ({tree})
ORDER BY 1, 2
"""
# A constraint, or else an index, of which no columns are named if it has expressions.
_CONSTRAINT = """
SELECT ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = found.relid AND a.attnum = ANY (found.keys)
ORDER BY array_position(found.keys, a.attnum)), found.refers IN ({tree}), coalesce(found.said = %(merge)s, false)
FROM (
    SELECT conrelid AS relid, conkey AS keys, confrelid AS refers, obj_description(oid, 'pg_constraint') AS said,
        1 AS rank
    FROM pg_constraint WHERE conname = %(name)s AND conrelid = to_regclass(%(of)s)
    UNION ALL
    SELECT indrelid, CASE WHEN 0 = ANY (indkey::int2[]) THEN '{{}}' ELSE indkey::int2[] END, 0::oid, NULL, 2
    FROM pg_index WHERE indexrelid = to_regclass(%(index)s)
) AS found ORDER BY rank LIMIT 1
"""


def is_of_a_row(error: Any) -> bool:  # noqa: ANN401  psycopg2 has no types
    """Return whether Postgres refused a statement because of a row that it writes."""
    return error.pgcode is not None and _OF_NO_ROW.match(error.pgcode) is None


@dataclass(frozen=True, slots=True)
class Piece:
    """Name staged rows by their places, a page and a number in it: from `first` to before `end`; all without `end`."""

    table: str
    first: tuple[int, int] = (0, 0)
    end: tuple[int, int] | None = None

    def where(self) -> Any:  # noqa: ANN401
        """Return the condition on the staging table's rows."""
        from psycopg2 import sql  # noqa: PLC0415

        if self.end is None:
            return sql.SQL("true")
        return sql.SQL("ctid >= {}::tid AND ctid < {}::tid").format(
            *(sql.Literal("({},{})".format(*place)) for place in (self.first, self.end))
        )


@dataclass(frozen=True, slots=True)
class _Constraint:
    columns: tuple[str, ...] = ()
    refers_to_its_table: bool = False
    is_of_merge: bool = False


class Insertion:
    """Insert an attempt's pieces in the caller's transaction; the rows that the table refuses go to `refused`.

    A row that only another row of the batch excludes is refused if it comes later. One that refers to a row of the same
    table, or that one excludes which the batch may change, is tried again when the others are there.
    """

    def __init__(
        self,
        cursor: Any,  # noqa: ANN401
        statements: Statements,
        columns: Sequence[Column],
        insert: Callable[[Sequence[Piece]], int],
        refused: RefusedRows,
        *,
        merges: bool = False,
    ) -> None:
        """Prepare. `insert` inserts pieces by one statement, and returns how many rows the table took.

        `merges`: it changes rows too, so that what excludes a row may go.
        """
        self._cursor = cursor
        self._statements = statements
        self._columns = columns
        self._insert = insert
        self._refused = refused
        self._merges = merges
        self._before_halving: Callable[[], None] | None = None
        self._tree = statements.sql(_TREE, {"table": quoted(statements.schema, statements.table)})
        self._constraints: dict[tuple[str, str, str], _Constraint] = {}
        self._waiting: list[list[Piece]] = []  # for another row to come, or to change
        self._waits_no_more = False

    def run(self, pieces: Sequence[Piece], before_halving: Callable[[], None]) -> int:
        """Return how many rows the table took. Raises RefusedRowsError if there are too many that it refuses.

        `before_halving` is called once before rows of one statement are inserted by several.
        """
        self._check_constraints_at_once()
        self._before_halving = before_halving
        stored = self._search([list(pieces)])
        while self._waiting:
            again, self._waiting = self._waiting, []
            stored_now = self._search(again)
            stored += stored_now
            if not stored_now and self._waiting == again:
                self._halve_waiting()
        return stored

    def _halve_waiting(self) -> None:
        """Have the halves of what waits tried: in each piece is a row that no other one makes room for."""
        waiting, self._waiting = self._waiting, []
        for some in waiting:
            self._waiting += self._halves(some) or [some]
        # Single rows, or too many pieces to tell their rows apart.
        self._waits_no_more = self._waiting == waiting or len(waiting) > MOST_REFUSED

    def _check_constraints_at_once(self) -> None:
        """Have what else is checked at the commit, where no row could be put aside, checked at each statement.

        Not what tables refer to: a row that was deleted to be replaced is missing until then. Locks: none.
        """
        from psycopg2 import sql  # noqa: PLC0415

        self._cursor.execute(self._statements.sql(_DEFERRED, tree=self._tree))
        if names := self._cursor.fetchall():
            deferred = sql.SQL(", ").join(sql.Identifier(*name) for name in names)
            self._cursor.execute(sql.SQL("SET CONSTRAINTS {} IMMEDIATE").format(deferred))

    def _inserted(self, pieces: Sequence[Piece]) -> int:
        """Insert pieces by one statement, or nothing of them. Raises _RowError."""
        import psycopg2  # noqa: PLC0415

        self._cursor.execute("SAVEPOINT piece")
        try:
            stored = self._insert(pieces)
        except psycopg2.Error as error:
            if not is_of_a_row(error):
                raise
            self._cursor.execute("ROLLBACK TO SAVEPOINT piece; RELEASE SAVEPOINT piece")
            raise _RowError(error) from None
        self._cursor.execute("RELEASE SAVEPOINT piece")
        return stored

    def _search(self, left: Sequence[list[Piece]]) -> int:
        """Insert what can be, in order, by halves of what can't: a number of statements for each refused row."""
        stored, to_do = 0, [*reversed(left)]
        while to_do:
            some = to_do.pop()
            try:
                stored += self._inserted(some)
            except _RowError as error:
                self._begin_halving()
                if self._waits(error.of_postgres):
                    self._waiting.append(some)
                    continue
                halves = self._halves(some)
                if not halves:
                    self._judge(some[0], error.of_postgres)
                to_do += reversed(halves)
        return stored

    def _waits(self, error: Any) -> bool:  # noqa: ANN401
        """Return whether the row may be taken when another one is there, or has changed."""
        from psycopg2 import errors  # noqa: PLC0415

        if self._waits_no_more:
            return False
        if isinstance(error, errors.UniqueViolation | errors.ExclusionViolation):
            return self._merges
        return isinstance(error, errors.ForeignKeyViolation) and self._constraint(error).refers_to_its_table

    def _begin_halving(self) -> None:
        if self._before_halving is None:
            return
        self._before_halving()
        self._before_halving = None
        try:
            self._inserted([])
        except _RowError as error:
            # No row is to blame: a trigger for each statement refuses any.
            raise error.of_postgres from None

    def _halves(self, pieces: list[Piece]) -> list[list[Piece]]:
        """Return both halves; none of a single row."""
        from psycopg2 import sql  # noqa: PLC0415

        if len(pieces) > 1:
            half = len(pieces) // 2
            return [pieces[:half], pieces[half:]]
        [piece] = pieces
        table = sql.Identifier(self._statements.schema, piece.table)
        end = piece.end
        if end is None:
            size = "SELECT pg_relation_size({}::regclass) / current_setting('block_size')::bigint"
            self._cursor.execute(sql.SQL(size).format(sql.Literal(quoted(self._statements.schema, piece.table))))
            end = (self._cursor.fetchone()[0], 0)
        if end[0] - piece.first[0] > 1:
            middle = ((piece.first[0] + end[0]) // 2, 0)
        else:
            # One page, of which the rows are few.
            places = "SELECT ctid::text AS place FROM {} WHERE {} ORDER BY ctid"
            self._cursor.execute(sql.SQL(places).format(table, Piece(piece.table, piece.first, end).where()))
            found = self._cursor.fetchall()
            if len(found) <= 1:
                return []
            page, _, number = found[len(found) // 2][0].strip("()").partition(",")
            middle = (int(page), int(number))
        return [[Piece(piece.table, piece.first, middle)], [Piece(piece.table, middle, end)]]

    def _judge(self, piece: Piece, error: Any) -> None:  # noqa: ANN401
        row = self._row(piece)
        if row is None:
            raise error
        self._put_aside(piece, RefusedRow(row_as_json(row), self._reason(row, error, self._constraint(error))))

    def _put_aside(self, piece: Piece, row: RefusedRow) -> None:
        from psycopg2 import sql  # noqa: PLC0415

        self._refused.add(row)
        # What is still staged is what the table has.
        table = sql.Identifier(self._statements.schema, piece.table)
        self._cursor.execute(sql.SQL("DELETE FROM {} WHERE {}").format(table, piece.where()))

    def _row(self, piece: Piece) -> dict[str, Any] | None:
        """Return the one row of a piece, or None."""
        from psycopg2 import sql  # noqa: PLC0415

        shown_as = [
            sql.SQL(_SHOWN.get(column.type.partition("(")[0], "to_json({0})")).format(sql.Identifier(column.name))
            for column in self._columns
        ]
        table = sql.Identifier(self._statements.schema, piece.table)
        row = sql.SQL("SELECT {} FROM {} WHERE {}").format(sql.SQL(", ").join(shown_as), table, piece.where())
        self._cursor.execute(row)
        values = self._cursor.fetchone()
        return values and {
            column.name: value.removesuffix(" AD") if isinstance(value, str) and "time" in column.type else value
            for column, value in zip(self._columns, values, strict=True)
        }

    def _reason(self, row: dict[str, Any], error: Any, constraint: _Constraint) -> str:  # noqa: ANN401
        detail, said = error.diag.message_detail, error.diag.message_primary
        is_the_row = error.pgcode == _NOT_NULL or (error.pgcode == _CHECK and error.diag.constraint_name)
        if detail and not is_the_row:
            said += f" ({cut(detail)})"
        if constraint.is_of_merge:
            said += (
                f" (go back to mode='merge', which made it, or: ALTER TABLE {self._statements.target} DROP CONSTRAINT "
                f"{error.diag.constraint_name})"
            )
        names = [name for name in constraint.columns or [error.diag.column_name] if name in row]
        if not names:
            return f"the row is {shown(json.loads(row_as_json(row)))}: {said}"
        values = ", ".join(shown(row[name]) for name in names)
        is_one = len(names) == 1
        return f"{'column' if is_one else 'columns'} {', '.join(names)} {'is' if is_one else 'are'} {values}: {said}"

    def _constraint(self, error: Any) -> _Constraint:  # noqa: ANN401
        """Return what the catalog says of the constraint, or the unique index, that an error names. Locks: none."""
        diag = error.diag
        if not (diag.schema_name and diag.table_name and diag.constraint_name):
            return _Constraint()
        key = (diag.schema_name, diag.table_name, diag.constraint_name)
        if key not in self._constraints:
            index = quoted(key[0], key[2])
            values = {"of": quoted(*key[:2]), "name": key[2], "index": index, "merge": MADE_BY_MERGE}
            self._cursor.execute(self._statements.sql(_CONSTRAINT, values, tree=self._tree))
            found = self._cursor.fetchone()
            self._constraints[key] = _Constraint() if found is None else _Constraint(tuple(found[0]), *found[1:])
        return self._constraints[key]


class _RowError(Exception):
    """Postgres has refused a statement because of a row."""

    def __init__(self, of_postgres: Any) -> None:  # noqa: ANN401
        super().__init__(str(of_postgres))
        self.of_postgres = of_postgres
