"""Try every table, view and function with every role: what the matrix does not grant is refused, and nothing else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from tests.integration.tracker_store.install.test_roles import INSUFFICIENT_PRIVILEGE, acting_as
from tracker_store.connection.engine import connect
from tracker_store.install.programs import is_trigger_function
from tracker_store.install.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_COLUMNS = """
SELECT c.relname AS name, c.relkind AS kind,
    array_agg(quote_ident(a.attname) ORDER BY a.attnum) AS columns
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'forebay'::regnamespace AND c.relkind IN ('r', 'v')
GROUP BY c.relname, c.relkind ORDER BY c.relname
"""
_FUNCTIONS = """
SELECT p.proname AS name, coalesce(
    (SELECT string_agg(format('NULL::%s', format_type(t.type, NULL)), ', ' ORDER BY t.n)
     FROM unnest(p.proargtypes) WITH ORDINALITY AS t(type, n)), '') AS arguments
FROM pg_proc p WHERE p.pronamespace = 'forebay'::regnamespace ORDER BY p.proname
"""


def granted_columns(rights: Sequence[str], verb: str, columns: Sequence[str]) -> set[str]:
    """Return the columns on which a role has a right, from what GRANT takes."""
    found: set[str] = set()
    for right in rights:
        match = re.fullmatch(rf"{verb}(?: \((.*)\))?", right)
        if match:
            found |= set(columns) if match[1] is None else set(match[1].split(", "))
    return {column for column in columns if column.strip('"') in found or column in found}


def is_permitted(connection: sa.Connection, statement: str) -> bool:
    """Return whether the role may run a statement. EXPLAIN checks the rights and runs nothing."""
    try:
        connection.exec_driver_sql(f"EXPLAIN {statement}")
    except DBAPIError as error:
        if getattr(error.orig, "pgcode", None) != INSUFFICIENT_PRIVILEGE:
            raise
        return False
    return True


def attempts(name: str, kind: str, columns: Sequence[str]) -> Iterator[tuple[str, str, str | None]]:
    """Give (verb, statement, column) for everything that can be tried with a table or view."""
    for column in columns:
        yield "SELECT", f"SELECT {column} FROM forebay.{name}", column
    if kind == "r":
        for column in columns:
            yield "INSERT", f"INSERT INTO forebay.{name} ({column}) VALUES (DEFAULT)", column
            yield "UPDATE", f"UPDATE forebay.{name} SET {column} = DEFAULT", column
        yield "DELETE", f"DELETE FROM forebay.{name}", None


@pytest.mark.parametrize("role", ROLES)
def test_every_cell_of_tables_and_views(engine: sa.Engine, role: str) -> None:
    with connect(engine) as owner:
        relations = owner.execute(sa.text(_COLUMNS)).all()
    assert set(ROLES[role].tables) <= {relation.name for relation in relations}
    wrong = []
    with acting_as(engine, role) as connection:
        for relation in relations:
            rights = ROLES[role].tables.get(relation.name, ())
            for verb, statement, column in attempts(relation.name, relation.kind, relation.columns):
                expected = (
                    verb in rights if column is None else column in granted_columns(rights, verb, relation.columns)
                )
                if is_permitted(connection, statement) is not expected:
                    wrong.append((statement, "is refused" if expected else "is permitted"))
    assert wrong == []


@pytest.mark.parametrize("role", ROLES)
def test_every_cell_of_functions(engine: sa.Engine, role: str) -> None:
    with connect(engine) as owner:
        functions = [row for row in owner.execute(sa.text(_FUNCTIONS)).all() if not is_trigger_function(row.name)]
    wrong = []
    with acting_as(engine, role) as connection:
        for function in functions:
            expected = function.name in ROLES[role].functions
            if is_permitted(connection, f"SELECT forebay.{function.name}({function.arguments})") is not expected:
                wrong.append((function.name, "is refused" if expected else "is permitted"))
    assert wrong == []
