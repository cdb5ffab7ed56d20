"""Say what is wrong with the rows that the target's table refuses, and take them out of what is staged.

This module owns which errors are a row's, and what the catalog says of the constraint that an error names. It must
never insert a row.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestration.sinks.postgres.postgres_catalog import unique_indexes
from orchestration.sinks.postgres.postgres_statements import quoted
from orchestration.sinks.refused_rows import MOST_REFUSED, RefusedRow, row_as_json, shown
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestration.sinks.postgres.postgres_columns import Column
    from orchestration.sinks.postgres.postgres_statements import Piece, Statements
    from orchestration.sinks.refused_rows import RefusedRows

#: Classes of SQLSTATE that say nothing about a row: connections, transactions, locks, resources, faults of the server;
#: and a sequence that has come to its end.
OF_NO_ROW = re.compile("08|25|2D|3B|40|53|55P03|57|58|72|2200H|XX00[12]")
# Rights, names, settings, internal errors: a row's only if the table takes other rows, because a trigger's code may end
# so. Any other class is a row's: a value, a constraint, a limit, an exception of a trigger, whatever its code.
_IN_DOUBT = re.compile("0[0-3]|0[ABFLPZ]|2[468BF]|3[4DF]|42|55|F0|HV|XX")
_REPEATED = "several rows of the batch have this key, and one can be kept: group by the key, or drop all but one"
_NOT_NULL, _CHECK = "23502", "23514"  # their details repeat the row
_MOST_DETAIL = 200  # characters
# How a column's value is shown, as refused rows of a task have it; `to_json` for any other type.
_SHOWN = {
    "bytea": "encode({0}, 'hex')",
    # As it was written: a reader of JSON would round numbers, and take the last of equal names.
    "json": "{0}::text",
    "numeric": "{0}::text",
    "timestamp with time zone": "to_char({0} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.USZ BC')",
    "timestamp without time zone": "to_char({0}, 'YYYY-MM-DD HH24:MI:SS.US BC')",
}

#: The table, and its partitions at any depth.
TREE = "SELECT to_regclass(%(table)s)::oid UNION SELECT relid::oid FROM pg_partition_tree(to_regclass(%(table)s))"
# A constraint, or else an index, of which no columns are named if it has expressions.
_CONSTRAINT = """
SELECT ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = found.relid AND a.attnum = ANY (found.keys)
ORDER BY array_position(found.keys, a.attnum)), found.refers IN ({tree})
FROM (
    SELECT conrelid AS relid, conkey AS keys, confrelid AS refers, 1 AS rank
    FROM pg_constraint WHERE conname = %(name)s AND conrelid = to_regclass(%(of)s)
    UNION ALL
    SELECT indrelid, CASE WHEN 0 = ANY (indkey::int2[]) THEN '{{}}' ELSE indkey::int2[] END, 0::oid, 2
    FROM pg_index WHERE indexrelid = to_regclass(%(index)s)
) AS found ORDER BY rank LIMIT 1
"""


def is_of_a_row(error: Any) -> bool:  # noqa: ANN401  psycopg2 has no types
    """Return whether Postgres refused a statement because of a row that it writes, which is certain."""
    return error.pgcode is not None and not (OF_NO_ROW.match(error.pgcode) or _IN_DOUBT.match(error.pgcode))


@dataclass(frozen=True, slots=True)
class Constraint:
    """Hold what the catalog says of a constraint or a unique index; of none that is known, nothing.

    `drop`: how to drop it, if a merging sink made it.
    """

    columns: tuple[str, ...] = ()
    refers_to_its_table: bool = False
    drop: str = ""


class RowErrors:
    """Judge the rows of an attempt that the table refused, and hand them to `refused`, in the caller's transaction.

    A row of whose error it is not certain that it is a row's is in doubt until the table has taken another row.
    """

    def __init__(
        self,
        cursor: Any,  # noqa: ANN401
        statements: Statements,
        columns: Sequence[Column],
        refused: RefusedRows,
    ) -> None:
        self._cursor = cursor
        self._statements = statements
        self._columns = columns
        self._refused = refused
        self._tree = statements.sql(TREE, {"table": quoted(statements.schema, statements.table)})
        self._constraints: dict[tuple[str, str, str], Constraint] = {}
        self._in_doubt: list[tuple[Piece, Any]] = []

    @property
    def number(self) -> int:
        """Return how many rows were refused."""
        return len(self._refused.rows)

    def refuse_doubtful(self) -> None:
        """Refuse what is in doubt: the table takes other rows."""
        for piece, error in self._in_doubt:
            self._refuse(piece, error)
        self._in_doubt.clear()

    def check_doubt(self) -> None:
        """Raise the first error that is in doubt: the table takes no row."""
        if self._in_doubt:
            raise self._in_doubt[0][1]

    def refuse_repeated(self, piece: Piece, key: Sequence[str]) -> None:
        """Refuse a row whose key another row of the batch has, if the table has not refused it already."""
        row = self._row(piece)
        if row is not None:
            self._put_aside(piece, RefusedRow(row_as_json(row), _reason(row, key, _REPEATED)))

    def judge(self, piece: Piece, error: Any) -> None:  # noqa: ANN401
        """Refuse a row because of Postgres's error, or leave it in doubt."""
        if not _IN_DOUBT.match(error.pgcode):
            self._refuse(piece, error)
        elif len(self._in_doubt) == MOST_REFUSED:
            raise error
        else:
            self._in_doubt.append((piece, error))

    def _refuse(self, piece: Piece, error: Any) -> None:  # noqa: ANN401
        row = self._row(piece)
        if row is None:
            raise error
        self._put_aside(piece, RefusedRow(row_as_json(row), self._reason(row, error, self.constraint(error))))

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

    def _reason(self, row: dict[str, Any], error: Any, constraint: Constraint) -> str:  # noqa: ANN401
        detail, said = error.diag.message_detail, error.diag.message_primary
        is_the_row = error.pgcode == _NOT_NULL or (error.pgcode == _CHECK and error.diag.constraint_name)
        if detail and not is_the_row:
            said += f" ({shortened(detail, _MOST_DETAIL)})"
        if constraint.drop:
            said += f" (go back to mode='merge', which made it, or: {constraint.drop})"
        return _reason(row, [name for name in constraint.columns or [error.diag.column_name] if name in row], said)

    def constraint(self, error: Any) -> Constraint:  # noqa: ANN401
        """Return what the catalog says of the constraint, or the unique index, that an error names. Locks: none."""
        diag = error.diag
        if not (diag.schema_name and diag.table_name and diag.constraint_name):
            return Constraint()
        key = (diag.schema_name, diag.table_name, diag.constraint_name)
        if key not in self._constraints:
            index = quoted(key[0], key[2])
            values = {"of": quoted(*key[:2]), "name": key[2], "index": index}
            self._cursor.execute(self._statements.sql(_CONSTRAINT, values, tree=self._tree))
            columns, refers_to_its_table = self._cursor.fetchone() or ((), False)
            drops = {one.name: one.drop for one in unique_indexes(self._cursor, *key[:2]) if one.is_of_merge}
            self._constraints[key] = Constraint(tuple(columns), refers_to_its_table, drops.get(key[2], ""))
        return self._constraints[key]


def _reason(row: Mapping[str, Any], names: Sequence[str], said: str) -> str:
    if not names:
        return f"the row is {shown(json.loads(row_as_json(row)))}: {said}"
    values = ", ".join(shown(row[name]) for name in names)
    is_one = len(names) == 1
    return f"{'column' if is_one else 'columns'} {', '.join(names)} {'is' if is_one else 'are'} {values}: {said}"
