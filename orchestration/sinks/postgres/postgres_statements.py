"""Make the sink's statements on a table of the target, and on staged rows. Must not execute one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestration.sinks.batch_column import BATCH_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from orchestration.declarations.sink import OutputAttempt

COMMITS = "forebay_commits"
#: How long a statement of a batch's transaction waits for another session's lock.
LOCK_TIMEOUT = "SET LOCAL lock_timeout = '5min'"
_VALUE = re.compile(r"%\((\w+)\)s")


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


class Statements:
    """Compose statements that name one table and the commits beside it."""

    def __init__(self, schema: str, table: str) -> None:
        self.schema = schema
        self.table = table
        #: `SCHEMA.TABLE`.
        self.target = f"{schema}.{table}"

    def sql(self, statement: str, values: Mapping[str, Any] | None = None, **parts: Any) -> Any:  # noqa: ANN401
        """Return a statement that is executed without parameters: names in it may contain a `%`, which they would read.

        `values` are those of its `%(name)s`, `parts` those of its `{name}`.
        """
        from psycopg2 import sql  # noqa: PLC0415

        literals = {f"value_{name}": sql.Literal(value) for name, value in (values or {}).items()}
        return sql.SQL(_VALUE.sub(r"{value_\1}", statement)).format(
            table=sql.Identifier(self.schema, self.table),
            commits=sql.Identifier(self.schema, COMMITS),
            batch_time=sql.Identifier(BATCH_TIME),
            **literals,
            **parts,
        )

    def key_of(self, attempt: OutputAttempt) -> dict[str, Any]:
        """Return the values that identify the output's batch in the commits."""
        return {
            "target": self.target,
            "pipeline": attempt.pipeline,
            "output": attempt.output,
            "pipeline_id": attempt.pipeline_id,
            "batch_time": attempt.batch_time,
        }


def names_of(columns: Iterable[str]) -> Any:  # noqa: ANN401
    """Return names as a statement has them, with commas."""
    from psycopg2 import sql  # noqa: PLC0415

    return sql.SQL(", ").join(sql.Identifier(column) for column in columns)


def quoted(*names: str) -> str:
    """Quote names for `to_regclass`."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
