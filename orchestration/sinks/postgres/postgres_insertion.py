"""Insert staged rows into the target's table, find by halves those that it refuses, and say what is wrong with each.

What a table demands of a row (constraints, indexes, partitions, triggers) only Postgres knows, so a row is judged by
inserting it. This module owns which errors are a row's. It must never change the table otherwise, or commit.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestration.sinks.postgres.postgres_statements import quoted
from orchestration.sinks.refused_rows import MOST_REFUSED, RefusedRow, cut, row_as_json, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from orchestration.sinks.postgres.postgres_columns import Column
    from orchestration.sinks.postgres.postgres_statements import Statements
    from orchestration.sinks.refused_rows import RefusedRows

#: Comment on the primary key of a table that the sink made.
MADE_BY_MERGE = "made by Forebay for mode='merge'"
# Classes of SQLSTATE that say nothing about a row: connections, transactions, locks, resources, faults of the server;
# and a sequence that has come to its end.
_OF_NO_ROW = re.compile("08|25|2D|3B|40|53|55P03|57|58|72|2200H|XX00[12]")
# Rights, names, settings, internal errors: a row's only if the table takes other rows, because a trigger's code may end
# so. Any other class is a row's: a value, a constraint, a limit, an exception of a trigger, whatever its code.
_IN_DOUBT = re.compile("0[0-3]|0[ABFLPZ]|2[468BF]|3[4DF]|42|55|F0|HV|XX")
_REPEATED = "several rows of the batch have this key, and one can be kept: group by the key, or drop all but one"
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
SELECT DISTINCT o.confrelid IN ({tree}), n.nspname::text, o.conname::text
FROM pg_constraint o JOIN pg_namespace n ON n.oid = o.connamespace
WHERE o.condeferred AND o.contype IN ('f', 'p', 'u', 'x') AND o.conrelid IN ({tree}) ORDER BY 1, 2, 3
"""
# Insert the rows of a piece one by one, and keep the places of those that the table does not take.
_ONE_BY_ONE = """
#variable_conflict use_column
<<forebay>>
DECLARE
    place tid; stored bigint = 0; refused tid[] = '{{}}';
BEGIN
    FOR forebay.place IN SELECT ctid FROM {table} WHERE {where} ORDER BY ctid LOOP
        BEGIN
            {insert};
            {check}
            IF FOUND THEN
                forebay.stored = forebay.stored + 1;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            -- Each row would wait for the same lock.
            IF SQLSTATE ~ {of_no_row} THEN
                RAISE;
            END IF;
            forebay.refused = forebay.refused || forebay.place;
        END;
    END LOOP;
    PERFORM set_config('forebay.stored', forebay.stored::text, true);
    PERFORM set_config('forebay.refused', forebay.refused::text, true);
END
"""
_ONE_BY_ONE_ANSWER = """
SELECT current_setting('forebay.stored')::bigint, current_setting('forebay.refused')::tid[]::text[]
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
    """Return whether Postgres refused a statement because of a row that it writes, which is certain."""
    return error.pgcode is not None and not (_OF_NO_ROW.match(error.pgcode) or _IN_DOUBT.match(error.pgcode))


@dataclass(frozen=True, slots=True)
class Piece:
    """Name staged rows by their places, a page and a number in it: from `first` to before `end`; all without `end`."""

    table: str
    first: tuple[int, int] = (0, 0)
    end: tuple[int, int] | None = None

    @classmethod
    def of_place(cls, table: str, place: str) -> Piece:
        """Return the piece of one row, by its `ctid`."""
        page, number = map(int, place.strip("()").split(","))
        return cls(table, (page, number), (page, number + 1))

    @property
    def is_a_row(self) -> bool:
        """Return whether it is known to be a row."""
        return self.end == (self.first[0], self.first[1] + 1)

    def where(self) -> Any:  # noqa: ANN401
        """Return the condition on the staging table's rows."""
        from psycopg2 import sql  # noqa: PLC0415

        if self.end is None:
            return sql.SQL("true")
        return sql.SQL("ctid >= {}::tid AND ctid < {}::tid").format(
            *(sql.Literal("({},{})".format(*place)) for place in (self.first, self.end))
        )


