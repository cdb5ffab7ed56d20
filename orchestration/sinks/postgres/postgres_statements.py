"""Make the sink's statements on a table of the target. Must not execute one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from orchestration.sinks.batch_column import BATCH_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from orchestration.declarations.sink import OutputAttempt

COMMITS = "forebay_commits"
_VALUE = re.compile(r"%\((\w+)\)s")


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
