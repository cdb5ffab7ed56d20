"""Count the statements that a block of a test sends, and the rows that they return or change."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Counted:
    """What was sent; `rows` is the sum over all statements."""

    statements: list[str] = field(default_factory=list)
    #: The same with their values.
    queries: list[str] = field(default_factory=list)
    rows: int = 0

    @property
    def sizes(self) -> tuple[int, int]:
        """Return the number of statements and of rows."""
        return len(self.statements), self.rows


@contextmanager
def counted(connection: sa.Connection) -> Iterator[Counted]:
    """Count what is sent on any connection of the same engine."""
    found = Counted()

    def note(_connection: object, cursor: Any, statement: str, *_: object) -> None:  # noqa: ANN401  psycopg2's
        found.statements.append(statement)
        found.queries.append(cursor.query.decode())
        found.rows += max(0, cursor.rowcount)

    sa.event.listen(connection.engine, "after_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(connection.engine, "after_cursor_execute", note)


def buffers(connection: sa.Connection, query: str) -> int:
    """Run a query that changes nothing again; return the pages that it reads, and that planning it does not."""
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}"
    [[plans]] = connection.exec_driver_sql(explain, execution_options={"no_parameters": True}).all()
    plan = plans[0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])
