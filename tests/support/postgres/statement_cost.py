"""Count the rows that a statement visits, also one inside a PL/pgSQL function: growth is tested by these, not by time.

The embedded server has no auto_explain: the text of a nested statement is taken from the installed function, and its
variables become parameters of a prepared statement, which is what PL/pgSQL makes of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Mapping

_REMOVED = ("Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck")


def nodes_of(connection: sa.Connection, query: str, **values: object) -> list[dict[str, Any]]:
    """Execute a query; return the nodes of its plan."""
    explained = sa.text(f"EXPLAIN (ANALYZE, TIMING OFF, BUFFERS, FORMAT JSON) {query}")
    [[tree]] = connection.execute(explained, values).scalars()
    found: list[dict[str, Any]] = []
    waiting = [tree["Plan"]]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting += node.get("Plans", [])
    return found


def visited_rows(nodes: list[dict[str, Any]]) -> int:
    """Return how many rows the nodes returned or threw away, in all their loops."""
    return int(
        sum(node["Actual Loops"] * sum(node.get(name, 0) for name in ("Actual Rows", *_REMOVED)) for node in nodes)
    )


def buffers(nodes: list[dict[str, Any]]) -> int:
    """Return how many pages the whole statement read, from the cache or not (its root counts those of all nodes)."""
    return int(nodes[0]["Shared Hit Blocks"] + nodes[0]["Shared Read Blocks"])


class NestedStatement:
    """A statement of a function, prepared with the function's settings and a generic plan, as a long session has it."""

    def __init__(
        self, connection: sa.Connection, function: str, *, begins: str, variables: Mapping[str, tuple[str, str]]
    ) -> None:
        """Prepare the statement of `function` that begins with `begins`; `variables`: name to (type, value as SQL)."""
        self._connection = connection
        [source, settings] = connection.execute(
            sa.text("SELECT prosrc, proconfig FROM pg_proc WHERE oid = CAST(:name AS regproc)"),
            {"name": f"forebay.{function}"},
        ).one()
        body = re.sub(r"--[^\n]*", "", source)
        start = body.index(begins)
        body = body[start : body.index(";\n", start)]
        body = re.sub(r"\bINTO (?!\w+ \(|\w+ AS \w+ \()\w+(, \w+)*", "", body)
        for number, name in enumerate(variables, start=1):
            body = re.sub(rf"(?<![.\w\"]){re.escape(name)}(?!\w|\()", f"${number}", body)
        for setting in [*settings, "plan_cache_mode=force_generic_plan"]:
            name, value = setting.split("=", 1)
            connection.exec_driver_sql(f"SET {name} = {value}")
        types = ", ".join(kind for kind, _ in variables.values())
        self._name = f"nested_{function}"
        self._values = ", ".join(value for _, value in variables.values())
        connection.exec_driver_sql("DEALLOCATE ALL")
        connection.exec_driver_sql(f"PREPARE {self._name} ({types}) AS {body}".replace("%", "%%"))

    def nodes(self) -> list[dict[str, Any]]:
        """Execute it; return the nodes of its plan."""
        return nodes_of(self._connection, f"EXECUTE {self._name}({self._values})".replace(":", "\\:"))
