"""Keep the rows that the target refused in a table beside the sink's: `forebay_refused_rows`, with their batches.

This module owns the statements on that table. It must never decide whether a row is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestration.declarations.sink import SinkError
from orchestration.sinks.postgres.postgres_statements import Statements, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestration.declarations.sink import OutputAttempt
    from orchestration.sinks.refused_rows import RefusedRow

REFUSED_ROWS = "forebay_refused_rows"
_MAKE = """
CREATE TABLE {refused_rows} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target text NOT NULL,
    pipeline text NOT NULL,
    output text NOT NULL,
    batch_time timestamp with time zone NOT NULL,
    refused_row text NOT NULL,
    reason text NOT NULL,
    refused_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON {refused_rows} (target, batch_time)
"""


class RefusedRowsTable:
    """Execute statements on the table. Each cursor is in a transaction of the caller's."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    def count(self, cursor: Any, attempt: OutputAttempt) -> int:  # noqa: ANN401  psycopg2 has no types
        """Return how many rows of the batch were refused."""
        if not self._exists(cursor):
            return 0
        cursor.execute(self._of_batch("SELECT count(*) FROM {refused_rows}", attempt))
        return int(cursor.fetchone()[0])

    def keep(
        self,
        cursor: Any,  # noqa: ANN401
        refused: dict[str, int],
        late: Sequence[RefusedRow],
        attempt: OutputAttempt,
    ) -> None:
        """Replace the batch's refused rows by those of this attempt. Raises SinkError if any are missing."""
        from psycopg2 import sql  # noqa: PLC0415

        table = sql.Identifier(self._statements.schema, REFUSED_ROWS)
        if self._exists(cursor):
            cursor.execute(self._of_batch("DELETE FROM {refused_rows}", attempt))
        elif refused or late:
            cursor.execute(self._statements.sql(_MAKE, refused_rows=table))
        sources = [(sql.Identifier(self._statements.schema, staging), number) for staging, number in refused.items()]
        if late:
            rows = [sql.SQL("({}, {})").format(sql.Literal(one.row), sql.Literal(one.reason)) for one in late]
            values = sql.SQL("(VALUES {}) AS late (refused_row, reason)").format(sql.SQL(", ").join(rows))
            sources.append((values, len(late)))
        for source, number in sources:
            cursor.execute(
                self._statements.sql(
                    "INSERT INTO {refused_rows} (target, pipeline, output, batch_time, refused_row, reason) "
                    "SELECT %(target)s, %(pipeline)s, %(output)s, %(batch_time)s, refused_row, reason FROM {source}",
                    self._statements.key_of(attempt),
                    refused_rows=table,
                    source=source,
                )
            )
            if cursor.rowcount != number:
                raise SinkError(
                    f"{attempt.name}: {cursor.rowcount} of {number} refused rows are there (did the target's "
                    "server crash, or fail over?): nothing was committed, the next attempt stages them again"
                )

    def _exists(self, cursor: Any) -> bool:  # noqa: ANN401
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (quoted(self._statements.schema, REFUSED_ROWS),))
        return bool(cursor.fetchone()[0])

    def _of_batch(self, statement: str, attempt: OutputAttempt) -> Any:  # noqa: ANN401
        """Return a statement on the batch's refused rows."""
        from psycopg2 import sql  # noqa: PLC0415

        of_batch = (
            " WHERE target = %(target)s AND pipeline = %(pipeline)s AND output = %(output)s "
            "AND batch_time = %(batch_time)s"
        )
        table = sql.Identifier(self._statements.schema, REFUSED_ROWS)
        return self._statements.sql(statement + of_batch, self._statements.key_of(attempt), refused_rows=table)
