"""Insert staged rows into the target's table, and find by halves those that it refuses.

What a table demands of a row (constraints, indexes, partitions, triggers) only Postgres knows, so a row is judged by
inserting it. This module must never change the table otherwise, or commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestration.sinks.postgres.postgres_row_errors import OF_NO_ROW, TREE
from orchestration.sinks.postgres.postgres_statements import Piece, quoted
from orchestration.sinks.refused_rows import MOST_REFUSED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestration.sinks.postgres.postgres_row_errors import RowErrors
    from orchestration.sinks.postgres.postgres_statements import Statements

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


class _EachRow(Piece):
    """Name the row at which `_ONE_BY_ONE` is."""

    def where(self) -> Any:  # noqa: ANN401
        from psycopg2 import sql  # noqa: PLC0415

        return sql.SQL("ctid = forebay.place")


class Insertion:
    """Insert an attempt's pieces in the caller's transaction; the rows that the table refuses go to `refusals`.

    A row that only another row of the batch excludes is refused if it comes later. One that refers to a row of the same
    table, or that one excludes which the batch may change, is tried again when the others are there.
    """

    def __init__(
        self,
        cursor: Any,  # noqa: ANN401
        statements: Statements,
        insert: Callable[[Sequence[Piece]], Any],
        row_errors: RowErrors,
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
        self._insert = insert
        self._row_errors = row_errors
        self._key = key
        self._repeated = repeated
        self._halves_already = False
        self._stored = 0
        self._check = ""  # of the foreign keys to the table itself
        self._waiting: list[list[Piece]] = []  # for another row to come, or to change
        self._waits_no_more = False
        self._tried_with = (-1, 0)  # how many rows were stored and refused when all that waits was tried at once

    def run(self, pieces: Sequence[Piece]) -> int:
        """Return how many rows the table took. Raises RefusedRowsError if there are too many that it refuses."""
        self._check_constraints_at_once()
        self._search([list(pieces)])
        while self._waiting:
            again, self._waiting, before = self._waiting, [], self._stored
            self._search(again)
            if self._stored == before and self._waiting == again:
                self._halve_waiting()
        if self._stored:
            self._row_errors.refuse_doubtful()
        self._row_errors.check_doubt()
        return self._stored

    def _halve_waiting(self) -> None:
        """Try all that waits at once, for rows that refer to each other, or else its halves."""
        waiting, self._waiting = self._waiting, []
        if (there := (self._stored, self._row_errors.number)) != self._tried_with:
            self._tried_with = there
            if self._insert_pieces([piece for some in waiting for piece in some]) is None:
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
        tree = self._statements.sql(TREE, {"table": quoted(self._statements.schema, self._statements.table)})
        self._cursor.execute(self._statements.sql(_DEFERRED, tree=tree))
        found = self._cursor.fetchall()
        others, own = (
            ", ".join(quoted(*name) for is_own, *name in found if is_own is wanted) for wanted in (False, True)
        )
        if others:
            self._cursor.execute(f"SET CONSTRAINTS {others} IMMEDIATE")
        if own:
            self._check = f"SET CONSTRAINTS {own} IMMEDIATE; SET CONSTRAINTS {own} DEFERRED;"

    def _insert_pieces(self, pieces: Sequence[Piece]) -> Any:  # noqa: ANN401
        """Insert pieces by one statement, or nothing of them: then return the error, which is because of a row."""
        import psycopg2  # noqa: PLC0415
        from psycopg2 import sql  # noqa: PLC0415

        try:
            self._cursor.execute(sql.SQL("SAVEPOINT piece; {}").format(self._insert(pieces)))
            stored = int(self._cursor.rowcount)
            self._cursor.execute(f"{self._check} RELEASE SAVEPOINT piece")
        except psycopg2.Error as error:
            if error.pgcode is None or OF_NO_ROW.match(error.pgcode):
                raise
            self._cursor.execute("ROLLBACK TO SAVEPOINT piece; RELEASE SAVEPOINT piece")
            # Its traceback has the caller's frame, where the error is kept: a circle that would keep the cursor.
            return error.with_traceback(None)
        self._stored += stored
        return None

    def _search(self, left: Sequence[list[Piece]]) -> None:
        """Insert what can be, in order, by halves of what can't, and the rows of a page one by one."""
        to_do = [*reversed(left)]
        while to_do:
            some = to_do.pop()
            error = self._insert_pieces(some)
            if error is not None:
                if self._begin_halving():
                    to_do.append(some)
                elif self._waits(error):
                    self._waiting.append(some)
                elif len(some) == 1 and some[0].is_a_row:
                    self._row_errors.judge(some[0], error)
                else:
                    to_do += reversed(self._halves(some) or self._insert_one_by_one(some[0]))
            if self._stored:
                self._row_errors.refuse_doubtful()

    def _waits(self, error: Any) -> bool:  # noqa: ANN401
        """Return whether the row may be taken when another one is there, or has changed."""
        from psycopg2 import errors  # noqa: PLC0415

        if self._waits_no_more:
            return False
        if isinstance(error, errors.UniqueViolation | errors.ExclusionViolation):
            return bool(self._key)
        return isinstance(error, errors.ForeignKeyViolation) and self._row_errors.constraint(error).refers_to_its_table

    def _begin_halving(self) -> bool:
        """Return whether rows were put aside, so that the others may be taken by one statement."""
        if self._halves_already:
            return False
        self._halves_already = True
        error = self._insert_pieces([])
        if error is not None and not self._waits(error):
            # No row is to blame: a trigger for each statement refuses any.
            raise error
        repeated = self._repeated()
        for piece in repeated:
            self._row_errors.refuse_repeated(piece, self._key)
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
            of_no_row=sql.Literal(f"^({OF_NO_ROW.pattern})"),
        )
        try:
            block = sql.Literal(body.as_string(self._cursor))
            # Without the release each page's transaction is in the one before, which costs more at each statement.
            self._cursor.execute(sql.SQL("SAVEPOINT page; DO {}; RELEASE SAVEPOINT page").format(block))
            self._cursor.execute(_ONE_BY_ONE_ANSWER)
        except psycopg2.Error as error:
            if error.pgcode is None or OF_NO_ROW.match(error.pgcode):
                raise
            # The database has no PL/pgSQL for this login, or a trigger ends as no handler takes it: by ASSERT.
            places = sql.SQL("SELECT 0, ARRAY(SELECT ctid::text FROM {} WHERE {} ORDER BY ctid)")
            self._cursor.execute("ROLLBACK TO SAVEPOINT page; RELEASE SAVEPOINT page")
            self._cursor.execute(places.format(sql.Identifier(self._statements.schema, piece.table), piece.where()))
        stored, refused = self._cursor.fetchone()
        self._stored += stored
        return [[Piece.of_place(piece.table, place)] for place in refused]