class _EachRow(Piece):
    """Name the row at which `_ONE_BY_ONE` is."""

    def where(self) -> Any:  # noqa: ANN401
        from psycopg2 import sql  # noqa: PLC0415

        return sql.SQL("ctid = forebay.place")


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
        insert: Callable[[Sequence[Piece]], Any],
        refused: RefusedRows,
        *,
        key: Sequence[str] = (),
        repeated: Callable[[], Sequence[Piece]] = tuple,
    ) -> None:
        """Prepare. `insert` composes the one statement that inserts pieces.

        `key`: the statement changes rows that have it, so that what excludes a row may go. `repeated` finds the rows of
        which several have one key: each is refused, because several statements would let one replace another.
        """
        self._cursor = cursor
        self._statements = statements
        self._columns = columns
        self._insert = insert
        self._refused = refused
        self._key = key
        self._repeated = repeated
        self._halves_already = False
        self._stored = 0
        self._check = ""  # of the foreign keys to the table itself
        self._tree = statements.sql(_TREE, {"table": quoted(statements.schema, statements.table)})
        self._constraints: dict[tuple[str, str, str], _Constraint] = {}
        self._waiting: list[list[Piece]] = []  # for another row to come, or to change
        self._waits_no_more = False
        self._tried_with = (-1, 0)  # how many rows were stored and refused when all that waits was tried at once
        self._in_doubt: list[tuple[Piece, Any]] = []  # until the table has taken a row

    def run(self, pieces: Sequence[Piece]) -> int:
        """Return how many rows the table took. Raises RefusedRowsError if there are too many that it refuses."""
        self._check_constraints_at_once()
        self._search([list(pieces)])
        while self._waiting:
            again, self._waiting, before = self._waiting, [], self._stored
            self._search(again)
            if self._stored == before and self._waiting == again:
                self._halve_waiting()
        self._end_doubt()
        if self._in_doubt:
            # Not one row was taken.
            raise self._in_doubt[0][1]
        return self._stored

    def _end_doubt(self) -> None:
        """Refuse what is in doubt if the table takes other rows."""
        if self._stored:
            for piece, of_postgres in self._in_doubt:
                self._refuse(piece, of_postgres)
            self._in_doubt.clear()

    def _halve_waiting(self) -> None:
        """Try all that waits at once, for rows that refer to each other, or else its halves."""
        waiting, self._waiting = self._waiting, []
        if (there := (self._stored, len(self._refused.rows))) != self._tried_with:
            self._tried_with = there
            with contextlib.suppress(_RowError):
                self._stored += self._inserted([piece for some in waiting for piece in some])
                return
        for some in waiting:
            if len(some) == 1 and some[0].is_a_row:
                self._waiting.append(some)
            elif halves := self._halves(some):
                self._waiting += halves
            # What is left of a page waits together.
            elif left := [one for [one] in self._insert_one_by_one(some[0])]:
                self._waiting.append(left)
        # Single rows, or too many pieces to tell their rows apart.
        self._waits_no_more = self._waiting == waiting or len(waiting) > MOST_REFUSED

    def _check_constraints_at_once(self) -> None:
        """Have what else is checked at the commit, where no row could be put aside, checked at each statement.

        A foreign key to the table itself is checked behind each: a row that was deleted to be replaced is missing
        before. Not what other tables refer to. Locks: none.
        """
        self._cursor.execute(self._statements.sql(_DEFERRED, tree=self._tree))
        found = self._cursor.fetchall()
        others, own = (
            ", ".join(quoted(*name) for is_own, *name in found if is_own is wanted) for wanted in (False, True)
        )
        if others:
            self._cursor.execute(f"SET CONSTRAINTS {others} IMMEDIATE")
        if own:
            self._check = f"SET CONSTRAINTS {own} IMMEDIATE; SET CONSTRAINTS {own} DEFERRED;"

    def _inserted(self, pieces: Sequence[Piece]) -> int:
        """Insert pieces by one statement, or nothing of them. Raises _RowError."""
        import psycopg2  # noqa: PLC0415
        from psycopg2 import sql  # noqa: PLC0415

        try:
            self._cursor.execute(sql.SQL("SAVEPOINT piece; {}").format(self._insert(pieces)))
            stored = int(self._cursor.rowcount)
            self._cursor.execute(f"{self._check} RELEASE SAVEPOINT piece")
        except psycopg2.Error as error:
            if error.pgcode is None or _OF_NO_ROW.match(error.pgcode):
                raise
            self._cursor.execute("ROLLBACK TO SAVEPOINT piece; RELEASE SAVEPOINT piece")
            raise _RowError(error) from None
        return stored

    def _search(self, left: Sequence[list[Piece]]) -> None:
        """Insert what can be, in order, by halves of what can't, and the rows of a page one by one."""
        to_do = [*reversed(left)]
        while to_do:
            some = to_do.pop()
            try:
                self._stored += self._inserted(some)
            except _RowError as error:
                if self._begin_halving():
                    to_do.append(some)
                elif self._waits(error.of_postgres):
                    self._waiting.append(some)
                elif len(some) == 1 and some[0].is_a_row:
                    self._judge(some[0], error.of_postgres)
                else:
                    to_do += reversed(self._halves(some) or self._insert_one_by_one(some[0]))
            self._end_doubt()

    def _waits(self, error: Any) -> bool:  # noqa: ANN401
        """Return whether the row may be taken when another one is there, or has changed."""
        from psycopg2 import errors  # noqa: PLC0415

        if self._waits_no_more:
            return False
        if isinstance(error, errors.UniqueViolation | errors.ExclusionViolation):
            return bool(self._key)
        return isinstance(error, errors.ForeignKeyViolation) and self._constraint(error).refers_to_its_table

    def _begin_halving(self) -> bool:
        """Return whether rows were put aside, so that the others may be taken by one statement."""
        if self._halves_already:
            return False
        self._halves_already = True
        try:
            self._inserted([])
        except _RowError as error:
            if not self._waits(error.of_postgres):
                # No row is to blame: a trigger for each statement refuses any.
                raise error.of_postgres from None
        repeated = self._repeated()
        for piece in repeated:
            if (row := self._row(piece)) is not None:
                self._put_aside(piece, RefusedRow(row_as_json(row), _reason(row, self._key, _REPEATED)))
        return bool(repeated)

    def _halves(self, pieces: list[Piece]) -> list[list[Piece]]:
        """Return both halves; none of a page or less."""
        from psycopg2 import sql  # noqa: PLC0415

        if len(pieces) > 1:
            half = len(pieces) // 2
            return [pieces[:half], pieces[half:]]
        [piece] = pieces
        end = piece.end
        if end is None:
            size = "SELECT pg_relation_size({}::regclass) / current_setting('block_size')::bigint"
            self._cursor.execute(sql.SQL(size).format(sql.Literal(quoted(self._statements.schema, piece.table))))
            end = (self._cursor.fetchone()[0], 0)
        if end[0] - piece.first[0] <= 1:
            return []
        middle = ((piece.first[0] + end[0]) // 2, 0)
        return [[Piece(piece.table, piece.first, middle)], [Piece(piece.table, middle, end)]]

    def _insert_one_by_one(self, piece: Piece) -> list[list[Piece]]:
        """Insert the rows of a piece by a statement for each, and return those that the table does not take."""
        import psycopg2  # noqa: PLC0415
        from psycopg2 import sql  # noqa: PLC0415

        body = sql.SQL(_ONE_BY_ONE).format(
            table=sql.Identifier(self._statements.schema, piece.table),
            where=piece.where(),
            insert=self._insert([_EachRow(piece.table)]),
            check=sql.SQL(self._check),
            of_no_row=sql.Literal(f"^({_OF_NO_ROW.pattern})"),
        )
        try:
            block = sql.Literal(body.as_string(self._cursor))
            # Without the release each page's transaction is in the one before, which costs more at each statement.
            self._cursor.execute(sql.SQL("SAVEPOINT page; DO {}; RELEASE SAVEPOINT page").format(block))
            self._cursor.execute(_ONE_BY_ONE_ANSWER)
        except psycopg2.Error as error:
            if error.pgcode is None or _OF_NO_ROW.match(error.pgcode):
                raise
            # The database has no PL/pgSQL for this login, or a trigger ends as no handler takes it: by ASSERT.
            places = sql.SQL("SELECT 0, ARRAY(SELECT ctid::text FROM {} WHERE {} ORDER BY ctid)")
            self._cursor.execute("ROLLBACK TO SAVEPOINT page; RELEASE SAVEPOINT page")
            self._cursor.execute(places.format(sql.Identifier(self._statements.schema, piece.table), piece.where()))
        stored, refused = self._cursor.fetchone()
        self._stored += stored
        return [[Piece.of_place(piece.table, place)] for place in refused]

    def _judge(self, piece: Piece, error: Any) -> None:  # noqa: ANN401
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
        return _reason(row, [name for name in constraint.columns or [error.diag.column_name] if name in row], said)

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


def _reason(row: Mapping[str, Any], names: Sequence[str], said: str) -> str:
    if not names:
        return f"the row is {shown(json.loads(row_as_json(row)))}: {said}"
    values = ", ".join(shown(row[name]) for name in names)
    is_one = len(names) == 1
    return f"{'column' if is_one else 'columns'} {', '.join(names)} {'is' if is_one else 'are'} {values}: {said}"


class _RowError(Exception):
    """Postgres has refused a statement because of a row."""

    def __init__(self, of_postgres: Any) -> None:  # noqa: ANN401
        super().__init__(str(of_postgres))
        self.of_postgres = of_postgres
