"""Keep a view of totals per key beside a table that has the rows of every batch.

The view sums what the table has, so that a replay, which replaces its batch's rows, corrects the totals too. All SQL
here runs on the target.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import SinkError
from orchestration.sinks.postgres.postgres_columns import MOST_NAME_BYTES, can_be_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OURS = "forebay_totals"
#: Types that Postgres surely can't add up, without what is in parentheses and behind them. Others may have a sum:
#: domains of numbers, types of extensions.
_NEVER_SUMMED = frozenset(
    {"text", "character varying", "character", "name", "boolean", "date", "timestamp", "bytea", "json", "jsonb"}
    | {"timestamp with time zone", "timestamp without time zone"}
)


@dataclass(frozen=True, slots=True)
class Totals:
    """Add up the rows of all batches in a view with one row per key; for `PostgresSink(mode="append")`.

    Args:
        view: its name, in the schema of the table.
        by: the columns of the key.
        sum: the columns to add up.

    Raises:
        DeclarationError: a name is missing, is none of Postgres, or is given twice.
    """

    view: str
    by: Sequence[str] | str
    sum: Sequence[str] | str

    def __post_init__(self) -> None:
        """Check the names."""
        if not can_be_name(self.view):
            message = f"Totals: view {self.view!r} is no name: give 1 to {MOST_NAME_BYTES} bytes, without NUL"
            raise DeclarationError(message)
        columns = [*self.key, *self.sums]
        names = all(isinstance(name, str) for name in columns)
        if not self.key or not self.sums or not names or len(set(columns)) != len(columns):
            message = (
                f"Totals {self.view!r}: by={list(self.key)}, sum={list(self.sums)}: name at least one column in each, "
                "and none twice"
            )
            raise DeclarationError(message)

    @property
    def key(self) -> tuple[str, ...]:
        """Return the columns of the key."""
        return (self.by,) if isinstance(self.by, str) else tuple(self.by)

    @property
    def sums(self) -> tuple[str, ...]:
        """Return the columns to add up."""
        return (self.sum,) if isinstance(self.sum, str) else tuple(self.sum)

    def declaration(self) -> dict[str, Any]:
        """Return what `forebay apply` writes."""
        return {"view": self.view, "by": list(self.key), "sum": list(self.sums)}

    def misfits(self, cursor: Any, schema: str, table: str, types: Mapping[str, str]) -> list[str]:  # noqa: ANN401
        """Return why the view can't be made. `types`: the table's columns, if they are known. Locks: none."""
        missing = [name for name in (*self.key, *self.sums) if types and name not in types]
        texts = [name for name in self.sums if name in types and types[name].partition("(")[0] in _NEVER_SUMMED]
        taken = self._taken(self._comment(cursor, schema), schema, table)
        return [
            *(f"the totals {self.view} name {name}, and the table has no such column" for name in missing),
            *(f"the totals {self.view} sum {name}, which is {types[name]} and no number" for name in texts),
            *([] if taken is None else [taken]),
        ]

    def make(self, cursor: Any, schema: str, table: str, *, where: str) -> None:  # noqa: ANN401  psycopg2 has no types
        """Make the view, or replace it if it was declared otherwise. Locks: the view alone, and only then.

        Raises SinkError if there is a relation of this name that was not made here.
        """
        from psycopg2 import sql  # noqa: PLC0415

        comment = json.dumps({_OURS: {"table": table, **self.declaration()}}, sort_keys=True)
        found = self._comment(cursor, schema)
        if found == comment:
            return
        view = sql.Identifier(schema, self.view)
        if found is not None:
            if (taken := self._taken(found, schema, table)) is not None:
                raise SinkError(f"{where}: {taken}")
            cursor.execute(sql.SQL("DROP VIEW {}").format(view))
        key = sql.SQL(", ").join(map(sql.Identifier, self.key))
        sums = sql.SQL(", ").join(sql.SQL("sum({0}) AS {0}").format(sql.Identifier(name)) for name in self.sums)
        cursor.execute(
            sql.SQL("CREATE VIEW {} AS SELECT {}, {} FROM {} GROUP BY {}").format(
                view, key, sums, sql.Identifier(schema, table), key
            )
        )
        cursor.execute(sql.SQL("COMMENT ON VIEW {} IS {}").format(view, sql.Literal(comment)))

    def _comment(self, cursor: Any, schema: str) -> str | None:  # noqa: ANN401
        """Return the comment of the relation that has the view's name; None: there is none. Locks: none."""
        cursor.execute(
            "SELECT coalesce(obj_description(c.oid, 'pg_class'), '') FROM pg_class c WHERE c.relname = %s "
            "AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s)",
            (self.view, schema),
        )
        found = cursor.fetchone()
        return None if found is None else str(found[0])

    def _taken(self, comment: str | None, schema: str, table: str) -> str | None:
        """Return what else has the view's name, if anything has."""
        if comment is None:
            return None
        try:
            of = json.loads(comment)[_OURS]["table"]
        except (ValueError, LookupError, TypeError):
            # Without our comment, or someone has edited it.
            what = "no view of totals"
        else:
            if of == table:
                return None
            what = f"the totals of {of}"
        return f"{schema}.{self.view} is there, and is {what}: choose another name, or drop it"
