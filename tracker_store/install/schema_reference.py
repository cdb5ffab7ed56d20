"""Write the reference of the driver log's schema as Markdown, read from the database (`forebay db describe`).

This module describes nothing itself: every sentence is a comment in the database or the header of a function's file. A
table, column or view without a comment comes out as a gap, which a test refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.install.programs import FUNCTIONS, function_source
from tracker_store.install.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADER = """# The driver log's schema

Everything lies in the schema `forebay`. This page is what `forebay db describe` prints; a test holds it to the
database. Views are for people and stay as they are; tables are the product's own, and may change with a migration.
"""

_RELATIONS = """
SELECT c.oid, c.relname AS name, c.relkind AS kind, obj_description(c.oid, 'pg_class') AS comment
FROM pg_catalog.pg_class c
WHERE c.relnamespace = CAST('forebay' AS regnamespace) AND c.relkind IN ('r', 'v') AND c.relname <> 'alembic_version'
ORDER BY c.relname COLLATE "C"
"""
_COLUMNS = """
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS required,
       CASE WHEN d.oid IS NOT NULL THEN pg_get_expr(d.adbin, d.adrelid) END AS preset,
       col_description(a.attrelid, a.attnum) AS comment
FROM pg_catalog.pg_attribute a
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = :oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# Without kinds that only later servers have: from PostgreSQL 18 on, NOT NULL is a named constraint too.
_CONSTRAINTS = """
SELECT conname AS name, pg_get_constraintdef(oid) AS definition FROM pg_catalog.pg_constraint
WHERE conrelid = :oid AND contype IN ('p', 'u', 'c', 'x', 'f')
ORDER BY array_position(ARRAY['p', 'u', 'x', 'f', 'c'], CAST(contype AS text)), conname COLLATE "C"
"""
_INDEXES = """
SELECT i.relname AS name, regexp_replace(pg_get_indexdef(x.indexrelid), '^CREATE (UNIQUE )?INDEX .* USING ', '\\1')
       AS definition
FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
WHERE x.indrelid = :oid
  AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_constraint k
                  WHERE k.conindid = x.indexrelid AND k.contype IN ('p', 'u', 'x'))
ORDER BY i.relname COLLATE "C"
"""
_TRIGGERS = """
SELECT pg_get_triggerdef(oid) AS definition FROM pg_catalog.pg_trigger
WHERE tgrelid = :oid AND NOT tgisinternal ORDER BY tgname COLLATE "C"
"""
_FUNCTION = """
SELECT pg_get_function_identity_arguments(oid) AS arguments, pg_get_function_result(oid) AS result
FROM pg_catalog.pg_proc WHERE pronamespace = CAST('forebay' AS regnamespace) AND proname = :name
"""


def _rows(connection: sa.Connection, query: str, **values: object) -> Sequence[sa.Row[Any]]:
    with named_failures():
        return connection.execute(sa.text(query), values).all()


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


def _columns(connection: sa.Connection, oid: int, *, view: bool) -> list[str]:
    lines = ["| column | type | |", "|---|---|---|"]
    for row in _rows(connection, _COLUMNS, oid=oid):
        notes = [_cell(row.comment)]
        if not view and not row.required:
            notes.append("(may be null)")
        if row.preset is not None:
            notes.append(f"(default `{_cell(row.preset)}`)")
        lines.append(f"| `{row.name}` | {row.type} | {' '.join(notes)} |")
    return lines


def _relation(connection: sa.Connection, relation: sa.Row[Any]) -> list[str]:
    view = relation.kind == "v"
    lines = [f"### `{relation.name}`", "", relation.comment or "", ""]
    lines += [*_columns(connection, relation.oid, view=view), ""]
    if view:
        return lines
    constraints = [f"- `{row.name}`: `{row.definition}`" for row in _rows(connection, _CONSTRAINTS, oid=relation.oid)]
    indexes = [f"- `{row.name}`: `{row.definition}`" for row in _rows(connection, _INDEXES, oid=relation.oid)]
    if constraints:
        lines += ["Constraints:", "", *constraints, ""]
    if indexes:
        lines += ["Indexes:", "", *indexes, ""]
    triggers = [f"- `{row.definition}`" for row in _rows(connection, _TRIGGERS, oid=relation.oid)]
    if triggers:
        lines += ["Triggers:", "", *triggers, ""]
    return lines


def function_header(name: str) -> str:
    """Return the comment at the beginning of a function's file, as one text."""
    header: list[str] = []
    for line in function_source(name).splitlines():
        if not line.startswith("--"):
            break
        header.append(line.removeprefix("--").removeprefix(" "))
    return "\n".join(header).strip()


def _function(connection: sa.Connection, name: str) -> list[str]:
    [row] = _rows(connection, _FUNCTION, name=name)
    who = [f"`{role}`" for role, rights in ROLES.items() if name in rights.functions]
    return [
        f"### `{name}`",
        "",
        function_header(name).removeprefix(f"{name}: "),
        "",
        "```sql",
        f"{name}({row.arguments})",
        f"RETURNS {row.result}",
        "```",
        "",
        f"May be executed by {', '.join(who)}." if who else "Only triggers call it.",
        "",
    ]


def _role(name: str) -> list[str]:
    role = ROLES[name]
    lines = [f"### `{name}`", "", f"For {role.purpose}.", ""]
    lines += [f"- EXECUTE: {', '.join(f'`{function}`' for function in role.functions)}"]
    by_rights: dict[str, list[str]] = {}
    for table, rights in role.tables.items():
        by_rights.setdefault(", ".join(rights), []).append(table)
    lines += [f"- {rights}: {', '.join(f'`{table}`' for table in tables)}" for rights, tables in by_rights.items()]
    return [*lines, ""]


def describe(connection: sa.Connection) -> str:
    """Return the whole page. No locks."""
    # The search path decides whether names come with their schema; set it, so that the page is always the same.
    path = connection.exec_driver_sql("SELECT current_setting('search_path')").scalar_one()
    connection.exec_driver_sql("SELECT set_config('search_path', 'forebay, pg_catalog', false)")
    try:
        relations = _rows(connection, _RELATIONS)
        lines = [_HEADER, "## Views", ""]
        for relation in relations:
            if relation.kind == "v":
                lines += _relation(connection, relation)
        lines += ["## Tables", ""]
        for relation in relations:
            if relation.kind == "r":
                lines += _relation(connection, relation)
        lines += ["## Functions", ""]
        for name in FUNCTIONS:
            lines += _function(connection, name)
    finally:
        connection.execute(sa.text("SELECT set_config('search_path', :path, false)"), {"path": path})
    lines += ["## Roles", "", "A login becomes a member of one: `GRANT forebay_operator TO anna`.", ""]
    for role in ROLES:
        lines += _role(role)
    return "\n".join(lines).rstrip() + "\n"
